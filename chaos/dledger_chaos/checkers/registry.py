"""The list of all checks. `docs/promises.md` has the same names and promises."""

from __future__ import annotations

from typing import Final

from . import (
    assignments,
    committed,
    consuming,
    grey,
    later,
    linearizability,
    locks,
    logs,
    order,
    pops,
    processes,
    reads,
    recovery,
    replies,
    resets,
    standing,
    stored,
    traces,
    transactions,
)
from .base import Check

_MESSAGES: Final = frozenset(
    {
        *("append", "ordered", "orderly", "consumers", "followers", "retention"),
        *("delays", "retries", "transactions", "pops", "replies", "resets", "filtered", "broadcast", "grpc", "cpp"),
    }
)
_READS: Final = frozenset(
    {
        *("followers", "retention", "consumers", "orderly", "resets", "filtered", "broadcast"),
        *("delays", "retries", "transactions", "replies", "cpp"),
    }
)
_OURS: Final = frozenset({"local"})
"""Targets whose nodes are this project's brokers."""
_OUR_NODES: Final = frozenset({"local", "register"})
"""Targets whose nodes run this project's code and print its log lines."""

CHECKS: Final[tuple[Check, ...]] = (
    Check("lost", "an acknowledged message stays where it was stored, on every node", stored.lost, _MESSAGES),
    Check("phantom", "every stored message was sent by a client", stored.phantom, _MESSAGES),
    Check("refused", "a send that was refused as not stored is not stored", stored.refused, _MESSAGES),
    Check("duplicated", "a message that was sent once is stored once", stored.duplicated, _MESSAGES),
    Check(
        "idempotent",
        "an idempotent send is stored once, however often it is repeated",
        stored.idempotent,
        stored.IDEMPOTENT,
        _OURS,
        stored.idempotence_is_promised,
    ),
    Check("offset-given-twice", "no queue offset is given to two messages", stored.offset_given_twice, _MESSAGES),
    Check("gaps", "queue offsets have no gaps", stored.gaps, _MESSAGES),
    Check("torn-batch", "a batch is stored whole or not at all", stored.torn_batch, frozenset({"append"})),
    Check(
        "reordered",
        "a message that is sent after an acknowledgement lies behind the acknowledged message",
        order.reordered,
        _MESSAGES,
    ),
    Check(
        "key-order", "messages with one ordering key keep their order", order.reordered_by_key, frozenset({"ordered"})
    ),
    Check(
        "diverged",
        "the logs of all replicas are equal, byte by byte",
        logs.diverged,
        _MESSAGES | {"registers"},
        _OUR_NODES,
    ),
    Check(
        "unqueued",
        "every message of the log is in its queue, and every message of a queue is in the log",
        logs.unqueued,
        _MESSAGES,
        _OURS,
    ),
    Check(
        "orphaned",
        "an acknowledged message was stored in its topic, even if the topic is deleted meanwhile",
        logs.orphaned,
        frozenset({"passing"}),
        _OURS,
    ),
    Check("two-values", "a queue offset never holds two different messages", reads.two_values, _MESSAGES),
    Check("dirty-read", "readers are shown only messages that stay stored", reads.dirty, _READS),
    Check(
        "unreadable",
        "an acknowledged message can be read at once, by offset, id and key",
        reads.unreadable,
        frozenset({"append", "followers"}),
    ),
    Check(
        "retention",
        "a reader of trimmed messages is told the offset to go on at",
        reads.retention,
        frozenset({"retention"}),
    ),
    Check("offset-back", "a committed consumer offset does not go back", committed.offset_back, frozenset({"offsets"})),
    Check("undelivered", "a consumer group is given every message", consuming.undelivered, frozenset(consuming.GROUPS)),
    Check(
        "standing-still",
        "once faults are healed, a queue's messages reach each group within 8 s, and ordered consumers within 75 s",
        standing.standing_still,
        standing.WORKLOADS,
        happened=standing.converged,
    ),
    Check(
        "delivery-order",
        "the first deliveries of a queue's messages to a consumer group are in order",
        consuming.delivered_out_of_order,
        frozenset({"consumers"}),
    ),
    Check(
        "due",
        "a delayed message is delivered once, not before it is due, and never if its recall was acknowledged",
        later.due,
        frozenset({"delays"}),
        _OURS,
    ),
    Check(
        "punctual",
        "without faults, 99 of 100 delayed messages are delivered within a second after they are due",
        later.punctual,
        frozenset({"delays"}),
        _OURS,
        later.punctuality_measured,
    ),
    Check(
        "dead-letter",
        "a message that is sent back is delivered again later, once for each acknowledgement, or is a dead letter",
        later.sent_back,
        frozenset({"retries"}),
        _OURS,
    ),
    Check(
        "half",
        "a transaction is seen once if it is committed, not before a client asks for the commit, and never if it is "
        "rolled back",
        transactions.half,
        frozenset({"transactions"}),
        _OURS,
    ),
    Check(
        "unasked",
        "brokers ask a producer about a transaction that no client ends",
        transactions.unasked,
        frozenset({"transactions"}),
        _OURS,
    ),
    Check(
        "lock",
        "one member of a consumer group at a time has the lock of a queue",
        locks.one_owner,
        frozenset({"locks"}),
        _OURS,
    ),
    Check(
        "in-turn",
        "ordered consumers handle a queue's messages one by one in order, one member at a time",
        locks.handled_in_order,
        frozenset({"orderly"}),
    ),
    Check(
        "popped",
        "a popped message is hidden for its invisible time. After each delivery it is delivered again once, but never "
        "after an answered acknowledgement. In the end it is acknowledged",
        pops.popped,
        pops.WORKLOADS,
        _OURS,
    ),
    Check(
        "popped-in-turn",
        "a queue that is popped in order shows a message only after all earlier messages are acknowledged",
        pops.in_order,
        pops.WORKLOADS,
        _OURS,
    ),
    Check(
        "replied",
        "a request ends with its own reply, or with its time limit; if a replier is answered 0, its reply was "
        "delivered",
        replies.replied,
        frozenset({"replies"}),
        _OURS,
    ),
    Check(
        "reset",
        "a consumer group goes on at the offset of its reset, and no commit of earlier reads undoes that",
        resets.obeyed,
        frozenset({"resets"}),
        _OURS,
    ),
    Check(
        "filtered",
        "a consumer group with a filter (SQL92, tags or class) is given every message that matches, and no other",
        consuming.filtered,
        frozenset({"filtered"}),
    ),
    Check("broadcast", "a broadcasting member is given every message", consuming.broadcast, frozenset({"broadcast"})),
    Check(
        "assigned",
        "members of a consumer group share its queues as the brokers assign them",
        assignments.assigned,
        frozenset({"assignments"}),
        _OURS,
    ),
    Check(
        "request-mode",
        "under every leader, a consumer group's request mode is the mode that was set last",
        linearizability.request_modes,
        frozenset({"assignments"}),
        _OURS,
    ),
    Check(
        "traced",
        "the trace of a send says the same as the answer to the producer",
        traces.traced,
        frozenset({"filtered"}),
    ),
    Check(
        "catalogue",
        "topics and consumer groups exist from their creation to their deletion",
        linearizability.catalogue,
        frozenset({"catalogue"}),
    ),
    Check(
        "linearizable",
        "registers and logs behave like one copy",
        linearizability.linearizable,
        frozenset({"registers"}),
    ),
    Check(
        "failover",
        "after the kill of a leader, clients wait at most 1.5 s in half of all cases, and 3 s in 99 of 100",
        recovery.failover,
        frozenset({"append"}),
        _OURS,
        recovery.failover_measured,
    ),
    Check(
        "grey",
        "beside a node whose disk, network or processor is ten times slower, clients wait at most 5 s",
        grey.beside_a_grey_node,
        frozenset({"append"}),
        _OURS,
        grey.measured,
    ),
    Check("recovered", "once faults are healed, a group is whole again within 90 s", processes.recovered),
    Check(
        "ended",
        "a node ends only on request or if its disk fails; a name server never ends by itself",
        processes.ended,
        targets=_OUR_NODES,
    ),
    Check(
        "resources", "a node uses at most 512 MiB of memory and 512 open files", processes.resources, targets=_OUR_NODES
    ),
    Check("errors", "no node prints an error that no fault explains", processes.unexpected_errors, targets=_OUR_NODES),
)

"""Every check there is, by the name that its promise has in `docs/promises.md`."""

from __future__ import annotations

from typing import Final

from . import (
    assignments,
    committed,
    consuming,
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
    stored,
    traces,
    transactions,
)
from .base import Check

_MESSAGES: Final = frozenset(
    {
        *("append", "ordered", "orderly", "consumers", "followers", "retention"),
        *("delays", "retries", "transactions", "pops", "replies", "resets", "filtered", "broadcast", "cpp"),
    }
)
_READS: Final = frozenset(
    {
        *("followers", "retention", "consumers", "orderly", "resets", "filtered", "broadcast"),
        *("delays", "retries", "transactions", "replies", "cpp"),
    }
)
_OURS: Final = frozenset({"local"})
"""Targets whose directories are those of this project's brokers."""
_OUR_NODES: Final = frozenset({"local", "register"})
"""Targets whose processes are this project's, and print its log lines."""

CHECKS: Final[tuple[Check, ...]] = (
    Check("lost", "an acknowledged message stays where it was stored, on every node", stored.lost, _MESSAGES),
    Check("phantom", "nothing is stored that nobody sent", stored.phantom, _MESSAGES),
    Check("refused", "what was refused as not stored is not stored", stored.refused, _MESSAGES),
    Check("duplicated", "what was sent once is stored once", stored.duplicated, _MESSAGES),
    Check(
        "idempotent",
        "an idempotent send is stored once, however often it is repeated",
        stored.idempotent,
        frozenset({"append"}),
        _OURS,
        stored.idempotence_is_promised,
    ),
    Check("offset-given-twice", "no queue offset is given to two messages", stored.offset_given_twice, _MESSAGES),
    Check("gaps", "queue offsets have no gaps", stored.gaps, _MESSAGES),
    Check("torn-batch", "a batch is stored whole or not at all", stored.torn_batch, frozenset({"append"})),
    Check("reordered", "what is sent after an acknowledgement lies behind it", order.reordered, _MESSAGES),
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
    Check("unqueued", "what is in the log is in its queue, and the other way round", logs.unqueued, _MESSAGES, _OURS),
    Check(
        "orphaned",
        "an acknowledged message was in its topic, even if that is deleted meanwhile",
        logs.orphaned,
        frozenset({"passing"}),
        _OURS,
    ),
    Check("two-values", "a queue offset holds one message for ever", reads.two_values, _MESSAGES),
    Check("dirty-read", "only what stays is ever shown to a reader", reads.dirty, _READS),
    Check(
        "unreadable",
        "an acknowledged message can be found at once",
        reads.unreadable,
        frozenset({"append", "followers"}),
    ),
    Check("retention", "a reader who comes too late is told where to go on", reads.retention, frozenset({"retention"})),
    Check("offset-back", "a committed consumer offset does not go back", committed.offset_back, frozenset({"offsets"})),
    Check("undelivered", "a consumer group is given everything", consuming.undelivered, frozenset(consuming.GROUPS)),
    Check(
        "delivery-order",
        "a consumer group is first given a queue's messages in order",
        consuming.delivered_out_of_order,
        frozenset({"consumers"}),
    ),
    Check(
        "due",
        "a delayed message is delivered once, not before it is due, and never once it was answered as taken back",
        later.due,
        frozenset({"delays"}),
        _OURS,
    ),
    Check(
        "punctual",
        "while nothing is wrong, 99 of 100 delayed messages come within a second after they are due",
        later.punctual,
        frozenset({"delays"}),
        _OURS,
        later.punctuality_measured,
    ),
    Check(
        "dead-letter",
        "a message that is sent back comes again once for each acknowledgement, later, or is a dead letter",
        later.sent_back,
        frozenset({"retries"}),
        _OURS,
    ),
    Check(
        "half",
        "a transaction is seen once if it is committed, not before that is asked for, and never if it is rolled back",
        transactions.half,
        frozenset({"transactions"}),
        _OURS,
    ),
    Check(
        "unasked",
        "a transaction that nobody ends is asked about",
        transactions.unasked,
        frozenset({"transactions"}),
        _OURS,
    ),
    Check("lock", "one member of a group at a time has a queue", locks.one_owner, frozenset({"locks"}), _OURS),
    Check(
        "in-turn",
        "ordered consumers handle a queue's messages one by one in order, one member at a time",
        locks.handled_in_order,
        frozenset({"orderly"}),
    ),
    Check(
        "popped",
        "a popped message is hidden for its time, comes again once for each delivery that is over, never after an "
        "answered acknowledgement, and is acknowledged in the end",
        pops.popped,
        frozenset({"pops"}),
        _OURS,
    ),
    Check(
        "popped-in-turn",
        "a queue that is popped in order shows nothing before all in front of it is acknowledged",
        pops.in_order,
        frozenset({"pops"}),
        _OURS,
    ),
    Check(
        "replied",
        "a request ends with a reply of its own, or with its time; a replier that hears 0 was heard",
        replies.replied,
        frozenset({"replies"}),
        _OURS,
    ),
    Check(
        "reset",
        "a consumer group that is reset goes on there, and no commit of what was read before undoes that",
        resets.obeyed,
        frozenset({"resets"}),
        _OURS,
    ),
    Check(
        "filtered",
        "a group that filters, by SQL92, tags or class, is given every message that its filter takes, and no other",
        consuming.filtered,
        frozenset({"filtered"}),
    ),
    Check("broadcast", "a member that broadcasts is given everything", consuming.broadcast, frozenset({"broadcast"})),
    Check(
        "assigned",
        "members of a consumer group share its queues as the brokers assign them",
        assignments.assigned,
        frozenset({"assignments"}),
        _OURS,
    ),
    Check(
        "request-mode",
        "how a consumer group is told to consume is what was set last, whoever leads",
        linearizability.request_modes,
        frozenset({"assignments"}),
        _OURS,
    ),
    Check("traced", "a trace tells of a send what its producer was told", traces.traced, frozenset({"filtered"})),
    Check(
        "catalogue", "topics and groups are what they were made", linearizability.catalogue, frozenset({"catalogue"})
    ),
    Check(
        "linearizable",
        "registers and logs behave like one copy",
        linearizability.linearizable,
        frozenset({"registers"}),
    ),
    Check(
        "failover",
        "after the kill of a leader clients wait at most 1.5 s in half of all cases, 3 s in 99 of 100",
        recovery.failover,
        frozenset({"append"}),
        _OURS,
        recovery.failover_measured,
    ),
    Check("recovered", "once faults are healed, a group is whole again within 90 s", processes.recovered),
    Check(
        "ended",
        "a node ends only if it is told to, or its disk fails, a name server never",
        processes.ended,
        targets=_OUR_NODES,
    ),
    Check(
        "resources", "a node uses at most 512 MiB of memory and 512 open files", processes.resources, targets=_OUR_NODES
    ),
    Check("errors", "no node prints an error that no fault explains", processes.unexpected_errors, targets=_OUR_NODES),
)

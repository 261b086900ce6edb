"""Limits of what clients may take of a node; each has a counter of that name, without `_ms`, in the metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dledger.config_keys.declared import key
from dledger_remoting.filters.limits import MAX_DEPTH, MAX_EXPRESSION_CHARS, MAX_OPERANDS

MIB: Final = 1 << 20
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What clients may take of a node."""

    max_connections: int = key(
        10_000,
        "clients at a time",
        consequence="one more is closed at once. A start raises the limit of open files as far as they need, and takes "
        "fewer, with a warning, where the system does not allow that (`ulimit -n`): 2,048 files, at most half of them "
        "all, stay the node's own",
        bounds=(1, 1_000_000),
    )
    max_connections_per_host: int = key(
        1_000_000,
        "clients at a time from one address, which a proxy or a router may give to many",
        consequence="one more is closed at once; those that are open stay when it is lowered",
        bounds=(1, 1_000_000),
        live=True,
    )
    max_in_flight: int = key(
        4_096,
        "requests of one connection that are not done yet, oneway ones among them",
        consequence="reading pauses beyond",
        bounds=(1, 1_000_000),
    )
    max_held_pulls: int = key(
        16_384,
        "long polls of one connection",
        consequence="one more is answered at once",
        bounds=(1, 1_000_000),
    )
    max_frame_bytes: int = key(
        16 * MIB,
        "largest request",
        consequence="a larger one closes its connection",
        bounds=(1_024, 64 * MIB),
    )
    max_partial_bytes: int = key(
        64 * MIB,
        "what all connections together have sent of requests that have not fully arrived; at least twice "
        "`max_frame_bytes`",
        consequence="when only a quarter is left, or room for one largest request, those who send large ones [take "
        "turns](decisions/turns-for-large-requests.md); beyond it those who hold most and make no use of a turn are "
        "closed",
        bounds=(2_048, 1 << 40),
    )
    slow_sender_timeout_ms: int = key(
        2_000,
        "how long a turn lasts",
        consequence="a connection whose request has not arrived then, while others wait, is closed. Stock clients, "
        "which give up after 3 s, can wait for a turn and have one",
        bounds=(10, _DAY_MS),
    )
    pause_outgoing_bytes: int = key(
        4 * MIB,
        "unread answers at which reading from a connection pauses",
        bounds=(1_024, 1 << 30),
        below=("max_outgoing_bytes", "connections would be dropped before they are slowed down"),
    )
    max_outgoing_bytes: int = key(64 * MIB, "unread answers at which a connection is dropped", bounds=(1_024, 1 << 32))
    slow_reader_timeout_ms: int = key(
        30_000,
        "how long a connection may stay at `pause_outgoing_bytes` before it is dropped",
        bounds=(10, _DAY_MS),
    )
    idle_timeout_ms: int = key(120_000, "silence after which a connection is closed", bounds=(10, _DAY_MS))
    max_forward_bytes: int = key(
        64 * MIB,
        "requests that wait for a leader",
        consequence="one more is answered 2",
        bounds=(1_024, 1 << 32),
    )
    max_relayed_calls: int = key(
        1_000,
        "requests of the broker that clients have not answered",
        consequence="one more is not sent",
        bounds=(1, 1_000_000),
    )
    max_locks_per_group: int = key(
        4_096,
        "queues that the members of one consumer group have locked, and that one request names",
        consequence="those beyond are not granted",
        bounds=(1, 100_000),
        live=True,
    )
    max_pop_in_flight: int = key(
        20_000,
        "messages of a queue that a consumer group has popped and not acknowledged",
        consequence="further pops are answered 209",
        bounds=(32, 1_000_000),
        live=True,
    )
    max_request_modes: int = key(
        100_000,
        "topics of consumer groups of which is set whether they are pulled or popped",
        consequence="one more is refused",
        bounds=(1, 10_000_000),
        live=True,
    )
    max_pending_resets: int = key(
        1_000_000,
        "queues of consumer groups that are [reset](wire.md#resets) where no consumer has seen it",
        consequence="one more is refused",
        bounds=(1, 100_000_000),
    )
    max_filter_chars: int = key(
        MAX_EXPRESSION_CHARS,
        "characters in the expression of a subscription, by tags, properties or class",
        consequence="a longer one is answered 23",
        bounds=(1, MAX_EXPRESSION_CHARS),
        live=True,
    )
    max_filter_depth: int = key(
        MAX_DEPTH,
        "levels that an expression in SQL92 is nested",
        consequence="a deeper one is answered 23",
        bounds=(1, MAX_DEPTH),
    )
    max_filter_operands: int = key(
        MAX_OPERANDS,
        "literals and names of properties in an expression in SQL92",
        consequence="one with more is answered 23",
        bounds=(1, 32_767),
    )
    max_class_filter_waits: int = key(
        256,
        "pulls and pops that wait for a [class filter](#class-filters)",
        consequence="one more is answered 2",
        bounds=(1, 100_000),
    )

"""Keys for limits on what clients may take from a node. Each limit has a counter of its name, without `_ms`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dledger_base.config_keys.declared import key, limit
from dledger_remoting.filters.limits import MAX_DEPTH, MAX_EXPRESSION_CHARS, MAX_OPERANDS

MIB: Final = 1 << 20
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on what clients may take from a node."""

    max_connections: int = key(
        10_000,
        "maximum number of connected clients",
        consequence="a further client takes the place of a connection that has sent no request yet or, with access "
        "control, no request signed for an account; if there is none, the client is refused. At the start a node "
        "raises its limit of open files (`ulimit -n`) as needed. If the system does not allow that, the node logs a "
        "warning and takes fewer clients. It keeps 2,048 files for itself, but at most half of all",
        bounds=(1, 1_000_000),
    )
    max_connections_per_host: int = key(
        1_000_000,
        "maximum number of connections from one address; clients behind a proxy or a router share one",
        consequence="a further one is closed at once; open ones stay when the limit is lowered. With access control, "
        "connections that have signed for an account do not count",
        bounds=(1, 1_000_000),
        live=True,
    )
    max_in_flight: int = limit(
        4_096,
        "maximum number of unfinished requests of one connection, one-way requests included",
        consequence="at the maximum, reading from the connection pauses",
        bounds=(1, 1_000_000),
    )
    max_held_pulls: int = limit(
        16_384,
        "maximum number of long polls of one connection that wait",
        consequence="a further one is answered at once",
        bounds=(1, 1_000_000),
    )
    max_frame_bytes: int = limit(
        16 * MIB,
        "maximum size of a request",
        consequence="a larger one closes its connection",
        bounds=(1_024, 64 * MIB),
    )
    max_partial_bytes: int = limit(
        64 * MIB,
        "maximum memory for requests that have partly arrived, of all connections together; at least twice "
        "`max_frame_bytes`",
        consequence="when only a quarter of it is left, or room for one largest request, connections with large "
        "requests [take turns](decisions/turns-for-large-requests.md). Beyond it, the connections that hold most and "
        "make no use of a turn are closed",
        bounds=(2_048, 1 << 40),
    )
    slow_sender_timeout_ms: int = limit(
        2_000,
        "length of a turn",
        consequence="while others wait, a connection whose request has not arrived by then is closed. Stock clients "
        "give up after 3 s; that is enough to wait for a turn and have one",
        bounds=(10, _DAY_MS),
    )
    pause_outgoing_bytes: int = limit(
        4 * MIB,
        "size of the answers that a client has not read, at which reading from its connection pauses",
        bounds=(1_024, 1 << 30),
        below=("max_outgoing_bytes", "connections would be dropped before they are slowed down"),
    )
    max_outgoing_bytes: int = limit(
        64 * MIB,
        "size of the answers that a client has not read, at which the client is disconnected",
        bounds=(1_024, 1 << 32),
    )
    max_unread_bytes: int = limit(
        128 * MIB,
        "maximum size of the answers that clients have not read, of all connections together",
        consequence="beyond it the clients that left most unread are disconnected",
        bounds=(1 << 20, 1 << 40),
    )
    slow_reader_timeout_ms: int = limit(
        30_000,
        "time limit for a client that has left `pause_outgoing_bytes` unread; then the client is disconnected",
        bounds=(10, _DAY_MS),
    )
    idle_timeout_ms: int = limit(120_000, "silence after which a connection is closed", bounds=(10, _DAY_MS))
    max_forward_bytes: int = limit(
        64 * MIB,
        "maximum size of the requests that wait for a leader",
        consequence="a further one is answered 2",
        bounds=(1_024, 1 << 32),
    )
    max_relayed_calls: int = limit(
        1_000,
        "maximum number of requests from the broker that clients have not answered",
        consequence="a further one is not sent",
        bounds=(1, 1_000_000),
    )
    max_locks_per_group: int = limit(
        4_096,
        "maximum number of queues that the members of one consumer group have locked, and that one request names",
        consequence="further queues are not granted, and a request that names more is refused",
        bounds=(1, 100_000),
    )
    max_pop_in_flight: int = limit(
        20_000,
        "maximum number of messages of a queue that a consumer group has popped and not acknowledged",
        consequence="further pops are answered 209",
        bounds=(32, 1_000_000),
    )
    max_request_modes: int = limit(
        100_000,
        "maximum number of pairs of a consumer group and a topic for which a request mode (pull or pop) is set",
        consequence="a further one is refused",
        bounds=(1, 10_000_000),
    )
    max_pending_resets: int = limit(
        1_000_000,
        "maximum number of queues of consumer groups with a [reset](wire.md#resets) that no consumer has seen yet",
        consequence="a further one is refused",
        bounds=(1, 100_000_000),
    )
    max_topics: int = key(
        200_000,
        "maximum number of topics of a broker group, including topics for retries and dead letters",
        consequence="clients create no more; existing ones stay",
        bounds=(1, 100_000_000),
        live=True,
    )
    max_groups: int = key(
        100_000,
        "maximum number of consumer groups of a broker group",
        consequence="clients create no more; existing ones stay",
        bounds=(1, 100_000_000),
        live=True,
    )
    max_names_per_account: int = limit(
        10_000,
        "maximum number of topics and consumer groups that an account without an administrator's rights creates under "
        "one leader",
        consequence="the account creates no more until another node leads",
        bounds=(1, 100_000_000),
    )
    send_backs_per_second: int = limit(
        2_000,
        "maximum number of messages per second that an account sends back (36), or a consumer group if access control "
        "is off",
        consequence="further ones wait",
        bounds=(1, 1_000_000),
    )
    send_back_bytes_per_second: int = limit(
        32 * MIB,
        "maximum size of the messages that an account or consumer group sends back per second",
        consequence="further ones wait",
        bounds=(1_024, 1 << 40),
    )
    max_filter_chars: int = limit(
        MAX_EXPRESSION_CHARS,
        "maximum number of characters in the expression of a subscription, by tags, properties or class",
        consequence="a longer expression is answered 23",
        bounds=(1, MAX_EXPRESSION_CHARS),
    )
    max_filter_depth: int = limit(
        MAX_DEPTH,
        "maximum nesting depth of an expression in SQL92",
        consequence="a deeper expression is answered 23",
        bounds=(1, MAX_DEPTH),
    )
    max_filter_operands: int = limit(
        MAX_OPERANDS,
        "maximum number of literals and property names in an expression in SQL92",
        consequence="an expression with more is answered 23",
        bounds=(1, 32_767),
    )
    max_class_filter_waits: int = limit(
        256,
        "maximum number of pulls and pops that wait for a [class filter](#class-filters)",
        consequence="a further one is answered 2",
        bounds=(1, 100_000),
    )

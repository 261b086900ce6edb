"""Counters of a broker's clients, which the exporter reads at a scrape, and the histogram of send times."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Final

from dledger_broker.kernel.deliveries import Deliveries, TopicSizes

STOCK_BOUNDS_MS: Final = (1, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
"""RocketMQ's bounds, in ms, between classes of durations."""
BOUNDS_MS: Final[tuple[float, ...]] = tuple(
    sorted({*STOCK_BOUNDS_MS, *(round(0.1 * 1.25**step, 3) for step in range(52))})
)
"""Bounds of the classes used here, in ms. They are at most a quarter apart, so that quantiles are as exact."""


class PutTimes:
    """Histogram of messages by class of time.

    `counts` has an item for the times below each of `BOUNDS_MS`, and a last item for times beyond all bounds. It only
    grows.
    """

    __slots__ = ("counts", "longest_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.longest_ms = 0.0

    def took(self, seconds: float, messages: int) -> None:
        """Count messages that took this time."""
        time_ms = seconds * 1000
        self.counts[bisect_right(BOUNDS_MS, time_ms)] += messages
        self.longest_ms = max(self.longest_ms, time_ms)


def stock_counts(counts: Sequence[int]) -> list[int]:
    """Return the numbers of messages in RocketMQ's classes. The last class is beyond all bounds."""
    sums = [0, *accumulate(counts)]
    ends = [sums[BOUNDS_MS.index(bound) + 1] for bound in STOCK_BOUNDS_MS]
    return [end - begin for begin, end in zip([0, *ends], [*ends, sums[-1]], strict=True)]


def quantile_ms(counts: Sequence[int], part: float) -> float:
    """Return a time, ms, within which this part of the messages was stored, 0 without messages.

    Times beyond all bounds count as the last bound.
    """
    wanted = part * sum(counts)
    for bound, count in zip((*BOUNDS_MS, BOUNDS_MS[-1]), accumulate(counts), strict=True):
        if count >= wanted > 0:
            return bound
    return 0.0


_LIMIT: Final = "Number of times that the limit of this name acted; see the configuration reference"

HELP: Final[Mapping[str, str]] = {
    "requests": "Requests that this node has begun to handle, those that others passed on to it included",
    "messages_in": "Messages that sends have stored while this node led",
    "bytes_in": "Bytes of the records that sends have put into the log while this node led",
    "messages_out": "Messages that pulls and pops have got from this node",
    "bytes_out": "Bytes of all answers to clients that this node has written",
    "reads_found": "Reads of a queue, by pulls and pops, that got messages",
    "reads_missed": "Pulls that were answered without a message",
    "sends_failed": "Sends that failed, or whose outcome is unknown",
    "errors": "Requests answered with an error, whatever its code",
    "outcomes_unknown": "Requests answered with code 1 and outcome=unknown: they may have taken effect",
    "changes_untold": "Changes answered with 0 although a name server that can be reached had not been told",
    "connections_accepted": "Connections that clients have opened",
    "frames_refused": "Frames that broke the protocol, each of which closed its connection",
    "headers_refused": "Requests whose headers were too large, or had too many fields, to be decoded",
    "forwarded": "Requests of this node's clients that it has passed on to the leader",
    "forward_refusals": "Requests that other nodes passed on to this one although it did not lead",
    "forward_held": "Requests that had to wait until there was a leader to pass them on to",
    "forward_repeats": "Sends to the write alias that went to a leader again because the first one did not answer",
    "forward_expired": "Requests answered 14 because no leader appeared within forward_hold_ms",
    "group_time_waits_refused": "Requests answered 14 because 10,000 already waited for group time",
    "cold_reads": "Pulls and pops that waited for the disk because the page cache lacked their messages",
    "records_examined": "Messages whose properties were looked at for filters in SQL92",
    "range_reads": "Range reads of the log, as Spark makes them, that were answered",
    "range_reads_refused": "Range reads refused because this node lacks the requested role or position",
    "range_reads_held": "Range reads that were held back because sends needed the cores; see busy_range_bytes_per_s",
    "range_bytes_leader": "Bytes of the log that range reads got while this node led",
    "range_bytes_follower": "Bytes of the log that range reads got while this node followed",
    "range_bytes_learner": "Bytes of the log that range reads got while this node was a learner",
    "pins_overridden": "Trims that removed expired messages although a pin kept them, because a disk was too full",
    "idempotent_repeats": "Repeated sends that were answered like the first one, and not stored",
    "idempotent_waits": "Repeated sends that had to wait, for the outcome of the first send or a new leader's index",
    "idempotent_overflow": "Idempotent sends that were stored but not remembered, because of max_idempotent_keys",
    "max_open_halves": _LIMIT,
    "max_connections": _LIMIT,
    "max_connections_per_host": _LIMIT,
    "max_in_flight": _LIMIT,
    "max_held_pulls": _LIMIT,
    "max_frame_bytes": _LIMIT,
    "max_partial_bytes": _LIMIT,
    "slow_sender_timeout": _LIMIT,
    "pause_outgoing_bytes": _LIMIT,
    "max_outgoing_bytes": _LIMIT,
    "max_unread_bytes": _LIMIT,
    "slow_reader_timeout": _LIMIT,
    "idle_timeout": _LIMIT,
    "max_forward_bytes": _LIMIT,
    "max_relayed_calls": _LIMIT,
    "max_locks_per_group": _LIMIT,
    "max_pop_in_flight": _LIMIT,
    "max_request_modes": _LIMIT,
    "max_pending_resets": _LIMIT,
    "max_topics": _LIMIT,
    "max_groups": _LIMIT,
    "max_names_per_account": _LIMIT,
    "send_backs_per_second": _LIMIT,
    "send_back_bytes_per_second": _LIMIT,
    "max_filter_chars": _LIMIT,
    "max_filter_depth": _LIMIT,
    "max_filter_operands": _LIMIT,
    "max_class_filter_waits": _LIMIT,
    "peer_bytes_in": "Bytes from the group's other nodes, after the handshake",
    "peer_bytes_out": "Bytes to the group's other nodes, after the handshake",
    "peer_frames_in": "Frames from the group's other nodes",
    "peer_frames_out": "Frames to the group's other nodes",
    "peer_connects": "Nodes that became reachable",
    "peer_reconnects": "Nodes that became reachable again",
    "peer_disconnects": "Links to other nodes that ended",
    "peer_dial_failures": "Attempts to reach another node that failed",
    "peer_auth_failures": "Handshakes in which the other side did not know the group's secret",
    "peer_rejected_hellos": "Handshakes with a node that is no member of this group, or has another protocol version",
    "peer_protocol_errors": "Links that ended because of bytes that are no frames",
    "peer_refused_strangers": "Connections to the peer port closed because too many had not shown yet who they are",
    "peer_refused_sends": "Messages to other nodes dropped because a queue was full; they are repeated",
    "peer_task_restarts": "Times that dialling another node continued after an unexpected exception; the log has each",
    "tls_handshakes": "Connections of clients that speak TLS",
    "tls_failures": "TLS handshakes of clients that failed, or took too long",
    "tls_refused_plain": "Clients without TLS that an enforcing port has refused",
    "task_restarts": "Times that another task was restarted after an unexpected exception",
    "connections": "Connections of clients that are open",
    "clients": "Producers and consumers that have announced themselves to this node",
    "requests_in_flight": "Requests that are not answered yet",
    "partial_bytes": "Bytes of requests that have not fully arrived",
    "forwards_waiting": "Requests that wait for a leader to pass them on to",
    "name_servers_registered": "Name servers that list this node",
    "tls_certificate_ends_seconds": "Unix time at which the certificate of the client ports expires; only with TLS",
    "audit_lines_lost": "Lines of the audit log that the disk did not take",
    "key_index_lag_bytes": "Bytes of the log that a query by key has to search because they are not indexed yet",
}
"""Meanings of the exporter's numbers, counters first, by name without `dledger_broker_`. Features have counters of
their own.
"""


@dataclass(slots=True)
class BrokerCounters:
    """Numbers that only grow. Each limit is counted when it acts, under the name of its configuration key.

    `as_dict` leaves these fields out:

    - `delivered`: messages that consumer groups have got, by group and topic.
    - `sent_back`: delivered messages that consumers have sent back, by group and topic.
    - `sizes`: bytes that sends have stored, by topic.
    - `put_times`: durations of sends.
    - `longest_read_ms`: longest time that a pull has waited for the disk.
    - `trimmed_messages`, `trimmed_bytes`: messages and bytes that retention deleted while this node led, by reason.
    """

    requests: int = 0
    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    reads_found: int = 0
    reads_missed: int = 0
    sends_failed: int = 0
    errors: int = 0
    outcomes_unknown: int = 0
    changes_untold: int = 0
    connections_accepted: int = 0
    frames_refused: int = 0
    headers_refused: int = 0
    forwarded: int = 0
    forward_refusals: int = 0
    forward_held: int = 0
    forward_repeats: int = 0
    forward_expired: int = 0
    group_time_waits_refused: int = 0
    cold_reads: int = 0
    records_examined: int = 0
    range_reads: int = 0
    range_reads_refused: int = 0
    range_reads_held: int = 0
    range_bytes_leader: int = 0
    range_bytes_follower: int = 0
    range_bytes_learner: int = 0
    pins_overridden: int = 0
    idempotent_repeats: int = 0
    idempotent_waits: int = 0
    idempotent_overflow: int = 0
    max_open_halves: int = 0
    max_connections: int = 0
    max_connections_per_host: int = 0
    max_in_flight: int = 0
    max_held_pulls: int = 0
    max_frame_bytes: int = 0
    max_partial_bytes: int = 0
    slow_sender_timeout: int = 0
    pause_outgoing_bytes: int = 0
    max_outgoing_bytes: int = 0
    max_unread_bytes: int = 0
    slow_reader_timeout: int = 0
    idle_timeout: int = 0
    max_forward_bytes: int = 0
    max_relayed_calls: int = 0
    max_locks_per_group: int = 0
    max_pop_in_flight: int = 0
    max_request_modes: int = 0
    max_pending_resets: int = 0
    max_topics: int = 0
    max_groups: int = 0
    max_names_per_account: int = 0
    send_backs_per_second: int = 0
    send_back_bytes_per_second: int = 0
    max_filter_chars: int = 0
    max_filter_depth: int = 0
    max_filter_operands: int = 0
    max_class_filter_waits: int = 0
    delivered: Deliveries = field(default_factory=Deliveries)
    sent_back: Deliveries = field(default_factory=Deliveries)
    sizes: TopicSizes = field(default_factory=TopicSizes)
    put_times: PutTimes = field(default_factory=PutTimes)
    trimmed_messages: Counter[str] = field(default_factory=Counter)
    trimmed_bytes: Counter[str] = field(default_factory=Counter)
    longest_read_ms: float = 0.0

    def count_sends(self, messages: int, seconds: float) -> None:
        """Count sends of `messages` messages in all that were stored in this time.

        Sends of every kind count, also delayed messages and halves, so that the total and the times agree.
        """
        self.messages_in += messages
        self.put_times.took(seconds, messages)

    def count_delivery(self, group: str, topic: str, messages: int, size: int) -> None:
        """Count messages of a topic, `size` bytes in all, that a consumer group has got."""
        self.messages_out += messages
        self.reads_found += 1
        self.delivered.count(group, topic, messages, size)

    def count_range_read(self, role: str, size: int) -> None:
        """Count a range read that this node answered in the role of leader, follower or learner."""
        self.range_reads += 1
        if role == "leader":
            self.range_bytes_leader += size
        elif role == "follower":
            self.range_bytes_follower += size
        else:
            self.range_bytes_learner += size

    def count_cold_time(self, seconds: float) -> None:
        """Note the time for which a pull has waited for the disk."""
        self.longest_read_ms = max(self.longest_read_ms, seconds * 1000)

    def count_full(self) -> int:
        """Count a connection that found `max_connections` open. Return the count so far."""
        self.max_connections += 1
        return self.max_connections

    def count_full_host(self) -> int:
        """Count a connection that found `max_connections_per_host` from its host open. Return the count so far."""
        self.max_connections_per_host += 1
        return self.max_connections_per_host

    def count_unread(self) -> None:
        """Count a connection that was dropped because all connections together had left `max_unread_bytes` unread."""
        self.max_unread_bytes += 1

    def count_unread_pause(self) -> None:
        """Count a connection that was not read, because its client left `pause_outgoing_bytes` of answers unread."""
        self.pause_outgoing_bytes += 1

    def count_slow_reader(self) -> None:
        """Count a connection that was closed because its client did not read in time."""
        self.slow_reader_timeout += 1

    def count_silence(self) -> None:
        """Count a connection that was closed after too long a silence."""
        self.idle_timeout += 1

    def count_shortage(self) -> None:
        """Count that connections had to take turns in sending large requests, or be closed, for want of memory."""
        self.max_partial_bytes += 1

    def count_slow_sender(self) -> None:
        """Count a connection that was closed because it did not send the rest of its request while other requests
        waited.
        """
        self.slow_sender_timeout += 1

    def as_dict(self) -> dict[str, int]:
        """Return all numbers by name."""
        return {one.name: value for one in fields(self) if isinstance(value := getattr(self, one.name), int)}

"""Exporter of a node's metrics in Prometheus' terms, which it reads from the node's own numbers at each scrape.

Between two scrapes nothing is counted, sampled or kept here, so that no scraper's figures depend on other scrapers.
Growing numbers of the node are counters, and the reader computes rates. Where RocketMQ's exporter
(github.com/apache/rocketmq-exporter) has a name for a counter, that name is used. Its labels are used, too: `cluster`,
`broker` (the group's name), `topic`, `group`. These metrics are about the whole group, so only its leader shows them.
The `dledger_*` metrics are about the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from dledger.replica.status import BOUNDS_S, NodeStatus
from dledger.types import Role
from dledger_base.metrics_page import Step
from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.kernel.counters import HELP
from dledger_broker.kernel.parts import Gauge, LabelledGauge
from dledger_broker.kernel.state import BrokerState

ROLES = tuple(role.name.lower() for role in Role)
"""Values of the label `role` of `dledger_raft_role`. The sample of the node's role is 1, all other samples are 0."""

PER_TURN: Final = 500
"""Number of topics, or of pairs of a group and a topic, that are read in a turn of the event loop."""

_TOPIC_LABELS = ("cluster", "broker", "topic")
_GROUP_LABELS = ("cluster", "broker", "topic", "group")
_NODE_LABELS = ("cluster", "broker", "node")
_PART_LABELS = (*_NODE_LABELS, "part")


class Figures(Protocol):
    """The figures of a node, read on the event loop."""

    def status(self) -> NodeStatus:
        """Return the status of the replicated log."""

    @property
    def state(self) -> BrokerState:
        """Topics, queues, consumer offsets."""

    def counters(self) -> Mapping[str, int]:
        """Return numbers that only grow, by name: requests, bytes, refusals, limits reached."""

    def job_failures(self) -> Mapping[str, int]:
        """Return the number of exceptions that ended a run, by the name of the leader job."""

    def trimmed(self) -> Mapping[str, tuple[int, int]]:
        """Return the messages and bytes that retention deleted while this node led, by reason."""

    def gauges(self) -> Iterable[Gauge]:
        """Yield numbers of this moment: connections, requests in flight, held pulls."""

    def labelled_gauges(self) -> Iterable[LabelledGauge]:
        """Yield numbers of this moment that have labels: sends that quotas held."""


class NodeCollector(Collector):
    """Collector that turns `Figures` into metric families."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Yield every family, in one pass over topics and offsets."""
        return (step for step in self.steps() if step is not None)

    def steps(self) -> Iterator[Step]:
        """Yield every family, and None where other callbacks may have a turn: there may be thousands of topics."""
        status = self._figures.status()
        counters = self._figures.counters()
        yield from _raft(status)
        yield from _own(status, counters, self._figures.gauges())
        yield from _labelled(status, self._figures.labelled_gauges())
        yield _jobs(status, self._figures.job_failures())
        yield from _trimmed(status, self._figures.trimmed())
        if status.role == "leader" and status.ready:
            yield from _rocketmq(status, self._figures.state)


def _rocketmq(status: NodeStatus, state: BrokerState) -> Iterator[Step]:
    broker = (status.cluster, status.group)
    stored: dict[str, int] = {}
    for number, (name, topic) in enumerate(list(state.topics.items()), 1):
        stored[name] = sum(queue.next_offset for queue in topic.queues.values())
        if not number % PER_TURN:
            yield None
    # A gauge: the name of a counter would get the suffix _total, which the name of RocketMQ's exporter lacks.
    produced = GaugeMetricFamily("rocketmq_producer_offset", "Messages stored per topic", labels=_TOPIC_LABELS)
    for number, (topic_name, offset) in enumerate(stored.items(), 1):
        produced.add_metric((*broker, topic_name), offset)
        if not number % PER_TURN:
            yield None
    yield produced
    yield from _consumers(broker, state, stored)


def _consumers(broker: tuple[str, str], state: BrokerState, stored: Mapping[str, int]) -> Iterator[Step]:
    committed = GaugeMetricFamily("rocketmq_consumer_offset", "Messages consumed per group", labels=_GROUP_LABELS)
    behind = GaugeMetricFamily("rocketmq_message_accumulation", "Messages not yet consumed", labels=_GROUP_LABELS)
    for number, (group, topic_name) in enumerate(state.table(OFFSETS).pairs(), 1):
        if not number % PER_TURN:
            yield None
        offset = sum(state.table(OFFSETS).of(group, topic_name).values())
        labels = (*broker, topic_name, group)
        committed.add_metric(labels, offset)
        behind.add_metric(labels, max(0, stored.get(topic_name, 0) - offset))
    yield committed
    yield behind


def _raft(status: NodeStatus) -> Iterator[Metric]:
    node = (status.cluster, status.group, status.node_id)
    for name, text, value in (
        ("dledger_raft_term", "Current term", status.term),
        (
            "dledger_raft_ready",
            "1 if this node leads and accepts writes",
            int(status.role == "leader" and status.ready),
        ),
        (
            "dledger_refuses_writes",
            "1 if this node leads and takes no messages, or its own disk is full; /readyz says what to do",
            int(status.refusal is not None),
        ),
        ("dledger_raft_voter", "1 if this node counts for elections and commits", int(status.voter)),
        ("dledger_raft_last_index", "Index of the last entry", status.last_index),
        ("dledger_raft_commit_index", "Index of the last entry known to be committed", status.commit_index),
        ("dledger_raft_applied_index", "Index of the last entry applied to the state", status.applied_index),
        ("dledger_raft_apply_lag", "Committed entries not yet applied", status.commit_index - status.applied_index),
        ("dledger_log_first_position_bytes", "Position of the first kept byte", status.first_position),
        ("dledger_log_last_position_bytes", "Position after the last byte", status.last_position),
        (
            "dledger_log_durable_position_bytes",
            "Position up to which the log is on stable storage",
            status.durable_position,
        ),
        ("dledger_disk_used_ratio", "Share of the log's file system that is used", status.disk_used / 1000),
        (
            "dledger_disk_above_watermark",
            "1 if the log's file system is fuller than disk_max_used_ratio",
            int(status.disk_warning is not None),
        ),
    ):
        family = GaugeMetricFamily(name, text, labels=_NODE_LABELS)
        family.add_metric(node, value)
        yield family
    role = GaugeMetricFamily("dledger_raft_role", "1 for the role that this node has", labels=(*_NODE_LABELS, "role"))
    for role_name in ROLES:
        role.add_metric((*node, role_name), int(status.role == role_name))
    yield role
    elections = CounterMetricFamily("dledger_raft_elections", "Elections this node started", labels=_NODE_LABELS)
    elections.add_metric(node, status.elections)
    yield elections
    syncs = SummaryMetricFamily("dledger_log_sync_seconds", "Duration of the log's fdatasyncs", labels=_NODE_LABELS)
    syncs.add_metric(node, count_value=status.syncs, sum_value=status.sync_seconds)
    yield syncs
    yield from _lateness(status, node)
    yield from _peers(status, node)


def _lateness(status: NodeStatus, node: tuple[str, str, str]) -> Iterator[Metric]:
    if status.loop_late is not None:
        late = HistogramMetricFamily(
            "dledger_loop_late_seconds", "How late timers of the node's event loop fired", labels=_NODE_LABELS
        )
        bounds = (*map(str, BOUNDS_S), "+Inf")
        late.add_metric(node, list(zip(bounds, status.loop_late.at_most, strict=True)), status.loop_late.seconds)
        yield late
    held = SummaryMetricFamily(
        "dledger_loop_held_seconds", "How long work of a part of the node held its event loop", labels=_PART_LABELS
    )
    longest = GaugeMetricFamily(
        "dledger_loop_held_longest_seconds",
        "Longest time that a part held the event loop, within the last one or two minutes",
        labels=_PART_LABELS,
    )
    for hold in status.loop_held:
        held.add_metric((*node, hold.part), count_value=hold.times, sum_value=hold.seconds)
        longest.add_metric((*node, hold.part), hold.longest_seconds)
    yield held
    yield longest


def _peers(status: NodeStatus, node: tuple[str, str, str]) -> Iterator[Metric]:
    """Yield the leader's figures about the other members. They are empty on a follower."""
    for name, text, values in (
        ("dledger_raft_peer_lag_entries", "Entries a member is behind", [peer.lag for peer in status.peers]),
        (
            "dledger_raft_peer_contact_seconds",
            "Time since a member last answered",
            [peer.contact_ms / 1000 for peer in status.peers],
        ),
        (
            "dledger_raft_peer_clock_ahead_seconds",
            "How far a member's wall clock is ahead of this node's; nothing depends on it for safety",
            [None if peer.clock_ahead_ms is None else peer.clock_ahead_ms / 1000 for peer in status.peers],
        ),
    ):
        family = GaugeMetricFamily(name, text, labels=(*_NODE_LABELS, "peer"))
        for peer, value in zip(status.peers, values, strict=True):
            if value is not None:
                family.add_metric((*node, peer.node_id), value)
        yield family


def _own(status: NodeStatus, counters: Mapping[str, int], gauges: Iterable[Gauge]) -> Iterator[Metric]:
    """Yield the broker's own numbers, under their own names."""
    node = (status.cluster, status.group, status.node_id)
    for name, value in counters.items():
        counter = CounterMetricFamily(f"dledger_broker_{name}", HELP[name], labels=_NODE_LABELS)
        counter.add_metric(node, value)
        yield counter
    for gauge in gauges:
        family = GaugeMetricFamily(f"dledger_broker_{gauge.name}", gauge.help, labels=_NODE_LABELS)
        family.add_metric(node, gauge.read())
        yield family


def _labelled(status: NodeStatus, gauges: Iterable[LabelledGauge]) -> Iterator[Metric]:
    for gauge in gauges:
        family = GaugeMetricFamily(f"dledger_broker_{gauge.name}", gauge.help, labels=(*_NODE_LABELS, *gauge.labels))
        for values, number in gauge.read():
            family.add_metric((status.cluster, status.group, status.node_id, *values), number)
        yield family


def _jobs(status: NodeStatus, failures: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(
        "dledger_broker_job_failures",
        "Number of exceptions that ended a run of a leader job; the job starts again after a pause",
        labels=(*_NODE_LABELS, "job"),
    )
    for job, count in failures.items():
        family.add_metric((status.cluster, status.group, status.node_id, job), count)
    return family


def _trimmed(status: NodeStatus, trimmed: Mapping[str, tuple[int, int]]) -> Iterator[Metric]:
    labels = (*_NODE_LABELS, "reason")
    messages = CounterMetricFamily(
        "dledger_trimmed_messages", "Messages that retention deleted while this node led, by reason", labels=labels
    )
    size = CounterMetricFamily(
        "dledger_trimmed_bytes", "Bytes of the log that retention deleted while this node led, by reason", labels=labels
    )
    for reason, (count, taken_bytes) in trimmed.items():
        messages.add_metric((status.cluster, status.group, status.node_id, reason), count)
        size.add_metric((status.cluster, status.group, status.node_id, reason), taken_bytes)
    yield messages
    yield size

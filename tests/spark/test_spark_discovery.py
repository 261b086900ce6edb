"""Discovery of the queues that a stream reads while name servers and topics come and go, on a cluster that a test makes
up."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from dledger_spark import streaming
from dledger_spark.errors import DataLossError, NoNameServerError, OptionError, RefusedError
from dledger_spark.filters import PushedFilters
from dledger_spark.offsets import Queue, to_json
from dledger_spark.options import read_options
from dledger_spark.partitions import LogSlice, QueueRange
from dledger_spark.planning import BatchPlanner
from dledger_spark.plans import Cut, GroupPlan, QueueBounds
from dledger_spark.streaming import StreamReader, proportional_shares

QUEUE = Queue("t", "broker-a", 0)


class MadeUpCluster:
    """One queue.

    `listed` says whether name servers know its group, `leaderless` whether they know no leader of it, who tells its
    topics, `away` whether they cannot be reached; `topics` which topics there are, `is_named` that the subscription
    names them.
    """

    def __init__(self) -> None:
        self.listed = True
        self.leaderless = False
        self.is_named = False
        self.away = False
        self.topics = {"t"}
        self.end = 5
        self.created = 0
        self.first = 0

    def groups(self) -> list[str]:
        if self.away:
            raise NoNameServerError("no name server answered")
        return ["broker-a"] if self.listed else []

    def queues(self, *, all_exist: bool = True) -> list[Queue]:
        if self.listed and not self.leaderless and "t" in self.topics:
            return [QUEUE]
        if all_exist and self.is_named:
            raise OptionError("subscribe", "t", "topic 't' does not exist")
        return []

    def plan(self, group: str, topics: Iterable[str]) -> GroupPlan:
        created = dict.fromkeys(self.topics.intersection(topics), self.created)
        return GroupPlan(
            group, 0, 0, 100, [Cut(0, 0, 0, None, None)], created, {QUEUE: QueueBounds(self.first, self.end)}
        )

    def close(self) -> None:
        """Nothing is open."""


def reader(cluster: MadeUpCluster, monkeypatch: pytest.MonkeyPatch, **options: str) -> StreamReader:
    monkeypatch.setattr(streaming, "DISCOVERY_SECONDS", 0.0)
    monkeypatch.setattr(streaming, "POLL_SECONDS", 0.0)
    monkeypatch.setattr("dledger_spark.plans.Cluster", lambda _: cluster)
    return StreamReader(read_options({"namesrv": "a:1", "subscribePattern": ".*"} | options, "stream"))


def test_a_name_server_that_does_not_list_a_group_yet_ends_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = MadeUpCluster()
    stream = reader(cluster, monkeypatch)
    start = stream.initialOffset()
    cluster.listed = False
    cluster.end = 9
    assert stream.latestOffset(start, ReadAllAvailable()) == to_json({QUEUE: 9})


def test_a_name_server_that_does_not_know_a_groups_leader_yet_ends_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = MadeUpCluster()
    cluster.is_named = True
    stream = reader(cluster, monkeypatch)
    start = stream.initialOffset()
    cluster.leaderless = True
    cluster.end = 9
    assert stream.latestOffset(start, ReadAllAvailable()) == to_json({QUEUE: 9})


def test_a_topic_that_is_gone_ends_a_restarted_stream_unless_loss_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = MadeUpCluster()
    cluster.is_named = True
    start = reader(cluster, monkeypatch).initialOffset()
    cluster.topics.clear()
    forgiving = reader(cluster, monkeypatch, failOnDataLoss="false")
    assert forgiving.latestOffset(start, ReadAllAvailable()) == to_json({})
    with pytest.raises(OptionError):
        reader(cluster, monkeypatch).latestOffset(start, ReadAllAvailable())
    with pytest.raises(OptionError):
        reader(cluster, monkeypatch, failOnDataLoss="false").initialOffset()


def test_a_stream_goes_on_while_no_name_server_can_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = MadeUpCluster()
    stream = reader(cluster, monkeypatch)
    start = stream.initialOffset()
    cluster.away = True
    cluster.end = 9
    assert stream.latestOffset(start, ReadAllAvailable()) == to_json({QUEUE: 9})
    with pytest.raises(NoNameServerError):
        reader(cluster, monkeypatch).initialOffset()


def test_what_is_lost_is_said_once_and_not_at_every_look(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = MadeUpCluster()
    stream = reader(cluster, monkeypatch, failOnDataLoss="false")
    start = stream.initialOffset()
    cluster.topics.clear()
    for _ in range(3):
        assert stream.latestOffset(start, ReadAllAvailable()) == to_json({})
    assert len([record for record in caplog.records if "does not exist any more" in record.getMessage()]) == 1
    with pytest.raises(DataLossError):
        reader(cluster, monkeypatch).latestOffset(start, ReadAllAvailable())


@pytest.mark.parametrize("is_empty", [True, False], ids=["made again, still empty", "deleted"])
def test_a_topic_whose_loss_was_noticed_is_read_from_its_start_when_it_is_made_again(
    monkeypatch: pytest.MonkeyPatch, is_empty: bool
) -> None:
    cluster = MadeUpCluster()
    stream = reader(cluster, monkeypatch, failOnDataLoss="false")
    start = stream.initialOffset()
    if is_empty:
        cluster.end = 0
    else:
        cluster.topics.clear()
    noticed = stream.latestOffset(start, ReadAllAvailable())
    assert not stream.partitions(start, noticed)
    cluster.topics.add("t")
    cluster.end = 9
    for after in (stream, reader(cluster, monkeypatch, failOnDataLoss="false")):
        end = after.latestOffset(noticed, ReadAllAvailable())
        (part,) = after.partitions(noticed, end)
        assert isinstance(part, QueueRange)
        assert (part.start, part.end) == (0, 9)


@pytest.mark.parametrize("busy", [1000, 10**9])
def test_a_queue_with_little_is_read_beside_one_that_stays_busy(busy: int) -> None:
    backlog = {QUEUE: busy, QUEUE._replace(queue_id=1): 1, QUEUE._replace(queue_id=2): 0}
    assert list(proportional_shares(backlog, 10).values()) == [9, 1, 0]
    assert list(proportional_shares(backlog, 1).values()) == [1, 0, 0]


class ChangedWhilePlanned(MadeUpCluster):
    """After its first plan, attributes of the cluster change."""

    def __init__(self, **changes: object) -> None:
        super().__init__()
        self._changes = changes

    def plan(self, group: str, topics: Iterable[str], **_: object) -> GroupPlan:
        plan = super().plan(group, topics)
        vars(self).update(self._changes)
        return plan

    def reader(self, group: str) -> None:
        """Never used: all of the queue is read."""


GONE = "topic t was deleted from broker-a while the read was planned"


@pytest.mark.parametrize(
    ("changes", "error", "left"),
    [
        ({"created": 50}, GONE, []),
        ({"topics": set()}, GONE, []),
        ({"first": 3}, "offset 0 of t/broker-a/0 is below the first kept offset 3", [{0: (3, 5)}]),
    ],
    ids=["made again", "deleted", "trimmed"],
)
def test_what_goes_while_a_batch_is_planned_fails_it_or_is_left_out(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], error: str, left: list[dict[int, tuple[int, int]]]
) -> None:
    options = {"namesrv": "a:1", "subscribe": "t", "pinLease": "0"}
    monkeypatch.setattr("dledger_spark.planning.Cluster", lambda _: ChangedWhilePlanned(**changes))
    with pytest.raises(DataLossError, match=error):
        BatchPlanner(read_options(options, "batch"), PushedFilters()).partitions()
    rest = read_options(options | {"failOnDataLoss": "false"}, "batch")
    (part,) = BatchPlanner(rest, PushedFilters()).partitions() or (None,)
    assert [topic.queues for topic in (part.topics if isinstance(part, LogSlice) else [])] == left


class TrimmedBeforeItIsPinned(MadeUpCluster):
    """The leader's log begins at byte 50, and the node that plans is told so by and by."""

    def __init__(self, plans_before: int) -> None:
        super().__init__()
        self.pinned: list[int] = []
        self._plans_before = plans_before

    def plan(self, group: str, topics: Iterable[str], **_: object) -> GroupPlan:
        self._plans_before -= 1
        plan = super().plan(group, topics)
        if self._plans_before < 0:
            self.first = 2
            plan.bounds[QUEUE] = QueueBounds(self.first, self.end)
            plan.cuts[0] = plan.cuts[0]._replace(position=50)
        return plan

    def pin(self, group: str, name: str, position: int, lease_ms: int) -> None:
        if position < 50:
            raise RefusedError(20112, f"position {position} is below 50, from which on the log is kept")
        self.pinned.append(position)

    def reader(self, group: str) -> None:
        """Never used: all of the queue is read."""


def test_a_log_that_is_trimmed_before_it_is_pinned_is_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"namesrv": "a:1", "subscribe": "t"}
    monkeypatch.setattr("dledger_spark.planning.Cluster", lambda _: TrimmedBeforeItIsPinned(3))
    with pytest.raises(DataLossError, match="offset 0 of t/broker-a/0 is below the first kept offset 2"):
        BatchPlanner(read_options(options, "batch"), PushedFilters()).partitions()
    cluster = TrimmedBeforeItIsPinned(3)
    monkeypatch.setattr("dledger_spark.planning.Cluster", lambda _: cluster)
    rest = read_options(options | {"failOnDataLoss": "false"}, "batch")
    (part,) = BatchPlanner(rest, PushedFilters()).partitions()
    assert isinstance(part, LogSlice)
    assert (part.start, part.topics[0].queues, cluster.pinned) == (50, {0: (2, 5)}, [50])
    monkeypatch.setattr("dledger_spark.planning.Cluster", lambda _: TrimmedBeforeItIsPinned(1000))
    with pytest.raises(RefusedError, match="position 0 is below 50"):
        BatchPlanner(read_options(options | {"readTimeout": "300ms"}, "batch"), PushedFilters()).partitions()

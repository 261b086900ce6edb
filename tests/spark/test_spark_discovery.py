"""A stream discovers its queues while name servers and topics come and go, on a made-up cluster."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from dledger_spark import streaming
from dledger_spark.errors import (
    DataLossError,
    NoNameServerError,
    OptionError,
    OtherGroupError,
    RefusedError,
    SourceError,
    UnsubscribedError,
)
from dledger_spark.filters import PushedFilters
from dledger_spark.left_out import left_out_rows
from dledger_spark.offsets import Queue, from_json, to_json
from dledger_spark.options import read_options
from dledger_spark.partitions import LogSlice, QueueRange
from dledger_spark.planning import BatchPlanner
from dledger_spark.plans import Cut, GroupPlan, QueueBounds
from dledger_spark.streaming import StreamReader, proportional_shares

QUEUE = Queue("t", "broker-a", 0)
ALL = ReadAllAvailable()


class MadeUpCluster:
    """Cluster with one queue, unless `queue_count` says otherwise.

    - `listed`: name servers know the group.
    - `leaderless`: name servers know no leader of the group, so they list none of its topics.
    - `away`: name servers cannot be reached.
    - `topics`: the topics that exist.
    - `is_named`: the subscription names the topics.
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
        self.queue_count = 1
        """Number of queues in the route. The broker has messages in two."""
        self.two: dict[Queue, QueueBounds] = {}
        self.identity = ""

    def subscribes(self, queue: Queue) -> bool:
        return queue.topic != "left"

    def left(self, plan: GroupPlan) -> set[Queue]:
        return set(self.two)

    def groups(self) -> list[str]:
        if self.away:
            raise NoNameServerError("no name server answered")
        return ["broker-a"] if self.listed else []

    def queues(self, *, all_exist: bool = True) -> list[Queue]:
        if self.listed and not self.leaderless and "t" in self.topics:
            return [QUEUE._replace(queue_id=number) for number in range(self.queue_count)]
        if all_exist and self.is_named:
            raise OptionError("subscribe", "t", "topic 't' does not exist")
        return []

    def plan(self, group: str, topics: Iterable[str]) -> GroupPlan:
        created = dict.fromkeys(self.topics.intersection(topics), self.created)
        return GroupPlan(
            group,
            0,
            0,
            100,
            [Cut(0, 0, 0, None, None)],
            created,
            {QUEUE: QueueBounds(self.first, self.end), **self.two},
            self.identity,
        )

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MadeUpCluster:
    """Return the cluster of all streams and batches, which are planned without pauses."""
    made = MadeUpCluster()
    monkeypatch.setattr(streaming, "DISCOVERY_SECONDS", 0.0)
    monkeypatch.setattr(streaming, "POLL_SECONDS", 0.0)
    for module in ("plans", "planning"):
        monkeypatch.setattr(f"dledger_spark.{module}.Cluster", lambda _: made)
    return made


def reader(**options: str) -> StreamReader:
    return StreamReader(read_options({"namesrv": "a:1", "subscribePattern": ".*"} | options, "stream"))


def forgiving_reader() -> StreamReader:
    return reader(failOnDataLoss="false")


def planned(**options: str) -> list[LogSlice | QueueRange]:
    given = read_options({"namesrv": "a:1", "subscribe": "t"} | options, "batch")
    return list(BatchPlanner(given, PushedFilters()).partitions())


def only_range(stream: StreamReader, start: dict, end: dict) -> tuple[Queue, int, int]:
    """Return the one range of a queue that a micro-batch reads."""
    (part,) = stream.partitions(start, end)
    assert isinstance(part, QueueRange)
    return part.queue, part.start, part.end


def events(caplog: pytest.LogCaptureFixture, words: str) -> list[bool]:
    """Return for each log line whether it contains these words."""
    return [words in record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    "trouble", [{"listed": False}, {"is_named": True, "leaderless": True}, {"away": True}], ids=str
)
def test_a_name_server_that_is_away_or_does_not_know_a_group_or_its_leader_yet_ends_no_stream(
    cluster: MadeUpCluster, trouble: dict[str, bool]
) -> None:
    cluster.is_named = "is_named" in trouble
    stream = reader()
    start = stream.initialOffset()
    vars(cluster).update(trouble)
    cluster.end = 9
    assert from_json(stream.latestOffset(start, ALL)) == {QUEUE: 9}
    if cluster.away:
        with pytest.raises(NoNameServerError):
            reader().initialOffset()


def test_a_topic_that_is_gone_ends_a_restarted_stream_unless_loss_is_allowed(cluster: MadeUpCluster) -> None:
    cluster.is_named = True
    start = reader().initialOffset()
    cluster.topics.clear()
    assert from_json(forgiving_reader().latestOffset(start, ALL)) == {}
    with pytest.raises(OptionError):
        reader().latestOffset(start, ALL)
    with pytest.raises(OptionError):
        forgiving_reader().initialOffset()


def test_a_stream_that_ends_does_not_wait_for_its_minimum(cluster: MadeUpCluster) -> None:
    stream = reader(minOffsetsPerTrigger="100")
    start = stream.initialOffset()
    cluster.end = 9
    assert stream.latestOffset(start, ALL) == start
    stream.prepareForTriggerAvailableNow()
    assert from_json(stream.latestOffset(start, ALL)) == {QUEUE: 9}


def test_a_lost_topic_is_logged_once_or_raises_an_error(
    cluster: MadeUpCluster, caplog: pytest.LogCaptureFixture
) -> None:
    stream = forgiving_reader()
    start = stream.initialOffset()
    cluster.topics.clear()
    for _ in range(3):
        assert from_json(stream.latestOffset(start, ALL)) == {}
    assert events(caplog, "does not exist any more").count(True) == 1
    with pytest.raises(DataLossError):
        reader().latestOffset(start, ALL)


def test_queues_that_are_taken_away_and_given_back_are_read_on_and_nothing_repeats(cluster: MadeUpCluster) -> None:
    other = QUEUE._replace(queue_id=1)
    cluster.queue_count, cluster.two = 2, {other: QueueBounds(0, 3)}
    first = reader()
    offset = first.latestOffset(first.initialOffset(), ALL)
    assert from_json(offset) == {QUEUE: 5, other: 3}
    for count, begin, end in ((1, 3, 4), (2, 4, 6)):
        cluster.queue_count, cluster.two = count, {other: QueueBounds(0, end)}
        stream = reader()
        before, offset = offset, stream.latestOffset(offset, ALL)
        assert only_range(stream, before, offset) == (other, begin, end)
    cluster.queue_count = 1
    assert len(planned(mode="queues")) == 2, "what is kept is read"


@dataclass
class Told:
    """Progress of a micro-batch as Spark reports it."""

    startOffset: str | None  # noqa: N815 (Spark's name)
    endOffset: str | None  # noqa: N815 (Spark's name)
    numInputRows: int  # noqa: N815 (Spark's name)

    @property
    def sources(self) -> list[Told]:
        return [self]


def test_the_progress_of_a_query_tells_how_many_messages_a_micro_batch_left_out(cluster: MadeUpCluster) -> None:
    """Spark reports no start of the first micro-batch, which may begin anywhere."""
    cluster.first, cluster.end = 3, 3
    stream = reader(startingOffsets="earliest")
    start = stream.initialOffset()
    assert stream.latestOffset(start, ALL) == start
    cluster.end = 9
    first = stream.latestOffset(start, ALL)
    cluster.end = 12
    second = stream.latestOffset(first, ALL)
    for start_text in ("null", None):
        assert left_out_rows(Told(start_text, json.dumps(first), 5)) == 1
    assert left_out_rows(Told(json.dumps(first), json.dumps(second), 1)) == 2
    assert "begins" not in second
    with pytest.raises(SourceError, match="no offsets of format dledger"):
        left_out_rows(Told(None, "7", 1))


FOUNDED, FOUNDED_AGAIN = "a" * 32, "b" * 32


def test_a_checkpoint_continues_with_its_own_or_rescued_broker_group(
    cluster: MadeUpCluster, caplog: pytest.LogCaptureFixture
) -> None:
    first = reader()
    old = first.latestOffset(first.initialOffset(), ALL)
    assert "groups" not in old, "as an earlier version wrote it"
    cluster.identity, cluster.end = FOUNDED, 9
    known = reader().latestOffset(old, ALL)
    assert known["groups"] == {"broker-a": FOUNDED}
    cluster.identity, cluster.end = f"{FOUNDED}.2", 12
    rescued = reader()
    for _ in range(2):
        assert rescued.latestOffset(known, ALL)["groups"] == {"broker-a": f"{FOUNDED}.2"}
    assert events(caplog, "event=group_rescued").count(True) == 1


@pytest.mark.parametrize("other", [FOUNDED_AGAIN, FOUNDED])
@pytest.mark.parametrize("end", [3, 20])
def test_a_second_founding_of_a_broker_group_is_refused_by_name(cluster: MadeUpCluster, other: str, end: int) -> None:
    """Its offsets mean other messages, also if it has more messages than the first group had."""
    cluster.identity = f"{FOUNDED}.2"
    first = reader()
    start = first.initialOffset()
    cluster.end = 9
    noted = first.latestOffset(start, ALL)
    cluster.identity, cluster.end = other, end
    told = f"broker group broker-a has the identity {other}, and the checkpoint is about {FOUNDED}.2"
    for made in (reader, forgiving_reader):
        with pytest.raises(OtherGroupError, match=told):
            made().latestOffset(noted, ALL)
        with pytest.raises(OtherGroupError, match=told):
            made().partitions(start, noted)


def test_a_micro_batch_repeated_after_the_window_is_logged_as_possibly_repeated(
    cluster: MadeUpCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dledger_spark.restarts.window_of", lambda _: 120.0)
    first = reader()
    start = first.initialOffset()
    cluster.end = 9
    noted = first.latestOffset(start, ALL)
    late = noted | {"planned": noted["planned"] - 300_000}
    first.partitions(start, late)
    reader().partitions(start, noted)
    assert not caplog.records
    restarted = reader()
    for _ in range(2):
        assert len(restarted.partitions(start, late)) == 1
    assert events(caplog, "event=batch_possibly_repeated") == [True]


@pytest.mark.usefixtures("cluster")
def test_a_topic_that_left_the_subscription_is_reported_by_name(caplog: pytest.LogCaptureFixture) -> None:
    begin = to_json({QUEUE: 5, Queue("left", "broker-a", 0): 7})
    with pytest.raises(UnsubscribedError, match="left/broker-a/0 stands in the checkpoint with offset 7"):
        reader().latestOffset(begin, ALL)
    forgiving = forgiving_reader()
    for _ in range(2):
        assert forgiving.latestOffset(begin, ALL) == begin
    assert events(caplog, "event=unsubscribed") == [True]


def test_a_recreated_topic_beyond_the_old_offset_is_read_from_its_start(cluster: MadeUpCluster) -> None:
    stream = forgiving_reader()
    start = stream.latestOffset(stream.initialOffset(), ALL)
    assert from_json(start) == {QUEUE: 5}
    cluster.created, cluster.end = 50, 9
    noticed = stream.latestOffset(start, ALL)
    assert not stream.partitions(start, noticed)
    end = stream.latestOffset(noticed, ALL)
    assert only_range(stream, noticed, end) == (QUEUE, 0, 9)
    cluster.created = 70
    failing = reader()
    failing.latestOffset({name: value for name, value in end.items() if name != "created"}, ALL)
    cluster.created = 90
    with pytest.raises(DataLossError, match="t/broker-a/0 is of a topic that was made again"):
        failing.latestOffset(end, ALL)


@pytest.mark.parametrize("is_empty", [True, False], ids=["made again, still empty", "deleted"])
def test_a_recreated_topic_is_read_from_its_start_after_a_noticed_loss(cluster: MadeUpCluster, is_empty: bool) -> None:
    stream = forgiving_reader()
    start = stream.initialOffset()
    if is_empty:
        cluster.end = 0
    else:
        cluster.topics.clear()
    noticed = stream.latestOffset(start, ALL)
    assert not stream.partitions(start, noticed)
    cluster.topics.add("t")
    cluster.end = 9
    for after in (stream, forgiving_reader()):
        assert only_range(after, noticed, after.latestOffset(noticed, ALL)) == (QUEUE, 0, 9)


def test_a_checkpoint_knows_a_topic_that_was_made_again_while_the_query_was_stopped(cluster: MadeUpCluster) -> None:
    """1. A query has read 5 messages, and stops. 2. Its topic is made again, and has 9. 3. Its first 5 were skipped."""
    start = reader().initialOffset()
    read = reader().latestOffset(start | {"topics": {"t": {"broker-a": {"0": 3}}}}, ALL)
    cluster.end, cluster.created = 9, 70
    with pytest.raises(DataLossError, match="was made again, offset 5 of the earlier one was next"):
        reader().latestOffset(read, ALL)
    forgiving = forgiving_reader()
    noticed = forgiving.latestOffset(read, ALL)
    assert (from_json(noticed), noticed["created"]) == ({QUEUE: 0}, {"t": {"broker-a": 70}})
    assert forgiving.partitions(read, noticed) == []
    for after in (forgiving, reader()):
        assert only_range(after, noticed, after.latestOffset(noticed, ALL)) == (QUEUE, 0, 9)


def test_a_micro_batch_that_was_planned_reads_nothing_of_a_topic_that_was_made_again(cluster: MadeUpCluster) -> None:
    """1. A micro-batch is planned, and its driver killed. 2. The topic is made again, and has as many messages."""
    stream = reader()
    start = stream.initialOffset() | {"topics": {"t": {"broker-a": {"0": 0}}}}
    end = stream.latestOffset(start, ALL)
    cluster.created = 70
    with pytest.raises(DataLossError, match="was made again, 0 to 5 of the earlier one were next"):
        reader().partitions(start, end)
    assert not forgiving_reader().partitions(start, end)


def test_a_checkpoint_may_lack_creations_as_of_an_earlier_version_and_must_have_them_readable(
    cluster: MadeUpCluster,
) -> None:
    stream = reader()
    cluster.created = 70
    start = to_json({QUEUE: 3})
    end = stream.latestOffset(start, ALL)
    assert (from_json(end), end["created"]) == ({QUEUE: 5}, {"t": {"broker-a": 70}})
    assert len(stream.partitions(start, end)) == 1
    with pytest.raises(SourceError, match="the creations of topics cannot be read"):
        reader().latestOffset(start | {"created": {"t": 5}}, ALL)


@pytest.mark.parametrize("busy", [1000, 10**9])
def test_a_small_queue_gets_a_share_beside_a_busy_queue(busy: int) -> None:
    backlog = {QUEUE: busy, QUEUE._replace(queue_id=1): 1, QUEUE._replace(queue_id=2): 0}
    assert list(proportional_shares(backlog, 10).values()) == [9, 1, 0]
    assert list(proportional_shares(backlog, 1).values()) == [1, 0, 0]


class ChangedWhilePlanned(MadeUpCluster):
    """Cluster whose attributes change after its first plan."""

    def __init__(self, **changes: object) -> None:
        super().__init__()
        self._changes = changes

    def plan(self, group: str, topics: Iterable[str], **_: object) -> GroupPlan:
        plan = super().plan(group, topics)
        vars(self).update(self._changes)
        return plan

    def reader(self, group: str) -> None:
        """Do nothing: the whole queue is read."""


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
def test_data_lost_while_a_batch_is_planned_fails_the_batch_or_is_left_out(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], error: str, left: list[dict[int, tuple[int, int]]]
) -> None:
    monkeypatch.setattr("dledger_spark.planning.Cluster", lambda _: ChangedWhilePlanned(**changes))
    with pytest.raises(DataLossError, match=error):
        planned(pinLease="0")
    (part,) = planned(pinLease="0", failOnDataLoss="false") or (None,)
    assert [topic.queues for topic in (part.topics if isinstance(part, LogSlice) else [])] == left


class TrimmedBeforeItIsPinned(MadeUpCluster):
    """Cluster whose leader's log begins at byte 50. The planning node learns that only after some plans."""

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
        """Do nothing: the whole queue is read."""


def test_a_log_that_is_trimmed_before_it_is_pinned_is_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dledger_spark.planning.Cluster", lambda _: TrimmedBeforeItIsPinned(3))
    with pytest.raises(DataLossError, match="offset 0 of t/broker-a/0 is below the first kept offset 2"):
        planned()
    cluster = TrimmedBeforeItIsPinned(3)
    monkeypatch.setattr("dledger_spark.planning.Cluster", lambda _: cluster)
    (part,) = planned(failOnDataLoss="false")
    assert isinstance(part, LogSlice)
    assert (part.start, part.topics[0].queues, cluster.pinned) == (50, {0: (2, 5)}, [50])
    monkeypatch.setattr("dledger_spark.planning.Cluster", lambda _: TrimmedBeforeItIsPinned(1000))
    with pytest.raises(RefusedError, match="position 0 is below 50"):
        planned(readTimeout="300ms")

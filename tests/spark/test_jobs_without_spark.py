"""Parts of jobs that need no Spark: checks of a log, samples of lag, pacing."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest
from fake_log import FIRST_POSITION, GROUP, FakeLog, FakeNode, served

from dledger_client import MessageQueue, NoBrokerError, QueueStatus
from dledger_spark.entries import Span
from dledger_spark.errors import CorruptDataError, JobError, SourceError
from dledger_spark.jobs.inputs import checked_options, pinned, silent
from dledger_spark.jobs.lags import sample
from dledger_spark.jobs.log_checks import LogRange, QueueRun, RangeCheck, RecordCheck, TopicBounds, check_range
from dledger_spark.jobs.replaying import _max_running_tasks
from dledger_spark.jobs.verification import Replica, _verify_group, compare, log_ranges, queue_gaps
from dledger_spark.nodes import NameServers
from dledger_spark.offsets import Queue
from dledger_spark.options import read_options
from dledger_spark.plans import Cut, GroupPlan, QueueBounds
from dledger_spark.sending import BURST_S, Pace

MESSAGES = [[("a", b"one"), ("b", b"two")], [("a", b"three")], [("a", b"four"), ("a", b"five"), ("b", b"six")]]
TOPICS = (TopicBounds("a", 0, {0: (0, 4)}), TopicBounds("b", 0, {0: (0, 2)}))


def whole(log, address, *, node="n1", topics=TOPICS):
    return LogRange(
        group=GROUP,
        node=node,
        address=address,
        roles="follower",
        pin="p",
        start=FIRST_POSITION,
        end=log.end,
        index=log.cuts[0]["index"],
        previous_chain=log.cuts[0]["previousChain"],
        end_chain=log.chain,
        topics=topics,
        timeout_s=1.0,
    )


def checked(log, *, topics=TOPICS, misbehave=None, part_of=None):
    """Return the check of a whole log that one node serves."""
    with served(FakeNode(log), FakeNode(log, misbehave=misbehave)) as namesrv:
        address = NameServers((namesrv,)).groups()[GROUP][1]
        return check_range(whole(part_of or log, address, topics=topics))


# A range of one node's log.


def test_a_sound_range_is_counted():
    log = FakeLog(MESSAGES)
    found = checked(log)
    assert (found.invalid, found.unreadable) == (None, None)
    assert (found.entries, found.records, found.other) == (3, 6, 0)
    assert found.size_bytes == log.end - FIRST_POSITION
    assert found.queues == {("a", 0): QueueRun(0, 3, 4), ("b", 0): QueueRun(0, 1, 2)}


def test_records_of_deleted_topics_and_trimmed_offsets_are_told_apart():
    log = FakeLog(MESSAGES)
    later = TopicBounds("a", log.cuts[2]["position"], {0: (3, 4)})
    found = checked(log, topics=(later,))
    assert (found.records, found.other, found.invalid) == (6, 5, None)
    assert found.queues == {("a", 0): QueueRun(3, 3, 1)}


def test_a_consistent_log_that_differs_from_the_plan_is_invalid():
    log, other = FakeLog(MESSAGES), FakeLog([*MESSAGES[:2], [("a", b"fous"), ("a", b"five"), ("b", b"six")]])
    assert other.end == log.end
    found = checked(other, part_of=log)
    assert "that of the node planned" in found.invalid
    assert found.position == log.end


def test_a_record_at_a_wrong_place_or_with_another_body_is_found():
    """Its offset is missing or comes twice, or it says another position."""
    data = FakeLog(MESSAGES).entries[0]
    entry = Span(48, len(data), 3, 5)
    records = RecordCheck((TopicBounds("a", 0, {0: (0, 9)}),), RangeCheck("n", 0, 0))
    records.check(data, entry, FIRST_POSITION)
    with pytest.raises(CorruptDataError, match="offset 0 of a/0 follows 0"):
        records.check(data, entry, FIRST_POSITION)
    with pytest.raises(CorruptDataError, match=f"position {FIRST_POSITION + 56}: it says {FIRST_POSITION + 48}"):
        RecordCheck(TOPICS, RangeCheck("n", 0, 0)).check(data, entry, FIRST_POSITION + 8)
    damaged = data.replace(b"two", b"twx")
    with pytest.raises(CorruptDataError, match="the body does not have its crc"):
        RecordCheck(TOPICS, RangeCheck("n", 0, 0)).check(damaged, entry, FIRST_POSITION)


def test_a_node_that_has_become_leader_is_not_read():
    with served(FakeNode(FakeLog(MESSAGES)), FakeNode(FakeLog(MESSAGES), role="leader")) as namesrv:
        address = NameServers((namesrv,)).groups()[GROUP][1]
        found = check_range(whole(FakeLog(MESSAGES), address))
    assert found.invalid is None
    assert "this is the leader" in found.unreadable


def test_a_lost_connection_is_made_again():
    lost = []

    def once(node, request):
        if not lost:
            lost.append(request)
            return None
        return request

    assert checked(FakeLog(MESSAGES), misbehave=once).entries == 3


# Between nodes, and along queues.


def test_the_first_byte_at_which_two_nodes_differ_is_found():
    log, other = FakeLog(MESSAGES), FakeLog(MESSAGES)
    entry = bytearray(other.entries[1])
    entry[60] ^= 1
    other.entries[1] = bytes(entry)
    with served(FakeNode(log), FakeNode(log), FakeNode(other)) as namesrv:
        addresses = NameServers((namesrv,)).groups()[GROUP]
        parts = [whole(log, addresses[number], node=f"n{number}") for number in (1, 2)]
        checks = [RangeCheck(part.node, part.start, part.end, sha256=part.node) for part in parts]
        found = compare(GROUP, checks, [replace(part, topics=()) for part in parts])
    assert [(one.verdict, one.node, one.position) for one in found] == [("invalid", "n2", log.cuts[1]["position"] + 60)]


def test_gaps_between_ranges_and_early_ends_of_queues_are_found():
    ranges = [
        RangeCheck("n", 0, 100, queues={("a", 0): QueueRun(0, 4, 5)}),
        RangeCheck("n", 100, 200),
        RangeCheck("n", 200, 300, queues={("a", 0): QueueRun(5, 8, 4)}),
    ]
    assert list(queue_gaps(GROUP, "n", ranges, [TopicBounds("a", 0, {0: (0, 9)})])) == []
    (early,) = queue_gaps(GROUP, "n", ranges, [TopicBounds("a", 0, {0: (0, 10)})])
    assert early.what == "a/0 ends with offset 8, not 9"
    ranges[2].queues["a", 0].first = 6
    (gap,) = queue_gaps(GROUP, "n", ranges, [TopicBounds("a", 0, {0: (0, 9)})])
    assert (gap.position, gap.what) == (200, "a/0 goes on with offset 6, not with 5")


def test_a_trim_between_the_plans_of_two_nodes_is_no_gap():
    """The first node's plan was made before the trim, and the second node's after it."""
    options = read_options({"namesrv": "a:1", "subscribePattern": ".*"}, "batch")
    cuts = [Cut(0, 0, 0, None, None), Cut(100, 10, 1, None, None)]
    plans = [
        GroupPlan(GROUP, 0, first, 200, cuts[number:], {"a": 0}, {Queue("a", GROUP, 0): QueueBounds(kept, 9)})
        for number, (first, kept) in enumerate([(0, 0), (100, 5)])
    ]
    nodes = [Replica(f"n{number}", "a:1", plan) for number, plan in enumerate(plans)]
    parts = log_ranges(nodes, "follower", "p", options)
    assert [(part.node, part.start, part.end) for part in parts] == [("n0", 100, 200), ("n1", 100, 200)]
    checks = [RangeCheck(part.node, part.start, part.end, queues={("a", 0): QueueRun(5, 8, 4)}) for part in parts]
    assert compare(GROUP, checks, parts) == []


# Lag.


def test_a_pin_that_cannot_be_released_does_not_affect_the_verdict(caplog):
    log = FakeLog(MESSAGES)

    def unpin(group, name):
        raise SourceError(f"no node of {group} answered")

    def parallelize(parts, _):
        return SimpleNamespace(map=lambda check: SimpleNamespace(collect=lambda: list(map(check, parts))))

    spark = SimpleNamespace(sparkContext=SimpleNamespace(parallelize=parallelize))
    cluster = SimpleNamespace(pin=lambda *_: None, unpin=unpin)
    with served(FakeNode(log)) as namesrv:
        (address,) = NameServers((namesrv,)).groups()[GROUP].values()
        plan = GroupPlan(GROUP, 0, FIRST_POSITION, log.end, [Cut(FIRST_POSITION, 5, 77, None, None)], {}, {})
        options = read_options({"namesrv": namesrv, "subscribe": "t"}, "batch")
        result = _verify_group(spark, cluster, [Replica("n1", address, plan)], "follower", options, silent)
    assert (result.verdict, len(result.replicas)) == ("valid", 1)
    assert "event=pin_kept" in caplog.text


def test_a_job_in_queues_mode_pins_the_log_while_reading(monkeypatch):
    there, gone = {}, []

    class OneQueue:
        def __init__(self, _):
            pass

        def groups(self):
            return [GROUP]

        def queues(self):
            return [Queue("t", GROUP, 0)]

        def left(self, _):
            return set()

        def plan(self, group, _):
            return GroupPlan(group, 0, 40, 100, [], {"t": 7}, {Queue("t", group, 0): QueueBounds(2, 9)})

        def pin(self, group, name, position, lease_ms):
            there[name] = position, lease_ms

        def unpin(self, group, name):
            gone.append(name)

        def close(self):
            pass

    monkeypatch.setattr("dledger_spark.planning.Cluster", OneQueue)
    monkeypatch.setattr("dledger_spark.jobs.inputs.Cluster", OneQueue)
    options = {"namesrv": "127.0.0.1:1", "subscribe": "t", "mode": "Queues"}
    with pinned(options) as reading:
        assert checked_options(reading) == checked_options(options)
        assert list(there.values()) == [(40, 3_600_000)], "the first byte that is kept, for as long as pins live"
        assert gone == []
    assert gone == list(there)


class Offsets:
    """Offsets of two groups and two topics. `busy` reads `orders`, one message a second."""

    def __init__(self):
        self.now = 1000.0

    def clock(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds

    def topics(self):
        return ["orders", "quiet"]

    def groups(self):
        return {"busy": object(), "idle": object()}

    def offsets(self, group, topic):
        committed = int(self.now) - 1000 if (group, topic) == ("busy", "orders") else None
        return [QueueStatus(MessageQueue(topic, "broker-a", 0), 0, 30, committed)]


def sampled(source, groups, topics, count):
    return sample(source, groups, topics, count, 10.0, clock=source.clock, wait=source.wait)


def test_lag_is_sampled_at_even_times_for_groups_that_have_committed_or_are_named():
    assert sampled(Offsets(), [], [], 3).totals() == [
        (1_000_000, "busy", "orders", 30),
        (1_010_000, "busy", "orders", 20),
        (1_020_000, "busy", "orders", 10),
    ]
    found = sampled(Offsets(), ["idle"], ["quiet"], 1)
    assert [(one.committed, one.lag) for one in found.samples] == [(None, 30)]
    with pytest.raises(JobError, match="there is no consumer group 'typo'"):
        sampled(Offsets(), ["busy", "typo"], ["orders"], 1)


def test_a_failed_sample_does_not_affect_the_others(monkeypatch):
    source = Offsets()
    offsets = source.offsets

    def offsets_but_once(group, topic):
        if source.now == 1010.0:
            raise NoBrokerError("no leader")
        return offsets(group, topic)

    monkeypatch.setattr(source, "offsets", offsets_but_once)
    found = sampled(source, ["busy"], ["orders"], 3)
    assert [one.time_ms for one in found.samples] == [1_000_000, 1_020_000]
    assert found.missed == [(1_010_000, "no leader")]
    source.now = 1010.0
    with pytest.raises(NoBrokerError):
        sampled(source, ["busy"], ["orders"], 3)


# Pacing.


def paced(*counts, pause_s=60.0):
    """Send batches of so many rows at 100 a second, with pauses between. Return the times and rows of all pieces."""
    now, went = [0.0], []

    async def sleep(seconds):
        now[0] += seconds

    async def send_all():
        pace = Pace(100, clock=lambda: now[0], sleep=sleep)
        for count in counts:
            for piece in pace.pieces(pa.RecordBatch.from_pydict({"value": list(range(count))})):
                await pace.wait(piece.num_rows)
                went.append((round(now[0], 6), piece.column(0).to_pylist()))
            now[0] += pause_s

    asyncio.run(send_all())
    return went


def test_rows_are_let_through_at_the_rate_that_was_told():
    went = paced(35)
    assert [(at, len(rows)) for at, rows in went] == [(0.0, 10), (0.1, 10), (0.2, 10), (0.3, 5)]
    assert [row for _, rows in went for row in rows] == list(range(35))


def test_a_pause_is_not_made_up_for_all_at_once():
    went = paced(100, 1000)
    busiest = max(sum(len(rows) for at, rows in went if begin <= at < begin + 1) for begin, _ in went)
    assert busiest <= 100 * (1 + BURST_S) + 10


@pytest.mark.parametrize(
    ("conf", "at_once"),
    [({}, 2), ({"spark.default.parallelism": "2"}, 8), ({"spark.dynamicAllocation.enabled": "true"}, 8)],
)
def test_a_rate_is_shared_by_as_many_tasks_as_may_run_at_a_time(conf, at_once):
    class Conf(dict):
        contains = dict.__contains__

    context = SimpleNamespace(getConf=lambda: Conf(conf), defaultParallelism=2)
    assert _max_running_tasks(context, tasks=8) == at_once
    assert _max_running_tasks(context, tasks=1) == 1


def test_without_a_rate_batches_pass_unsplit():
    batch = pa.RecordBatch.from_pydict({"value": [1, 2, 3]})
    assert [piece.num_rows for piece in Pace(None).pieces(batch)] == [3]

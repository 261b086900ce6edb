"""Age of a segment: the age of its newest message, whoever wrote its file and when."""

from collections.abc import Iterable, Sequence

import pytest
from job_runs import run_of_a_job

from dledger.errors import CorruptionError
from dledger.store.log import SegmentInfo
from dledger_broker.kernel.segment_ages import Expired, SegmentAges, SegmentTimes, find_expired
from dledger_broker.testing import START_MS, BrokerInMemory, FakeLog, FakeNode, Message

NOW = 1_000_000
HOUR = 3_600_000


def log_of(count: int) -> list[SegmentInfo]:
    """Return segments of 100 bytes."""
    return [SegmentInfo(100 * number, 100 * number + 100) for number in range(count)]


def expired(newest: Iterable[int | None], files: Sequence[int], max_age_ms: int = 50) -> Expired:
    """Return the expired ones of segments whose newest messages and files have these times.

    Segments beyond the end of `newest` were not read.
    """
    found = log_of(len(files))
    times = {
        segment.start_position: SegmentTimes(*both)
        for segment, both in zip(found, zip(newest, files, strict=False), strict=False)
    }
    return find_expired(found, times, NOW, max_age_ms)


FUTURE = NOW + 10_000


@pytest.mark.parametrize(
    ("newest", "files", "before"),
    [
        pytest.param([NOW - 60, NOW - 51, NOW - 50], [NOW] * 3, 200, id="age of the newest message"),
        pytest.param([NOW - 50], [0], 0, id="not age of the file"),
        pytest.param([NOW - 40], [NOW, NOW], 0, id="an unread segment behind a young one"),
        pytest.param([None, NOW - 60], [NOW - 60, NOW], 200, id="no messages, old file"),
        pytest.param([None, NOW - 60], [NOW - 40, NOW], 0, id="no messages, young file"),
        pytest.param([FUTURE, NOW - 40], [NOW - 60, NOW], 100, id="messages from the future, old file"),
        pytest.param([NOW + 1, NOW - 60], [NOW - 40, NOW], 0, id="messages from the future, young file"),
        pytest.param([FUTURE, NOW - 60], [FUTURE, NOW], 200, id="both from the future before an old segment"),
        pytest.param([FUTURE, NOW - 40], [FUTURE, NOW], 0, id="both from the future before a young segment"),
        pytest.param([FUTURE], [FUTURE], 0, id="both from the future"),
    ],
)
def test_the_age_of_a_segment_is_the_age_of_its_newest_message(
    newest: list[int | None], files: list[int], before: int
) -> None:
    """A segment without messages, or with messages from the future, is as old as its file."""
    assert expired(newest, files) == (before, None)


def test_the_first_unread_segment_ends_the_search():
    found = expired([NOW - 60], [NOW, NOW])
    assert (found.before, found.unread) == (100, log_of(2)[1])


class CountingNode(FakeNode):
    """Node that notes which segments' records are read. Segments in `rotten` cannot be read."""

    reads: list[int]
    rotten: set[int]

    def last_records(self, start: int, end: int) -> list[bytes]:
        self.reads.append(start)
        if start in self.rotten:
            raise CorruptionError("rotten")
        return super().last_records(start, end)


@pytest.fixture
def broker() -> BrokerInMemory:
    """Return a broker with four segments. Messages of hour h were stored h hours after the start.

    Another term begins before the messages of hour 2.
    """
    broker = BrokerInMemory(log=FakeLog(segment_bytes=1 << 16))
    node = broker.node
    node.__class__ = CountingNode
    node.reads, node.rotten = [], set()
    broker.create_topic("orders")
    for hour in range(4):
        if hour == 2:
            node.lead()
        for number in range(3):
            broker.send("orders", 0, Message(b"m"), at_ms=START_MS + hour * HOUR + number)
        node.commit()
        node.log.roll(0)
    broker.create_topic("other")
    return broker


def ask(ages: SegmentAges, broker: BrokerInMemory, now_ms: int, max_age_ms: int = HOUR) -> list[int]:
    told: list[int] = []
    ages.find_expired_later(run_of_a_job(broker), now_ms, max_age_ms, told.append)
    broker.env.run_ready()
    return told


def ages_of(broker: BrokerInMemory) -> SegmentAges:
    return SegmentAges(broker.node, lambda: broker.machine.applied_position)


def test_a_closed_segment_is_read_once_and_only_if_earlier_segments_have_expired(broker: BrokerInMemory):
    ages, starts = ages_of(broker), broker.log.segment_starts
    assert ask(ages, broker, START_MS + HOUR) == [0]
    assert broker.node.reads == starts[:1]
    assert ask(ages, broker, START_MS + HOUR + 3) == [starts[1]]
    assert broker.node.reads == starts[:2]
    assert ask(ages, broker, START_MS + 9 * HOUR) == [starts[4]], "the one that is being written stays"
    assert ask(ages, broker, START_MS + 9 * HOUR) == [starts[4]]
    assert broker.node.reads == starts[:4]
    again = broker.restart()
    assert ask(ages_of(again), again, START_MS + HOUR + 3) == [starts[1]]


def test_a_segment_that_cannot_be_read_counts_as_young(broker: BrokerInMemory):
    ages, starts = ages_of(broker), broker.log.segment_starts
    broker.node.rotten = {starts[1]}
    assert ask(ages, broker, START_MS + 9 * HOUR) == [starts[1]]
    assert broker.node.failed_reads == [starts[2] - 1], "it is repaired"
    broker.node.rotten = set()
    assert ask(ages, broker, START_MS + 9 * HOUR) == [starts[4]]


def test_a_segment_that_is_not_fully_applied_is_not_read(broker: BrokerInMemory):
    starts = broker.log.segment_starts
    ages = SegmentAges(broker.node, lambda: starts[2] - 1)
    assert ask(ages, broker, START_MS + 9 * HOUR) == [starts[1]]
    assert broker.node.reads == starts[:1]


@pytest.mark.parametrize("waits", [True, False])
def test_a_segment_is_read_by_one_run_at_a_time_and_an_ended_run_gets_no_result(broker: BrokerInMemory, waits: bool):
    """The next run does not wait for the reads of an ended run."""
    ages, told, run = ages_of(broker), [], run_of_a_job(broker)
    for _ in range(2):
        ages.find_expired_later(run, START_MS + 9 * HOUR, HOUR, told.append)
    run.stop()
    if waits:
        broker.env.run_ready()
        assert (told, broker.node.reads) == ([], [0])
    assert ask(ages, broker, START_MS + 9 * HOUR) == [broker.log.segment_starts[4]]
    assert told == []

"""A segment is as old as its newest message, whoever wrote its file and when."""

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
    """Segments of 100 bytes."""
    return [SegmentInfo(100 * number, 100 * number + 100) for number in range(count)]


def expired(newest: Iterable[int | None], files: Sequence[int], max_age_ms: int = 50) -> Expired:
    """Of segments whose newest messages, and files, were written at these times; not all were read."""
    found = log_of(len(files))
    times = {
        segment.start_position: SegmentTimes(*both)
        for segment, both in zip(found, zip(newest, files, strict=False), strict=False)
    }
    return find_expired(found, times, NOW, max_age_ms)


def test_the_newest_message_counts_and_not_the_file():
    assert expired([NOW - 60, NOW - 51, NOW - 50], [NOW] * 3) == (200, None)
    assert expired([NOW - 50], [0]) == (0, None)


def test_the_first_segment_that_nobody_has_read_ends_the_search():
    found = expired([NOW - 60], [NOW, NOW])
    assert (found.before, found.unread) == (100, log_of(2)[1])
    assert expired([NOW - 40], [NOW, NOW]) == (0, None), "it need not be read yet"


def test_a_segment_without_messages_is_as_old_as_its_file():
    assert expired([None, NOW - 60], [NOW - 60, NOW]) == (200, None)
    assert expired([None, NOW - 60], [NOW - 40, NOW]) == (0, None)


def test_messages_from_the_future_keep_a_segment_as_long_as_its_file():
    assert expired([NOW + 10_000, NOW - 40], [NOW - 60, NOW]) == (100, None)
    assert expired([NOW + 1, NOW - 60], [NOW - 40, NOW]) == (0, None)


def test_a_segment_whose_file_is_from_the_future_too_goes_with_the_next():
    assert expired([NOW + 10_000, NOW - 60], [NOW + 10_000, NOW]) == (200, None)
    assert expired([NOW + 10_000, NOW - 40], [NOW + 10_000, NOW]) == (0, None)
    assert expired([NOW + 10_000], [NOW + 10_000]) == (0, None)


class CountingNode(FakeNode):
    """Writes down which segments' records are read; those in `rotten` cannot be."""

    reads: list[int]
    rotten: set[int]

    def last_records(self, start: int, end: int) -> list[bytes]:
        """See `Node.last_records`."""
        self.reads.append(start)
        if start in self.rotten:
            raise CorruptionError("rotten")
        return super().last_records(start, end)


@pytest.fixture
def broker() -> BrokerInMemory:
    """Four segments; hour h's messages were stored h hours after the start, those of hour 2 by another leader."""
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
    ages.ask_expired(run_of_a_job(broker), now_ms, max_age_ms, told.append)
    broker.env.run_ready()
    return told


def ages_of(broker: BrokerInMemory) -> SegmentAges:
    return SegmentAges(broker.node, lambda: broker.machine.applied_position)


def test_each_closed_segment_is_read_once_and_only_when_those_before_it_are_too_old(broker: BrokerInMemory):
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
    broker.node.rotten = set()
    assert ask(ages, broker, START_MS + 9 * HOUR) == [starts[4]]


def test_what_is_not_applied_yet_is_not_read(broker: BrokerInMemory):
    starts = broker.log.segment_starts
    ages = SegmentAges(broker.node, lambda: starts[2] - 1)
    assert ask(ages, broker, START_MS + 9 * HOUR) == [starts[1]]
    assert broker.node.reads == starts[:1]


def test_nothing_is_told_once_a_run_has_ended_and_nothing_is_read_twice_at_a_time(broker: BrokerInMemory):
    ages, told, run = ages_of(broker), [], run_of_a_job(broker)
    ages.ask_expired(run, START_MS + 9 * HOUR, HOUR, told.append)
    ages.ask_expired(run, START_MS + 9 * HOUR, HOUR, told.append)
    run.stop()
    broker.env.run_ready()
    assert (told, broker.node.reads) == ([], [0])
    assert ask(ages, broker, START_MS + 9 * HOUR) == [broker.log.segment_starts[4]]


def test_a_run_need_not_wait_for_what_is_read_for_one_that_has_ended(broker: BrokerInMemory):
    ages, run = ages_of(broker), run_of_a_job(broker)
    ages.ask_expired(run, START_MS + 9 * HOUR, HOUR, lambda _: None)
    run.stop()
    assert ask(ages, broker, START_MS + 9 * HOUR) == [broker.log.segment_starts[4]]

"""Table of read results: RocketMQ's GetMessageStatus by the place of the offset."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.errors import CorruptionError, NotLeaderError, TrimmedError
from dledger.types import Membership, SnapshotMeta
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.testing import BrokerInMemory, Message
from dledger_broker.views.reading import MAX_SCANNED_UNITS, ReadStatus, select
from dledger_broker.views.unitfiles import queue_directory
from dledger_broker.views.units import UNIT, UNIT_BYTES
from dledger_remoting.filters.tags import TagFilter, tag_code


@pytest.fixture
def broker():
    broker = orders_of()
    for number in range(40):
        broker.send("orders", 0, Message(b"%d" % number, tags="even" if number % 2 == 0 else "odd"))
    broker.queue("orders").first_offset = 10
    return broker


def orders_of(*times_ms: int) -> BrokerInMemory:
    """Return a broker with an orders topic, which has a message of each of these times."""
    broker = BrokerInMemory()
    broker.create_topic("orders")
    for at_ms in times_ms:
        broker.send("orders", 0, Message(b"x"), at_ms=at_ms)
    return broker


def store(broker: BrokerInMemory, generation: bytes) -> list[bytes]:
    """Make a topic and store messages, whose units are then in files and not in memory; return their bodies."""
    bodies = [generation + b"%d" % number for number in range(20)]
    broker.create_topic("orders")
    broker.send("orders", 0, *map(Message, bodies))
    forget_units(broker)
    return bodies


def forget_units(broker: BrokerInMemory) -> None:
    """Have the units of all queues written to files, and dropped from memory."""
    broker.flush_views()
    broker.flush_views()


def install_snapshot(machine: BrokerMachine, end: int) -> None:
    machine.decode(SnapshotMeta(end, 2, 1, 0, Membership()), list(machine.snapshot()))()


def read(broker, offset, most=5, message_filter=None, queue_id=0):
    return broker.reads.get_messages(broker.queue("orders", queue_id), offset, most, 1 << 20, message_filter)


def read_later(broker, queue, offset):
    """Return the list in which the result of a read on a worker comes."""
    results = []
    broker.reads.get_messages_later(queue, offset, 5, 1 << 20, None, results.append)
    return results


@pytest.mark.parametrize(
    ("queue_id", "offset", "status", "next_begin"),
    [
        (0, 9, ReadStatus.OFFSET_TOO_SMALL, 10),
        (0, 10, ReadStatus.FOUND, 15),
        (0, 38, ReadStatus.FOUND, 40),
        (0, 40, ReadStatus.OFFSET_OVERFLOW_ONE, 40),
        (0, 41, ReadStatus.OFFSET_OVERFLOW_BADLY, 40),
        (1, 0, ReadStatus.NO_MESSAGE_IN_QUEUE, 0),
        (1, 3, ReadStatus.NO_MESSAGE_IN_QUEUE, 0),
    ],
)
def test_the_status_of_a_read_follows_from_the_position_of_its_offset(broker, queue_id, offset, status, next_begin):
    result = read(broker, offset, queue_id=queue_id)
    assert (result.status, result.next_begin) == (status, next_begin)
    assert (result.min_offset, result.max_offset) == ((0, 0) if queue_id else (10, 40))


def test_a_filter_skips_and_the_next_offset_is_after_the_last_scanned(broker):
    result = read(broker, 11, 3, TagFilter.parse("even"))
    assert (result.status, result.message_count, result.next_begin) == (ReadStatus.FOUND, 3, 18)
    nothing = read(broker, 10, 3, TagFilter.parse("neither"))
    assert (nothing.status, nothing.next_begin, nothing.runs) == (ReadStatus.NO_MATCHED_MESSAGE, 40, [])


def test_adjacent_records_are_read_in_one_piece():
    broker = orders_of()
    broker.send("orders", 0, Message(b"a"), Message(b"b"))
    broker.send("orders", 0, Message(b"c"))
    result = read(broker, 0, 32)
    assert (len(result.runs), result.message_count) == (2, 3)
    assert sum(size for _, size in result.runs) == result.size


def test_a_filter_that_rejects_everything_scans_a_bounded_number_of_units():
    units = b"".join(UNIT.pack(number * 100, 100, tag_code("odd")) for number in range(MAX_SCANNED_UNITS))
    result = select(units, 7, 0, 10_000, 32, 1 << 20, TagFilter.parse("even"), 0)
    assert (result.status, result.next_begin) == (ReadStatus.NO_MATCHED_MESSAGE, 7 + MAX_SCANNED_UNITS)


def test_messages_whose_log_is_gone_are_passed_over():
    units = b"".join(UNIT.pack(number * 100, 100, 0) for number in range(10))
    for begin, first_position, expected in (
        (0, 700, (ReadStatus.MESSAGE_WAS_REMOVING, [], 7)),
        (7, 700, (ReadStatus.FOUND, [(700, 300)], 10)),
        (0, 5000, (ReadStatus.MESSAGE_WAS_REMOVING, [], 10)),
    ):
        result = select(units[begin * UNIT_BYTES :], begin, 0, 10, 32, 1 << 20, None, first_position)
        assert (result.status, result.runs, result.next_begin) == expected


def test_units_outside_the_page_cache_are_read_by_a_worker(broker):
    queue = broker.queue("orders")
    forget_units(broker)
    assert len(queue.view.tail) == 0
    assert read(broker, 10).cold, "nobody has opened the file"
    results = read_later(broker, queue, 10)
    broker.env.run_ready()
    assert results == [read(broker, 10)]
    assert results[0].message_count == 5
    broker.machine.queues._reader.read_nowait = lambda *_: None
    assert read(broker, 10).cold
    assert read_later(broker, queue, 40)[0].status is ReadStatus.OFFSET_OVERFLOW_ONE


def test_a_trim_of_files_that_a_worker_reads_is_no_damage(broker):
    """The next pull goes on with what is kept, and is not told that a file lacks something."""
    queue = broker.queue("orders")
    forget_units(broker)
    results = read_later(broker, queue, 12)
    queue.first_offset = 20
    broker.disk.rmtree(queue_directory("orders", 0))
    broker.env.run_ready()
    assert [(result.status, result.next_begin) for result in results] == [(ReadStatus.OFFSET_TOO_SMALL, 20)]
    results = read_later(broker, queue, 25)
    broker.env.run_ready()
    assert results[0].status is ReadStatus.NOT_REBUILT, "those that no trim has taken are missing"


@pytest.mark.parametrize(
    ("goes", "question", "answer"),
    [
        ("trimmed", lambda lookup, queue, _: lookup.earliest_store_time(queue), 1007),
        ("trimmed", lambda lookup, _, position: lookup.message_at(position), None),
        ("deleted", lambda lookup, queue, _: lookup.earliest_store_time(queue), -1),
        ("deleted", lambda lookup, queue, _: lookup.search_offset(queue, 1002), 0),
        ("deleted", lambda lookup, _, position: lookup.message_at(position), None),
    ],
)
def test_a_trim_or_deletion_during_a_lookup_is_not_reported_as_damage(monkeypatch, goes, question, answer):
    broker = orders_of(*range(1000, 1010))
    queue, lookup = broker.queue("orders"), broker.machine.lookup
    position = read(broker, 3, 1).runs[0][0]
    unit = lookup._unit

    async def unit_unless_gone(queue, offset):
        if queue.first_offset == 7 or queue.dropped:
            return await unit(queue, offset)
        if goes == "deleted":
            broker.delete_topic("orders")
        else:
            queue.first_offset = 7
        raise CorruptionError(f"a file lacks the unit of queue offset {offset}")

    monkeypatch.setattr(lookup, "_unit", unit_unless_gone)
    assert broker.run(question(lookup, queue, position)) == answer


def test_a_search_that_a_snapshot_overtakes_goes_to_another_node():
    """The state is replaced after the first unit. The queue is not gone like that of a deleted topic."""
    broker = BrokerInMemory()
    store(broker, b"x")
    machine, queue = broker.machine, broker.queue("orders")
    read_later = machine.queues.read_later

    def read_once(*read):
        read_later(*read)
        machine.queues.read_later = read_later
        install_snapshot(machine, broker.log.end)

    machine.queues.read_later = read_once
    with pytest.raises(NotLeaderError, match="a snapshot has replaced"):
        broker.run(machine.lookup.search_offset(queue, 1))


@pytest.mark.parametrize("unit", [(1 << 40, 100), (0, 1 << 30), (0, 0), (0, -1), ((1 << 63) - 1, 1)])
def test_a_rotten_unit_is_reported_and_causes_no_read_outside_the_log(broker, unit):
    """A read outside of the log would break an invariant of the code, which ends the node at each such pull."""
    queue = broker.queue("orders")
    queue.view.tail[12 * UNIT_BYTES : 13 * UNIT_BYTES] = UNIT.pack(*unit, 0)
    with pytest.raises(CorruptionError, match="delete its consumequeue directory"):
        read(broker, 12, 1)
    assert isinstance(read_later(broker, queue, 12)[0], CorruptionError)
    with pytest.raises(CorruptionError, match="delete its consumequeue directory"):
        broker.run(broker.machine.lookup.store_time_at(queue, 12))


def test_a_search_by_time_finds_the_first_or_last_offset():
    for times_ms, lower, upper, earliest in (
        ((), [0] * 5, None, -1),
        ([1000 + 10 * (number // 2) for number in range(10)], [0, 0, 2, 8, 10], [0, 1, 3, 9, 9], 1000),
    ):
        broker = orders_of(*times_ms)
        queue, lookup = broker.queue("orders"), broker.machine.lookup
        assert [broker.run(lookup.search_offset(queue, at)) for at in (1, 1000, 1001, 1040, 1041)] == lower
        if upper is not None:
            times = (1, 1000, 1015, 1040, 1041)
            assert [broker.run(lookup.search_offset(queue, at, upper=True)) for at in times] == upper
        assert broker.run(lookup.earliest_store_time(queue)) == earliest


def test_a_search_by_time_continues_in_the_rest_of_the_queue_after_a_trim(monkeypatch):
    broker = orders_of(*range(1000, 1010))
    queue, lookup = broker.queue("orders"), broker.machine.lookup
    stored_at = lookup._stored_at

    async def stored_at_unless_trimmed(queue, offset):
        if queue.first_offset == 0:
            queue.first_offset = 7
            raise TrimmedError(f"offset {offset} is gone")
        return await stored_at(queue, offset)

    monkeypatch.setattr(lookup, "_stored_at", stored_at_unless_trimmed)
    assert broker.run(lookup.search_offset(queue, 1002)) == 7


@given(
    st.lists(st.tuples(st.sampled_from([0, 0, 0, 0, 48]), st.integers(91, 400)), max_size=12),
    st.integers(1, 14),
    st.integers(1, 3000),
    st.integers(0, 2000),
)
def test_selecting_adjacent_records_at_once_equals_selecting_one_by_one(
    spaced, max_messages, max_bytes, first_position
):
    units, position = b"", 1000
    for gap, size in spaced:
        position += gap
        units += UNIT.pack(position, size, tag_code("even"))
        position += size
    limits = (7, 0, 10_000, max_messages, max_bytes)
    one_by_one = select(units, *limits, TagFilter.parse("even"), first_position)
    assert select(units, *limits, None, first_position) == one_by_one


def test_a_read_of_a_deleted_topic_leaves_no_file_open_for_the_next_topic_of_that_name():
    """A search goes on in the old queue, whose files have lost their name, when the next topic's units leave memory."""
    broker, answers = BrokerInMemory(), []
    for generation in (b"old", b"new"):
        bodies = store(broker, generation)
        queue = broker.queue("orders")
        if generation == b"old":
            broker.machine.proposals.delete_topic("orders", lambda _: None)
            broker.machine.queues._writer.submit(lambda: None, lambda _: None)
            broker.node.commit()
            assert broker.machine.queues.read(queue.view, 0, 1) is None
            broker.machine.queues.read_later(queue.view, 0, 1, answers.append)
            broker.env.run_ready()
    assert isinstance(answers[0], CorruptionError)
    assert broker.bodies("orders") == bodies


def test_an_open_file_of_a_deleted_topic_is_not_read_for_the_next_topic_of_that_name():
    broker = BrokerInMemory()
    for generation in (b"old", b"new"):
        bodies = store(broker, generation)
        assert broker.bodies("orders") == bodies
        if generation == b"old":
            broker.delete_topic("orders")


def test_a_file_open_at_the_installation_of_a_snapshot_is_no_longer_read():
    broker = BrokerInMemory()
    bodies = store(broker, b"old")
    assert broker.bodies("orders") == bodies
    install_snapshot(broker.machine, broker.log.end)
    broker.env.run_ready()
    broker.send("orders", 0, *[Message(b"new")] * 8)
    forget_units(broker)
    read_later(broker, broker.queue("orders"), 20)
    broker.env.run_ready()
    result = read(broker, 20)
    assert (result.status, result.next_begin) == (ReadStatus.FOUND, 25)


def test_a_read_overtaken_by_a_deletion_has_to_be_repeated(broker):
    """The offsets of its queue mean nothing any more: a reader would be sent to -1."""
    queue = broker.queue("orders")
    broker.delete_topic("orders")
    results = [*read_later(broker, queue, 12), broker.reads.get_messages(queue, 12, 5, 1 << 20)]
    assert [(result.status, result.next_begin) for result in results] == [(ReadStatus.MESSAGE_WAS_REMOVING, 12)] * 2

"""The table of read results: RocketMQ's GetMessageStatus by where the offset lies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.errors import CorruptionError, NotLeaderError, TrimmedError
from dledger.types import Membership, SnapshotMeta
from dledger_broker.testing import BrokerInMemory, Message
from dledger_broker.views.reading import MAX_SCANNED_UNITS, ReadStatus, select
from dledger_broker.views.unitfiles import queue_directory
from dledger_broker.views.units import UNIT, UNIT_BYTES
from dledger_remoting.filters.tags import TagFilter, tag_code


@pytest.fixture
def broker():
    broker = BrokerInMemory()
    broker.create_topic("orders")
    for number in range(40):
        broker.send("orders", 0, Message(b"%d" % number, tags="even" if number % 2 == 0 else "odd"))
    broker.queue("orders").first_offset = 10
    return broker


def store(broker: BrokerInMemory, generation: bytes) -> list[bytes]:
    """Make a topic and store messages, whose units lie in files then and not in memory; returns their bodies."""
    bodies = [generation + b"%d" % number for number in range(20)]
    broker.create_topic("orders")
    broker.send("orders", 0, *map(Message, bodies))
    broker.flush_views()
    broker.flush_views()
    return bodies


@pytest.mark.parametrize(
    ("offset", "status", "next_begin"),
    [
        (9, ReadStatus.OFFSET_TOO_SMALL, 10),
        (10, ReadStatus.FOUND, 15),
        (38, ReadStatus.FOUND, 40),
        (40, ReadStatus.OFFSET_OVERFLOW_ONE, 40),
        (41, ReadStatus.OFFSET_OVERFLOW_BADLY, 40),
    ],
)
def test_where_an_offset_lies_decides_the_answer(broker, offset, status, next_begin):
    result = broker.reads.get_messages(broker.queue("orders"), offset, 5, 1 << 20)
    assert (result.status, result.next_begin) == (status, next_begin)
    assert (result.min_offset, result.max_offset) == (10, 40)


@pytest.mark.parametrize("offset", [0, 3])
def test_an_empty_queue_says_so(broker, offset):
    result = broker.reads.get_messages(broker.queue("orders", 1), offset, 5, 1 << 20)
    assert (result.status, result.next_begin) == (ReadStatus.NO_MESSAGE_IN_QUEUE, 0)


def test_a_filter_skips_and_the_next_offset_is_after_the_last_scanned(broker):
    queue = broker.queue("orders")
    result = broker.reads.get_messages(queue, 11, 3, 1 << 20, TagFilter.parse("even"))
    assert (result.status, result.message_count, result.next_begin) == (ReadStatus.FOUND, 3, 18)
    nothing = broker.reads.get_messages(queue, 10, 3, 1 << 20, TagFilter.parse("neither"))
    assert (nothing.status, nothing.next_begin, nothing.runs) == (ReadStatus.NO_MATCHED_MESSAGE, 40, [])


@pytest.mark.parametrize("max_messages", [0, -1, 1])
def test_at_least_one_message_comes_whatever_the_limits(broker, max_messages):
    result = broker.reads.get_messages(broker.queue("orders"), 10, max_messages, 1)
    assert (result.status, result.message_count, result.next_begin) == (ReadStatus.FOUND, 1, 11)


def test_a_byte_limit_ends_the_answer_before_the_message_that_passes_it(broker):
    size = broker.reads.get_messages(broker.queue("orders"), 10, 1, 1).size
    result = broker.reads.get_messages(broker.queue("orders"), 10, 32, 3 * size)
    assert result.message_count == 3
    assert 2 * size < result.size <= 3 * size


def test_records_that_lie_side_by_side_are_one_piece():
    broker = BrokerInMemory()
    broker.create_topic("orders")
    broker.send("orders", 0, Message(b"a"), Message(b"b"))
    broker.send("orders", 0, Message(b"c"))
    result = broker.reads.get_messages(broker.queue("orders"), 0, 32, 1 << 20)
    assert (len(result.runs), result.message_count) == (2, 3)
    assert sum(size for _, size in result.runs) == result.size


def test_a_filter_that_rejects_everything_scans_a_bounded_number_of_units():
    units = b"".join(UNIT.pack(number * 100, 100, tag_code("odd")) for number in range(MAX_SCANNED_UNITS))
    result = select(units, 7, 0, 10_000, 32, 1 << 20, TagFilter.parse("even"), 0)
    assert (result.status, result.next_begin) == (ReadStatus.NO_MATCHED_MESSAGE, 7 + MAX_SCANNED_UNITS)


def test_messages_whose_log_is_gone_are_passed_over():
    units = b"".join(UNIT.pack(number * 100, 100, 0) for number in range(10))
    result = select(units, 0, 0, 10, 32, 1 << 20, None, 700)
    assert (result.status, result.runs, result.next_begin) == (ReadStatus.MESSAGE_WAS_REMOVING, [], 7)
    kept = select(units[7 * UNIT_BYTES :], 7, 0, 10, 32, 1 << 20, None, 700)
    assert (kept.status, kept.runs, kept.next_begin) == (ReadStatus.FOUND, [(700, 300)], 10)
    gone = select(units, 0, 0, 10, 32, 1 << 20, None, 5000)
    assert (gone.status, gone.next_begin) == (ReadStatus.MESSAGE_WAS_REMOVING, 10)


def test_units_outside_the_page_cache_are_read_by_a_worker(broker):
    queue = broker.queue("orders")
    broker.flush_views()
    broker.flush_views()
    assert len(queue.view.tail) == 0
    assert broker.reads.get_messages(queue, 10, 5, 1 << 20).cold, "nobody has opened the file"
    results = []
    broker.reads.get_messages_later(queue, 10, 5, 1 << 20, None, results.append)
    broker.env.run_ready()
    assert results == [broker.reads.get_messages(queue, 10, 5, 1 << 20)]
    assert results[0].message_count == 5
    broker.machine.queues._reader.read_nowait = lambda *_: None
    assert broker.reads.get_messages(queue, 10, 5, 1 << 20).cold
    broker.reads.get_messages_later(queue, 40, 5, 1 << 20, None, results.append)
    assert results[1].status is ReadStatus.OFFSET_OVERFLOW_ONE


def test_a_trim_that_takes_the_files_which_a_worker_reads_is_no_damage(broker):
    """The next pull goes on with what is kept, instead of being told that a file lacks something."""
    queue = broker.queue("orders")
    broker.flush_views()
    broker.flush_views()
    results = []
    broker.reads.get_messages_later(queue, 12, 5, 1 << 20, None, results.append)
    queue.first_offset = 20
    broker.disk.rmtree(queue_directory("orders", 0))
    broker.env.run_ready()
    assert [(result.status, result.next_begin) for result in results] == [(ReadStatus.OFFSET_TOO_SMALL, 20)]
    broker.reads.get_messages_later(queue, 25, 5, 1 << 20, None, results.append)
    broker.env.run_ready()
    assert isinstance(results[1], CorruptionError)


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
def test_what_goes_while_its_files_are_read_is_not_there_and_no_damage(monkeypatch, goes, question, answer):
    broker = BrokerInMemory()
    broker.create_topic("orders")
    for number in range(10):
        broker.send("orders", 0, Message(b"x"), at_ms=1000 + number)
    queue, lookup = broker.queue("orders"), broker.machine.lookup
    position = broker.reads.get_messages(queue, 3, 1, 1).runs[0][0]
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
    """It has looked at one unit when the state is replaced. The queue is not gone, as that of a deleted topic is."""
    broker = BrokerInMemory()
    store(broker, b"x")
    machine, queue = broker.machine, broker.queue("orders")
    read_later = machine.queues.read_later

    def read_once(*read):
        read_later(*read)
        machine.queues.read_later = read_later
        machine.decode(SnapshotMeta(broker.log.end, 2, 1, 0, Membership()), list(machine.snapshot()))()

    machine.queues.read_later = read_once
    with pytest.raises(NotLeaderError, match="a snapshot has replaced"):
        broker.run(machine.lookup.search_offset(queue, 1))


@pytest.mark.parametrize("unit", [(1 << 40, 100), (0, 1 << 30), (0, 0), (0, -1), ((1 << 63) - 1, 1)])
def test_a_unit_that_has_rotted_is_told_and_the_log_not_asked_for_what_it_never_had(broker, unit):
    """That would be a broken promise of the code, which ends the node, at each such pull."""
    queue, results = broker.queue("orders"), []
    queue.view.tail[12 * UNIT_BYTES : 13 * UNIT_BYTES] = UNIT.pack(*unit, 0)
    with pytest.raises(CorruptionError, match="delete its consumequeue directory"):
        broker.reads.get_messages(queue, 12, 1, 1 << 20)
    broker.reads.get_messages_later(queue, 12, 1, 1 << 20, None, results.append)
    assert isinstance(results[0], CorruptionError)
    with pytest.raises(CorruptionError, match="delete its consumequeue directory"):
        broker.run(broker.machine.lookup.store_time_at(queue, 12))


def test_times_find_offsets():
    broker = BrokerInMemory()
    broker.create_topic("orders")
    queue = broker.queue("orders")
    search = broker.machine.lookup.search_offset
    assert broker.run(search(queue, 5)) == 0
    assert broker.run(broker.machine.lookup.earliest_store_time(queue)) == -1
    for number in range(10):
        broker.send("orders", 0, Message(b"x"), at_ms=1000 + 10 * (number // 2))
    assert [broker.run(search(queue, at)) for at in (1, 1000, 1001, 1040, 1041)] == [0, 0, 2, 8, 10]
    assert [broker.run(search(queue, at, upper=True)) for at in (1, 1000, 1015, 1040, 1041)] == [0, 1, 3, 9, 9]
    assert broker.run(broker.machine.lookup.earliest_store_time(queue)) == 1000


def test_a_search_by_time_goes_on_in_what_a_trim_has_left(monkeypatch):
    broker = BrokerInMemory()
    broker.create_topic("orders")
    for number in range(10):
        broker.send("orders", 0, Message(b"x"), at_ms=1000 + number)
    queue, lookup = broker.queue("orders"), broker.machine.lookup
    stored_at = lookup._stored_at

    async def stored_at_unless_trimmed(queue, offset):
        if queue.first_offset == 0:
            queue.first_offset = 7
            raise TrimmedError(f"offset {offset} is gone")
        return await stored_at(queue, offset)

    monkeypatch.setattr(lookup, "_stored_at", stored_at_unless_trimmed)
    assert broker.run(lookup.search_offset(queue, 1002)) == 7


def test_a_message_is_found_by_its_position_and_an_imitation_in_a_body_is_not():
    broker = BrokerInMemory()
    broker.create_topic("orders")
    broker.send("orders", 0, Message(b"genuine"))
    position = broker.reads.get_messages(broker.queue("orders"), 0, 1, 1).runs[0][0]
    record = broker.run(broker.machine.lookup.message_at(position))
    assert b"genuine" in record
    body_start = broker.log.end + 48 + 88
    imitation = bytearray(record)
    imitation[28:36] = body_start.to_bytes(8, "big")
    broker.send("orders", 0, Message(bytes(imitation)))
    assert broker.log.data[body_start : body_start + 8] == imitation[:8]
    for elsewhere in (-1, 0, position + 1, body_start, broker.log.end, broker.log.end + 1000):
        assert broker.run(broker.machine.lookup.message_at(elsewhere)) is None


@given(
    st.lists(st.tuples(st.sampled_from([0, 0, 0, 0, 48]), st.integers(91, 400)), max_size=12),
    st.integers(1, 14),
    st.integers(1, 3000),
    st.integers(0, 2000),
)
def test_adjacent_records_are_selected_at_once_as_they_are_one_by_one(spaced, max_messages, max_bytes, first_position):
    units, position = b"", 1000
    for gap, size in spaced:
        position += gap
        units += UNIT.pack(position, size, tag_code("even"))
        position += size
    limits = (7, 0, 10_000, max_messages, max_bytes)
    one_by_one = select(units, *limits, TagFilter.parse("even"), first_position)
    assert select(units, *limits, None, first_position) == one_by_one


def test_a_read_of_a_deleted_topic_leaves_no_file_open_for_the_next_topic_of_that_name():
    """1. A deletion is applied, and the view writer is busy; 2. a search goes on in the old queue; 3. its files give
    their name away; 4. the next topic's units leave the memory."""
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


def test_a_file_that_is_open_when_its_topic_is_deleted_is_not_read_under_the_next_one_of_that_name():
    broker = BrokerInMemory()
    for generation in (b"old", b"new"):
        bodies = store(broker, generation)
        assert broker.bodies("orders") == bodies
        if generation == b"old":
            broker.delete_topic("orders")


def test_a_file_that_is_open_when_a_snapshot_replaces_the_state_is_not_read_any_more():
    broker = BrokerInMemory()
    bodies = store(broker, b"old")
    assert broker.bodies("orders") == bodies
    machine = broker.machine
    machine.decode(SnapshotMeta(broker.log.end, 2, 1, 0, Membership()), list(machine.snapshot()))()
    broker.env.run_ready()
    broker.send("orders", 0, *[Message(b"new")] * 8)
    broker.flush_views()
    broker.flush_views()
    queue = broker.queue("orders")
    broker.reads.get_messages_later(queue, 20, 5, 1 << 20, None, lambda _: None)
    broker.env.run_ready()
    result = broker.reads.get_messages(queue, 20, 5, 1 << 20)
    assert (result.status, result.next_begin) == (ReadStatus.FOUND, 25)


def test_a_read_that_a_deletion_overtakes_is_to_be_repeated(broker):
    """Its queue's offsets say nothing any more: a reader would be sent to -1."""
    queue, results = broker.queue("orders"), []
    broker.delete_topic("orders")
    broker.reads.get_messages_later(queue, 12, 5, 1 << 20, None, results.append)
    results.append(broker.reads.get_messages(queue, 12, 5, 1 << 20))
    assert [(result.status, result.next_begin) for result in results] == [(ReadStatus.MESSAGE_WAS_REMOVING, 12)] * 2

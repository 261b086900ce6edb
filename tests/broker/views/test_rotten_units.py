"""A unit of a consume queue that rots on the disk is noticed by who reads it, never answered with, and written anew."""

import logging
from contextlib import suppress

import pytest

from dledger.errors import NotLeaderError
from dledger_broker.errors import BeingMendedError
from dledger_broker.kernel.mending import REST_S
from dledger_broker.testing import BrokerInMemory, FakeLog, Message
from dledger_broker.testing.environment import START_MS
from dledger_broker.views.proof import RottenUnitsError
from dledger_broker.views.units import UNIT, UNIT_BYTES
from dledger_remoting.filters.tags import TagFilter
from dledger_remoting.record import decode_record

QUEUE_FILE = "consumequeue/orders/0/" + f"{0:020d}"
COUNT = 12
ROTTEN = 5


@pytest.fixture
def broker() -> BrokerInMemory:
    """Two topics whose records stand by turns, all units of `orders` in their file and none in memory."""
    broker = BrokerInMemory(log=FakeLog(segment_bytes=1 << 13))
    for topic in ("audits", "orders"):
        broker.create_topic(topic)
    for number in range(COUNT):
        for topic in ("audits", "orders"):
            message = Message(b"%s %d" % (topic.encode(), number), tags="even" if number % 2 == 0 else "odd")
            broker.send(topic, 0, message, at_ms=START_MS + 1000 * number)
    broker.flush_views()
    broker.checkpoint()
    broker.env.advance(5)
    assert broker.queue("orders").view.tail_start == COUNT
    return broker


def unit(broker: BrokerInMemory, topic: str, offset: int) -> tuple[int, int, int]:
    file = broker.disk.open(QUEUE_FILE.replace("orders", topic))
    return UNIT.unpack(file.pread(UNIT_BYTES, offset * UNIT_BYTES))


def put(broker: BrokerInMemory, offset: int, position: int, size: int, code: int) -> None:
    broker.disk.open(QUEUE_FILE).pwrite(UNIT.pack(position, size, code), offset * UNIT_BYTES)


def beyond(broker: BrokerInMemory) -> tuple[int, int, int]:
    _, size, code = unit(broker, "orders", ROTTEN)
    return broker.log.end + 1000, size, code


def negative(broker: BrokerInMemory) -> tuple[int, int, int]:
    position, size, code = unit(broker, "orders", ROTTEN)
    return position - (1 << 63), size, code


def inside(broker: BrokerInMemory) -> tuple[int, int, int]:
    position, size, code = unit(broker, "orders", ROTTEN)
    return position + 8, size, code


def across(broker: BrokerInMemory) -> tuple[int, int, int]:
    _, size, code = unit(broker, "orders", ROTTEN)
    return broker.node.segment_bytes - 20, size, code


def of_another_topic(broker: BrokerInMemory) -> tuple[int, int, int]:
    return unit(broker, "audits", ROTTEN)


def of_another_offset(broker: BrokerInMemory) -> tuple[int, int, int]:
    return unit(broker, "orders", ROTTEN + 3)


def too_large(broker: BrokerInMemory) -> tuple[int, int, int]:
    position, size, code = unit(broker, "orders", ROTTEN)
    return position, size + (1 << 24), code


def too_small(broker: BrokerInMemory) -> tuple[int, int, int]:
    position, size, code = unit(broker, "orders", ROTTEN)
    return position, size - 64, code


def one_more_byte(broker: BrokerInMemory) -> tuple[int, int, int]:
    position, size, code = unit(broker, "orders", ROTTEN)
    return position, size + 1, code


def zeros(_broker: BrokerInMemory) -> tuple[int, int, int]:
    return 0, 0, 0


KINDS = (
    beyond,
    negative,
    inside,
    across,
    of_another_topic,
    of_another_offset,
    too_large,
    too_small,
    one_more_byte,
    zeros,
)


@pytest.fixture
def sound(broker: BrokerInMemory) -> tuple[int, int, int]:
    """The unit as it was."""
    return unit(broker, "orders", ROTTEN)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def rotten(request: pytest.FixtureRequest, broker: BrokerInMemory, sound: tuple[int, int, int]) -> BrokerInMemory:
    put(broker, ROTTEN, *request.param(broker))
    return broker


def pulled(broker: BrokerInMemory, offset: int, count: int) -> list[bytes]:
    return pull(broker, offset, count)[0]


def pull(
    broker: BrokerInMemory, offset: int, count: int, tag_filter: TagFilter | None = None
) -> tuple[list[bytes], int]:
    """The bodies that a pull gets, and where the next one goes on."""
    queue = broker.queue("orders")
    result = broker.reads.get_messages(queue, offset, count, 1 << 20, tag_filter)
    if result.cold:
        results = []
        broker.reads.get_messages_later(queue, offset, count, 1 << 20, tag_filter, results.append)
        broker.env.run_ready()
        if isinstance(results[0], BaseException):
            raise results[0]
        result = results[0]
    pieces = broker.reads.pieces_nowait(result, "orders", 0, offset)
    assert pieces is not None
    bodies = []
    for data in pieces:
        while data:
            bodies.append(decode_record(data, verify_crc=True).body)
            data = data[int.from_bytes(data[:4], "big") :]
    return bodies, result.next_begin


def consumed(broker: BrokerInMemory, tag_filter: TagFilter | None = None) -> list[bytes]:
    """What a consumer gets that asks again, once there has been time for mending."""
    found: list[bytes] = []
    offset = errors = 0
    while offset < COUNT:
        try:
            more, offset = pull(broker, offset, 5, tag_filter)
            found += more
        except BeingMendedError:
            errors += 1
            assert errors < 3
            broker.run(broker.machine.mending.mend_noticed())
    return found


def bodies(*numbers: int) -> list[bytes]:
    return [b"orders %d" % number for number in numbers]


def mended(broker: BrokerInMemory) -> None:
    broker.run(broker.machine.mending.mend_noticed())
    for offset in range(COUNT):
        position, size, _ = unit(broker, "orders", offset)
        record = decode_record(bytes(broker.log.data[position : position + size]), verify_crc=True)
        assert (record.topic, record.queue_id, record.queue_offset) == ("orders", 0, offset)


def test_a_pull_gets_no_wrong_message_and_the_unit_is_written_anew(rotten, caplog):
    with caplog.at_level(logging.WARNING):
        for offset, count in ((ROTTEN, 1), (ROTTEN, 4)):
            with pytest.raises(BeingMendedError, match="queue 0 of orders has rotted"):
                pulled(rotten, offset, count)
        for offset, count in ((ROTTEN - 2, 3), (0, COUNT)):
            with suppress(BeingMendedError):
                found = pulled(rotten, offset, count)  # as far as a pull that ends before it
                assert found == bodies(*range(offset, ROTTEN))
        assert pulled(rotten, 0, ROTTEN) == bodies(*range(ROTTEN))
        mended(rotten)
    assert pulled(rotten, 0, COUNT) == bodies(*range(COUNT))
    mending = rotten.machine.mending
    assert mending.noticed >= 2
    assert mending.mended == 1
    assert [line for line in caplog.messages if "event=rot " in line] == [caplog.messages[0]]
    assert "event=rot_mended path=consumequeue/orders/0" in caplog.messages[-1]


@pytest.mark.parametrize("tag", ["even", "odd"])
def test_who_wants_some_tags_passes_over_no_rotten_unit(rotten, tag):
    wanted = [number for number in range(COUNT) if (number % 2 == 0) == (tag == "even")]
    assert consumed(rotten, TagFilter.parse(tag)) == bodies(*wanted)


def test_a_follower_has_the_leader_answer_and_mends_its_own(rotten):
    rotten.node.step_down()
    with pytest.raises(NotLeaderError, match="rotted"):
        pulled(rotten, ROTTEN, 1)
    mended(rotten)
    assert pulled(rotten, ROTTEN, 1) == bodies(ROTTEN)


def test_a_start_that_does_not_see_it_is_followed_by_the_same(rotten):
    rotten.node.snapshot()
    again = rotten.restart()
    assert consumed(again) == bodies(*range(COUNT))
    assert again.machine.mending.mended


def test_a_search_by_time_is_not_led_astray(rotten):
    lookup, queue = rotten.machine.lookup, rotten.queue("orders")
    asked = START_MS + 1000 * ROTTEN
    with pytest.raises(BeingMendedError):
        rotten.run(lookup.search_offset(queue, asked))
    with pytest.raises(BeingMendedError):
        rotten.run(lookup.store_time_at(queue, ROTTEN))
    mended(rotten)
    assert rotten.run(lookup.search_offset(queue, asked)) == ROTTEN
    assert rotten.run(lookup.store_time_at(queue, ROTTEN)) == asked


def test_a_message_that_its_rotten_unit_does_not_name_is_not_taken_for_none(rotten, sound):
    lookup, begin = rotten.machine.lookup, sound[0]
    with pytest.raises(BeingMendedError):
        rotten.run(lookup.message_at(begin))
    mended(rotten)
    assert rotten.run(lookup.message_at(begin)) is not None


def test_a_whole_queue_that_has_rotted_is_written_anew(broker):
    for offset in range(COUNT):
        put(broker, offset, 0, 0, 0)
    with pytest.raises(BeingMendedError):
        pulled(broker, 3, 1)
    mended(broker)
    assert pulled(broker, 0, COUNT) == bodies(*range(COUNT))
    assert broker.machine.mending.mended == COUNT


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("loss", ["removed", "cut"])
def test_a_file_that_is_gone_or_cut_is_written_anew(broker, loss, is_open):
    if is_open:
        assert pulled(broker, 0, 3) == bodies(0, 1, 2)
    if loss == "removed":
        broker.disk.unlink(QUEUE_FILE)
    else:
        broker.disk.open(QUEUE_FILE).truncate(UNIT_BYTES * ROTTEN + 7)
    assert consumed(broker) == bodies(*range(COUNT))
    if not (is_open and loss == "removed"):  # what is open can still be read
        assert broker.machine.mending.mended
        mended(broker)
    broker.checkpoint()
    assert consumed(broker.restart()) == bodies(*range(COUNT))


@pytest.mark.parametrize("loss", ["removed", "cut"])
def test_a_lookup_by_time_in_a_file_that_is_gone_has_it_written_anew(broker, loss):
    if loss == "removed":
        broker.disk.unlink(QUEUE_FILE)
    else:
        broker.disk.open(QUEUE_FILE).truncate(0)
    lookup, queue = broker.machine.lookup, broker.queue("orders")
    with pytest.raises(BeingMendedError):
        broker.run(lookup.search_offset(queue, START_MS + 1000 * ROTTEN))
    with pytest.raises(RottenUnitsError):
        broker.machine.queues.first_kept(queue.view, 100)()
    mended(broker)
    assert broker.run(lookup.search_offset(queue, START_MS + 1000 * ROTTEN)) == ROTTEN


def test_what_the_log_cannot_tell_stays_and_is_tried_again(broker, caplog):
    put(broker, ROTTEN, 8, 100, 0)
    position, size, _ = unit(broker, "orders", ROTTEN + 1)
    broker.log.data[position + size - 1] ^= 1
    with pytest.raises(BeingMendedError):
        pulled(broker, ROTTEN, 1)
    with caplog.at_level(logging.WARNING):
        broker.run(broker.machine.mending.mend_noticed())
    assert "event=rot_stays" in caplog.text
    broker.log.data[position + size - 1] ^= 1
    with pytest.raises(BeingMendedError):
        pulled(broker, ROTTEN, 1)
    broker.run(broker.machine.mending.mend_noticed())
    assert broker.machine.mending.mended == 0
    broker.env.advance(REST_S)
    with pytest.raises(BeingMendedError):
        pulled(broker, ROTTEN, 1)
    mended(broker)
    assert pulled(broker, ROTTEN, 1) == bodies(ROTTEN)

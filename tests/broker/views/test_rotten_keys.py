"""An entry of the key index that rots on the disk is noticed by who asks for its key, and the log answers instead."""

import logging

import pytest

from dledger_broker.features.queries.by_key import KeyQueries
from dledger_broker.testing import SMALL, START_MS, BrokerInMemory, FakeLog, Message
from dledger_broker.views.keyfile import ENTRY, ENTRY_BYTES, IndexLayout, key_hash
from dledger_broker.views.keysearch import START_OVER_S

LAYOUT = IndexLayout(SMALL.index_slots, SMALL.index_entries)
COUNT = 12
ROTTEN = 5
FOREVER = (0, 1 << 60)


@pytest.fixture
def broker() -> BrokerInMemory:
    broker = BrokerInMemory(log=FakeLog(segment_bytes=1 << 13))
    broker.create_topic("orders")
    for number in range(COUNT):
        broker.send("orders", 0, Message(b"%d" % number, keys=f"key{number}"), at_ms=START_MS)
    broker.run(broker.machine.keys.catch_up())
    return broker


def put(broker: BrokerInMemory, **fields: int) -> None:
    """Change fields of an entry on the disk."""
    (path,) = (path for path in broker.disk.paths() if path.startswith("keyindex/2"))
    file, place = broker.disk.open(path), LAYOUT.entry_at(ROTTEN + 1)
    names = ("code", "position", "seconds", "previous")
    entry = dict(zip(names, ENTRY.unpack(file.pread(ENTRY_BYTES, place)), strict=True)) | fields
    file.pwrite(ENTRY.pack(*(entry[name] for name in names)), place)


def found(broker: BrokerInMemory, number: int) -> list[bytes]:
    queries = KeyQueries(broker.machine.keys, broker.machine.lookup)
    result = broker.run(queries.query("orders", f"key{number}", 5, *FOREVER, max_bytes=1 << 20))
    return [record for record in result.records if b"key%d" % number in record]


@pytest.mark.parametrize(
    "fields",
    [
        {"position": 1 << 40},
        {"position": -(1 << 60)},
        {"position": 1000},
        {"code": 1},
        {"previous": 1 << 20},
        {"previous": -1},
        {"code": 0, "position": 0, "seconds": 0, "previous": 0},
    ],
    ids=str,
)
def test_the_message_is_found_in_the_log_and_the_index_is_built_anew(broker, fields, caplog):
    put(broker, **fields)
    with caplog.at_level(logging.WARNING):
        assert len(found(broker, ROTTEN)) == 1
    assert [line for line in caplog.messages if "event=key_index_rebuilt" in line] == caplog.messages
    assert broker.machine.keys.started_over == 1
    broker.run(broker.machine.keys.catch_up())
    assert [len(found(broker, number)) for number in range(COUNT)] == [1] * COUNT
    assert broker.machine.keys.started_over == 1


def test_keys_that_do_not_exist_leave_the_index_alone(broker):
    assert [len(found(broker, number)) for number in range(COUNT, 300)] == [0] * (300 - COUNT)
    assert broker.machine.keys.started_over == 0


def test_a_key_that_shares_the_hash_of_another_leaves_the_index_alone(broker):
    assert key_hash("orders", b"Aa") == key_hash("orders", b"BB")
    broker.send("orders", 0, Message(b"one", keys="Aa"), at_ms=START_MS)
    broker.run(broker.machine.keys.catch_up())
    queries = KeyQueries(broker.machine.keys, broker.machine.lookup)
    assert broker.run(queries.query("orders", "BB", 5, *FOREVER, max_bytes=1 << 20)).records == []
    assert broker.machine.keys.started_over == 0


def test_a_log_that_has_rotted_leaves_the_index_alone(broker):
    where = broker.log.data.find(b"key%d" % ROTTEN)
    broker.log.data[where - 12] ^= 1
    assert found(broker, ROTTEN) == []
    assert broker.machine.keys.started_over == 0


def test_an_index_is_built_anew_no_more_often_than_once_an_hour(broker):
    for rebuilt, passing_s in ((1, 0), (1, START_OVER_S), (2, 0)):
        put(broker, position=1 << 40)
        found(broker, ROTTEN)
        assert broker.machine.keys.started_over == rebuilt
        broker.run(broker.machine.keys.catch_up())
        broker.env.advance(passing_s)

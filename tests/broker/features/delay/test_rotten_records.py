"""Records of waiting messages in which a bit has flipped: they are not used before they are healed."""

from types import SimpleNamespace
from typing import Any

import pytest

from dledger_broker.features.delay.asked import Due
from dledger_broker.features.delay.reading import Readable, RecordReads
from dledger_broker.features.delay.records import waiting
from dledger_broker.kernel.units import NewRecord
from dledger_broker.testing.environment import START_MS
from dledger_remoting.hosts import HostAddress
from dledger_remoting.record import MessageRecord, encode_record

POSITION = 4_096
DUE_MS = START_MS + 11_251


def stored() -> bytes:
    message = NewRecord(topic="T1", queue_id=2, body=b"later", born_ms=START_MS, born_host=bytes(8))
    record, host = waiting(message, Due(DUE_MS, 0)), HostAddress("127.0.0.1", 1)
    return encode_record(
        MessageRecord(
            topic=record.topic,
            queue_id=record.queue_id,
            queue_offset=0,
            physical_offset=POSITION,
            body=record.body,
            properties=record.properties,
            born_timestamp=START_MS,
            born_host=host,
            store_timestamp=START_MS,
            store_host=host,
        )
    )


def read(data: bytes) -> Readable:
    """Read the only record of a log in which some bytes may be wrong."""

    def read_nowait(position: int, size: int) -> bytes:
        assert (position, size) == (POSITION, len(data))
        return data

    found: list[Readable] = []
    log: Any = SimpleNamespace(read_nowait=read_nowait)
    RecordReads(log).read([(DUE_MS, POSITION, len(data))], found.extend)
    (only,) = found
    return only


def test_a_whole_record_has_body_target_queue_and_due_time_of_its_message() -> None:
    _, found = read(stored())
    assert found is not None
    assert (found[0].body, found[1].topic, found[1].queue_id, found[1].due_ms) == (b"later", "T1", 2, DUE_MS)


@pytest.mark.parametrize(
    ("written", "rotten"),
    [
        (str(DUE_MS).encode(), str(DUE_MS + 400).encode()),
        (b"TIMER_OUT_MS", b"TIMER_OUT_MR"),
        (b"later", b"latep"),
        (POSITION.to_bytes(8, "big"), (POSITION + 1).to_bytes(8, "big")),
    ],
)
def test_a_rotten_record_cannot_be_read(written: bytes, rotten: bytes) -> None:
    assert stored().count(written) == 1
    assert read(stored().replace(written, rotten))[1] is None

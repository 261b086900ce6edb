"""Records of messages that wait, of which a bit has flipped: nothing is made of them before they are healed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from dledger_broker.features.delay.asked import Due
from dledger_broker.features.delay.commands import TimerRow
from dledger_broker.features.delay.reading import Readable, RecordReads
from dledger_broker.features.delay.records import waiting
from dledger_broker.kernel.units import NewRecord
from dledger_broker.testing.environment import START_MS
from dledger_remoting.hosts import HostAddress
from dledger_remoting.record import MessageRecord, encode_record

POSITION = 4_096
DUE_MS = START_MS + 11_251


@dataclass
class Rotten:
    """A log in whose one record some bytes are others."""

    data: bytes

    def read_nowait(self, position: int, size: int) -> bytes:
        assert (position, size) == (POSITION, len(self.data))
        return self.data


def stored() -> bytes:
    message = NewRecord(topic="T1", queue_id=2, body=b"later", born_ms=START_MS, born_host=bytes(8))
    record = waiting(message, Due(DUE_MS, 0))
    return encode_record(
        MessageRecord(
            topic=record.topic,
            queue_id=record.queue_id,
            queue_offset=0,
            physical_offset=POSITION,
            body=record.body,
            properties=record.properties,
            flag=0,
            sys_flag=0,
            born_timestamp=START_MS,
            born_host=HostAddress("127.0.0.1", 1),
            store_timestamp=START_MS,
            store_host=HostAddress("127.0.0.1", 2),
            reconsume_times=0,
            prepared_transaction_offset=0,
        )
    )


def read(data: bytes) -> Readable:
    found: list[Readable] = []
    row: TimerRow = (DUE_MS, POSITION, len(data))
    RecordReads(Rotten(data)).read([row], found.extend)  # type: ignore[arg-type]
    (only,) = found
    return only


def test_a_whole_record_says_where_its_message_goes() -> None:
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

"""Look-up of records by the unique key of their message: those of messages that wait, or have waited, are found by no
query of clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dledger_broker.kernel.machine import BrokerMachine
from dledger_remoting.errors import IllegalOperation
from dledger_remoting.properties import UNIQUE_KEY, find_property
from dledger_remoting.record import MessageRecord

MAX_RECORDS: Final = 256
"""Records with one key that are looked at; nobody sends a message so often."""
_END_MS: Final = (1 << 63) - 1
_UNIQUE_KEY: Final = UNIQUE_KEY.encode()


async def records_with_key(machine: BrokerMachine, topic: str, unique_key: bytes) -> list[tuple[bytes, MessageRecord]]:
    """The records of a topic, as they are stored, whose message has a unique key, the newest first.

    Raises `IllegalOperation` if there may be more than `MAX_RECORDS`, and what `Lookup` raises.
    """
    records: list[tuple[bytes, MessageRecord]] | None = None
    while records is None:
        kept_from = machine.log.first_position
        positions = await machine.keys.candidates(topic, unique_key, MAX_RECORDS, 0, _END_MS)
        if len(positions) > MAX_RECORDS:
            shown = unique_key.decode(errors="replace")
            raise IllegalOperation(f"too many messages of the topic {topic} have the unique key {shown}")
        records = await _read(machine, topic, unique_key, positions)
        if machine.log.first_position != kept_from:
            records = None  # what was about to be read may have been moved, and trimmed: it stands elsewhere
    return records


async def _read(
    machine: BrokerMachine, topic: str, unique_key: bytes, positions: Sequence[int]
) -> list[tuple[bytes, MessageRecord]]:
    records: list[tuple[bytes, MessageRecord]] = []
    for position in positions:
        found = await machine.lookup.record_at(position)
        if found is None:
            continue
        record = found[1]
        if record.topic == topic and find_property(record.properties, _UNIQUE_KEY) == unique_key:
            records.append(found)
    return records

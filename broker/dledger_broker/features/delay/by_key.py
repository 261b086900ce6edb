"""Look-up of records by the unique key of their message.

It also finds records of messages that wait or have waited. Clients' queries do not find these records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dledger_broker.kernel.machine import BrokerMachine
from dledger_remoting.errors import IllegalOperation
from dledger_remoting.properties import UNIQUE_KEY, find_property
from dledger_remoting.record import MessageRecord

MAX_RECORDS: Final = 4_096
"""Maximum number of records that are read for one key. Records of other keys may have the same hash."""
_END_MS: Final = (1 << 63) - 1
_UNIQUE_KEY: Final = UNIQUE_KEY.encode()


async def records_with_key(machine: BrokerMachine, topic: str, unique_key: bytes) -> list[tuple[bytes, MessageRecord]]:
    """Return the stored records of a topic whose message has a unique key, the newest first.

    Raises `IllegalOperation` if there may be more than `MAX_RECORDS`, and what `Lookup` raises.
    """
    records: list[tuple[bytes, MessageRecord]] | None = None
    while records is None:
        kept_from = machine.log.first_position
        positions = await machine.keys.candidates(topic, unique_key, MAX_RECORDS + 1, 0, _END_MS)
        if len(positions) > MAX_RECORDS:
            shown = unique_key.decode(errors="replace")
            raise IllegalOperation(f"too many messages have the unique key {shown} of the topic {topic}, or its hash")
        records = await _read(machine, topic, unique_key, positions)
        if machine.log.first_position != kept_from:
            records = None  # a record may have been moved and its old place trimmed: search for the copy
    return records


async def _read(
    machine: BrokerMachine, topic: str, unique_key: bytes, positions: Sequence[int]
) -> list[tuple[bytes, MessageRecord]]:
    records: list[tuple[bytes, MessageRecord]] = []
    for number, position in enumerate(positions, 1):
        await machine.keys.leave_turn(number)
        found = await machine.lookup.record_at(position)
        if found is None:
            continue
        record = found[1]
        if record.topic == topic and find_property(record.properties, _UNIQUE_KEY) == unique_key:
            records.append(found)
    return records

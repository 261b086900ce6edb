"""Check of records that a reader found damaged, so that rotten records on this node are repaired.

Pulls do not read bodies. A reader that finds a wrong CRC reads the record from another node, and reports it to this
node by a pull with `verify`. The node checks for itself, so a false claim costs only the reading of a record.
"""

from __future__ import annotations

from collections.abc import Iterable

from dledger.errors import TrimmedError
from dledger.log import Log
from dledger_remoting.errors import ReadBehind, RecordError
from dledger_remoting.record import decode_record


async def verify_records(log: Log, runs: Iterable[tuple[int, int]]) -> None:
    """Check records in runs of a position and a size. Raises `ReadBehind` for a record that is damaged here."""
    for position, size in runs:
        try:
            data = await log.read(position, size)
        except TrimmedError:
            return  # The pull itself then answers which messages are kept.
        place = 0
        while place < len(data):
            try:
                decode_record(data, place, verify_crc=True)
            except RecordError as error:
                log.read_failed(position + place)
                raise ReadBehind(f"the record at position {position + place} is damaged here: {error}") from error
            place += int.from_bytes(data[place : place + 4], "big")

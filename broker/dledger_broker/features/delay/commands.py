"""Commands about delayed messages: lists of rows, each for a message that waits in the log until it is due.

A row names a stored record and its due time. It is pending from the command that adds it until a command fires,
cancels, moves or ends it. Payloads, big-endian:

| kind | command | payload |
|---|---|---|
| 33 | `AddTimers` | rows, with the records in the same unit |
| 34 | `FireTimers` | rows, with the copies in their real topics in the same unit |
| 35 | `CancelTimers` | rows |
| 36 | `MoveTimers` | rows; copies at the log's end and their `AddTimers` are in the same unit |
| 37 | `EndTimers` | position (8 bytes): all rows below it are ended |

| bytes of a row | |
|---|---|
| 8 | when it is due, ms since 1970 |
| 8 | position of the record |
| 4 | size of the record; 0: no record was written for this row, ignore it |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final, Self, TypeAlias, TypeVar

from dledger.errors import CorruptionError
from dledger.format import COMMAND_HEADER_BYTES
from dledger_broker.kernel.commands import Kinds, RawCommand
from dledger_broker.kernel.units import FixedRows

ROW: Final = Struct(">QQI")
POSITION: Final = Struct(">Q")

TimerRow: TypeAlias = tuple[int, int, int]
"""Row of a delayed message: its due time (ms since 1970), and position and size of its record."""

R = TypeVar("R", bound="TimerRows")


class TimerRows(RawCommand, frozen=True):
    """Command whose payload is rows."""

    rows: bytes

    def to_payload(self) -> bytes:
        return self.rows

    @classmethod
    def from_payload(cls, payload: bytes | memoryview) -> Self:
        if len(payload) % ROW.size:
            raise CorruptionError(f"{cls.__name__}: {len(payload)} bytes are no rows of {ROW.size}")
        return cls(bytes(payload))

    @staticmethod
    def unpack(payload: bytes | memoryview) -> list[TimerRow]:
        """Return the rows of a payload, without the rows that have no record."""
        return [row for row in ROW.iter_unpack(TimerRows.from_payload(payload).rows) if row[2]]

    @classmethod
    def of(cls, rows: Iterable[TimerRow]) -> Self:
        """Return the command about some rows."""
        return cls(b"".join(ROW.pack(*row) for row in rows))


class AddTimers(TimerRows, frozen=True):
    """Command that adds rows, whose records are in the same unit."""


class FireTimers(TimerRows, frozen=True):
    """Command that ends due rows. Copies of their messages are in the same unit, unless their real topic is gone."""


class CancelTimers(TimerRows, frozen=True):
    """Command that ends rows that are never to be fired."""


class MoveTimers(TimerRows, frozen=True):
    """Command that ends rows whose records were written again at the log's end, so that the log can be trimmed."""


class EndTimers(RawCommand, frozen=True):
    """Command that ends all rows below a position, which the log is about to lose. Their messages are lost."""

    below: int

    def to_payload(self) -> bytes:
        return POSITION.pack(self.below)

    @classmethod
    def from_payload(cls, payload: bytes | memoryview) -> EndTimers:
        if len(payload) != POSITION.size:
            raise CorruptionError(f"EndTimers: {len(payload)} bytes are no position")
        return cls(*POSITION.unpack(payload))


ADD_KIND: Final = 33
FIRE_KIND: Final = 34
CANCEL_KIND: Final = 35
MOVE_KIND: Final = 36
END_KIND: Final = 37
DELAY_COMMANDS: Final[Kinds] = {
    ADD_KIND: AddTimers,
    FIRE_KIND: FireTimers,
    CANCEL_KIND: CancelTimers,
    MOVE_KIND: MoveTimers,
    END_KIND: EndTimers,
}


def command_bytes(rows: int) -> int:
    """Return how many bytes of a unit a command about `rows` rows takes."""
    return COMMAND_HEADER_BYTES + rows * ROW.size


def added_rows(dues: Sequence[tuple[int, int]]) -> FixedRows:
    """Return the `AddTimers` for the records of a unit, from their due times and sizes in the same order."""

    def write(payload: memoryview, positions: Sequence[int | None]) -> None:
        for place, ((due_ms, size), position) in enumerate(zip(dues, positions, strict=True)):
            row = (due_ms, position, size) if position is not None else (0, 0, 0)
            ROW.pack_into(payload, place * ROW.size, *row)

    return FixedRows(ADD_KIND, len(dues) * ROW.size, write)

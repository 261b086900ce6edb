"""Table of remembered sends: the opted-in sends of the last minutes that are stored, and their positions.

    row: family (4 bytes, a checksum), members (2 bytes, one bit each), position (8 bytes): where the first record lies

A row stands for consecutive sends in the log that are of one family (`identities`), as many as it has members: 1 to 16.
Rows only find candidates. Comparing a send with the stored records decides whether it is a repetition.

Adding rows costs almost nothing. They are put away when there are enough of them, or when they are needed. The leader
indexes them when it searches for rows (`rows`). Two minutes at 35,000 sends/s, of which no two share a row, make 4.2
million rows. Together with some expired rows, each takes 15 bytes, or 27 where rows are indexed.

Rows expire by the store times of their entries, made monotonic. `elapsed_ms` follows the highest store time seen, by at
most two windows for each step. A store time more than a window behind is taken for the present time, because then the
highest store time was wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from itertools import starmap
from operator import or_
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from dledger.errors import CorruptionError
from dledger.statemachine import CommittedEntry
from dledger_broker.features.sending.dedup.identities import UnitRows
from dledger_broker.features.sending.dedup.rows import POSITION_BYTES, ROW_BYTES, Row, Rows, Run
from dledger_broker.kernel.commands import Command, Kinds, RawCommand
from dledger_broker.kernel.digest import mix
from dledger_broker.kernel.tables import Changes, Frame, Table, TableKey
from dledger_remoting.record import STORE_TIMESTAMP_PLACE

MAX_WAITING_ROWS: Final = 16_384
"""Number of waiting rows that are put away together."""
MARKS_PER_WINDOW: Final = 128
"""Number of marks per window. The window is exact to this fraction, and rows are kept for at least the window."""


class Mark(NamedTuple):
    """Point in the history of rows.

    From `position` on, rows were added at `elapsed_ms` or less than a step later. Before that, `added` rows were added.
    """

    elapsed_ms: int
    position: int
    added: int


class Summary(msgspec.Struct, frozen=True, array_like=True):
    """State of the table without the rows. `checksums` cover all columns of all rows that were ever added."""

    window_ms: int
    max_rows: int
    elapsed_ms: int
    highest_ms: int
    added: int
    checksums: tuple[int, int, int]
    marks: list[Mark]


class RememberSends(RawCommand, frozen=True):
    """Command that remembers sends whose records are in the same entry. Every entry of opted-in sends has it.

    The payload is `rows`: all families (4 bytes each), all members (2), all positions (8), big-endian.
    """

    rows: bytes

    def to_payload(self) -> bytes:
        return self.rows

    @classmethod
    def from_payload(cls, payload: bytes | memoryview) -> RememberSends:
        return cls(_rows_in(payload))


class LimitSends(msgspec.Struct, frozen=True):
    """Command that limits the memory: sends are remembered for `window_ms`, 0 for not at all, in at most `max_rows`
    rows.
    """

    window_ms: int
    max_rows: int


REMEMBER_SENDS: Final = 27
SEND_COMMANDS: Final[Kinds] = {REMEMBER_SENDS: RememberSends, 28: LimitSends}


def _rows_in(payload: bytes | memoryview) -> bytes:
    if not payload or len(payload) % ROW_BYTES:
        raise CorruptionError(f"state command of kind {REMEMBER_SENDS}: {len(payload)} bytes are no rows")
    return bytes(payload)


@lru_cache(maxsize=1024)
def _command(count: int) -> Struct:
    """Return the layout of a command with `count` rows (`dledger.format.iter_commands`, `RememberSends`)."""
    return Struct(f">HI{count}I{count}H{count}Q")


def write_command(command: bytearray, rows: UnitRows, position: int) -> None:
    """Write a command into its room. The unit's first record is stored at `position`."""
    families, members, offsets = rows
    positions = [position + offset for offset in offsets]
    count = len(families)
    _command(count).pack_into(command, 0, REMEMBER_SENDS, ROW_BYTES * count, *families, *members, *positions)


def store_timestamp_of(entry: CommittedEntry) -> int:
    """Return the store time in ms of an entry's first record, whose hosts are IPv4, as the broker writes them."""
    return int.from_bytes(entry.records[STORE_TIMESTAMP_PLACE : STORE_TIMESTAMP_PLACE + 8], "big")


class SendsFrame(msgspec.Struct, frozen=True, tag="sends"):
    """Snapshot frame of the table without the rows."""

    summary: Summary


class RunFrame(msgspec.Struct, frozen=True, tag="run"):
    """Snapshot frame of some rows, in their order. The summary precedes them."""

    families: bytes
    members: bytes
    positions: bytes


class RememberedSends(Table):
    """Table of remembered sends, as the module describes it. While `window_ms` is 0, nothing is remembered."""

    __slots__ = (
        "_added",
        "_checksums",
        "_elapsed_ms",
        "_highest_ms",
        "_marks",
        "_rows",
        "_waiting",
        "_waiting_rows",
        "max_rows",
        "window_ms",
    )

    frames = (SendsFrame, RunFrame)

    def __init__(self) -> None:
        self.window_ms = 0
        self.max_rows = 0
        self._rows = Rows(1)
        self._marks: deque[Mark] = deque()
        self._elapsed_ms = 0
        self._highest_ms = 0
        self._added = 0
        self._checksums = (0, 0, 0)
        self._waiting: list[tuple[bytes, int]] = []
        self._waiting_rows = 0

    def __len__(self) -> int:
        """Number of rows that have not expired."""
        self._put_away()
        return self._added - self._marks[0].added if self._marks else 0

    @property
    def _first_number(self) -> int:
        """Number of the first row that has not expired. Rows are counted from 1 on."""
        return self._marks[0].added + 1 if self._marks else 1

    @property
    def digest(self) -> int:
        """Digest of 64 bits over the history of additions and limits, or 0 while `window_ms` is 0."""
        if not self.window_ms:
            return 0
        self._put_away()
        of_families, of_members, of_positions = self._checksums
        numbers = (of_members, self._added, self.window_ms, self.max_rows)
        return reduce(mix, numbers, of_families << 32 | of_positions)

    def limit(self, window_ms: int, max_rows: int) -> None:
        """Remember sends for `window_ms`, in at most `max_rows` rows.

        The leader keeps the maximum before it proposes.
        """
        self._put_away()
        self.window_ms = window_ms
        self.max_rows = max_rows

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        _ = entry, changes
        match command:
            case LimitSends(window_ms=window_ms, max_rows=max_rows):
                self.limit(window_ms, max_rows)

    def apply_raw(self, payload: bytes | memoryview, entry: CommittedEntry) -> None:
        """Apply a `RememberSends` command."""
        self.remember(_rows_in(payload), store_timestamp_of(entry))

    def remember(self, rows: bytes, store_ms: int) -> None:
        """Add rows of an entry with this store time. Their positions ascend, and lie above all earlier positions.

        The rows are given as all families, all members, all positions (`Run.of`).
        """
        self._waiting.append((rows, store_ms))
        self._waiting_rows += len(rows) // ROW_BYTES
        if self._waiting_rows >= MAX_WAITING_ROWS:
            self._put_away()

    def index(self, max_rows: int) -> bool:
        """Index at most `max_rows` further rows. Return False if there are more."""
        self._put_away()
        return self._rows.index(max_rows, self.max_rows)

    def known(self, families: Sequence[int]) -> Sequence[int]:
        """Return the families that have an indexed row. The result may have further families if an exact answer takes
        long.
        """
        return self._rows.known(families)

    def find(self, family: int) -> list[Row]:
        """Return the indexed rows of a family, newest first."""
        self._put_away()
        return self._rows.find(family)

    def members(self, family: int) -> int:
        """Return the members of a family in its indexed rows."""
        return reduce(or_, [row.members for row in self._rows.find(family)], 0)

    def _put_away(self) -> None:
        """Add the rows that wait."""
        waiting, self._waiting = self._waiting, []
        self._waiting_rows = 0
        if not waiting:
            return
        runs: list[Run] = []
        for rows, store_ms in waiting:
            run = Run.of(rows)
            runs.append(run)
            self._pass_time(store_ms, int.from_bytes(run.positions[:POSITION_BYTES], "big"))
            self._added += len(rows) // ROW_BYTES
        all_rows = Run(*map(b"".join, zip(*runs, strict=True)))
        self._rows.add(all_rows)
        of_families, of_members, of_positions = map(crc32, all_rows, self._checksums)
        self._checksums = (of_families, of_members, of_positions)
        self._rows.forget(self._first_number)

    # ---------------------------------------------------------------- time

    def _pass_time(self, store_ms: int, position: int) -> None:
        if store_ms > self._highest_ms:
            self._elapsed_ms += min(store_ms - self._highest_ms, 2 * self.window_ms)
            self._highest_ms = store_ms
        elif store_ms < self._highest_ms - self.window_ms:
            self._highest_ms = store_ms
        marks, elapsed_ms = self._marks, self._elapsed_ms
        step_ms = self.window_ms // MARKS_PER_WINDOW
        if not marks or elapsed_ms - marks[-1].elapsed_ms >= step_ms:
            marks.append(Mark(elapsed_ms, position, self._added))
        while len(marks) > 1 and marks[0].elapsed_ms + step_ms <= elapsed_ms - self.window_ms:
            marks.popleft()

    # ---------------------------------------------------------------- snapshots

    def capture(self) -> tuple[Summary, Iterator[Run]]:
        """Return the table's present state, and an iterator over its present rows, in runs. Later rows are left out."""
        self._put_away()
        summary = Summary(
            self.window_ms,
            self.max_rows,
            self._elapsed_ms,
            self._highest_ms,
            self._added,
            self._checksums,
            list(self._marks),
        )
        return summary, self._rows.runs(self._first_number)

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        _ = now
        if not (self.window_ms > 0 or len(self) > 0):
            return {}
        summary, runs = self.capture()
        return {"sends": (SendsFrame(summary),), "run": starmap(RunFrame, runs)}

    def restore_frame(self, frame: Frame, now: float) -> None:
        _ = now
        match frame:
            case SendsFrame(summary=summary):
                self.restore(summary)
            case RunFrame(families=families, members=members, positions=positions):
                self.restore_run(Run(families, members, positions))

    def restore(self, summary: Summary) -> None:
        """Restore everything but the rows, in a new table."""
        self.limit(summary.window_ms, summary.max_rows)
        self._elapsed_ms = summary.elapsed_ms
        self._highest_ms = summary.highest_ms
        self._added = summary.added
        self._checksums = summary.checksums
        self._marks = deque(summary.marks)
        self._rows = Rows(self._first_number)

    def restore_run(self, run: Run) -> None:
        """Restore some rows, in the order of their capture, after all other data."""
        self._rows.add(run)

    def finish_restore(self) -> None:
        """Raise `CorruptionError` if what was restored is not what a `capture` returned."""
        expected = self._added + 1 - self._first_number if self._marks else 0
        if len(self._rows) != expected:
            raise CorruptionError(f"a snapshot has {len(self._rows)} rows of remembered sends, expected {expected}")


REMEMBERED: Final = TableKey("sends", RememberedSends)

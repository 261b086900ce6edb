"""Remembered sends: which opted-in sends of the last minutes are stored, and where.

    row: family (4 bytes, a checksum), members (2 bytes, one bit each), position (8 bytes): where the first record lies

A row stands for sends that follow each other in the log and are of one family (`identities`), as many as it
has members: one to 16. It only finds candidates; whether a send is a repetition is decided by comparing it with the
stored records. Adding rows costs next to nothing: they are put away when there are enough of them, or when somebody
wants to know, and indexed by whoever looks for them, which is the leader (`rows`). With some that have expired, that
is 15 bytes for each of 4.2 million (2 minutes at 35,000 sends/s of which no two share a row), and 27 where they are
indexed.

Rows expire by the store times of the entries that remember, made monotonic: `elapsed_ms` follows the highest store time
seen, by at most two windows for each step; a time that is more than a window behind is taken for the present one,
because then it was the highest that was wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import starmap
from operator import or_
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from dledger.errors import CorruptionError
from dledger.statemachine import CommittedEntry
from dledger_broker.features.sending.dedup.rows import POSITION_BYTES, ROW_BYTES, Row, Rows, Run
from dledger_broker.kernel.commands import Command, Kinds, RawCommand
from dledger_broker.kernel.digest import mix
from dledger_broker.kernel.tables import Changes, Frame, Table, TableKey
from dledger_remoting.record import STORE_TIMESTAMP_PLACE

MAX_WAITING_ROWS: Final = 16_384
"""Rows that wait to be put away together."""
MARKS_PER_WINDOW: Final = 128
"""The window is exact to this part of itself; a row is kept at least for the window."""


class Mark(NamedTuple):
    """From `position` on, rows were added at `elapsed_ms` or less than a step later; `added` rows were added before."""

    elapsed_ms: int
    position: int
    added: int


class Summary(msgspec.Struct, frozen=True, array_like=True):
    """Everything but the rows. `checksums` are those of all columns of all rows there were."""

    window_ms: int
    max_rows: int
    elapsed_ms: int
    highest_ms: int
    added: int
    checksums: tuple[int, int, int]
    marks: list[Mark]


class RememberSends(RawCommand, frozen=True):
    """Sends whose records stand in the same entry.  The payload is `rows`: this command comes with every entry of
    opted-in sends.

    It holds all families (4 bytes each), all members (2), all positions (8), big-endian.
    """

    rows: bytes

    def to_payload(self) -> bytes:
        """See `RawCommand.to_payload`."""
        return self.rows

    @classmethod
    def from_payload(cls, payload: bytes | memoryview) -> RememberSends:
        """See `RawCommand.from_payload`."""
        return cls(_rows_in(payload))


class LimitSends(msgspec.Struct, frozen=True):
    """Remember sends for `window_ms`, 0 = not at all, and no more than `max_rows` at a time."""

    window_ms: int
    max_rows: int


REMEMBER_SENDS: Final = 27
SEND_COMMANDS: Final[Kinds] = {REMEMBER_SENDS: RememberSends, 28: LimitSends}


def _rows_in(payload: bytes | memoryview) -> bytes:
    if not payload or len(payload) % ROW_BYTES:
        raise CorruptionError(f"state command of kind {REMEMBER_SENDS}: {len(payload)} bytes are no rows")
    return bytes(payload)


def store_timestamp_of(entry: CommittedEntry) -> int:
    """The store time, ms, of an entry's first record, whose hosts are IPv4, as the broker writes them."""
    return int.from_bytes(entry.records[STORE_TIMESTAMP_PLACE : STORE_TIMESTAMP_PLACE + 8], "big")


class SendsFrame(msgspec.Struct, frozen=True, tag="sends"):
    """Everything but the rows."""

    summary: Summary


class RunFrame(msgspec.Struct, frozen=True, tag="run"):
    """Some rows in their order; the summary comes before them."""

    families: bytes
    members: bytes
    positions: bytes


class RememberedSends(Table):
    """See the module's description. `window_ms` 0 remembers nothing, and nothing was ever remembered then."""

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
        """Rows that have not expired."""
        self._put_away()
        return self._added - self._marks[0].added if self._marks else 0

    @property
    def _first_number(self) -> int:
        """The number of the first row that has not expired: rows are counted from 1 on."""
        return self._marks[0].added + 1 if self._marks else 1

    @property
    def digest(self) -> int:
        """64 bits that tell two histories of additions and limits apart; 0 before the first limit."""
        if not self.window_ms:
            return 0
        self._put_away()
        of_families, of_members, of_positions = self._checksums
        numbers = (of_members, self._added, self.window_ms, self.max_rows)
        return reduce(mix, numbers, of_families << 32 | of_positions)

    def limit(self, window_ms: int, max_rows: int) -> None:
        """Remember for so long, and no more than so many; the leader sees to the latter before it proposes."""
        self._put_away()
        self.window_ms = window_ms
        self.max_rows = max_rows

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        """See `Table.apply`."""
        _ = entry, changes
        match command:
            case LimitSends(window_ms=window_ms, max_rows=max_rows):
                self.limit(window_ms, max_rows)

    def apply_raw(self, payload: bytes | memoryview, entry: CommittedEntry) -> None:
        """See `Table.apply_raw`: a `RememberSends`."""
        self.remember(_rows_in(payload), store_timestamp_of(entry))

    def remember(self, rows: bytes, store_ms: int) -> None:
        """Add rows, whose positions ascend and lie above all before, of an entry with this store time.

        They are given as all families, all members, all positions (`Run.of`).
        """
        self._waiting.append((rows, store_ms))
        self._waiting_rows += len(rows) // ROW_BYTES
        if self._waiting_rows >= MAX_WAITING_ROWS:
            self._put_away()

    def index(self, max_rows: int) -> bool:
        """Index rows that are not, at most so many; False if there are more."""
        self._put_away()
        return self._rows.index(max_rows, self.max_rows)

    def known(self, families: Sequence[int]) -> Sequence[int]:
        """Those of the families of which there is an indexed row; if it takes long to tell, perhaps more."""
        return self._rows.known(families)

    def find(self, family: int) -> list[Row]:
        """The indexed rows of a family, newest first."""
        self._put_away()
        return self._rows.find(family)

    def members(self, family: int) -> int:
        """The members of a family that its indexed rows have."""
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
        """The table as it is now, and what yields its rows as they are now, in runs; later rows are left out."""
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
        """See `Table.capture_frames`."""
        _ = now
        if not (self.window_ms > 0 or len(self) > 0):
            return {}
        summary, runs = self.capture()
        return {"sends": (SendsFrame(summary),), "run": starmap(RunFrame, runs)}

    def restore_frame(self, frame: Frame, now: float) -> None:
        """See `Table.restore_frame`."""
        _ = now
        match frame:
            case SendsFrame(summary=summary):
                self.restore(summary)
            case RunFrame(families=families, members=members, positions=positions):
                self.restore_run(Run(families, members, positions))

    def restore(self, summary: Summary) -> None:
        """Restore everything but the rows, in a table that is new."""
        self.limit(summary.window_ms, summary.max_rows)
        self._elapsed_ms = summary.elapsed_ms
        self._highest_ms = summary.highest_ms
        self._added = summary.added
        self._checksums = summary.checksums
        self._marks = deque(summary.marks)
        self._rows = Rows(self._first_number)

    def restore_run(self, run: Run) -> None:
        """Restore some rows, in the order in which they were captured, after the rest."""
        self._rows.add(run)

    def finish_restore(self) -> None:
        """See `Table.finish_restore`: raises `CorruptionError` if that is not what a `capture` gave."""
        expected = self._added + 1 - self._first_number if self._marks else 0
        if len(self._rows) != expected:
            raise CorruptionError(f"a snapshot has {len(self._rows)} rows of remembered sends, expected {expected}")


REMEMBERED: Final = TableKey("sends", RememberedSends)

"""Table of halves: messages of transactions whose outcome is open, and the outcomes of the last halves that ended.

A half is named by its position in the log. Its record is in the half topic, in the unit that opens the half. A commit
puts the message in its real topic and the end of the half in one unit.

    OpenHalf   consecutive rows: position u64, queue offset u64, size u32, next check u64, checks u16, bytes of the
               producer group u8, the group
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from itertools import takewhile
from struct import Struct
from typing import Final

import msgspec

from dledger.errors import CorruptionError
from dledger.statemachine import CommittedEntry
from dledger_broker.kernel.commands import Command, Kinds, RawCommand
from dledger_broker.kernel.digest import MASK, item_hash
from dledger_broker.kernel.tables import Changes, Frame, Table, TableKey, in_slices
from dledger_remoting.topics import HALF_TOPIC

MS_PER_S = 1_000


class CheckOrder:
    """Positions of halves by the second of their next check. Most halves end before that."""

    __slots__ = ("_seconds",)

    def __init__(self) -> None:
        self._seconds: dict[int, dict[int, None]] = {}

    def add(self, position: int, next_check_ms: int) -> None:
        """Add a half that is open."""
        self._seconds.setdefault(next_check_ms // MS_PER_S, {})[position] = None

    def remove(self, position: int, next_check_ms: int) -> None:
        """Remove a half that has ended, or whose next check has changed. `next_check_ms` is the value of its `add`."""
        second = next_check_ms // MS_PER_S
        positions = self._seconds[second]
        del positions[position]
        if not positions:
            del self._seconds[second]

    def begun(self, now_ms: int) -> Iterator[int]:
        """Yield the halves whose second has begun, the earliest second first.

        Nothing may be added or removed meanwhile.
        """
        now_s = now_ms // MS_PER_S
        for second in sorted(second for second in self._seconds if second <= now_s):
            yield from self._seconds[second]


NAME: Final = "transactions"
"""Name of the feature."""
OPEN_KIND: Final = 38
ENDED_KEPT: Final = 10_000
"""Maximum number of ends that are remembered, for producers that repeat an end."""
POSITION: Final = Struct(">Q")
"""Layout of the beginning of a row: the position of the half."""
_HEAD: Final = Struct(">QQIQHB")


class HalfOutcome(IntEnum):
    """Outcome of a half."""

    COMMITTED = 1
    ROLLED_BACK = 2
    LOST = 3
    """The log was trimmed above the half, because a disk was too full, or the half topic was deleted."""
    UNDECIDED = 4
    """Outcome of a half that no producer decided, in spite of all checks."""
    NO_TOPIC = 5
    """The half was committed when its topic was gone."""
    REOPENED = 6
    """The half was undecided, and is open again as another half."""


class Half(msgspec.Struct, frozen=True, array_like=True):
    """Open half: the place of its record, its producer group, the time of the next check, and the number of checks."""

    position: int
    queue_offset: int
    size: int
    next_check_ms: int
    checks: int
    group: str


class OpenHalf(RawCommand, frozen=True):
    """Command that opens halves or notes checks.

    Halves without checks are opened, and their records are in the same unit. Halves with checks are open already, and
    their values are replaced. A check noted too late does not open a half that has ended meanwhile.
    """

    halves: tuple[Half, ...]

    def to_payload(self) -> bytes:
        """Return the rows as bytes."""
        return b"".join(map(half_row, self.halves))

    @classmethod
    def from_payload(cls, payload: bytes | memoryview) -> OpenHalf:
        """Return the command with the rows in `payload`."""
        return cls(tuple(_halves(bytes(payload))))


class EndHalf(msgspec.Struct, frozen=True):
    """Command that ends a half, once. A half that is not open is unchanged."""

    position: int
    outcome: HalfOutcome


class ReopenHalf(msgspec.Struct, frozen=True):
    """Command that reopens a half that ended undecided, as another half in the same unit."""

    position: int


HALF_COMMANDS: Final[Kinds] = {OPEN_KIND: OpenHalf, 39: EndHalf, 40: ReopenHalf}


class HalfFrame(msgspec.Struct, frozen=True, tag="halves"):
    """Snapshot frame of open halves."""

    rows: list[Half]


class EndedHalfFrame(msgspec.Struct, frozen=True, tag="ended-halves"):
    """Snapshot frame of the last ends, as (position, outcome), the oldest first, and the number of lost halves."""

    rows: list[tuple[int, HalfOutcome]]
    lost: int


class HalfTable(Table):
    """Table of halves. `open` and `ended` are for readers, and `lost` is the number of halves that were lost."""

    __slots__ = ("_checks", "_sum", "ended", "lost", "open")

    frames = (HalfFrame, EndedHalfFrame)

    def __init__(self) -> None:
        self.open: dict[int, Half] = {}
        """Open halves in the order of their positions, because each half is opened by the unit that has its record."""
        self.ended: dict[int, HalfOutcome] = {}
        self.lost = 0
        self._checks = CheckOrder()
        self._sum = 0

    @property
    def digest(self) -> int:
        """Digest of the table, 0 if the table is empty."""
        return (self._sum + (item_hash("lost-halves", self.lost) if self.lost else 0)) & MASK

    @property
    def lowest(self) -> int | None:
        """Position from which on open halves need the log, or None."""
        return next(iter(self.open), None)

    def due(self, now_ms: int) -> Iterator[Half]:
        """Yield the open halves whose check is due, roughly in the order of their checks. Iterate without a pause."""
        for position in self._checks.begun(now_ms):
            half = self.open[position]
            if half.next_check_ms <= now_ms:
                yield half

    def apply_raw(self, payload: bytes | memoryview, entry: CommittedEntry) -> None:
        """Open halves, or note checks."""
        _ = entry
        for half in _halves(bytes(payload)):
            before = self.open.get(half.position)
            if before is not None:
                self._forget(before)
            elif half.checks:
                continue
            self._put(half)

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        _ = entry, changes
        match command:
            case EndHalf(position=position, outcome=outcome):
                self._end(position, outcome)
            case ReopenHalf(position=position):
                if self.ended.get(position) is HalfOutcome.UNDECIDED:
                    self._sum -= _hash_ended(position, HalfOutcome.UNDECIDED)
                    self._put_end(position, HalfOutcome.REOPENED)

    def on_log_trimmed(self, before_position: int) -> None:
        """End the halves below the trim as lost."""
        self._lose(list(takewhile(before_position.__gt__, self.open)))

    def on_topic_deleted(self, topic: str) -> None:
        """End all halves as lost if the half topic is deleted."""
        if topic == HALF_TOPIC:
            self._lose(list(self.open))

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        _ = now
        captured: dict[str, Iterable[Frame]] = {}
        if self.open:
            captured["halves"] = map(HalfFrame, in_slices(list(self.open.values())))
        if self.ended:
            slices, lost = in_slices(list(self.ended.items())), self.lost
            captured["ended-halves"] = (EndedHalfFrame(rows, lost) for rows in slices)
        return captured

    def restore_frame(self, frame: Frame, now: float) -> None:
        _ = now
        match frame:
            case HalfFrame(rows=rows):
                for half in rows:
                    self._put(half)
            case EndedHalfFrame(rows=ends, lost=lost):
                self.lost = lost
                for position, outcome in ends:
                    self._put_end(position, outcome)

    def _lose(self, positions: Iterable[int]) -> None:
        for position in positions:
            self._end(position, HalfOutcome.LOST)
            self.lost += 1

    def _put(self, half: Half) -> None:
        self.open[half.position] = half
        self._checks.add(half.position, half.next_check_ms)
        self._sum = (self._sum + _hash_open(half)) & MASK

    def _forget(self, half: Half) -> None:
        self._checks.remove(half.position, half.next_check_ms)
        self._sum -= _hash_open(half)

    def _end(self, position: int, outcome: HalfOutcome) -> None:
        half = self.open.pop(position, None)
        if half is not None:
            self._forget(half)
            self._put_end(position, outcome)

    def _put_end(self, position: int, outcome: HalfOutcome) -> None:
        self.ended[position] = outcome
        self._sum += _hash_ended(position, outcome)
        if len(self.ended) > ENDED_KEPT:
            oldest = next(iter(self.ended))
            self._sum -= _hash_ended(oldest, self.ended.pop(oldest))
        self._sum &= MASK


HALVES: Final = TableKey("halves", HalfTable)


def half_row(half: Half) -> bytes:
    """Return a row of `OpenHalf`."""
    group = half.group.encode()
    head = _HEAD.pack(half.position, half.queue_offset, half.size, half.next_check_ms, half.checks, len(group))
    return head + group


def _halves(payload: bytes) -> Iterator[Half]:
    """Yield the rows of a payload. Raises `CorruptionError`."""
    at = 0
    while at < len(payload):
        behind = at + _HEAD.size
        if behind > len(payload) or behind + payload[behind - 1] > len(payload):
            raise CorruptionError(f"open halves: the row at byte {at} of {len(payload)} is cut off")
        position, queue_offset, size, next_check_ms, checks, group_bytes = _HEAD.unpack_from(payload, at)
        at = behind + group_bytes
        try:
            group = payload[behind:at].decode()
        except UnicodeDecodeError as error:
            raise CorruptionError(f"open halves: the group at byte {behind} is no text") from error
        yield Half(position, queue_offset, size, next_check_ms, checks, group)


def _hash_open(half: Half) -> int:
    return item_hash("half", *msgspec.structs.astuple(half))


def _hash_ended(position: int, outcome: HalfOutcome) -> int:
    return item_hash("ended-half", position, int(outcome))

"""Proposer: turns units into entries, which is the leader's side of an append; and the entries that wait for space.

Units staged in one turn of the event loop share an entry. A unit's position is fixed when it is staged, so that its
bytes can name it. So an entry is sealed before a unit that no longer fits, never after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum

from dledger.errors import BusyError, TooLargeError
from dledger.format import (
    BLANK_BYTES,
    HEADER_BYTES,
    MAX_ENTRY_BODY_BYTES,
    MAX_UNIT_BYTES,
    encode_command,
    encode_membership,
    seal,
)
from dledger.replica.snapshots.marks import SNAPSHOT_MARK
from dledger.store.log import LogStore
from dledger.types import EntryKind, EntryMeta, Fill, Membership
from dledger_base.invariants import InvariantError, invariant

Buffer = bytes | bytearray | memoryview

_PLACEHOLDER = bytes(HEADER_BYTES)
_MARK = encode_command(SNAPSHOT_MARK, b"")
MARK_BYTES = len(_MARK)
"""Maximum number of bytes by which the first entry of a segment may grow after its place was found."""


class Claim(Enum):
    """Space that a unit may use on a disk that is nearly full."""

    ORDINARY = 0
    FREES_SPACE = 1
    """May also use the file system's rest, kept for units that make room: privileged units with records."""
    RESERVE = 2
    """May also use the space that the log has reserved: privileged units of commands, no-ops and memberships."""


class SealedEntry:
    """Entry that is ready to be proposed, with the contexts of its units."""

    __slots__ = ("contexts", "data", "meta", "privileged")

    def __init__(self, meta: EntryMeta, data: bytearray, contexts: list[object], *, privileged: bool) -> None:
        self.meta = meta
        self.data = data
        self.contexts = contexts
        self.privileged = privileged


class Proposer:
    """Holds the open entry of the present turn.

    `next_position(size, claim)` returns where an entry of `size` bytes will start. It raises `LogFullError` if the disk
    is known to have no space for the entry. `last_entry()` returns (last index, last chain crc) of the log.
    `on_sealed(entry)` takes each finished entry.
    """

    def __init__(
        self,
        *,
        segment_bytes: int,
        next_position: Callable[[int, Claim], int],
        last_entry: Callable[[], tuple[int, int]],
        on_sealed: Callable[[SealedEntry], None],
        wants_mark: Callable[[], bool],
    ) -> None:
        self._segment_bytes = segment_bytes
        self._next_position = next_position
        self._last_entry = last_entry
        self._on_sealed = on_sealed
        self._wants_mark = wants_mark
        self._term = 0
        self._position = -1
        self._claim = Claim.ORDINARY
        self._parts: list[Buffer] = []
        self._commands: list[bytes | bytearray] = []
        self._contexts: list[object] = []
        self._records_size = 0
        self._size = 0

    @property
    def is_open(self) -> bool:
        return self._position >= 0

    def stage(
        self,
        term: int,
        size: int,
        fill: Fill | None,
        commands: bytes | bytearray,
        context: object,
        *,
        privileged: bool = False,
    ) -> int:
        """Put a unit into the open entry, or into a new one, and return the position of its first record byte."""
        unit_bytes = size + len(commands)
        claim = Claim.ORDINARY
        if privileged:
            claim = Claim.FREES_SPACE if size else Claim.RESERVE
        if self._position >= 0 and (self._claim != claim or not self._fits(unit_bytes)):
            self.seal()  # a unit must not use the reserve by following a privileged unit
        if self._position < 0:
            self._open(term, unit_bytes, claim)
        position = self._position + HEADER_BYTES + self._records_size
        if size:
            if fill is None:
                raise InvariantError(f"a unit with records fills them: size={size}")
            self._parts.extend(fill(position))
            self._records_size += size
        if commands:
            self._commands.append(commands)
        if context is not None:
            self._contexts.append(context)
        self._size += unit_bytes
        return position

    def _fits(self, unit_bytes: int) -> bool:
        size = self._size + unit_bytes
        if size > MAX_ENTRY_BODY_BYTES:
            return False
        remaining_bytes = self._segment_bytes - self._position % self._segment_bytes - HEADER_BYTES - size
        return remaining_bytes == 0 or remaining_bytes >= BLANK_BYTES

    def _open(self, term: int, unit_bytes: int, claim: Claim) -> None:
        if unit_bytes > MAX_UNIT_BYTES or unit_bytes + MARK_BYTES + HEADER_BYTES + BLANK_BYTES > self._segment_bytes:
            raise TooLargeError(
                f"a unit of {unit_bytes} bytes does not fit: the limit is {min(MAX_UNIT_BYTES, self._segment_bytes)}"
                " bytes (a unit of at most 8 MiB, in one segment)"
            )
        position = self._next_position(HEADER_BYTES + unit_bytes, claim)
        self._size = self._records_size = 0
        if position % self._segment_bytes == 0 and position > 0 and self._wants_mark():
            # Only the first entry of a segment grows by a mark, and a fresh segment has room for it. The place is
            # chosen without the mark: with its bytes the entry could exactly fill the rest of the previous segment.
            self._commands.append(_MARK)
            self._size = MARK_BYTES
        self._position = position
        self._claim = claim
        self._term = term

    def seal(self) -> None:
        """Finish the open entry, if there is one."""
        if self._position < 0:
            return
        position, term, contexts, privileged = self._position, self._term, self._contexts, self._claim is Claim.RESERVE
        channel = sum(map(len, self._commands))
        index, chain = self._last_entry()
        data = bytearray().join((_PLACEHOLDER, *self._parts, *self._commands))
        if len(data) != HEADER_BYTES + self._size:
            raise InvariantError(f"units have the size they announced: size={self._size}")
        self._reset()
        meta = seal(data, EntryKind.GROUP, index + 1, term, position, channel, chain)
        self._on_sealed(SealedEntry(meta, data, contexts, privileged=privileged))

    def drop(self) -> list[object]:
        """Drop the open entry and return the contexts of its units. None of them was proposed."""
        contexts = self._contexts
        self._reset()
        return contexts

    def _reset(self) -> None:
        self._position = -1
        self._parts = []
        self._commands = []
        self._contexts = []

    def control_entry(self, kind: EntryKind, term: int, membership: Membership | None) -> SealedEntry:
        """Return a no-op or a membership, sealed as an entry of its own."""
        invariant(self._position < 0, "control entries stand between groups")
        body = b"" if membership is None else encode_membership(membership)
        data = bytearray().join((_PLACEHOLDER, body))
        index, chain = self._last_entry()
        meta = seal(data, kind, index + 1, term, self._next_position(len(data), Claim.RESERVE), 0, chain)
        if membership is not None:
            meta = EntryMeta(
                meta.index, meta.term, meta.position, meta.size, meta.kind, meta.channel, meta.chain_crc, membership
            )
        return SealedEntry(meta, data, [], privileged=True)


def check_room(uncommitted_bytes: int, limit: int) -> None:
    """Raise `BusyError` if more than `limit` bytes wait for a majority."""
    if uncommitted_bytes > limit:
        raise BusyError(f"{uncommitted_bytes} bytes wait for a majority, the limit is {limit}: try again later")


class Backlog:
    """Sealed entries in order. Each continues its predecessor, and the first continues the log."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self.entries: deque[SealedEntry] = deque()
        """The waiting entries, oldest first."""

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def first(self) -> SealedEntry:
        """The entry that is to be proposed next. The backlog must not be empty."""
        return self.entries[0]

    @property
    def end_position(self) -> int:
        """Position where the last entry ends; if there is none, where the log ends."""
        return self.entries[-1].meta.end if self.entries else self._store.end_position

    def last_entry(self) -> tuple[int, int]:
        """Return index and chain crc of the last entry here; if there is none, those of the log's last entry."""
        if self.entries:
            meta = self.entries[-1].meta
            return meta.index, meta.chain_crc
        return self._store.last_index, self._store.last_chain

    def add(self, entry: SealedEntry) -> None:
        """Append an entry."""
        self.entries.append(entry)

    def take(self) -> SealedEntry:
        """Remove the first entry and return it."""
        return self.entries.popleft()

    def drop(self) -> list[object]:
        """Drop all entries and return the contexts of their units. None of them was proposed."""
        contexts = [context for entry in self.entries for context in entry.contexts]
        self.entries.clear()
        return contexts

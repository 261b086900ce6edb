"""From units to entries: the leader's side of an append.

Units staged in one turn of the event loop share an entry.  A unit's position is fixed when it is staged, so its bytes
can name it; the entry is therefore sealed *before* a unit that no longer fits, never after.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

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
from dledger.invariants import invariant
from dledger.replica.commands import SNAPSHOT_MARK
from dledger.types import EntryKind, EntryMeta, Membership

Buffer = bytes | bytearray | memoryview
Fill = Callable[[int], Sequence[Buffer]]

_PRIVILEGED = True
_PLACEHOLDER = bytes(HEADER_BYTES)
_MARK = encode_command(SNAPSHOT_MARK, b"")
MARK_BYTES = len(_MARK)
"""By how much the first entry of a segment may grow after its place was found."""


class SealedEntry:
    """An entry ready to be proposed, with the contexts of its units."""

    __slots__ = ("contexts", "data", "meta", "privileged")

    def __init__(self, meta: EntryMeta, data: bytearray, contexts: list[object], *, privileged: bool) -> None:
        self.meta = meta
        self.data = data
        self.contexts = contexts
        self.privileged = privileged


class Proposer:
    """Holds the open entry of the present turn.

    `next_position(size, privileged)` is where an entry of `size` bytes will start; it raises `LogFullError` where the
    disk is known to have no space for it.
    `last()` gives (last index, last chain crc) of the log; `sealed(entry)` takes each finished one.
    """

    def __init__(
        self,
        *,
        segment_bytes: int,
        next_position: Callable[[int, bool], int],
        last: Callable[[], tuple[int, int]],
        sealed: Callable[[SealedEntry], None],
        wants_mark: Callable[[], bool],
    ) -> None:
        self._segment_bytes = segment_bytes
        self._next_position = next_position
        self._last = last
        self._sealed = sealed
        self._wants_mark = wants_mark
        self._term = 0
        self._position = -1
        self._privileged = False
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
        """Put a unit into the open entry, or into another one; returns the position of its first record byte."""
        need = size + len(commands)
        if self._position >= 0 and (self._privileged != privileged or not self._fits(need)):
            self.seal()  # a unit must not slip into the reserve behind a privileged one
        if self._position < 0:
            self._open(term, need, privileged)
        position = self._position + HEADER_BYTES + self._records_size
        if size:
            invariant(fill is not None, "a unit with records fills them", size=size)
            if fill is not None:
                parts = fill(position)
                self._parts.extend(parts)
            self._records_size += size
        if commands:
            self._commands.append(commands)
        if context is not None:
            self._contexts.append(context)
        self._size += need
        return position

    def _fits(self, need: int) -> bool:
        size = self._size + need
        if size > MAX_ENTRY_BODY_BYTES:
            return False
        left = self._segment_bytes - self._position % self._segment_bytes - HEADER_BYTES - size
        return left == 0 or left >= BLANK_BYTES

    def _open(self, term: int, need: int, privileged: bool) -> None:
        if need > MAX_UNIT_BYTES or need + MARK_BYTES + HEADER_BYTES + BLANK_BYTES > self._segment_bytes:
            raise TooLargeError(
                f"a unit of {need} bytes does not fit: the limit is {min(MAX_UNIT_BYTES, self._segment_bytes)} bytes"
                " (a unit of at most 8 MiB, in one segment)"
            )
        position = self._next_position(HEADER_BYTES + need, privileged)
        self._size = self._records_size = 0
        if position % self._segment_bytes == 0 and position > 0 and self._wants_mark():
            # Only the first entry of a segment grows by a mark, and a fresh segment has room for it.  The mark has no
            # say in where the entry goes: with it, the entry could just fill what the segment before has left.
            self._commands.append(_MARK)
            self._size = MARK_BYTES
        self._position = position
        self._privileged = privileged
        self._term = term

    def seal(self) -> None:
        """Finish the open entry, if there is one."""
        if self._position < 0:
            return
        position, term, contexts, privileged = self._position, self._term, self._contexts, self._privileged
        channel = sum(map(len, self._commands))
        index, chain = self._last()
        data = bytearray().join((_PLACEHOLDER, *self._parts, *self._commands))
        invariant(len(data) == HEADER_BYTES + self._size, "units have the size they announced", size=self._size)
        self._reset()
        meta = seal(data, EntryKind.GROUP, index + 1, term, position, channel, chain)
        self._sealed(SealedEntry(meta, data, contexts, privileged=privileged))

    def drop(self) -> list[object]:
        """Give up the open entry; returns the contexts of its units (nothing of them was proposed)."""
        contexts = self._contexts
        self._reset()
        return contexts

    def _reset(self) -> None:
        self._position = -1
        self._parts = []
        self._commands = []
        self._contexts = []

    def control_entry(self, kind: EntryKind, term: int, membership: Membership | None) -> SealedEntry:
        """A no-op or a membership entry of its own."""
        invariant(self._position < 0, "control entries stand between groups")
        body = b"" if membership is None else encode_membership(membership)
        data = bytearray().join((_PLACEHOLDER, body))
        index, chain = self._last()
        meta = seal(data, kind, index + 1, term, self._next_position(len(data), _PRIVILEGED), 0, chain)
        if membership is not None:
            meta = EntryMeta(
                meta.index, meta.term, meta.position, meta.size, meta.kind, meta.channel, meta.chain_crc, membership
            )
        return SealedEntry(meta, data, [], privileged=True)


class Contexts:
    """The contexts of entries that this replica proposed and has not applied yet, by index."""

    def __init__(self) -> None:
        self._by_index: deque[tuple[int, list[object]]] = deque()

    def add(self, index: int, contexts: list[object]) -> None:
        if contexts:
            self._by_index.append((index, contexts))

    def take(self, index: int) -> list[object]:
        """The contexts of entry `index`; entries are asked for in order."""
        waiting = self._by_index
        if waiting and waiting[0][0] == index:
            return waiting.popleft()[1]
        return []

    def drop(self) -> list[object]:
        """All of them, oldest first."""
        dropped = [context for _, contexts in self._by_index for context in contexts]
        self._by_index.clear()
        return dropped


def check_room(uncommitted_bytes: int, limit: int) -> None:
    """Refuse more than `limit` bytes that wait for a majority."""
    if uncommitted_bytes > limit:
        raise BusyError(f"{uncommitted_bytes} bytes wait for a majority, the limit is {limit}: try again later")

"""Backlog: sealed entries of a leader that wait for space, as the log will be once they are written."""

from __future__ import annotations

from collections import deque

from dledger.replica.proposer import SealedEntry
from dledger.store.log import LogStore


class Backlog:
    """Sealed entries in order. Each continues its predecessor, and the first continues the log."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._entries: deque[SealedEntry] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def first(self) -> SealedEntry:
        """The entry that is to be proposed next. The backlog must not be empty."""
        return self._entries[0]

    @property
    def end_position(self) -> int:
        """Position where the last entry ends; if there is none, where the log ends."""
        return self._entries[-1].meta.end if self._entries else self._store.end_position

    @property
    def last(self) -> tuple[int, int]:
        """Index and chain crc of the last entry here; if there is none, those of the log's last entry."""
        if self._entries:
            meta = self._entries[-1].meta
            return meta.index, meta.chain_crc
        return self._store.last_index, self._store.last_chain

    def add(self, entry: SealedEntry) -> None:
        """Append an entry."""
        self._entries.append(entry)

    def take(self) -> SealedEntry:
        """Remove the first entry and return it."""
        return self._entries.popleft()

    def drop(self) -> list[object]:
        """Drop all entries and return the contexts of their units. None of them was proposed."""
        contexts = [context for entry in self._entries for context in entry.contexts]
        self._entries.clear()
        return contexts

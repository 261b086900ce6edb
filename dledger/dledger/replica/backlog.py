"""Entries of a leader that wait, sealed, for space: the log as it will be once they are written."""

from __future__ import annotations

from collections import deque

from dledger.replica.proposer import SealedEntry
from dledger.store.log import LogStore


class Backlog:
    """Sealed entries, in order; each continues the one before, and the first one the log."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._entries: deque[SealedEntry] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def first(self) -> SealedEntry:
        """The one that is to be proposed next; there is one."""
        return self._entries[0]

    @property
    def end_position(self) -> int:
        """Where the last one ends, or the log."""
        return self._entries[-1].meta.end if self._entries else self._store.end_position

    @property
    def last(self) -> tuple[int, int]:
        """Index and chain crc of the last one, or of the log's last entry."""
        if self._entries:
            meta = self._entries[-1].meta
            return meta.index, meta.chain_crc
        return self._store.last_index, self._store.last_chain

    def add(self, entry: SealedEntry) -> None:
        """Have an entry wait."""
        self._entries.append(entry)

    def take(self) -> SealedEntry:
        """The first one waits no more."""
        return self._entries.popleft()

    def drop(self) -> list[object]:
        """Give all up; returns the contexts of their units (nothing of them was proposed)."""
        contexts = [context for entry in self._entries for context in entry.contexts]
        self._entries.clear()
        return contexts

"""Bytes of the newest entries, kept so that they can be sent and applied without reading them back."""

from __future__ import annotations

from collections import deque
from itertools import islice

from dledger.types import EntryMeta

Buffer = bytes | bytearray | memoryview


class RecentEntries:
    """Window at the end of the log of at most `max_bytes`, but at least one entry."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: deque[tuple[EntryMeta, Buffer]] = deque()

    def append(self, metas: list[EntryMeta] | tuple[EntryMeta, ...], data: Buffer) -> None:
        """Add entries whose raw bytes are back to back in `data`."""
        entries = self._entries
        if len(metas) == 1:
            entries.append((metas[0], data))
        else:
            view, offset = memoryview(data), 0
            for meta in metas:
                entries.append((meta, view[offset : offset + meta.size]))
                offset += meta.size
        self._bytes += len(data)
        while self._bytes > self._max_bytes and len(entries) > 1:
            self._bytes -= entries.popleft()[0].size

    def truncate(self, first_index: int) -> None:
        """Forget the entries from `first_index` on."""
        while self._entries and self._entries[-1][0].index >= first_index:
            self._bytes -= self._entries.pop()[0].size

    def clear(self) -> None:
        self._entries.clear()
        self._bytes = 0

    def get(self, first_index: int, count: int) -> list[tuple[EntryMeta, Buffer]] | None:
        """Return `count` entries from `first_index` on, or None unless all are here."""
        entries = self._entries
        if not entries:
            return None
        offset = first_index - entries[0][0].index
        if offset < 0 or offset + count > len(entries):
            return None
        return [entries[position] for position in range(offset, offset + count)]

    def run(self, first_index: int, limit: int) -> list[tuple[EntryMeta, Buffer]]:
        """Return the entries from `first_index` on, at most `limit`; none if the first is not here."""
        entries = self._entries
        offset = first_index - entries[0][0].index if entries else -1
        if not 0 <= offset < len(entries):
            return []
        if limit == 1:
            return [entries[offset]]
        return list(islice(entries, offset, offset + limit))

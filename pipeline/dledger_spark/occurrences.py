"""Counts of equal rows, in bounded memory: counts that do not fit are spilled to the local disk."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing
from typing import Final

MAX_IN_MEMORY: Final = 150_000
"""Maximum number of keys in memory. A key of 16 bytes needs about 250 bytes while it is spilled.

All together stays below 64 MiB.
"""
_FILTER_BITS: Final = 8 << 23
"""Size in bits of the Bloom filter of spilled keys, with two bits for each. It saves the lookup of most new keys."""
_PRAGMAS: Final = (
    "journal_mode = OFF",
    "synchronous = OFF",
    "locking_mode = EXCLUSIVE",
    "cache_size = -8192",
)


class Occurrences:
    """Counts how often each key has come."""

    def __init__(self, max_in_memory: int = MAX_IN_MEMORY) -> None:
        self._max_in_memory = max_in_memory
        self._counts: dict[bytes, int] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._spilled: sqlite3.Connection | None = None
        self._bloom_filter = bytearray()

    def next(self, key: bytes) -> int:
        """Count a key, and return how often it has come, this time included."""
        count = self._counts.get(key, 0) + 1
        if (
            count == 1
            and self._spilled is not None
            and all(self._bloom_filter[bit >> 3] >> (bit & 7) & 1 for bit in _bits(key))
        ):
            row = self._spilled.execute("SELECT count FROM seen WHERE key = ?", (key,)).fetchone()
            count += 0 if row is None else row[0]
        self._counts[key] = count
        if len(self._counts) > self._max_in_memory:
            self._spill()
        return count

    def close(self) -> None:
        """Remove the spilled counts from the disk."""
        if self._spilled is not None and self._folder is not None:
            self._spilled.close()
            self._folder.cleanup()
            self._spilled = self._folder = None

    def _spill(self) -> None:
        if self._spilled is None:
            # Spark's own folders for spilled data, where the executor has them.
            local = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
            self._folder = tempfile.TemporaryDirectory(prefix="dledger-rows-", dir=local)
            self._spilled = sqlite3.connect(os.path.join(self._folder.name, "seen"), isolation_level=None)
            for setting in _PRAGMAS:
                self._spilled.execute(f"PRAGMA {setting}").close()
            self._bloom_filter = bytearray(_FILTER_BITS >> 3)
            self._spilled.execute("CREATE TABLE seen (key BLOB PRIMARY KEY, count INTEGER) WITHOUT ROWID")
        with closing(self._spilled.cursor()) as cursor:
            cursor.execute("BEGIN")
            cursor.executemany("INSERT OR REPLACE INTO seen VALUES (?, ?)", sorted(self._counts.items()))
            cursor.execute("COMMIT")
        for key in self._counts:
            for bit in _bits(key):
                self._bloom_filter[bit >> 3] |= 1 << (bit & 7)
        self._counts.clear()


def _bits(key: bytes) -> tuple[int, int]:
    """Return the two bits of a key in the filter. The key is a hash itself."""
    number = int.from_bytes(key[:8], "big")
    return number % _FILTER_BITS, (number >> 32) % _FILTER_BITS

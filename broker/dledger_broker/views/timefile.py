"""File of the time index: the rows as of a log position, in SQLite.

| table | columns |
|---|---|
| `rows` | `due`, `position`, `size`; primary key (`due`, `position`) |
| `checkpoint` | `position`, `floor`, `incarnation`, `counts`: one row |

`position` is where commands end that are in `rows`; no row of a record below `floor` counts; `incarnation` is that of
the data directory; `counts` is what the state had pending at `position`, in MessagePack, or NULL if nobody asked it.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import msgspec

from dledger.loop_guard import disk_work
from dledger_broker.views.databases import Databases
from dledger_broker.views.timerows import Counts, Key, Row, RowChanges

NAME: Final = "timeindex"
VERSION: Final = 1
"""Of the tables; a file of another one is made anew."""
SLICE_KEYS: Final = 100_000
"""So many rows are looked at in one step of what goes through all of them."""

_TABLES: Final = (
    "CREATE TABLE rows (due INTEGER, position INTEGER, size INTEGER, PRIMARY KEY (due, position)) WITHOUT ROWID",
    "CREATE TABLE checkpoint (position INTEGER, floor INTEGER, incarnation TEXT, counts BLOB)",
)
HIGHEST: Final[Key] = ((1 << 63) - 1, (1 << 63) - 1)
"""A key behind all rows."""

_BEHIND: Final = "FROM rows WHERE (due, position) > (?, ?)"
_BETWEEN: Final = f"{_BEHIND} AND (due, position) <= (?, ?)"
_decode_counts = msgspec.msgpack.Decoder(dict[int, tuple[int, int]]).decode
_DAMAGE: Final = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB))
_logger = logging.getLogger(__name__)


def is_damage(error: BaseException) -> bool:
    """Whether an error says that a file holds what SQLite did not write."""
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE


class Stored(NamedTuple):
    """What a file says of itself."""

    position: int
    floor: int
    counts: Counts | None


class Slice(NamedTuple):
    """Rows found in one step, and the key behind which the next step begins; None at the end."""

    rows: Sequence[Row]
    resume: Key | None


class TimeFile:
    """Every call blocks, and none may run beside another (a `ViewWriter` sees to that).  Raises `sqlite3.Error`."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._connection: sqlite3.Connection | None = None
        self._incarnation = ""

    def load(self, incarnation: str) -> Stored:
        """Open the file; one that is not of this incarnation of the data directory, or cannot be read, is made anew."""
        self.close()
        self._incarnation = incarnation
        try:
            stored = self._open()
        except (sqlite3.DatabaseError, msgspec.MsgspecError, TypeError) as error:
            if isinstance(error, sqlite3.OperationalError) and not is_damage(error):
                raise
            _logger.warning("event=time_index_rebuilt reason=%r", str(error))
            stored = None
        if stored is None:
            self.wipe()
            return Stored(0, 0, None)
        return stored

    def wipe(self) -> None:
        """Make it anew, without rows, at position 0."""
        self.close()
        self._databases.remove(NAME)
        with self._transaction() as connection:
            for table in _TABLES:
                connection.execute(table)
            connection.execute("INSERT INTO checkpoint VALUES (0, 0, ?, NULL)", (self._incarnation,))
            connection.execute(f"PRAGMA user_version = {VERSION}")

    def write(self, changes: Sequence[RowChanges], position: int, floor: int, counts: Counts | None) -> None:
        """Commands up to `position`, all at once: the rows that they add, without those that are gone."""
        gone = {position for change in changes for _, position in change.gone}
        added = [row for change in changes for row in change.added if row[1] not in gone]
        with self._transaction() as connection:
            connection.executemany("INSERT OR IGNORE INTO rows VALUES (?, ?, ?)", added)
            for change in changes:
                connection.executemany("DELETE FROM rows WHERE due = ? AND position = ?", change.gone)
            connection.execute(
                "UPDATE checkpoint SET position = ?, floor = ?, counts = ?",
                (position, floor, None if counts is None else msgspec.msgpack.encode(counts)),
            )

    def next_rows(self, behind: Key, limit: int, floor: int) -> list[Row]:
        """The first rows behind a key, of records at or above `floor`."""
        asked = self._connected().execute(
            f"SELECT due, position, size {_BEHIND} AND position >= ? ORDER BY due, position LIMIT ?",
            (*behind, floor, limit),
        )
        return [Row(*row) for row in asked]

    def rows_between(self, floor: int, below: int, behind: Key) -> Slice:
        """Of the next `SLICE_KEYS` rows behind a key, those of records in a stretch of the log."""
        end = self._slice_end(behind)
        asked = self._connected().execute(
            f"SELECT due, position, size {_BETWEEN} AND position >= ? AND position < ? ORDER BY due, position",
            (*behind, *(end or HIGHEST), floor, below),
        )
        return Slice([Row(*row) for row in asked], end)

    def holds(self, key: Key) -> bool:
        """Whether there is a row of that key."""
        asked = self._connected().execute("SELECT 1 FROM rows WHERE due = ? AND position = ?", key)
        return asked.fetchone() is not None

    def clean(self, floor: int, behind: Key) -> Key | None:
        """Remove those of the next `SLICE_KEYS` rows that lie below the floor; returns where to go on, or None."""
        end = self._slice_end(behind)
        with self._transaction() as connection:
            connection.execute(f"DELETE {_BETWEEN} AND position < ?", (*behind, *(end or HIGHEST), floor))
        return end

    def count(self, stretch_bytes: int, behind: Key, counts: dict[int, tuple[int, int]]) -> Key | None:
        """Add the next `SLICE_KEYS` rows to `counts`, by stretches of the log; returns where to go on, or None."""
        end = self._slice_end(behind)
        asked = self._connected().execute(
            f"SELECT position / ?, COUNT(*), SUM(size) {_BETWEEN} GROUP BY 1",
            (stretch_bytes, *behind, *(end or HIGHEST)),
        )
        for stretch, rows, size in asked:
            rows_before, size_before = counts.get(stretch * stretch_bytes, (0, 0))
            counts[stretch * stretch_bytes] = rows_before + rows, size_before + size
        return end

    def close(self) -> None:
        """Close the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            disk_work("close", NAME)
            connection.close()

    def _slice_end(self, behind: Key) -> Key | None:
        """The key of the last of the next `SLICE_KEYS` rows; None if there are fewer."""
        asked = self._connected().execute(
            f"SELECT due, position {_BEHIND} ORDER BY due, position LIMIT 1 OFFSET ?", (*behind, SLICE_KEYS - 1)
        )
        end: Key | None = asked.fetchone()
        return end

    def _open(self) -> Stored | None:
        connection = self._connected()
        if connection.execute("PRAGMA user_version").fetchone() != (VERSION,):
            return None
        position, floor, incarnation, counts = connection.execute(
            "SELECT position, floor, incarnation, counts FROM checkpoint"
        ).fetchone()
        if incarnation != self._incarnation:
            return None
        return Stored(position, floor, None if counts is None else _decode_counts(counts))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self._connected()
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.commit()
        except BaseException:
            connection.rollback()
            raise

    def _connected(self) -> sqlite3.Connection:
        disk_work("SQL", NAME)
        if self._connection is None:
            self._connection = self._databases.open(NAME)
        return self._connection

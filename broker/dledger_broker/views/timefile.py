"""File of the time index: the rows as of a log position, in SQLite.

| table | columns |
|---|---|
| `rows` | `due`, `position`, `size`, `sum`; primary key (`due`, `position`), and an index by `position` |
| `checkpoint` | `position`, `floor`, `incarnation`, `counts`, `sum`: one row |

`position` of the checkpoint is the end of the commands that are in `rows`. Rows of records below `floor` do not count.
`incarnation` is the incarnation of the data directory. `counts` has the state's counters of pending rows at `position`,
in MessagePack, NULL if they were not read.

SQLite has no checksums of its own, so `sum` is a checksum: of a row the value of `_SUM`, of the checkpoint a `crc32`. A
row whose sum fails is damage of the whole file, like a page that SQLite cannot read. A missing row has no sum, so its
absence is checked in the index by position, too.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import msgspec

from dledger_base.checksum import crc32
from dledger_base.loop_guard import disk_work
from dledger_broker.views.databases import Databases
from dledger_broker.views.timerows import Counts, Key, Row, RowChanges

NAME: Final = "timeindex"
VERSION: Final = 2
"""Version of the tables. A file of another version is made anew."""
SLICE_KEYS: Final = 100_000
"""Number of rows that one step of a pass through all rows reads."""

_TABLES: Final = (
    """
    CREATE TABLE rows (due INTEGER, position INTEGER, size INTEGER, sum INTEGER, PRIMARY KEY (due, position))
    WITHOUT ROWID
    """,
    "CREATE INDEX by_position ON rows (position)",
    "CREATE TABLE checkpoint (position INTEGER, floor INTEGER, incarnation TEXT, counts BLOB, sum INTEGER)",
)
_SUM: Final = "(due % 998244353 * 3 + position % 1000000007 * 5 + size % 2147483647 * 7)"
"""Sum of a row, as SQL. A flipped bit of a column changes it, because no power of two is divisible by these primes."""
_IS_BAD: Final = f"sum IS NOT {_SUM}"
HIGHEST: Final[Key] = ((1 << 63) - 1, (1 << 63) - 1)
"""A key behind all rows."""

_AFTER: Final = "FROM rows WHERE (due, position) > (?, ?)"
_BETWEEN: Final = f"{_AFTER} AND (due, position) <= (?, ?)"
_ADD: Final = "INSERT OR IGNORE INTO rows SELECT due, position, size,"
_FROM_PARAMETERS: Final = "FROM (SELECT ? AS due, ? AS position, ? AS size)"
_AT_KEY: Final = "FROM rows WHERE due = ? AND position = ?"
_decode_counts = msgspec.msgpack.Decoder(dict[int, tuple[int, int]]).decode
_DAMAGE: Final = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB))
_UNREADABLE: Final = frozenset(
    (sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS)
)
"""Errors of the disk that also mean damage."""
_logger = logging.getLogger(__name__)


class RotError(sqlite3.DatabaseError):
    """A checksum in the file fails."""


def is_damage(error: BaseException) -> bool:
    """Return whether an error says that a file holds what was not written, or cannot be read."""
    if isinstance(error, RotError):
        return True
    code = getattr(error, "sqlite_errorcode", 0)
    return isinstance(error, sqlite3.Error) and (code & 0xFF in _DAMAGE or code in _UNREADABLE)


def _checkpoint_sum(position: int, floor: int, incarnation: str, counts: bytes | None) -> int:
    return crc32(repr((position, floor, incarnation, counts)).encode())


def _row(due: int, position: int, size: int, bad: int) -> Row:
    if bad:
        raise RotError(f"a row of the time index does not verify: due {due}, position {position}, size {size}")
    return Row(due, position, size)


class Stored(NamedTuple):
    """The checkpoint in a file."""

    position: int
    floor: int
    counts: Counts | None


class Slice(NamedTuple):
    """Rows found in one step, and the key behind which the next step begins, None at the end."""

    rows: Sequence[Row]
    resume: Key | None


class TimeFile:
    """The file of the time index. Every call blocks, and no two may run at the same time (a `ViewWriter` ensures that).

    Calls raise `sqlite3.Error`.
    """

    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._connection: sqlite3.Connection | None = None
        self._incarnation = ""

    def load(self, incarnation: str) -> Stored:
        """Open the file. Make it anew if it is not of this incarnation of the data directory, or cannot be read."""
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
        """Make the file anew, without rows, at position 0."""
        self.close()
        self._databases.remove(NAME)
        with self._transaction() as connection:
            for table in _TABLES:
                connection.execute(table)
            total = _checkpoint_sum(0, 0, self._incarnation, None)
            connection.execute("INSERT INTO checkpoint VALUES (0, 0, ?, NULL, ?)", (self._incarnation, total))
            connection.execute(f"PRAGMA user_version = {VERSION}")

    def write(self, changes: Sequence[RowChanges], position: int, floor: int, counts: Counts | None) -> None:
        """Write the commands up to `position` in one transaction: the rows that they add, without rows that were
        removed.
        """
        removed = {position for change in changes for _, position in change.removed}
        added = [row for change in changes for row in change.added if row[1] not in removed]
        with self._transaction() as connection:
            connection.executemany(f"{_ADD} {_SUM} {_FROM_PARAMETERS}", added)
            for change in changes:
                connection.executemany("DELETE FROM rows WHERE due = ? AND position = ?", change.removed)
            packed = None if counts is None else msgspec.msgpack.encode(counts)
            total = _checkpoint_sum(position, floor, self._incarnation, packed)
            connection.execute(
                "UPDATE checkpoint SET position = ?, floor = ?, counts = ?, sum = ?", (position, floor, packed, total)
            )

    def next_rows(self, after: Key, limit: int, floor: int) -> list[Row]:
        """Return the first rows behind a key, of records at or above `floor`."""
        cursor = self._connect().execute(
            f"SELECT due, position, size, {_IS_BAD} {_AFTER} AND (position >= ? OR {_IS_BAD})"
            " ORDER BY due, position LIMIT ?",
            (*after, floor, limit),
        )
        return [_row(*row) for row in cursor]

    def rows_between(self, floor: int, below: int, after: Key) -> Slice:
        """Read the next `SLICE_KEYS` rows behind a key, and return rows whose records are in a stretch of the log."""
        end = self._slice_end(after)
        cursor = self._connect().execute(
            f"SELECT due, position, size, {_IS_BAD} {_BETWEEN} AND (position >= ? AND position < ? OR {_IS_BAD})"
            " ORDER BY due, position",
            (*after, *(end or HIGHEST), floor, below),
        )
        return Slice([_row(*row) for row in cursor], end)

    def holds(self, key: Key) -> bool:
        """Return whether there is a row of that key. A record has at most one row, so another row of it is damage."""
        cursor = self._connect().execute(f"SELECT due, position, size, {_IS_BAD} {_AT_KEY}", key)
        if any(_row(*row) for row in cursor):
            return True
        cursor = self._connect().execute("SELECT due FROM rows INDEXED BY by_position WHERE position = ?", key[1:])
        other_dues = [due for (due,) in cursor]
        if other_dues:
            raise RotError(f"the record at {key[1]} is due at {key[0]}, and the time index has {other_dues}")
        return False

    def clean(self, floor: int, after: Key) -> Key | None:
        """Check the next `SLICE_KEYS` rows, and remove the rows below the floor. Return the key to continue with, or
        None.
        """
        end = self._slice_end(after)
        with self._transaction() as connection:
            connection.execute(f"DELETE {_BETWEEN} AND position < ?", (*after, *(end or HIGHEST), floor))
        return end

    def count(self, stretch_bytes: int, after: Key, counts: dict[int, tuple[int, int]]) -> Key | None:
        """Add the next `SLICE_KEYS` rows to `counts`, by stretches of the log. Return the key to continue with, or
        None.
        """
        end = self._slice_end(after)
        cursor = self._connect().execute(
            f"SELECT position / ?, COUNT(*), SUM(size), SUM({_IS_BAD}) {_BETWEEN} GROUP BY 1",
            (stretch_bytes, *after, *(end or HIGHEST)),
        )
        for stretch, rows, size, bad in cursor:
            if bad:
                raise RotError(f"{bad} rows of the time index do not verify")
            rows_before, size_before = counts.get(stretch * stretch_bytes, (0, 0))
            counts[stretch * stretch_bytes] = rows_before + rows, size_before + size
        return end

    def close(self) -> None:
        """Close the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            disk_work("close", NAME)
            connection.close()

    def _slice_end(self, after: Key) -> Key | None:
        """Return the key of the last of the next `SLICE_KEYS` rows, None if there are fewer."""
        cursor = self._connect().execute(
            f"SELECT due, position {_AFTER} ORDER BY due, position LIMIT 1 OFFSET ?", (*after, SLICE_KEYS - 1)
        )
        end: Key | None = cursor.fetchone()
        return end

    def _open(self) -> Stored | None:
        connection = self._connect()
        if connection.execute("PRAGMA user_version").fetchone() != (VERSION,):
            return None
        position, floor, incarnation, counts, total = connection.execute(
            "SELECT position, floor, incarnation, counts, sum FROM checkpoint"
        ).fetchone()
        if total != _checkpoint_sum(position, floor, incarnation, counts):
            raise RotError("the checkpoint of the time index does not verify")
        if incarnation != self._incarnation:
            return None
        return Stored(position, floor, None if counts is None else _decode_counts(counts))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self._connect()
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.commit()
        except BaseException:
            connection.rollback()
            raise

    def _connect(self) -> sqlite3.Connection:
        disk_work("SQL", NAME)
        if self._connection is None:
            self._connection = self._databases.open(NAME)
        else:
            self._require_whole()
        return self._connection

    def _require_whole(self) -> None:
        """Raise `RotError` if SQLite works on a file that nobody finds any more, or that has lost its end."""
        if not self._databases.is_whole(NAME):
            raise RotError("a file of the time index is gone, or shorter than it was")

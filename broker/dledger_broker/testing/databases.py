"""SQLite databases in memory that lose their last transactions when the power fails, as real databases do."""

from __future__ import annotations

import random
import sqlite3
from typing import Any, Final

from dledger_base.loop_guard import as_worker, refuse_on_loop

KEPT_IMAGES: Final = 4
"""Number of images kept, one for each of the last transactions. A crash goes back to one of them."""


class MemoryDatabases:
    """In-memory `dledger_broker.views.databases.Databases` that takes an image after each transaction.

    Errors in `failures` are raised by the next transactions that end, one each.
    """

    def __init__(self) -> None:
        self._images: dict[str, list[bytes]] = {}
        self.failures: list[Exception] = []
        self._open: dict[str, sqlite3.Connection] = {}
        self._damaged: set[str] = set()
        """Open databases whose file is gone, or cut short."""
        self._unreadable: set[str] = set()

    def open(self, name: str) -> sqlite3.Connection:
        """Return the database of this name, made from its last image if it exists."""
        refuse_on_loop("open", name)
        connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None, factory=_Connection)
        connection.databases, connection.name = self, name
        self._open[name] = connection
        self._damaged.discard(name)
        images = self._images.get(name)
        if images and images[-1]:
            connection.deserialize(images[-1])
        return connection

    def remove(self, name: str) -> None:
        """Remove the images of the database of this name."""
        refuse_on_loop("unlink", name)
        self._images.pop(name, None)
        self._unreadable.discard(name)

    def is_whole(self, name: str) -> bool:
        """Return whether the database of this name is undamaged."""
        refuse_on_loop("stat", name)
        return name not in self._damaged

    def is_unreadable(self, name: str) -> bool:
        """Return whether nothing of a database can be read from its disk."""
        return name in self._unreadable

    def committed(self, name: str, image: bytes) -> None:
        """Keep an image of the database as of the transaction that has ended."""
        if name in self._damaged:
            return  # the transaction wrote to a file that no later life finds
        images = self._images.setdefault(name, [])
        images.append(image)
        del images[:-KEPT_IMAGES]

    def closed(self, connection: sqlite3.Connection) -> None:
        """Forget a database that was closed."""
        self._open = {name: one for name, one in self._open.items() if one is not connection}

    def crash(self, rng: random.Random) -> None:
        """Let the power fail: each database goes back to its state after one of the last transactions."""
        self._open.clear()
        self._damaged.clear()
        for images in self._images.values():
            del images[rng.randint(1, len(images)) :]

    def tamper(self, name: str, statement: str) -> None:
        """Change a database that is not open, without its owner's knowledge."""
        connection = self.open(name)
        connection.execute("BEGIN")
        connection.execute(statement)
        connection.commit()
        connection.close()

    def rot_row(self, name: str, where: float) -> bool:
        """Flip a bit of a row's first column in the open database. Return False without a row, or if the database is
        busy.
        """
        connection = self._open.get(name)
        if connection is None or connection.in_transaction or self.is_unreadable(name):
            return False
        with as_worker():
            rows = connection.execute("SELECT due, position FROM rows ORDER BY position").fetchall()
            if not rows:
                return False
            due, position = rows[int(where * len(rows))]
            rotten = due ^ 1 << int(where * 1e9) % 46
            connection.execute("UPDATE rows SET due = ? WHERE due = ? AND position = ?", (rotten, due, position))
        return True

    def lose(self, name: str) -> bool:
        """Take the file of an open database away; False if the database is not open."""
        if name not in self._open:
            return False
        self._images.pop(name, None)
        self._damaged.add(name)
        return True

    def cut(self, name: str, where: float) -> bool:
        """Cut the file of an open database short; False if the database is not open or has no file."""
        images = self._images.get(name)
        if name not in self._open or not images:
            return False
        self._images[name] = [images[-1][: int(where * len(images[-1]))]]
        self._damaged.add(name)
        return True

    def make_unreadable(self, name: str) -> bool:
        """Let all reads of an open database fail until it is made anew; False if the database is not open."""
        if name not in self._open:
            return False
        self._unreadable.add(name)
        return True

    def spoil(self, name: str) -> None:
        """Replace the content of a database with bytes that are not a database."""
        self._images[name] = [b"\xff" * len(self._images[name][-1])]


class _Connection(sqlite3.Connection):
    """Connection that reports the end of each transaction."""

    databases: MemoryDatabases
    name: str

    def close(self) -> None:
        """Report that the database is closed, and close it."""
        self.databases.closed(self)
        super().close()

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:  # noqa: ANN401 - as in the module
        """Execute a statement. Reads of an unreadable database raise the error that SQLite raises."""
        if sql.startswith("SELECT") and self.databases.is_unreadable(self.name):
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ
            raise error
        return super().execute(sql, *parameters)

    def commit(self) -> None:
        """Commit and keep an image, or raise the next of `failures`."""
        if self.databases.failures:
            raise self.databases.failures.pop(0)
        super().commit()
        self.databases.committed(self.name, self.serialize())

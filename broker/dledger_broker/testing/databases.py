"""Databases of SQLite in memory that lose their last transactions with the power, as real ones do."""

from __future__ import annotations

import random
import sqlite3
from typing import Final

from dledger.loop_guard import refuse_on_loop

KEPT_IMAGES: Final = 4
"""So many of the last transactions may be lost."""


class MemoryDatabases:
    """See `dledger_broker.views.databases.Databases`; an image is taken with every transaction.

    Errors in `failures` are raised by the next transactions that end, one each.
    """

    def __init__(self) -> None:
        self._images: dict[str, list[bytes]] = {}
        self.failures: list[Exception] = []

    def open(self, name: str) -> sqlite3.Connection:
        """See `Databases.open`."""
        refuse_on_loop("open", name)
        connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None, factory=_Connection)
        connection.databases, connection.name = self, name
        images = self._images.get(name)
        if images:
            connection.deserialize(images[-1])
        return connection

    def remove(self, name: str) -> None:
        """See `Databases.remove`."""
        refuse_on_loop("unlink", name)
        self._images.pop(name, None)

    def committed(self, name: str, image: bytes) -> None:
        """A transaction has ended, and this is what the database is since then."""
        images = self._images.setdefault(name, [])
        images.append(image)
        del images[:-KEPT_IMAGES]

    def crash(self, rng: random.Random) -> None:
        """The power goes: each database is what it was after one of the last transactions."""
        for images in self._images.values():
            del images[rng.randint(1, len(images)) :]

    def tamper(self, name: str, statement: str) -> None:
        """Change a database that is not open, without its owner's knowledge."""
        connection = self.open(name)
        connection.execute("BEGIN")
        connection.execute(statement)
        connection.commit()
        connection.close()

    def spoil(self, name: str) -> None:
        """The database is no database any more."""
        self._images[name] = [b"\xff" * len(self._images[name][-1])]


class _Connection(sqlite3.Connection):
    """Tells of the end of each transaction."""

    databases: MemoryDatabases
    name: str

    def commit(self) -> None:
        """See `sqlite3.Connection.commit`."""
        if self.databases.failures:
            raise self.databases.failures.pop(0)
        super().commit()
        self.databases.committed(self.name, self.serialize())

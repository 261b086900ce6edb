"""Databases of SQLite in a node's directory: what is in them can be thrown away."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from typing import Final, Protocol

from dledger.loop_guard import disk_work

SUFFIXES: Final = ("", "-wal", "-shm")


class Databases(Protocol):
    """Where databases are; calls block."""

    def open(self, name: str) -> sqlite3.Connection:
        """The database of that name, made if it is missing.  Transactions are begun by BEGIN and end with `commit`; a
        loss of power may undo the last ones.  Raises `sqlite3.Error` and `OSError`.
        """

    def remove(self, name: str) -> None:
        """Remove it, if it is there; it is not open."""


class DatabaseFiles:
    """Those of a directory."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def open(self, name: str) -> sqlite3.Connection:
        """See `Databases.open`."""
        path = self._path(name)
        disk_work("open", path)
        os.makedirs(self._directory, exist_ok=True)
        connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def remove(self, name: str) -> None:
        """See `Databases.remove`."""
        path = self._path(name)
        disk_work("unlink", path)
        for suffix in SUFFIXES:
            with suppress(FileNotFoundError):
                os.unlink(path + suffix)

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, f"{name}.sqlite")

"""SQLite databases in a node's directory. Their content can be thrown away."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from typing import Final, Protocol

from dledger_base.loop_guard import disk_work

SUFFIXES: Final = ("", "-wal", "-shm")
_WATCHED: Final = SUFFIXES[:2]
"""Suffixes of the files that hold the data. This build makes no file of shared memory; earlier builds left some."""


class Databases(Protocol):
    """The databases of a node. Calls block."""

    def open(self, name: str) -> sqlite3.Connection:
        """Return the database of this name, made if it is missing.

        Transactions begin with BEGIN and end with `commit`. A loss of power may undo the last transactions. Raises
        `sqlite3.Error` and `OSError`.
        """

    def is_whole(self, name: str) -> bool:
        """Return whether the files of an open database still exist under their names, no shorter than before."""

    def remove(self, name: str) -> None:
        """Remove the database of this name, if it exists. It must not be open."""


class DatabaseFiles:
    """The databases in a directory."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._known_files: dict[str, tuple[int, int]] = {}
        """The inode and the largest size in bytes of each file, by its path, since its database was opened."""

    def open(self, name: str) -> sqlite3.Connection:
        """Return the database of this name, made if it is missing."""
        path = self._path(name)
        disk_work("open", path)
        os.makedirs(self._directory, exist_ok=True)
        connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            # Exclusive locking needs no file of shared memory. If such a file were cut short, a signal would end the
            # process.
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
        except sqlite3.Error:
            connection.close()
            raise
        for suffix in SUFFIXES:
            self._known_files.pop(path + suffix, None)
        self.is_whole(name)
        return connection

    def is_whole(self, name: str) -> bool:
        """Return whether the files of an open database still exist, no shorter than before. Raises `OSError`."""
        path = self._path(name)
        disk_work("stat", path)
        return all(self._is_whole_file(path + suffix) for suffix in _WATCHED)

    def _is_whole_file(self, path: str) -> bool:
        known = self._known_files.get(path)
        try:
            stat = os.stat(path)
        except FileNotFoundError:
            return known is None
        inode, size = known or (stat.st_ino, 0)
        self._known_files[path] = inode, max(size, stat.st_size)
        return stat.st_ino == inode and stat.st_size >= size

    def remove(self, name: str) -> None:
        """Remove the database of this name with its side files, if they exist."""
        path = self._path(name)
        disk_work("unlink", path)
        for suffix in SUFFIXES:
            with suppress(FileNotFoundError):
                os.unlink(path + suffix)

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, f"{name}.sqlite")

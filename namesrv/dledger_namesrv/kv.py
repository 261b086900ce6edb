"""Configuration values by namespace and key, kept over a restart.

File `kvConfig.json`: `{"configTable":{namespace:{key:value}}}`, as RocketMQ writes it. Each file of the data
directory is replaced as a whole: a changed file is written beside
the old one, synced, and renamed over it. Only then readers see the change.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from dledger_base.loop_guard import disk_work
from dledger_remoting.bodies import decode_body, encode_body
from dledger_remoting.errors import BodyError


def replace_file(path: Path, body: bytes | Iterable[bytes]) -> None:
    """Replace the content of a file, durably: after a crash the file has the new content or the former one.

    Pass a large body in pieces: while a piece is made or written, no other thread runs Python.

    Blocks, so it belongs on a thread of its own. Raises `OSError`.
    """
    disk_work("replace", str(path))
    scratch = path.with_suffix(".tmp")
    with scratch.open("wb") as file:
        file.writelines((body,) if isinstance(body, bytes) else body)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


FILE_NAME: Final = "kvConfig.json"
ORDER_TOPIC_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
DEFAULT_MAX_BYTES: Final = 1 << 20
"""Default maximum size of the file in bytes.

The file is written anew with every change, and an answer to 219 holds a whole namespace.
"""


class _Stored(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str]] = {}


class KVStoreError(Exception):
    """The file cannot be read or written. The text says why."""


class KVFullError(KVStoreError):
    """The values would exceed the maximum size."""


class KVStore:
    """Configuration values of one data directory. Raises `KVStoreError` if the existing file cannot be read.

    Any thread may read, even while another one changes values. At most one thread may change them.
    """

    def __init__(self, directory: Path, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._path = directory / FILE_NAME
        self._body = self._read()
        """Content of the file, None if there is none."""
        self._tables = self._load()

    def get(self, namespace: str, key: str) -> str | None:
        """Return one value, None if there is none."""
        return self._tables.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str]:
        """Return all values of a namespace."""
        return dict(self._tables.get(namespace, {}))

    def put(self, namespace: str, key: str, value: str) -> None:
        """Store a value durably.

        Raises `KVStoreError` on failure, and `KVFullError` if the values would become too large. Then nothing has
        changed, unless the text says that the new value may be there after a loss of power.
        """
        tables = {**self._tables, namespace: {**self._tables.get(namespace, {}), key: value}}
        size = len(encode_body(_Stored(tables)))
        if size > self._max_bytes:
            raise KVFullError(
                f"all values would take {size} bytes, more than max_stored_bytes = {self._max_bytes}: delete some first"
            )
        self._replace(tables)

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value durably, if it is there.

        Raises `KVStoreError` on failure. Then nothing has changed, unless the text says that the change may be there
        after a loss of power.
        """
        if key in self._tables.get(namespace, {}):
            table = {name: value for name, value in self._tables[namespace].items() if name != key}
            tables = {**self._tables, namespace: table}
            self._replace({name: values for name, values in tables.items() if values})

    def _read(self) -> bytes | None:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise KVStoreError(f"{self._path} cannot be read: {error}; repair it or move it away") from error

    def _load(self) -> dict[str, dict[str, str]]:
        try:
            return {} if self._body is None else decode_body(_Stored, self._body, "configuration value").config_table
        except BodyError as error:
            raise KVStoreError(f"{self._path} cannot be read: {error}; repair it or move it away") from error

    def _replace(self, tables: dict[str, dict[str, str]]) -> None:
        body = encode_body(_Stored(tables))
        try:
            replace_file(self._path, body)
        except OSError as error:
            unknown = "" if self._restore_file() else "; after a loss of power the new value may be there all the same"
            raise KVStoreError(f"{self._path} cannot be written: {error.strerror}{unknown}") from error
        self._tables, self._body = tables, body

    def _restore_file(self) -> bool:
        """Restore the former content of the file after a failed write, and return whether that is certain.

        That is needed if the new content was renamed over the file, and only the sync of the directory failed.
        """
        try:
            if self._read() == self._body:
                return True
            if self._body is None:
                self._path.unlink()
                return False
            replace_file(self._path, self._body)
        except (OSError, KVStoreError):
            return False
        return True

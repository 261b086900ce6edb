"""Configuration values by namespace and key, kept over a restart.

File `kvConfig.json`: `{"configTable":{namespace:{key:value}}}`, as RocketMQ writes it. A change is written beside the
file, synced, and renamed over it, and only then becomes visible.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from dledger_remoting.bodies import decode_body, encode_body
from dledger_remoting.errors import BodyError

from .files import replace_file

FILE_NAME: Final = "kvConfig.json"
ORDER_TOPIC_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
DEFAULT_MAX_BYTES: Final = 1 << 20
"""How large the file may become: it is written anew with every change, and answers hold whole namespaces."""


class _Stored(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str]] = {}


class KVStoreError(Exception):
    """The file cannot be read or written; the text says which and why."""


class KVFullError(KVStoreError):
    """There would be too much."""


class KVStore:
    """The values of one data directory. Raises `KVStoreError` if the file that is there cannot be read.

    Another thread may change them than those that read them, but only one.
    """

    def __init__(self, directory: Path, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._path = directory / FILE_NAME
        self._tables = self._load()

    def get(self, namespace: str, key: str) -> str | None:
        """One value, None if there is none."""
        return self._tables.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str]:
        """All values of a namespace."""
        return dict(self._tables.get(namespace, {}))

    def put(self, namespace: str, key: str, value: str) -> None:
        """Store a value durably.

        Raises `KVStoreError`, `KVFullError` if there would be too much; then nothing has changed.
        """
        tables = {**self._tables, namespace: {**self._tables.get(namespace, {}), key: value}}
        size = len(encode_body(_Stored(tables)))
        if size > self._max_bytes:
            raise KVFullError(
                f"all values would take {size} bytes, more than max_stored_bytes = {self._max_bytes}: delete some first"
            )
        self._replace(tables)

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value durably, if it is there. Raises `KVStoreError`, and then nothing has changed."""
        if key in self._tables.get(namespace, {}):
            table = {name: value for name, value in self._tables[namespace].items() if name != key}
            tables = {**self._tables, namespace: table}
            self._replace({name: values for name, values in tables.items() if values})

    def _load(self) -> dict[str, dict[str, str]]:
        try:
            return decode_body(_Stored, self._path.read_bytes(), "configuration value").config_table
        except FileNotFoundError:
            return {}
        except (OSError, BodyError) as error:
            raise KVStoreError(f"{self._path} cannot be read: {error}; repair it or move it away") from error

    def _replace(self, tables: dict[str, dict[str, str]]) -> None:
        try:
            replace_file(self._path, encode_body(_Stored(tables)))
        except OSError as error:
            raise KVStoreError(f"{self._path} cannot be written: {error.strerror}") from error
        self._tables = tables

"""The key file of access control: a server reads it at its start, and takes over later changes while it runs.

A key file has one key a line, 32 bytes in Base64. Empty lines, and lines that begin with `#`, are ignored.
"""

from __future__ import annotations

import hashlib
import logging
import stat
from base64 import b64decode
from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from dledger_base.errors import ConfigError
from dledger_base.rereading import Rereading
from dledger_base.secret import is_private

_logger: Final = logging.getLogger(__name__)
_ID_CHARS: Final = 12

KEY_BYTES: Final = 32

ACCESS_MODES: Final = ("off", "log", "on")
"""Values of `access_control`."""


def access_keys(path: Path) -> list[bytes]:
    """Return the keys in an `access_key_file`, at least one.

    Raises `ConfigError`, whose text repeats no key.
    """
    try:
        return _read_keys(path)
    except OSError as error:
        reason = f"access_key_file {path} cannot be read: {error.strerror}"
        remedy = "put it back from a copy, as on the other nodes; the first one is made by `dledger account new-key`"
        raise ConfigError(f"{reason}: {remedy}") from error
    except ValueError as error:
        raise ConfigError(f"access_key_file {path}: {error}; `dledger account new-key` makes a key") from None


def _read_keys(path: Path) -> list[bytes]:
    """Return the keys in a key file, at least one.

    Raises `OSError` if it cannot be read. Raises `ValueError` if others may read or change the file, or its content is
    wrong; the text repeats nothing of the file.
    """
    text = path.read_bytes().removeprefix(BOM_UTF8).decode("ascii", errors="replace")
    status = path.stat()
    if not is_private(status):
        mode = stat.S_IMODE(status.st_mode)
        raise ValueError(f"it has mode {mode:04o}, so that others can be administrators: chmod 600 it")
    return _parse_keys(text)


def _parse_keys(text: str) -> list[bytes]:
    """Return the keys in the text of a key file, at least one.

    Raises `ValueError`, which repeats nothing of the file.
    """
    keys: list[bytes] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            key = b64decode(line.strip(), validate=True)
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise ValueError(f"line {number} is no key of {KEY_BYTES} bytes in Base64")
        keys.append(key)
    if not keys:
        raise ValueError("there is no key")
    return keys


def key_id(key: bytes) -> str:
    """Return the id of a key: the first `_ID_CHARS` hex digits of its SHA-256, which do not reveal the key."""
    return hashlib.sha256(key).hexdigest()[:_ID_CHARS]


class KeyFileWatch:
    """Keys of an `access_key_file`. `refresh` reads the file and calls `on_change` if the keys have changed.

    If the file cannot be used, for example while an administrator replaces it, the former keys stay valid.
    """

    def __init__(self, path: Path) -> None:
        """Read the file. Raises `ConfigError`."""
        self.keys: Sequence[bytes] = access_keys(path)
        self.on_change: Callable[[Sequence[bytes]], object] | None = None
        self._file = Rereading(partial(access_keys, path), _logger, "access_keys_refused", "the old keys count")

    def refresh(self) -> bool:
        """Read the file, and return whether its keys have changed. Call it on a worker thread."""
        new_keys = self._file.again()
        if new_keys is None or new_keys == self.keys:
            return False
        self.keys = new_keys
        _logger.info("event=access_keys_loaded ids=%r", ",".join(map(key_id, new_keys)))
        if self.on_change is not None:
            self.on_change(new_keys)
        return True

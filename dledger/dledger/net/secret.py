"""Secret that the nodes of a group share, read from its file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dledger.errors import ConfigError

MIN_SECRET_BYTES: Final = 16


def read_secret(path: Path) -> bytes:
    """The secret in a file, without white space around it.

    Raises `ConfigError` if it cannot be read, is too short, or others than its owner can read it.
    """
    try:
        secret = path.read_bytes().strip()
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        raise ConfigError(
            f"secret_file {path} cannot be read ({error.strerror}): it must hold the secret of the group's nodes"
        ) from error
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigError(f"secret_file {path} holds {len(secret)} bytes, at least {MIN_SECRET_BYTES} expected")
    if mode & 0o077:
        raise ConfigError(
            f"secret_file {path} has mode {mode:04o}, so that others can read the group's secret: chmod 600 it"
        )
    return secret

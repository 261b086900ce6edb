"""The key file of access control, as a server reads it when it starts."""

from __future__ import annotations

from pathlib import Path

from dledger.errors import ConfigError
from dledger_remoting.root_account import read_keys


def access_keys(path: Path) -> list[bytes]:
    """The keys in an `access_key_file`, at least one. Raises `dledger.errors.ConfigError` that repeats none of them."""
    try:
        return read_keys(path)
    except OSError as error:
        reason = f"access_key_file {path} cannot be read: {error.strerror}"
        raise ConfigError(f"{reason}; `dledger account new-key` makes a key") from error
    except ValueError as error:
        raise ConfigError(f"access_key_file {path}: {error}; `dledger account new-key` makes a key") from None

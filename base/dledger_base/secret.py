"""Secret that the nodes of a group share, read from its file.

    SECRET                  by this one a node proves itself
    also: ANOTHER SECRET    this one is accepted, too; at most one such line, while the secret is changed

Any other content is one secret, line ends in the middle included.
"""

from __future__ import annotations

import logging
import os
import stat
from codecs import BOM_UTF8
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from dledger_base.errors import ConfigError
from dledger_base.rereading import Rereading

MIN_SECRET_BYTES: Final = 16
"""Minimum size of a secret in bytes."""
MAX_SECRETS: Final = 2
"""Maximum number of secrets of a group."""
ALSO: Final = b"also:"
"""Beginning of the line with the second secret, which is accepted as well."""

_log = logging.getLogger(__name__)


class GroupSecrets:
    """Secrets of a group. A node proves itself with the first secret, and accepts each of them."""

    def __init__(self, *secrets: bytes) -> None:
        self.all: Sequence[bytes] = secrets

    @property
    def first(self) -> bytes:
        """The secret by which this node proves itself."""
        return self.all[0]

    @classmethod
    def of(cls, secrets: bytes | GroupSecrets) -> GroupSecrets:
        """Return the secrets of a group, also if only one secret is given."""
        return secrets if isinstance(secrets, GroupSecrets) else cls(secrets)


class SecretFile(GroupSecrets):
    """Secrets in a `secret_file`. `refresh` reads the file again.

    If the file cannot be used, for example while somebody replaces it, the former secrets stay valid.
    """

    def __init__(self, path: Path) -> None:
        """Read the file. Raises `ConfigError`."""
        super().__init__(*read_secrets(path))
        self._file = Rereading(
            partial(read_secrets, path), _log, "group_secret_refused", "the former secrets stay valid"
        )

    def refresh(self) -> bool:
        """Read the file, and return whether its secrets have changed. Call it on a worker thread."""
        secrets = self._file.again()
        if secrets is None or secrets == self.all:
            return False
        self.all = secrets
        _log.info("event=group_secret_loaded accepted=%d", len(secrets))
        return True


def is_private(status: os.stat_result) -> bool:
    """Return whether only its owner can read and change a file. A group of this process may also be able to read it.

    Kubernetes hands out secrets to a group (`fsGroup`), with mode 0440 or 0640.
    """
    mode = stat.S_IMODE(status.st_mode)
    own_group = status.st_gid in {os.getegid(), *os.getgroups()}
    return not mode & (0o037 if own_group else 0o077)


def read_secret(path: Path) -> bytes:
    """Return the secret with which this node proves itself, without white space around it.

    Raises `ConfigError` if it cannot be read, is too short, or others can read it.
    """
    return read_secrets(path)[0]


def read_secrets(path: Path) -> tuple[bytes, ...]:
    """Return the secrets in a file. The first is the one with which this node proves itself.

    Raises `ConfigError` if it cannot be read, one is too short, or others can read it.
    """
    try:
        content = path.read_bytes().removeprefix(BOM_UTF8).strip()
        status = path.stat()
    except OSError as error:
        raise ConfigError(
            f"secret_file {path} cannot be read ({error.strerror}): it must hold the secret of the group's nodes"
        ) from error
    found_secrets = _secrets_in(content)
    if len(found_secrets) > MAX_SECRETS:
        raise ConfigError(f"secret_file {path} holds {len(found_secrets)} secrets, at most {MAX_SECRETS} expected")
    shortest = min(map(len, found_secrets))
    if shortest < MIN_SECRET_BYTES:
        where = "" if len(found_secrets) == 1 else "a secret of "
        raise ConfigError(f"secret_file {path} holds {where}{shortest} bytes, at least {MIN_SECRET_BYTES} expected")
    if not is_private(status):
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError(
            f"secret_file {path} has mode {mode:04o}, so that others can read the group's secret: chmod 600 it"
        )
    return found_secrets


def _secrets_in(content: bytes) -> tuple[bytes, ...]:
    """Return the secrets that a file holds, at least one."""
    first, *others = content.split(b"\n")
    others = [line.strip() for line in others if line.strip()]
    if not all(line.startswith(ALSO) for line in others):
        return (content,)
    return first.strip(), *(line.removeprefix(ALSO).strip() for line in others)

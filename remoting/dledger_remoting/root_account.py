"""The accounts of who has the key file of access control: whoever administers nodes, and the nodes themselves.

A key file has keys of 32 bytes in Base64, one a line; empty lines, and lines that begin with `#`, mean nothing. The
secret of an account is the Base64 of HMAC-SHA256 over its label with a key: the first one's is what a client signs
with, a server takes each one's.

Nodes have an account of their own, which is worth nothing but registrations. A signature does not say of what request
it is, so a name server that is somebody else's could have brokers take a registration for the making of an
administrator.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Final

from .signatures import Credentials

ROOT: Final = "dledger.root"
"""The administrators' account."""
NODE: Final = "dledger.node"
"""The nodes' account, at name servers alone."""
KEY_BYTES: Final = 32
_LABEL: Final = b"dledger root account 1"
_NODE_LABEL: Final = b"dledger node account 1"


def read_keys(path: Path) -> list[bytes]:
    """The keys in a key file, at least one.

    Raises `OSError`, and `ValueError` if others than its owner may read or change it, or something else stands in it;
    that repeats nothing of the file.
    """
    text = path.read_bytes().decode("ascii", errors="replace")
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise ValueError(f"it has mode {mode:04o}, so that others can be administrators: chmod 600 it")
    return parse_keys(text)


def parse_keys(text: str) -> list[bytes]:
    """The keys in a key file, at least one. Raises `ValueError`, which repeats nothing of the file."""
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


def root_secret(key: bytes) -> str:
    """The administrators' secret by a key."""
    return b64encode(hmac.digest(key, _LABEL, "sha256")).decode()


def node_secret(key: bytes) -> str:
    """The nodes' secret by a key."""
    return b64encode(hmac.digest(key, _NODE_LABEL, "sha256")).decode()


def root_credentials(path: Path) -> Credentials:
    """What who has a key file signs with. Raises as `read_keys` does."""
    return Credentials(ROOT, root_secret(read_keys(path)[0]))

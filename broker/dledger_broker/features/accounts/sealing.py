"""Secrets as they stand in the log: sealed with a key from the nodes' key file.

A signature is checked with the secret itself, so the nodes have to know it, and the log must not show it. What is
stored is text: the id of the key, a colon, and in Base64 a nonce, the secret enciphered, and an authentication code.

    nonce    16 random bytes
    cipher   the secret in UTF-8, XOR a stream: HMAC-SHA256(Ke, nonce, number) for the numbers 0, 1, … in 4 bytes
    code     HMAC-SHA256(Km, account, 0, nonce, cipher), so that a sealed secret is of one account alone

Ke and Km are HMAC-SHA256 of the key with two labels. The first key of the file seals, the others open what was sealed
with them before. A key's id is the beginning of its SHA-256.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Final

from dledger_broker.errors import ConfigError
from dledger_remoting.root_account import KEY_BYTES, parse_keys, root_secret

_NONCE_BYTES: Final = 16
_CODE_BYTES: Final = 32
_ID_CHARS: Final = 12
_CIPHER_LABEL: Final = b"dledger secret 1 cipher"
_CODE_LABEL: Final = b"dledger secret 1 code"


class SealError(ValueError):
    """A sealed secret cannot be opened: of another key, of another account, or changed."""


def new_nonce() -> bytes:
    """Bytes that no other sealed secret begins with."""
    return secrets.token_bytes(_NONCE_BYTES)


def new_key() -> str:
    """A line of a key file."""
    return b64encode(secrets.token_bytes(KEY_BYTES)).decode()


class KeyFile:
    """The keys of a node. `root_secrets` are those of the account that every node knows from its key file: who can read
    the file can open all secrets anyway.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = {_id_of(key): key for key in keys}
        self.sealing_id = _id_of(keys[0])
        self.root_secrets: tuple[str, ...] = tuple(root_secret(key) for key in keys)

    def __repr__(self) -> str:
        return f"KeyFile({', '.join(self._keys)})"

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all keys."""
        return tuple(self._keys)

    def seal(self, secret: str, account: str) -> str:
        """The secret of an account as it may be stored."""
        key, nonce = self._keys[self.sealing_id], new_nonce()
        cipher = _masked(key, nonce, secret.encode())
        sealed = nonce + cipher + _code(key, account, nonce, cipher)
        return f"{self.sealing_id}:{b64encode(sealed).decode()}"

    def open(self, sealed: str, account: str) -> str:
        """The secret of an account. Raises `SealError`."""
        key_id, _, text = sealed.partition(":")
        key = self._keys.get(key_id)
        if key is None:
            raise SealError(f"the secret of {account} is sealed with key {key_id}, which the key file does not have")
        try:
            data = b64decode(text, validate=True)
        except ValueError as error:
            raise SealError(f"the secret of {account} is no Base64") from error
        nonce, cipher, code = data[:_NONCE_BYTES], data[_NONCE_BYTES:-_CODE_BYTES], data[-_CODE_BYTES:]
        if not hmac.compare_digest(code, _code(key, account, nonce, cipher)):
            raise SealError(f"the secret of {account} was not sealed for it with key {key_id}")
        return _masked(key, nonce, cipher).decode()


def read_key_file(path: Path) -> KeyFile:
    """The keys in a file. Raises `ConfigError`."""
    try:
        text = path.read_text(encoding="ascii")
    except OSError as error:
        raise ConfigError(f"access_key_file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"access_key_file {path} has bytes that are no ASCII: it has keys in Base64") from error
    try:
        return KeyFile(parse_keys(text))
    except ValueError as error:
        raise ConfigError(f"access_key_file {path}: {error}: make a key with `dledger account new-key`") from error


def _id_of(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()[:_ID_CHARS]


def _masked(key: bytes, nonce: bytes, text: bytes) -> bytes:
    cipher_key = hmac.digest(key, _CIPHER_LABEL, "sha256")
    stream = bytearray()
    for number in count():
        if len(stream) >= len(text):
            break
        stream += hmac.digest(cipher_key, nonce + number.to_bytes(4, "big"), "sha256")
    return bytes(a ^ b for a, b in zip(text, stream, strict=False))


def _code(key: bytes, account: str, nonce: bytes, cipher: bytes) -> bytes:
    code_key = hmac.digest(key, _CODE_LABEL, "sha256")
    return hmac.digest(code_key, account.encode() + b"\0" + nonce + cipher, "sha256")

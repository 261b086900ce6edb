"""Secrets as they stand in the log: sealed with a key from the nodes' key file.

A signature is checked with the secret itself, so the nodes have to know it, and the log must not show it. What is
stored is text: the id of the key, a colon, and in Base64 a nonce of 12 random bytes and what AES-256-GCM makes of the
secret in UTF-8, bound to the account's name. The key of AES is HMAC-SHA256 over a label with the key of the file.

The first key of the file seals, the others open what was sealed with them before. A key's id is the beginning of its
SHA-256.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dledger_remoting.root_account import KEY_BYTES, root_secret
from dledger_serving.access_keys import access_keys

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE_BYTES: Final = 12
_ID_CHARS: Final = 12
_LABEL: Final = b"dledger secret 2"


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
    the file can open all secrets anyway. `nonces` makes what sealed secrets begin with, none twice; random bytes by
    default.
    """

    def __init__(self, keys: Sequence[bytes], nonces: Callable[[], bytes] | None = None) -> None:
        self._nonces = nonces
        self._ciphers = {_id_of(key): _cipher_of(key) for key in keys}
        self.sealing_id = _id_of(keys[0])
        self.root_secrets: tuple[str, ...] = tuple(root_secret(key) for key in keys)

    def __repr__(self) -> str:
        return f"KeyFile({', '.join(self._ciphers)})"

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all keys."""
        return tuple(self._ciphers)

    def seal(self, secret: str, account: str) -> str:
        """The secret of an account as it may be stored."""
        nonce = new_nonce() if self._nonces is None else self._nonces()
        sealed = nonce + self._ciphers[self.sealing_id].encrypt(nonce, secret.encode(), account.encode())
        return f"{self.sealing_id}:{b64encode(sealed).decode()}"

    def open(self, sealed: str, account: str) -> str:
        """The secret of an account. Raises `SealError`."""
        from cryptography.exceptions import InvalidTag

        key_id, _, text = sealed.partition(":")
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise SealError(f"the secret of {account} is sealed with key {key_id}, which the key file does not have")
        try:
            data = b64decode(text, validate=True)
            if b64encode(data).decode() != text:
                raise ValueError("bits that mean nothing are set")
            return cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], account.encode()).decode()
        except InvalidTag as error:
            raise SealError(f"the secret of {account} was not sealed for it with key {key_id}") from error
        except ValueError as error:
            raise SealError(f"the secret of {account} is no Base64 as it was written, or too short") from error


def read_key_file(path: Path) -> KeyFile:
    """The keys in a file. Raises `dledger.errors.ConfigError`."""
    return KeyFile(access_keys(path))


def _id_of(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()[:_ID_CHARS]


def _cipher_of(key: bytes) -> AESGCM:
    """Nodes without access control do without the library's 7 MB."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(hmac.digest(key, _LABEL, "sha256"))

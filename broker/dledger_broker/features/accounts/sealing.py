"""Sealing of secrets: encryption with a key from the nodes' key file before they are stored in the log.

Checking a signature needs the secret itself. So nodes must be able to open it, while the log must not reveal it.

A sealed secret is text: the id of the key, a colon, and Base64 of nonce and ciphertext. The nonce has 12 random bytes.
The ciphertext is AES-256-GCM of the secret in UTF-8, with the account's name as associated data. The AES key is
HMAC-SHA256 over a label, computed with the key of the file.

While two secrets of an account are valid, the text has both, separated by a comma, the newer one first.

The first key of the file seals. The other keys open secrets that were sealed with them earlier. The id of a key is the
beginning of its SHA-256.
"""

from __future__ import annotations

import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dledger_base.access_keys import KEY_BYTES, access_keys, key_id
from dledger_remoting.accounts import root_secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE_BYTES: Final = 12
_LABEL: Final = b"dledger secret 2"
_BETWEEN: Final = ","


class SealError(ValueError):
    """A sealed secret cannot be opened: its key is missing, it belongs to another account, or it was changed."""


def new_nonce() -> bytes:
    """Return random bytes, with which a sealed secret begins."""
    return secrets.token_bytes(_NONCE_BYTES)


def new_key() -> str:
    """Return a new key, as a line of a key file."""
    return b64encode(secrets.token_bytes(KEY_BYTES)).decode()


class KeyFile:
    """Keys of a node, from its key file.

    `root_secrets` are the secrets of the account `ROOT`, derived from the keys. That is safe: anybody who can read the
    key file can open all secrets anyway. `nonces` makes nonces and must never repeat a nonce; random bytes by default.
    """

    def __init__(self, keys: Sequence[bytes], nonces: Callable[[], bytes] | None = None) -> None:
        self._nonces = nonces
        self.replace(keys)

    def replace(self, keys: Sequence[bytes]) -> None:
        """Use new keys, after the key file has changed."""
        self._ciphers = {key_id(key): _cipher_of(key) for key in keys}
        self.sealing_id = key_id(keys[0])
        self.root_secrets: tuple[str, ...] = tuple(root_secret(key) for key in keys)

    def __repr__(self) -> str:
        return f"KeyFile({', '.join(self._ciphers)})"

    @property
    def ids(self) -> tuple[str, ...]:
        """Return the ids of all keys."""
        return tuple(self._ciphers)

    def seal(self, secret: str, account: str) -> str:
        """Return a secret of an account, sealed for storage."""
        nonce = new_nonce() if self._nonces is None else self._nonces()
        sealed = nonce + self._ciphers[self.sealing_id].encrypt(nonce, secret.encode(), account.encode())
        return f"{self.sealing_id}:{b64encode(sealed).decode()}"

    def is_sealed_last(self, sealed: str) -> bool:
        """Return whether all secrets of an account are sealed with the first key of the key file."""
        return all(one.partition(":")[0] == self.sealing_id for one in sealed.split(_BETWEEN))

    def reseal(self, sealed: str, account: str) -> str:
        """Return the secrets of an account, sealed anew with the first key of the key file. Raises `SealError`."""
        return _BETWEEN.join(self.seal(secret, account) for secret in self.open_all(sealed, account))

    def open_all(self, sealed: str, account: str) -> tuple[str, ...]:
        """Return the valid secrets of an account, the newest first. Raises `SealError`."""
        return tuple(self.open(one, account) for one in sealed.split(_BETWEEN))

    def open(self, sealed: str, account: str) -> str:
        """Return a secret of an account, opened. Raises `SealError`."""
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


def with_earlier(sealed: str, before: str) -> str:
    """Return a new sealed secret followed by the newest former secret, so that both are valid."""
    return sealed + _BETWEEN + newest(before) if before else sealed


def newest(sealed: str) -> str:
    """Return the newest of the sealed secrets of an account."""
    return sealed.partition(_BETWEEN)[0]


def read_key_file(path: Path) -> KeyFile:
    """Return the keys in a key file. Raises `dledger.errors.ConfigError`."""
    return KeyFile(access_keys(path))


def _cipher_of(key: bytes) -> AESGCM:
    """Return the cipher of a key. The import is local: nodes without access control save the library's 7 MB."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(hmac.digest(key, _LABEL, "sha256"))

"""TLS contexts of the standard library, made of files and kept up to date with them.

When a file has changed, a new context takes the place of the one before, for connections that are opened from then on;
those that are open go on.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dledger.errors import ConfigError

LEAST_VERSION: Final = ssl.TLSVersion.TLSv1_2
REFRESH_S: Final = 5.0
"""How often a server looks whether its files have changed."""

_NO_TLS: Final = frozenset(
    {
        "TLSV1_ALERT_PROTOCOL_VERSION",
        "WRONG_VERSION_NUMBER",
        "UNEXPECTED_EOF_WHILE_READING",
        "RECORD_LAYER_FAILURE",
        "HTTP_REQUEST",
    }
)
"""OpenSSL's reasons when what answers is no TLS."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files in PEM: this side's certificate, with those between it and its authority, and its key; and the authorities
    of the other side. `names` are the keys of the configuration that name them, for errors.
    """

    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None
    names: tuple[str, str, str] = ("tls_cert_file", "tls_key_file", "tls_ca_file")

    @property
    def all(self) -> Sequence[Path]:
        """Those that there are."""
        return [path for path in (self.certificate, self.key, self.authority) if path is not None]


class TlsContext:
    """What connections are secured with: `context` for each that is opened or comes, `refresh` looks at the files.

    `for_server` and `for_client` make one. Both raise `ConfigError` that names the file.
    """

    def __init__(self, files: TlsFiles, make: Callable[[], ssl.SSLContext]) -> None:
        self.files = files
        self._make = make
        self._seen = _stamps(files)
        self._refused: str | None = None
        self.context, self.certificate = self._loaded()
        """The context, and the certificate that it shows, in PEM; empty without one."""
        self.accepting = self.context
        """For a listener that takes one context for good: its handshakes go on with `context`."""

    @classmethod
    def for_server(cls, files: TlsFiles, clients: ssl.VerifyMode = ssl.CERT_NONE) -> TlsContext:
        """The context of a port: `clients` says whether the other side has to show a certificate."""

        def make() -> ssl.SSLContext:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.verify_mode = clients
            return context

        made = cls(files, make)
        made.accepting.sni_callback = made._go_on
        return made

    @classmethod
    def for_client(cls, files: TlsFiles, *, check_names: bool = True) -> TlsContext:
        """The context of whoever connects; without an authority the system's are trusted. `check_names`: whether the
        server's certificate must be for the host that was dialled.
        """

        def make() -> ssl.SSLContext:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = check_names
            if files.authority is None:
                context.load_default_certs(ssl.Purpose.SERVER_AUTH)
            return context

        return cls(files, make)

    def refresh(self) -> bool:
        """Make a new `context` if a file has changed; whether that was done. Reads files: call it on a worker thread.

        Files that cannot be used, as while somebody replaces one after the other, leave everything as it is: that is
        logged once, and they are tried again at the next call.
        """
        stamps = _stamps(self.files)
        if stamps == self._seen:
            return False
        try:
            self.context, self.certificate = self._loaded()
        except ConfigError as error:
            if str(error) != self._refused:
                self._refused = str(error)
                _log.warning("event=certificate_refused reason=%r consequence='the one before is used'", str(error))
            return False
        self._seen, self._refused = stamps, None
        _log.info("event=certificate_loaded file=%s", self.files.certificate or self.files.authority)
        return True

    def _loaded(self) -> tuple[ssl.SSLContext, bytes]:
        context = self._make()
        context.minimum_version = LEAST_VERSION
        return context, _load(self.files, context)

    def _go_on(self, connection: ssl.SSLObject, _name: str | None, _accepting: ssl.SSLContext) -> None:
        """Called in each handshake of `accepting`, whether or not the client names a host."""
        if self.context is not self.accepting:
            connection.context = self.context


def _load(files: TlsFiles, context: ssl.SSLContext) -> bytes:
    """Put what the files have into a context; the certificate, in PEM. Raises `ConfigError`."""
    certificate_key, key_key, authority_key = files.names
    certificate = b""
    if files.certificate is not None:
        certificate = _content(certificate_key, files.certificate, "a certificate in PEM")
        key = files.key or files.certificate
        _require_private(key_key, key)
        try:
            context.load_cert_chain(files.certificate, key, password=_no_password)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{certificate_key} {files.certificate} and {key_key} {key} cannot be used ({_why(error)}): they must "
                "be a certificate and its key in PEM, the key without a password"
            ) from error
    if files.authority is not None:
        _content(authority_key, files.authority, "certificates in PEM")
        try:
            context.load_verify_locations(files.authority)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{authority_key} {files.authority} cannot be used ({_why(error)}): it must hold certificates in PEM"
            ) from error
    return certificate


def _why(error: Exception) -> str:
    """OpenSSL's reason, such as KEY_VALUES_MISMATCH, or what Python says."""
    return getattr(error, "reason", None) or str(error) or type(error).__name__


def _no_password() -> bytes:
    """Asked for the password of a key, OpenSSL would read from the terminal, and a server would wait for ever."""
    return b""


def _content(name: str, path: Path, expected: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{name} {path} cannot be read ({error.strerror}): it must hold {expected}") from error


def _require_private(name: str, path: Path) -> None:
    _content(name, path, "the key of the certificate in PEM")
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise ConfigError(f"{name} {path} has mode {mode:04o}, so that others can read the key: chmod 600 it")


def _stamps(files: TlsFiles) -> list[tuple[int, int, int] | None]:
    """What tells that a file is another one: replaced, or written again."""
    return [_stamp(path) for path in files.all]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def handshake_failure(error: OSError) -> str | None:
    """Why a handshake has failed, for people; None if the error is none of TLS, as that nobody listens there."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused here: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        if error.reason in _NO_TLS:
            return "it does not speak TLS, or nothing as late as 1.2"
        return f"the TLS handshake failed: {_why(error)}"
    if isinstance(error, (ConnectionResetError, ConnectionAbortedError)):
        return "it closed the connection during the TLS handshake, as a port without TLS does"
    return None

"""TLS contexts of the standard library, made from files and kept up to date with them.

When a file has changed, a new context replaces the previous one for connections that are opened from then on. Open
connections continue.
"""

from __future__ import annotations

import logging
import os
import ssl
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dledger_base.errors import ConfigError
from dledger_base.rereading import Rereading
from dledger_base.secret import is_private

LEAST_VERSION: Final = ssl.TLSVersion.TLSv1_2
REFRESH_S: Final = 5.0
"""Interval in seconds at which a server checks its files for changes."""

REVOKED_KEY: Final = "tls_crl_file"
"""Configuration key that names revocation lists."""

_NO_TLS: Final = frozenset(
    {
        "TLSV1_ALERT_PROTOCOL_VERSION",
        "WRONG_VERSION_NUMBER",
        "UNEXPECTED_EOF_WHILE_READING",
        "RECORD_LAYER_FAILURE",
        "HTTP_REQUEST",
    }
)
"""Reasons of OpenSSL that mean that the other end does not use TLS."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files in PEM for one side of TLS.

    `certificate` holds this side's certificate, with those between it and its authority, and `key` its key. `authority`
    holds the authorities of the other side, `revoked` lists of certificates that they have revoked. `names` are the
    configuration keys of the first three, for errors.
    """

    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None
    names: tuple[str, str, str] = ("tls_cert_file", "tls_key_file", "tls_ca_file")
    revoked: Path | None = None

    @property
    def all(self) -> Sequence[Path]:
        """Paths of all files that are set."""
        return [path for path in (self.certificate, self.key, self.authority, self.revoked) if path is not None]


class TlsContext:
    """TLS settings of connections. Use `context` for each new connection; `refresh` checks the files for changes.

    `for_server` and `for_client` make one. Both raise a `ConfigError` that names the file.
    """

    def __init__(self, files: TlsFiles, make_context: Callable[[], ssl.SSLContext]) -> None:
        self.files = files
        self._make_context = make_context
        self._loaded_stamps = _stamps(files)
        self._files_again = Rereading(self._load_context, _log, "certificate_refused", "the previous one stays in use")
        self.context, self.certificate = self._load_context()
        """The context, and the certificate that it shows, in PEM (empty without one)."""

    @classmethod
    def for_server(
        cls, files: TlsFiles, clients: ssl.VerifyMode = ssl.CERT_NONE, protocols: Sequence[str] = ()
    ) -> TlsContext:
        """Make the context of a port. `clients` says whether the other side has to show a certificate.

        `protocols` are named to clients that ask for one (ALPN), such as `h2`.
        """

        def make_context() -> ssl.SSLContext:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.verify_mode = clients
            if protocols:
                context.set_alpn_protocols(protocols)
            return context

        return cls(files, make_context)

    @classmethod
    def for_client(cls, files: TlsFiles, *, check_names: bool = True) -> TlsContext:
        """Make the context of a client. Without an authority, the system's authorities are trusted.

        `check_names` says whether the server's certificate must be for the host that was dialled.
        """

        def make_context() -> ssl.SSLContext:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = check_names
            if files.authority is None:
                context.load_default_certs(ssl.Purpose.SERVER_AUTH)
            return context

        return cls(files, make_context)

    def refresh(self) -> bool:
        """Make a new `context` if a file has changed, and return whether that was done.

        Reads files: for a worker thread.

        Unusable files change nothing, for example while somebody replaces them one after the other. That is logged
        once, and the files are tried again at the next call.
        """
        stamps = _stamps(self.files)
        if stamps == self._loaded_stamps:
            return False
        loaded = self._files_again.again()
        if loaded is None:
            return False
        self.context, self.certificate = loaded
        self._loaded_stamps = stamps
        _log.info("event=certificate_loaded file=%s", self.files.certificate or self.files.authority)
        return True

    def _load_context(self) -> tuple[ssl.SSLContext, bytes]:
        context = self._make_context()
        context.minimum_version = LEAST_VERSION
        return context, _load(self.files, context)


def _load(files: TlsFiles, context: ssl.SSLContext) -> bytes:
    """Load the files into a context, and return the certificate in PEM. Raises `ConfigError`."""
    certificate_key, key_key, authority_key = files.names
    certificate = b""
    if files.certificate is not None:
        certificate = _read_file(certificate_key, files.certificate, "a certificate in PEM")
        key = files.key or files.certificate
        _require_private(key_key, key)
        try:
            context.load_cert_chain(files.certificate, key, password=_no_password)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{certificate_key} {files.certificate} and {key_key} {key} cannot be used ({_describe_error(error)}): "
                "they must be a certificate and its key in PEM, the key without a password"
            ) from error
    if files.authority is not None:
        _read_file(authority_key, files.authority, "certificates in PEM")
        try:
            context.load_verify_locations(files.authority)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{authority_key} {files.authority} cannot be used ({_describe_error(error)}): "
                "it must hold certificates in PEM"
            ) from error
    if files.revoked is not None:
        _load_revoked(files.revoked, context)
    return certificate


def _load_revoked(path: Path, context: ssl.SSLContext) -> None:
    """Have the other side's certificates checked against revocation lists. Raises `ConfigError`."""
    _read_file(REVOKED_KEY, path, "revocation lists in PEM")
    lists_before = context.cert_store_stats()["crl"]
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{REVOKED_KEY} {path} cannot be used ({_describe_error(error)}): it must hold revocation lists in PEM"
        ) from error
    if context.cert_store_stats()["crl"] == lists_before:
        raise ConfigError(f"{REVOKED_KEY} {path} holds no revocation list: one in PEM of each authority is expected")
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _describe_error(error: Exception) -> str:
    """Return OpenSSL's reason, such as KEY_VALUES_MISMATCH, or Python's text."""
    return getattr(error, "reason", None) or str(error) or type(error).__name__


def _no_password() -> bytes:
    """Return an empty password: OpenSSL would otherwise ask on the terminal, and a server would wait for ever."""
    return b""


def _read_file(name: str, path: Path, expected: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{name} {path} cannot be read ({error.strerror}): it must hold {expected}") from error


def _require_private(name: str, path: Path) -> None:
    _read_file(name, path, "the key of the certificate in PEM")
    status = path.stat()
    if not is_private(status):
        raise ConfigError(
            f"{name} {path} has mode {stat.S_IMODE(status.st_mode):04o}, so that others can read the key: chmod 600 it"
        )


def _stamps(files: TlsFiles) -> list[tuple[int, int, int] | None]:
    """Return stamps of the files that change when a file is replaced or written again."""
    return [_stamp(path) for path in files.all]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def handshake_failure(error: OSError) -> str | None:
    """Return why a handshake has failed, for people.

    None if it is not a TLS error, for example if nobody listens there.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused here: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        if error.reason in _NO_TLS:
            return "it does not speak TLS, or only versions before 1.2"
        return f"the TLS handshake failed: {_describe_error(error)}"
    if isinstance(error, (ConnectionResetError, ConnectionAbortedError)):
        return "it closed the connection during the TLS handshake, as a port without TLS does"
    return None

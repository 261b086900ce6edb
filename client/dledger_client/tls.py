"""TLS of a client: the authorities that it trusts, and the certificate that it shows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dledger_base.errors import ConfigError
from dledger_base.tls import TlsContext, TlsFiles

from .errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Tls:
    """Connections to brokers and name servers over TLS, 1.2 or later.

    ca_file      authorities in PEM whose certificates are accepted; by default those of the system
    cert_file    a certificate in PEM for servers that ask for one; `key_file` is its key, mode 0600; without `key_file`
                 both are in `cert_file`
    check_names  whether a certificate must name the dialled host; for a broker that is the host in the route

    Files are read when the client starts, and again, before a connection is opened, when they have changed.
    """

    ca_file: str | Path | None = None
    cert_file: str | Path | None = None
    key_file: str | Path | None = None
    check_names: bool = True

    def context(self) -> TlsContext:
        """Return the context for connections. Raises `InvalidArgumentError` for files that cannot be used."""
        certificate, key, authority = (
            None if path is None else Path(path) for path in (self.cert_file, self.key_file, self.ca_file)
        )
        files = TlsFiles(certificate, key, authority, ("cert_file", "key_file", "ca_file"))
        try:
            return TlsContext.for_client(files, check_names=self.check_names)
        except ConfigError as error:
            raise InvalidArgumentError(f"tls: {error}") from error

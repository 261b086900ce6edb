"""Configuration keys that brokers and name servers share: TLS of their ports, and the token of the metrics."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dledger_base.config_keys.declared import Alias, key
from dledger_base.errors import ConfigError
from dledger_base.secret import is_private
from dledger_base.tls import TlsContext, TlsFiles

ENFORCING: Final = "enforcing"
MODES: Final = ("off", "permissive", ENFORCING)
_VERIFY_MODES: Final[Mapping[str, ssl.VerifyMode]] = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


@dataclass(frozen=True, kw_only=True)
class TlsPorts:
    """TLS settings of a server's ports, and the token that `/metrics` requires."""

    tls: str = key(
        "off",
        "use of [TLS](operations/tls.md) on ports for clients: `permissive` accepts clients with and without it, "
        "`enforcing` only clients with it",
        choices=MODES,
        aliases=(
            Alias("tls.server.mode", words={"disabled": "off", "permissive": "permissive", "enforcing": "enforcing"}),
        ),
    )
    tls_cert_file: Path | None = key(
        None,
        "certificate of this process in PEM, followed by the intermediate certificates. After a change, the files of "
        "this key and the next two are loaded again within 5 s",
        aliases=(Alias("tls.server.certPath"),),
    )
    tls_key_file: Path | None = key(
        None,
        "private key of the certificate in PEM, without a password, mode 0600",
        shown="`tls_cert_file`",
        aliases=(Alias("tls.server.keyPath"),),
    )
    tls_client_ca_file: Path | None = key(
        None,
        "authorities of clients' certificates in PEM",
        aliases=(Alias("tls.server.trustCertPath"),),
    )
    tls_client_certs: str = key(
        "none",
        "whether clients need a certificate of `tls_client_ca_file`. With `optional` a client may show none, but a "
        "shown certificate must be valid",
        choices=tuple(_VERIFY_MODES),
        aliases=(
            Alias(
                "tls.server.need.client.auth",
                words={"none": "none", "optional": "optional", "require": "required"},
            ),
        ),
    )

    tls_crl_file: Path | None = key(
        None,
        "revocation lists in PEM, one for each authority whose certificates this process checks. A certificate on a "
        "list is refused. If the list of an authority is missing or has expired, all certificates of that authority "
        "are refused. A changed file is loaded again within 5 s",
    )

    tls_http: bool = key(
        False,
        "whether the HTTP port accepts only TLS, with the same certificate; it requires no certificate of clients",
    )

    metrics_token_file: Path | None = key(
        None,
        "file, mode 0600, with the token that `/metrics` requires. A scraper sends the token as `Authorization: "
        "Bearer TOKEN`",
    )

    @property
    def missing_of_tls(self) -> str | None:
        """Error text about a missing key that other keys need, or about keys that together keep nobody out.

        None if there is no error.
        """
        if self.tls != "off" and self.tls_cert_file is None:
            return f"tls_cert_file is missing while tls = {self.tls!r}: name the certificate of this process"
        if self.tls_http and self.tls_cert_file is None:
            return "tls_cert_file is missing while tls_http = true: name the certificate of this process"
        if self.tls_client_certs != "none" and self.tls_client_ca_file is None:
            return (
                f"tls_client_ca_file is missing while tls_client_certs = {self.tls_client_certs!r}: name the "
                "authorities whose certificates clients show"
            )
        if self.tls == "permissive" and self.tls_client_certs == "required":
            return (
                "tls_client_certs = 'required' keeps nobody out while tls = 'permissive': a client without TLS shows "
                "none; say tls = 'enforcing', or tls_client_certs = 'optional' until then"
            )
        return None

    def server_context(self, protocols: Sequence[str] = ()) -> TlsContext | None:
        """Return the TLS context of the ports for clients, None if they speak no TLS.

        `protocols` are those of `TlsContext.for_server`. Raises `dledger.errors.ConfigError`.
        """
        if self.tls == "off":
            return None
        files = TlsFiles(
            self.tls_cert_file,
            self.tls_key_file,
            self.tls_client_ca_file,
            ("tls_cert_file", "tls_key_file", "tls_client_ca_file"),
            self.tls_crl_file,
        )
        return TlsContext.for_server(files, _VERIFY_MODES[self.tls_client_certs], protocols)

    def metrics_token(self) -> str | None:
        """Return the token that `/metrics` requires, None if it requires none. Raises `dledger.errors.ConfigError`."""
        path = self.metrics_token_file
        if path is None:
            return None
        try:
            token, status = path.read_text("utf-8-sig").strip(), path.stat()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"metrics_token_file {path} cannot be read ({error}): it must hold a token") from error
        if not token or not token.isascii() or not token.isprintable():
            raise ConfigError(f"metrics_token_file {path} holds no token: one line of ASCII characters is expected")
        if not is_private(status):
            raise ConfigError(f"metrics_token_file {path} can be read by others: chmod 600 it")
        return token

    def http_context(self) -> TlsContext | None:
        """Return the TLS context of the HTTP port, None if it speaks no TLS. Raises `dledger.errors.ConfigError`."""
        if not self.tls_http:
            return None
        return TlsContext.for_server(TlsFiles(self.tls_cert_file, self.tls_key_file))

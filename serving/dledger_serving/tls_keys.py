"""Keys of a configuration for TLS on the ports of a server, the same for brokers and name servers."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dledger.config_keys.declared import Alias, key
from dledger.net.tls import TlsContext, TlsFiles

ENFORCING: Final = "enforcing"
MODES: Final = ("off", "permissive", ENFORCING)
_CLIENTS: Final[Mapping[str, ssl.VerifyMode]] = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


@dataclass(frozen=True, kw_only=True)
class TlsPorts:
    """Which ports speak TLS, and with what."""

    tls: str = key(
        "off",
        "whether ports for clients speak [TLS](guides/tls.md): `permissive` takes clients with and without it, "
        "`enforcing` those with it alone",
        choices=MODES,
        aliases=(
            Alias("tls.server.mode", words={"disabled": "off", "permissive": "permissive", "enforcing": "enforcing"}),
        ),
    )
    tls_cert_file: Path | None = key(
        None,
        "the certificate of this process in PEM, followed by those between it and its authority; loaded again within "
        "5 s when the file has changed, as the other two are",
        aliases=(Alias("tls.server.certPath"),),
    )
    tls_key_file: Path | None = key(
        None,
        "the key of the certificate in PEM, without a password, mode 0600",
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
        "whether a client shows a certificate of `tls_client_ca_file`; `optional`: one that does shows a good one",
        choices=tuple(_CLIENTS),
        aliases=(
            Alias(
                "tls.server.need.client.auth",
                words={"none": "none", "optional": "optional", "require": "required"},
            ),
        ),
    )

    tls_http: bool = key(
        False,
        "whether the HTTP port speaks TLS alone, with the same certificate and asking for none",
    )

    @property
    def missing_of_tls(self) -> str | None:
        """What other keys need and is not said, or keeps nobody out, as text of an error."""
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

    def server_context(self) -> TlsContext | None:
        """The context of the ports for clients, None while they speak no TLS. Raises `dledger.errors.ConfigError`."""
        if self.tls == "off":
            return None
        files = TlsFiles(
            self.tls_cert_file,
            self.tls_key_file,
            self.tls_client_ca_file,
            ("tls_cert_file", "tls_key_file", "tls_client_ca_file"),
        )
        return TlsContext.for_server(files, _CLIENTS[self.tls_client_certs])

    def http_context(self) -> TlsContext | None:
        """The context of the HTTP port, None while it speaks no TLS. Raises `dledger.errors.ConfigError`."""
        if not self.tls_http:
            return None
        return TlsContext.for_server(TlsFiles(self.tls_cert_file, self.tls_key_file))

"""TLS towards name servers, and between the nodes of a group."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from dledger.config_keys.declared import key
from dledger.net.settings import PeerTls
from dledger.net.tls import TlsContext, TlsFiles
from dledger_serving.tls_keys import TlsPorts


@dataclass(frozen=True, kw_only=True)
class TlsConnections(TlsPorts):
    """What a node connects to over TLS. It shows `tls_cert_file` where it is asked for a certificate."""

    tls_namesrv_ca_file: Path | None = key(
        None,
        "authorities of name servers' certificates in PEM; where they are named, name servers are spoken to over TLS",
    )
    tls_peer_ca_file: Path | None = key(
        None,
        "authorities of the certificates of this group's nodes in PEM; where they are named, nodes speak TLS to each "
        "other, and both sides show `tls_cert_file`. `secret_file` may be missing then: whoever has a certificate of "
        "these authorities is a node",
    )
    tls_check_names: bool = key(
        True,
        "whether the certificate of who is dialled must be for the host that stands here for it",
    )

    def peer_contexts(self) -> PeerTls | None:
        """The contexts of links between nodes, None if they are plain. Raises `dledger.errors.ConfigError`."""
        if self.tls_peer_ca_file is None:
            return None
        names = ("tls_cert_file", "tls_key_file", "tls_peer_ca_file")
        files = TlsFiles(self.tls_cert_file, self.tls_key_file, self.tls_peer_ca_file, names)
        return PeerTls(
            TlsContext.for_server(files, ssl.CERT_REQUIRED),
            TlsContext.for_client(files, check_names=self.tls_check_names),
        )

    def name_server_context(self) -> TlsContext | None:
        """The context of connections to name servers, None if they are plain. Raises `dledger.errors.ConfigError`."""
        if self.tls_namesrv_ca_file is None:
            return None
        names = ("tls_cert_file", "tls_key_file", "tls_namesrv_ca_file")
        files = TlsFiles(self.tls_cert_file, self.tls_key_file, self.tls_namesrv_ca_file, names)
        return TlsContext.for_client(files, check_names=self.tls_check_names)

"""Keys for TLS of a node's connections to name servers and to the other nodes of its group."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from dledger.net.settings import PeerTls
from dledger_base.config_keys.declared import key
from dledger_base.tls import TlsContext, TlsFiles
from dledger_base.tls_keys import TlsPorts


@dataclass(frozen=True, kw_only=True)
class TlsConnections(TlsPorts):
    """TLS of the connections that a node opens. It shows `tls_cert_file` if the other side requires a certificate."""

    tls_namesrv_ca_file: Path | None = key(
        None,
        "authorities of name servers' certificates in PEM; with this key the node speaks TLS to name servers",
    )
    tls_peer_ca_file: Path | None = key(
        None,
        "authorities of the certificates of this group's nodes in PEM. With this key nodes speak TLS to each other, "
        "and both sides show `tls_cert_file`. `secret_file` may be missing then: every holder of a certificate of "
        "these authorities counts as a node",
    )
    tls_peer_names: bool = key(
        False,
        "whether the certificate of a node of this group must name its `node_id`, as a DNS name or as its common "
        "name. Otherwise a node may show any certificate that an authority in `tls_peer_ca_file` has signed",
    )
    tls_check_names: bool = key(
        True,
        "whether the certificate of a dialled node or name server must name the host that the configuration has for it",
    )

    def peer_contexts(self) -> PeerTls | None:
        """Return the contexts of links between nodes, None if these are plain. Raises `dledger.errors.ConfigError`."""
        if self.tls_peer_ca_file is None:
            return None
        names = ("tls_cert_file", "tls_key_file", "tls_peer_ca_file")
        files = TlsFiles(self.tls_cert_file, self.tls_key_file, self.tls_peer_ca_file, names, self.tls_crl_file)
        return PeerTls(
            TlsContext.for_server(files, ssl.CERT_REQUIRED),
            TlsContext.for_client(files, check_names=self.tls_check_names),
            binds_names=self.tls_peer_names,
        )

    def name_server_context(self) -> TlsContext | None:
        """Return the context of connections to name servers, None if these are plain. Raises
        `dledger.errors.ConfigError`.
        """
        if self.tls_namesrv_ca_file is None:
            return None
        names = ("tls_cert_file", "tls_key_file", "tls_namesrv_ca_file")
        files = TlsFiles(self.tls_cert_file, self.tls_key_file, self.tls_namesrv_ca_file, names, self.tls_crl_file)
        return TlsContext.for_client(files, check_names=self.tls_check_names)

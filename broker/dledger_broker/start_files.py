"""The files that a configuration names and that a node reads when it starts: secrets and certificates."""

from __future__ import annotations

from dataclasses import dataclass

from dledger.errors import ConfigError as LogConfigError
from dledger.net.settings import PeerTls
from dledger_base.access_keys import KeyFileWatch
from dledger_base.secret import SecretFile
from dledger_base.tls import TlsContext
from dledger_broker.config import BrokerConfig
from dledger_broker.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StartFiles:
    """Content of the named files, None for each file that the configuration does not name."""

    group_secret: SecretFile | None
    access_keys: KeyFileWatch | None
    tls: TlsContext | None
    """TLS context of the ports for clients."""
    http_tls: TlsContext | None
    metrics_token: str | None
    namesrv_tls: TlsContext | None
    peer_tls: PeerTls | None

    @property
    def contexts(self) -> list[TlsContext]:
        """All TLS contexts of the node."""
        links = () if self.peer_tls is None else (self.peer_tls.server, self.peer_tls.client)
        return [one for one in (self.tls, self.http_tls, self.namesrv_tls, *links) if one is not None]


def read_files(config: BrokerConfig) -> StartFiles:
    """Read the files, and touch nothing else. Raises `ConfigError` that names key, file and what is wrong with it."""
    try:
        return StartFiles(
            None if config.secret_file is None else SecretFile(config.secret_file),
            None if config.access_key_file is None else KeyFileWatch(config.access_key_file),
            config.server_context(),
            config.http_context(),
            config.metrics_token(),
            config.name_server_context(),
            config.peer_contexts(),
        )
    except LogConfigError as error:
        raise ConfigError(str(error)) from error

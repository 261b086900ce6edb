"""The files that a configuration names and that a node reads when it starts: secrets and certificates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dledger.errors import ConfigError as LogConfigError
from dledger.net.secret import read_secret
from dledger.net.settings import PeerTls
from dledger.net.tls import TlsContext
from dledger_broker.config import BrokerConfig
from dledger_broker.errors import ConfigError
from dledger_serving.access_keys import access_keys


@dataclass(frozen=True, slots=True)
class StartFiles:
    """What stands in the files; None, or no keys, where the configuration needs none."""

    group_secret: bytes | None
    access_keys: Sequence[bytes]
    tls: TlsContext | None
    """Of the ports for clients."""
    http_tls: TlsContext | None
    namesrv_tls: TlsContext | None
    peer_tls: PeerTls | None

    @property
    def contexts(self) -> list[TlsContext]:
        """All that there are."""
        links = () if self.peer_tls is None else (self.peer_tls.server, self.peer_tls.client)
        return [one for one in (self.tls, self.http_tls, self.namesrv_tls, *links) if one is not None]


def read_files(config: BrokerConfig) -> StartFiles:
    """Read them; nothing else is touched. Raises `ConfigError` that names key, file and what is wrong with it."""
    try:
        return StartFiles(
            None if config.secret_file is None else read_secret(config.secret_file),
            () if config.access_key_file is None else access_keys(config.access_key_file),
            config.server_context(),
            config.http_context(),
            config.name_server_context(),
            config.peer_contexts(),
        )
    except LogConfigError as error:
        raise ConfigError(str(error)) from error

"""The files that a configuration names and that a name server reads when it starts: keys and certificates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dledger.errors import ConfigError as FileError
from dledger.net.tls import TlsContext
from dledger_serving.access_keys import access_keys

from .config import ConfigError, NameServerConfig


@dataclass(frozen=True, slots=True)
class StartFiles:
    """What stands in the files; None, or no keys, where the configuration needs none."""

    access_keys: Sequence[bytes]
    tls: TlsContext | None
    """Of the port for brokers and clients."""
    http_tls: TlsContext | None

    @property
    def contexts(self) -> list[TlsContext]:
        """All that there are."""
        return [one for one in (self.tls, self.http_tls) if one is not None]


def read_files(config: NameServerConfig) -> StartFiles:
    """Read them; nothing else is touched. Raises `ConfigError` that names key, file and what is wrong with it."""
    try:
        return StartFiles(
            () if config.access_key_file is None else access_keys(config.access_key_file),
            config.server_context(),
            config.http_context(),
        )
    except FileError as error:
        raise ConfigError(str(error)) from error

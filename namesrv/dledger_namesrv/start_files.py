"""Files that a configuration names and that a name server reads when it starts: keys and certificates."""

from __future__ import annotations

from dataclasses import dataclass

from dledger_base.access_keys import KeyFileWatch
from dledger_base.errors import ConfigError as FileError
from dledger_base.tls import TlsContext

from .config import ConfigError, NameServerConfig


@dataclass(frozen=True, slots=True)
class StartFiles:
    """Content of the named files, None where the configuration names none."""

    access_keys: KeyFileWatch | None
    tls: TlsContext | None
    """Context of the port for brokers and clients."""
    http_tls: TlsContext | None
    metrics_token: str | None

    @property
    def contexts(self) -> list[TlsContext]:
        """All TLS contexts that there are."""
        return [context for context in (self.tls, self.http_tls) if context is not None]


def read_files(config: NameServerConfig) -> StartFiles:
    """Read the files and touch nothing else. Raises `ConfigError` that names key, file and fault."""
    try:
        return StartFiles(
            None if config.access_key_file is None else KeyFileWatch(config.access_key_file),
            config.server_context(),
            config.http_context(),
            config.metrics_token(),
        )
    except FileError as error:
        raise ConfigError(str(error)) from error

"""Configuration of a proxy: its keys, and the functions that read them from a file and the command line.

The file is TOML, with the keys in its table `proxy` if there is one. Some keys have the names of RocketMQ's proxy, too.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from dledger_base.config_keys.declared import Alias, ConfigValue, UnexpectedError, key, limit
from dledger_base.config_keys.origins import Origin, lines_of_toml, origins
from dledger_base.config_keys.reading import Keys, Wording
from dledger_base.errors import ConfigError as FileError
from dledger_base.logs import FORMATS, LogLevels
from dledger_base.secret import is_private
from dledger_base.tls import TlsContext
from dledger_base.tls_keys import TlsPorts
from dledger_client import Credentials, Tls
from dledger_client.cluster.nameservers import parse_addresses
from dledger_client.errors import InvalidArgumentError
from dledger_remoting.hosts import split_host_port
from dledger_remoting.record import MAX_MESSAGE_BYTES

from .http.config import HttpKeys

ALPN: Final = ("h2",)
"""Protocols that the port for gRPC names in a TLS handshake. Clients of Java and Go insist on HTTP/2 there."""
TABLE: Final = "proxy"
"""Name of the table in a TOML file that may hold the keys. A file without it has the keys at the top."""
_NOTHING_IGNORED: Final[Sequence[str]] = ()


class ConfigError(ValueError):
    """A key or value that cannot be used; the text names key, value and what was expected."""


def _read_text(_name: str, value: ConfigValue, _base: Path) -> str:
    if not isinstance(value, str) or not value:
        raise UnexpectedError("a text")
    return value


def _check_name_servers(_name: str, value: str) -> None:
    try:
        parse_addresses(value)
    except InvalidArgumentError as error:
        raise ValueError(f"expected addresses such as 10.0.0.1:9876;10.0.0.2:9876: {error}") from error


def _check_advertised(_name: str, value: str) -> None:
    for part in filter(None, (part.strip() for part in value.split(";"))):
        try:
            split_host_port(part)
        except ValueError as error:
            raise ValueError(f"expected addresses such as proxy-1:8081;proxy-2:8081: {part!r}: {error}") from error


@dataclass(frozen=True)
class ProxyConfig(TlsPorts, LogLevels, HttpKeys):
    """Settings of one proxy. For every limit there is a test that reaches it."""

    namesrv: str = key(
        "127.0.0.1:9876",
        "addresses of the cluster's name servers, separated by `;`",
        aliases=(Alias("namesrvAddr"),),
        read=_read_text,
        check=_check_name_servers,
        takes="addresses",
    )
    host: str = key("127.0.0.1", "address to listen on", read=_read_text, takes="an address")
    grpc_port: int = key(
        8081,
        "port for gRPC, with and without TLS; 0 takes a free one",
        bounds=(0, 65_535),
        aliases=(Alias("grpcServerPort"),),
    )
    advertised: str = key(
        "",
        "addresses of all proxies that clients are told, separated by `;`",
        check=_check_advertised,
        takes="addresses",
        shown="those that the client itself names",
    )
    metrics_port: int = key(0, "port for health and metrics over HTTP, on `host`; 0 = none", bounds=(0, 65_535))
    account_file: Path | None = key(
        None,
        "file, mode 0600, with the proxy's own account in its first line and that account's secret in its second",
        consequence="needed with access control",
    )
    cluster_tls: bool = key(False, "whether connections to name servers and brokers use TLS")
    cluster_ca_file: Path | None = key(
        None, "authorities of the name servers' and brokers' certificates in PEM", shown="those of the system"
    )
    cluster_cert_file: Path | None = key(
        None, "certificate in PEM that the proxy shows to name servers and brokers that ask for one, with its key"
    )
    check_message_types: bool = key(
        True,
        "whether topics take only messages of the kinds that their attribute `message.type` names",
        aliases=(Alias("enableTopicMessageTypeCheck"),),
    )
    max_message_bytes: int = key(
        MAX_MESSAGE_BYTES,
        "maximum size of a message's body",
        consequence="a larger one is answered 41301; brokers have a limit of their own",
        bounds=(1, 1 << 30),
        aliases=(Alias("maxMessageSize"),),
    )
    max_connections: int = key(
        10_000,
        "maximum number of connections of gRPC clients",
        consequence="a further one is closed at once",
        bounds=(1, 1_000_000),
    )
    max_clients: int = key(
        10_000,
        "maximum number of clients whose settings are known here",
        consequence="a further one is answered 42900",
        bounds=(1, 1_000_000),
    )
    max_requests: int = key(
        4_096,
        "maximum number of requests under way, and as many again that wait for messages",
        consequence="further ones are answered 42900",
        bounds=(1, 1_000_000),
    )
    max_requests_bytes: int = limit(
        256 << 20,
        "maximum memory for requests under way",
        consequence="further ones are not read until there is room, for at most 10 s",
        bounds=(1 << 16, 1 << 40),
    )
    drain_timeout_ms: int = key(15_000, "time limit for requests under way when the proxy stops", bounds=(0, 3_600_000))
    log_format: str = key("text", "format of log lines, as a [broker's](#logs)", choices=FORMATS, read=_read_text)
    log_file: str = key("", 'file of the log: a path, or `"stdout"`; `""` is standard error', takes="a path")

    ignored = _NOTHING_IGNORED
    """A line for each limit that the file sets without effect."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a value outside its range, and for keys that contradict each other."""
        KEYS.check(self)
        ports = {"grpc_port": self.grpc_port, "http_port": self.http_port, "metrics_port": self.metrics_port}
        for one, other in combinations(filter(ports.get, ports), 2):
            if ports[one] == ports[other]:
                raise ConfigError(f"{one} = {ports[one]} and {other} = {ports[other]}: expected two different ports")
        if self.missing_of_tls is not None:
            raise ConfigError(self.missing_of_tls)
        if self.max_requests_bytes < self.max_request_bytes:
            raise ConfigError(
                f"max_requests_bytes = {self.max_requests_bytes}: expected at least {self.max_request_bytes}, the size "
                "of one request"
            )
        if not self.cluster_tls and (self.cluster_ca_file or self.cluster_cert_file):
            raise ConfigError("cluster_ca_file and cluster_cert_file say nothing without cluster_tls = true")

    @property
    def max_request_bytes(self) -> int:
        """Maximum size of a request in bytes: a message of maximum size with its properties."""
        return self.max_message_bytes + (64 << 10)

    def credentials(self) -> Credentials | None:
        """Return the proxy's own account, None without one. Raises `ConfigError`."""
        path = self.account_file
        if path is None:
            return None
        try:
            lines, status = path.read_text("utf-8-sig").splitlines(), path.stat()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"account_file {path} cannot be read: {error}") from error
        if len(lines) < 2 or not lines[0].strip() or not lines[1].strip():
            raise ConfigError(
                f"account_file {path}: an account in the first line and its secret in the second expected"
            )
        if not is_private(status):
            raise ConfigError(f"account_file {path} can be read by others: chmod 600 it")
        return Credentials(lines[0].strip(), lines[1].strip())

    def tls_to_cluster(self) -> Tls | None:
        """Return how connections to the cluster use TLS, None if they do not. Raises `ConfigError`."""
        if not self.cluster_tls:
            return None
        tls = Tls(self.cluster_ca_file, self.cluster_cert_file)
        try:
            tls.context()
        except InvalidArgumentError as error:
            raise ConfigError(str(error)) from error
        return tls


KEYS: Final = Keys(
    ProxyConfig,
    ConfigError,
    wording=Wording(
        wrong="{name} = {value!r}: expected {expected}",
        outside="{name} = {value}: expected {low} to {high}",
        misspelled="{name} = {value!r}: no such key, did you mean {near}?",
        unknown="{name} = {value!r}: no such key, expected one of {keys}",
        contradiction="{name} = {value!r} contradicts {other} = {said!r}: keep one of them",
        text="a text",
        path="a text",
        by_alias=True,
    ),
)
"""The keys of a proxy."""


def load_config(path: Path, overrides: Mapping[str, Any]) -> ProxyConfig:
    """Return the configuration in a TOML file; `overrides` win. Raises `ConfigError`.

    Relative paths in the file count from its own directory.
    """
    section = _table_of(path, _text_of(path))
    try:
        reading = KEYS.read(section, path.parent)
        config = build_config({**reading.values, **overrides})
        object.__setattr__(config, "ignored", reading.warnings(KEYS))
        return config
    except (ConfigError, FileError) as error:
        raise ConfigError(f"{path}: {error}") from error


def origins_of(path: Path, overrides: Mapping[str, Any]) -> dict[str, Origin]:
    """Return the origin of each key's value when `load_config` reads a file. Raises `ConfigError`."""
    text = _text_of(path)
    return origins(KEYS, KEYS.read(_table_of(path, text), path.parent), lines_of_toml(text, TABLE), overrides)


@dataclass(frozen=True, slots=True)
class StartFiles:
    """Content of the files that a configuration names, None where it names none."""

    grpc_tls: TlsContext | None
    front_tls: TlsContext | None
    metrics_tls: TlsContext | None
    metrics_token: str | None
    credentials: Credentials | None
    cluster_tls: Tls | None

    @property
    def contexts(self) -> list[TlsContext]:
        """All TLS contexts of ports that there are."""
        return [context for context in (self.grpc_tls, self.metrics_tls, self.front_tls) if context is not None]


def read_files(config: ProxyConfig) -> StartFiles:
    """Read the files and touch nothing else. Raises `ConfigError` that names key, file and fault."""
    try:
        return StartFiles(
            config.server_context(ALPN),
            config.server_context(),
            config.http_context(),
            config.metrics_token(),
            config.credentials(),
            config.tls_to_cluster(),
        )
    except FileError as error:
        raise ConfigError(str(error)) from error


def _text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: no text in UTF-8, at byte {error.start}") from error


def _table_of(path: Path, text: str) -> dict[str, Any]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not a TOML file: {error}") from error
    section = document.get(TABLE, document)
    if not isinstance(section, dict):
        raise ConfigError(f"{path}: {TABLE} = {section!r}: expected a table")
    return section


def build_config(values: Mapping[str, Any]) -> ProxyConfig:
    """Return a configuration from values of the right types by their keys. Raises `ConfigError`."""
    return ProxyConfig(**values)

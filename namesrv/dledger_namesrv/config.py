"""Configuration of a name server: its keys, and the functions that read them from a file and the command line.

The file is TOML, or RocketMQ's `namesrv.conf`, whose keys are accepted in TOML, too. Keys of that file without a
meaning here are listed with the reason; all others are aliases.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dledger_base.access_keys import ACCESS_MODES, KeyFileWatch
from dledger_base.config_keys.declared import Alias, ConfigValue, Table, UnexpectedError, key, limit
from dledger_base.config_keys.origins import (
    SUFFIXES,
    Origin,
    lines_of_properties,
    lines_of_toml,
    origins,
    read_properties,
)
from dledger_base.config_keys.reading import Keys, Reading, Wording
from dledger_base.errors import ConfigError as FileError
from dledger_base.logs import FORMATS, LogLevels
from dledger_base.tls import TlsContext
from dledger_base.tls_keys import TlsPorts
from dledger_remoting.frame import MAX_FRAME_BYTES

from .kv import DEFAULT_MAX_BYTES

WITHOUT_EFFECT: Final = frozenset(
    {
        "clientRequestThreadPoolNums",
        "clientRequestThreadPoolQueueCapacity",
        "configStorePath",
        "defaultThreadPoolNums",
        "defaultThreadPoolQueueCapacity",
        "enableShutdownGracefully",
        "kvConfigPath",
        "needWaitForService",
        "notifyMinBrokerIdChanged",
        "productEnvName",
        "rocketmqHome",
        "serverAsyncSemaphoreValue",
        "serverCallbackExecutorThreads",
        "serverNettyWorkerGroupEnable",
        "serverOnewaySemaphoreValue",
        "serverPooledByteBufAllocatorEnable",
        "serverSelectorThreads",
        "serverSocketBacklog",
        "serverSocketRcvBufSize",
        "serverSocketSndBufSize",
        "serverWorkerThreads",
        "shutdownWaitTimeSeconds",
        "supportActingMaster",
        "unRegisterBrokerQueueCapacity",
        "useEpollNativeSelector",
        "waitSecondsForService",
        "writeBufferHighWaterMark",
        "writeBufferLowWaterMark",
    }
)
"""Keys without an effect here.

There are no thread pools, request queues or Netty buffers, because one event loop handles all requests. The key `data`
replaces all paths. A live node always stands in for a missing leader, so `supportActingMaster` has no effect.
"""

IMPOSSIBLE: Final[Mapping[str, str]] = {
    "clusterTest": "routes come from the brokers that register here, and from no other name server",
    "enableControllerInNamesrv": "there is no controller, a group elects its leader itself",
}
"""Keys that may only be false, with the reason."""


_NOTHING_IGNORED: Final[Sequence[str]] = ()
TABLE: Final = "namesrv"
"""Name of the table in a TOML file that may hold the keys. A file without it has the keys at the top."""

MAX_BROKER_PLACES: Final = 1_024
"""Maximum number of brokers' connections that are accepted beyond `max_connections`."""


class ConfigError(ValueError):
    """A key or value that cannot be used; the text names key, value and what was expected."""


def _read_text(_name: str, value: ConfigValue, _base: Path) -> str:
    if not isinstance(value, str) or not value:
        raise UnexpectedError("a text")
    return value


def _check_address(_name: str, value: str) -> None:
    if not value:
        raise ValueError("expected an address to listen on, such as 127.0.0.1")


def ms_of_seconds(_name: str, value: ConfigValue, _table: Table) -> ConfigValue:
    """Convert the seconds of `serverChannelMaxIdleTimeSeconds` to ms."""
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        value = int(value)
    return value * 1000 if isinstance(value, int) and not isinstance(value, bool) else value


@dataclass(frozen=True)
class NameServerConfig(TlsPorts, LogLevels):
    """Settings of one name server. For every limit there is a test that reaches it."""

    host: str = key(
        "127.0.0.1",
        "address to listen on",
        consequence="on any other than loopback, every host that can connect can change routes",
        aliases=(Alias("bindAddress"),),
        read=_read_text,
        check=_check_address,
        takes="an address",
    )
    port: int = key(9876, "port to listen on; 0 takes a free one", bounds=(0, 65_535), aliases=(Alias("listenPort"),))
    http_port: int = key(
        0,
        "port for health and metrics, on `host`; 0 = none; needs the packages of the extra `broker`",
        bounds=(0, 65_535),
    )
    data: Path = key(
        Path("namesrv-data"), "directory of `kvConfig.json`, `knownGroups.json` and `pid`; created if missing"
    )
    access_key_file: Path | None = key(
        None,
        "the [key file](#identity) of the brokers: requests that register a broker or change anything else "
        "must then be signed with it; requests that only read need no signature",
    )
    access_control: str = key(
        "",
        "mode of access control, as a [broker's](#identity). Once it was on, a name server starts without it "
        "only if this is `off`",
        choices=("", *ACCESS_MODES),
        expected="one of off, log, on",
        takes="`off`, `log`, `on`",
        shown="`on` with `access_key_file`, else `off`",
    )
    max_connections: int = key(
        10_000,
        "maximum number of connections; brokers have as many places again, at most `max_nodes` and at most 1,024",
        consequence="a further one is closed at its first request, unless that is a broker's; the limit of open files "
        "bounds all of them, as a broker's",
        bounds=(1, 1_000_000),
    )
    max_connections_per_host: int = key(
        1_000_000,
        "maximum number of connections from one address; clients behind a proxy or a router share one",
        consequence="a further one is closed at once; open ones stay when the limit is lowered",
        bounds=(1, 1_000_000),
        live=True,
    )
    max_frame_bytes: int = limit(
        MAX_FRAME_BYTES,
        "maximum size of a frame",
        consequence="a larger one closes its connection",
        bounds=(1024, MAX_FRAME_BYTES),
    )
    max_partial_bytes: int = limit(
        64 << 20,
        "maximum memory for requests that have partly arrived, of all connections together, as a [broker's](#limits)",
        consequence="at least twice `max_frame_bytes`. With access control, this much is for connections that have "
        "signed a request; all others together have twice `max_frame_bytes`",
        bounds=(2048, 1 << 40),
    )
    slow_sender_timeout_ms: int = limit(
        2_000, "time limit for the rest of a request while memory is short, as a broker's", bounds=(10, 3_600_000)
    )
    max_in_flight: int = limit(
        64,
        "maximum number of requests of one connection that wait for an answer",
        consequence="further ones are answered 2",
        bounds=(1, 100_000),
    )
    max_write_buffer_bytes: int = limit(
        4 << 20,
        "maximum size of the answers that a client has not read",
        consequence="beyond it no more is read from the connection",
        bounds=(1024, 1 << 30),
    )
    max_unread_bytes: int = limit(
        128 << 20,
        "maximum size of the answers that clients have not read, of all connections together",
        consequence="beyond it the clients that left most unread are disconnected",
        bounds=(1 << 20, 1 << 40),
    )
    slow_reader_timeout_ms: int = limit(
        10_000,
        "time limit for a client that has left `max_write_buffer_bytes` unread",
        consequence="then the client is disconnected",
        bounds=(10, 3_600_000),
    )
    idle_timeout_ms: int = key(
        120_000,
        "silence after which a connection is closed",
        bounds=(10, 86_400_000),
        aliases=(Alias("serverChannelMaxIdleTimeSeconds", ms_of_seconds, "in seconds"),),
    )
    scan_interval_ms: int = key(
        5_000,
        "interval of the search for idle connections and silent brokers",
        bounds=(10, 60_000),
        aliases=(Alias("scanNotActiveBrokerInterval"),),
    )
    max_watch_ms: int = limit(60_000, "maximum time that a route watch may wait", bounds=(10, 3_600_000))
    max_watch_bytes: int = limit(
        64 << 20,
        "maximum memory of all waiting route watches",
        consequence="further ones are answered 2, and their clients poll",
        bounds=(1024, 1 << 34),
    )
    max_nodes: int = limit(
        4_096,
        "maximum number of registered nodes",
        consequence="further ones are refused; registered ones stay, and another node may take the id of one",
        bounds=(1, 1_000_000),
    )
    max_routes: int = limit(
        1_000_000,
        "maximum sum of the topics of all broker groups",
        consequence="a registration that would exceed it is refused; absent groups may have as many topics again",
        bounds=(1, 100_000_000),
    )
    max_absent_groups: int = limit(
        256,
        "maximum number of broker groups without a live node that are remembered",
        consequence="beyond it the group that has been absent longest is forgotten",
        bounds=(1, 100_000),
    )
    max_stored_bytes: int = limit(
        DEFAULT_MAX_BYTES,
        "maximum size of all configuration values (100)",
        consequence="a value beyond it is refused",
        bounds=(1024, 8 << 20),
    )
    enable_topic_list: bool = key(
        True,
        "false: topic lists (206, 224) are answered 1",
        live=True,
        aliases=(Alias("enableTopicList"), Alias("enableAllTopicList")),
    )
    order_message_enable: bool = key(
        False,
        "true: routes carry the `ORDER_TOPIC_CONFIG` value of their topic",
        live=True,
        aliases=(Alias("orderMessageEnable"),),
    )
    return_order_topic_config_to_broker: bool = key(
        True,
        "answers to registrations carry the `ORDER_TOPIC_CONFIG` values",
        live=True,
        aliases=(Alias("returnOrderTopicConfigToBroker"),),
    )
    delete_topic_with_broker_registration: bool = key(
        False,
        "true: a topic that is missing from the registration of any leader is forgotten; brokers of this "
        "project request that themselves",
        live=True,
        aliases=(Alias("deleteTopicWithBrokerRegistration"),),
    )
    audit_days: int = key(
        90, "number of days for which audit logs are kept, as a [broker's](#logs)", bounds=(1, 36_500)
    )
    log_format: str = key("text", "format of log lines, as a [broker's](#logs)", choices=FORMATS, read=_read_text)
    log_file: str = key("", 'file of the log: a path, or `"stdout"`; `""` is standard error', takes="a path")

    @property
    def access_mode(self) -> str:
        """The mode of access control: `off`, `log` or `on`. Without `access_control` a key file turns it on."""
        return self.access_control or ("off" if self.access_key_file is None else "on")

    @property
    def broker_places(self) -> int:
        """Number of places for connections beyond `max_connections`, which only brokers keep."""
        return min(self.max_connections, self.max_nodes, MAX_BROKER_PLACES)

    ignored = _NOTHING_IGNORED
    """A line for each limit that the file sets without effect."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a value outside its range, and for keys that contradict each other."""
        KEYS.check(self)
        if self.port and self.port == self.http_port:
            raise ConfigError(f"port = {self.port} and http_port = {self.http_port}: expected two different ports")
        if self.missing_of_tls is not None:
            raise ConfigError(self.missing_of_tls)
        if self.access_mode != "off" and self.access_key_file is None:
            raise ConfigError(
                f"access_key_file is missing while access_control = {self.access_control!r}: name the brokers' key file"
            )
        if self.max_partial_bytes < 2 * self.max_frame_bytes:
            raise ConfigError(
                f"max_partial_bytes = {self.max_partial_bytes}: expected at least twice max_frame_bytes = "
                f"{self.max_frame_bytes}"
            )


KEYS: Final = Keys(
    NameServerConfig,
    ConfigError,
    texts_too=True,
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
"""The keys of a name server."""


def load_config(path: Path, overrides: Mapping[str, Any]) -> NameServerConfig:
    """Return the configuration in a file; `overrides` win.

    The file is TOML, with the keys in its table `namesrv` if there is one. A file whose name ends with `.conf` or
    `.properties` is a properties file. Raises `ConfigError`.
    """
    table = _parse_table(path, _read_file(path))
    try:
        reading = read_keys(table)
        config = build_config({**reading.values, **overrides})
        object.__setattr__(config, "ignored", reading.warnings(KEYS))
        return config
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def origins_of(path: Path, overrides: Mapping[str, Any]) -> dict[str, Origin]:
    """Return the origin of each key's value when `load_config` reads a file. Raises `ConfigError`."""
    text = _read_file(path)
    lines = lines_of_properties(text) if path.suffix in SUFFIXES else lines_of_toml(text, TABLE)
    return origins(KEYS, read_keys(_parse_table(path, text)), lines, overrides)


def read_keys(table: Table) -> Reading:
    """Read a table of keys. Keys of RocketMQ that have no effect here are left out. Raises `ConfigError`."""
    for name, why in IMPOSSIBLE.items():
        value = table.get(name, False)
        if value is not False and value != "false":
            raise ConfigError(f"{name} = {value!r}: {why}; remove the key or say false")
    without = WITHOUT_EFFECT | IMPOSSIBLE.keys()
    return KEYS.read({name: value for name, value in table.items() if name not in without})


def build_config(values: Mapping[str, Any]) -> NameServerConfig:
    """Return a configuration from values of the right types by their keys. Raises `ConfigError`."""
    return NameServerConfig(**values)


def _read_file(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")  # Windows editors begin a file with a byte order mark
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: no text in UTF-8, at byte {error.start}") from error


def _parse_table(path: Path, text: str) -> Table:
    if path.suffix in SUFFIXES:
        try:
            return read_properties(text)
        except ValueError as error:
            raise ConfigError(f"{path}: {error}") from error
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not a TOML file: {error}") from error
    section = document.get(TABLE, document)
    if not isinstance(section, dict):
        raise ConfigError(f"{path}: {TABLE} = {section!r}: expected a table")
    return section


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

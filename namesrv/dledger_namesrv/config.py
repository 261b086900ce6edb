"""Configuration of a name server: its keys, and how they are read from a file and the command line.

The file is TOML, or RocketMQ's `namesrv.conf`, whose keys are accepted in TOML, too.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dledger.config_keys.declared import Alias, ConfigValue, Table, UnexpectedError, key
from dledger.config_keys.origins import Origin, lines_of_toml, origins
from dledger.config_keys.properties import SUFFIXES, lines_of_properties, read_properties
from dledger.config_keys.reading import Keys, Reading, Wording
from dledger.log_keys import LogLevels
from dledger.logs import FORMATS
from dledger_remoting.frame import MAX_FRAME_BYTES
from dledger_serving.tls_keys import TlsPorts

from .kv import DEFAULT_MAX_BYTES
from .namesrv_conf import IMPOSSIBLE, WITHOUT_EFFECT

TABLE: Final = "namesrv"
"""The table of a file where the keys stand if they do not stand at its top."""

MAX_BROKER_PLACES: Final = 1_024
"""More connections than that are not taken beyond `max_connections`, however many nodes may register."""


class ConfigError(ValueError):
    """A key or value that cannot be used; the text names key, value and what was expected."""


def _some_text(_name: str, value: ConfigValue, _base: Path) -> str:
    if not isinstance(value, str) or not value:
        raise UnexpectedError("a text")
    return value


def _address(_name: str, value: str) -> None:
    if not value:
        raise ValueError("expected an address to listen on, such as 127.0.0.1")


def ms_of_seconds(_name: str, value: ConfigValue, _table: Table) -> ConfigValue:
    """What `serverChannelMaxIdleTimeSeconds` says, in ms."""
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        value = int(value)
    return value * 1000 if isinstance(value, int) and not isinstance(value, bool) else value


@dataclass(frozen=True, slots=True)
class NameServerConfig(TlsPorts, LogLevels):
    """How one name server runs. Every limit is reached by a test."""

    host: str = key(
        "127.0.0.1",
        "where to listen",
        consequence="anything but loopback lets everyone who reaches it change routes",
        aliases=(Alias("bindAddress"),),
        read=_some_text,
        check=_address,
        takes="an address",
    )
    port: int = key(9876, "0 takes a free one", bounds=(0, 65_535), aliases=(Alias("listenPort"),))
    http_port: int = key(
        0,
        "health and metrics, on `host`; 0 = none. It needs what the extra `broker` brings",
        bounds=(0, 65_535),
    )
    data: Path = key(
        Path("namesrv-data"), "directory of `kvConfig.json`, `knownGroups.json` and `pid`; created if missing"
    )
    access_key_file: Path | None = key(
        None,
        "the [key file](#identity) of the brokers: what registers a broker or changes anything else is then taken of "
        "who signs with it alone; what is only read stays open",
    )
    max_connections: int = key(
        10_000,
        "connections at a time, and for brokers as many again, at most `max_nodes` and at most 1,024",
        consequence="one more is closed at its first request, unless that is a broker's; all are bounded by the limit "
        "of open files, as a broker's",
        bounds=(1, 1_000_000),
    )
    max_connections_per_host: int = key(
        1_000_000,
        "connections at a time from one address, which a proxy or a router may give to many",
        consequence="one more is closed at once; those that are open stay when it is lowered",
        bounds=(1, 1_000_000),
        live=True,
    )
    max_frame_bytes: int = key(
        MAX_FRAME_BYTES,
        "largest frame",
        consequence="a larger one closes its connection",
        bounds=(1024, MAX_FRAME_BYTES),
    )
    max_partial_bytes: int = key(
        64 << 20,
        "requests that have not fully arrived, of all connections together, as a [broker's](#limits)",
        consequence="at least twice `max_frame_bytes`",
        bounds=(2048, 1 << 40),
    )
    slow_sender_timeout_ms: int = key(2_000, "as a broker's", bounds=(10, 3_600_000))
    max_in_flight: int = key(
        64,
        "requests of one connection that wait for an answer",
        consequence="further ones are answered 2",
        bounds=(1, 100_000),
    )
    max_write_buffer_bytes: int = key(
        4 << 20,
        "answers that a client has not read",
        consequence="beyond it the connection is read no further",
        bounds=(1024, 1 << 30),
    )
    slow_reader_timeout_ms: int = key(
        10_000, "how long that may last", consequence="then the client is disconnected", bounds=(10, 3_600_000)
    )
    idle_timeout_ms: int = key(
        120_000,
        "silence after which a connection is closed",
        bounds=(10, 86_400_000),
        aliases=(Alias("serverChannelMaxIdleTimeSeconds", ms_of_seconds, "in seconds"),),
    )
    scan_interval_ms: int = key(
        5_000,
        "how often idle connections and silent brokers are looked for",
        bounds=(10, 60_000),
        aliases=(Alias("scanNotActiveBrokerInterval"),),
    )
    max_watch_ms: int = key(60_000, "the longest that a route watch may wait", bounds=(10, 3_600_000))
    max_watch_bytes: int = key(
        64 << 20,
        "what the requests of all route watches take that wait",
        consequence="further ones are answered 2, and their clients poll",
        bounds=(1024, 1 << 34),
    )
    max_nodes: int = key(
        4_096,
        "nodes that are registered",
        consequence="further ones are refused; one that is there stays, and so does one that takes its id",
        bounds=(1, 1_000_000),
    )
    max_routes: int = key(
        1_000_000,
        "topics of all broker groups, added up",
        consequence="a registration that would make them more is refused; those of groups that are away may be as many "
        "again",
        bounds=(1, 100_000_000),
    )
    max_absent_groups: int = key(
        256,
        "broker groups without a live node that are remembered",
        consequence="beyond it the one that is away longest is forgotten",
        bounds=(1, 100_000),
    )
    max_stored_bytes: int = key(
        DEFAULT_MAX_BYTES,
        "what configuration values (100) take in all",
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
        "true: a topic that is missing from the registration of any leader is forgotten; brokers of this project ask "
        "for that themselves",
        live=True,
        aliases=(Alias("deleteTopicWithBrokerRegistration"),),
    )
    log_format: str = key("text", "as a [broker's](#logs)", choices=FORMATS, read=_some_text)
    log_file: str = key("", 'a path, or `"stdout"`; `""` is standard error', takes="a path")

    @property
    def broker_places(self) -> int:
        """Places for connections beyond `max_connections`, which brokers alone keep."""
        return min(self.max_connections, self.max_nodes, MAX_BROKER_PLACES)

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a value outside its range, and for keys that contradict each other."""
        KEYS.check(self)
        if self.port and self.port == self.http_port:
            raise ConfigError(f"port = {self.port} and http_port = {self.http_port}: expected two different ports")
        if self.missing_of_tls is not None:
            raise ConfigError(self.missing_of_tls)
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
        misspelled="{name} = {value!r}: no such key, did you mean {near!r}?",
        unknown="{name} = {value!r}: no such key, expected one of {keys}",
        contradiction="{name} = {value!r} contradicts {other} = {said!r}: keep one of them",
        text="a text",
        path="a text",
        by_alias=True,
    ),
)
"""The keys of a name server."""


def load_config(path: Path, overrides: Mapping[str, Any]) -> NameServerConfig:
    """The configuration in a TOML file, its table `namesrv` if there is one, or in a properties file if its name ends
    with `.conf` or `.properties`; `overrides` win. Raises `ConfigError`.
    """
    table = _table_of(path, _text_of(path))
    try:
        return build_config({**read_keys(table).values, **overrides})
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def origins_of(path: Path, overrides: Mapping[str, Any]) -> dict[str, Origin]:
    """Where the value of each key comes from that `load_config` makes of a file. Raises `ConfigError`."""
    text = _text_of(path)
    lines = lines_of_properties(text) if path.suffix in SUFFIXES else lines_of_toml(text, TABLE)
    return origins(KEYS, read_keys(_table_of(path, text)), lines, overrides)


def read_keys(table: Table) -> Reading:
    """What a table of keys says, without RocketMQ's that change nothing here. Raises `ConfigError`."""
    for name, why in IMPOSSIBLE.items():
        value = table.get(name, False)
        if value is not False and value != "false":
            raise ConfigError(f"{name} = {value!r}: {why}; remove the key or say false")
    without = WITHOUT_EFFECT | IMPOSSIBLE.keys()
    return KEYS.read({name: value for name, value in table.items() if name not in without})


def build_config(values: Mapping[str, Any]) -> NameServerConfig:
    """A configuration from values of the right types by their keys. Raises `ConfigError`."""
    return NameServerConfig(**values)


def _text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: no text in UTF-8, at byte {error.start}") from error


def _table_of(path: Path, text: str) -> Table:
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

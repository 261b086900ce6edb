"""Configuration of a name server: defaults, a TOML file, flags. Keys of RocketMQ's `namesrv.conf` are accepted too."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, TypeAlias

from dledger.logs import FORMATS
from dledger_remoting.frame import MAX_FRAME_BYTES

ConfigValue: TypeAlias = str | int | bool | Path


class ConfigError(ValueError):
    """A key or value that cannot be used; the text names key, value and what was expected."""


@dataclass(frozen=True, slots=True)
class NameServerConfig:
    """How one name server runs. Every limit is reached by a test."""

    host: str = "127.0.0.1"
    """Address to listen on; anything but loopback lets everyone who reaches it change routes."""
    port: int = 9876
    """TCP port; 0 takes a free one."""
    http_port: int = 0
    """Port for health and metrics; 0 = none."""
    data: Path = Path("namesrv-data")
    """Directory of `kvConfig.json`, `knownGroups.json` and `pid`; created if missing."""
    max_connections: int = 4096
    """Connections beyond it are closed at once."""
    max_frame_bytes: int = MAX_FRAME_BYTES
    """A larger frame closes its connection."""
    max_partial_bytes: int = 64 * 1024 * 1024
    """What all connections have sent of requests that are not complete; beyond ¾ those who send them take turns."""
    slow_sender_timeout_ms: int = 2_000
    """How long a turn lasts; a connection whose request is not complete then is closed."""
    max_in_flight: int = 64
    """Requests of one connection that wait for an answer; further ones are answered with code 2."""
    max_write_buffer_bytes: int = 4 * 1024 * 1024
    """Answers that a client has not read yet; beyond it the connection is read no further."""
    slow_reader_timeout_ms: int = 10_000
    """A client that leaves that buffer full for longer is disconnected."""
    idle_timeout_ms: int = 120_000
    """A connection without traffic for longer is closed."""
    scan_interval_ms: int = 5_000
    """How often idle connections and silent brokers are looked for."""
    max_watch_ms: int = 60_000
    """Upper limit of how long a route watch may wait."""
    enable_topic_list: bool = True
    """False: topic lists (206, 224) are answered with code 1."""
    order_message_enable: bool = False
    """True: routes carry the `ORDER_TOPIC_CONFIG` value of their topic."""
    return_order_topic_config_to_broker: bool = True
    """True: answers to registrations carry the `ORDER_TOPIC_CONFIG` values."""
    delete_topic_with_broker_registration: bool = False
    """True: a topic that is missing from the registration of any leader is forgotten; brokers of this project ask for
    that themselves."""
    log_format: str = "text"
    """Format of the log: `text` or `json`."""
    log_file: str = ""
    """Where the log goes: a path, or `stdout`; without it standard error."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a value outside its range."""
        for key in ("port", "http_port"):
            if not 0 <= getattr(self, key) <= 65535:
                raise ConfigError(f"{key} = {getattr(self, key)}: expected 0 to 65535")
        if self.port and self.port == self.http_port:
            raise ConfigError(f"port = {self.port} and http_port = {self.http_port}: expected two different ports")
        if self.log_format not in FORMATS:
            raise ConfigError(f"log_format = {self.log_format!r}: expected one of {', '.join(FORMATS)}")
        if not self.host:
            raise ConfigError("host = '': expected an address to listen on, such as 127.0.0.1")
        for key, low, high in _RANGES:
            value = getattr(self, key)
            if not low <= value <= high:
                raise ConfigError(f"{key} = {value}: expected {low} to {high}")
        if self.max_partial_bytes < 2 * self.max_frame_bytes:
            raise ConfigError(
                f"max_partial_bytes = {self.max_partial_bytes}: expected at least twice max_frame_bytes = "
                f"{self.max_frame_bytes}"
            )


_RANGES: Final = (
    ("max_connections", 1, 1_000_000),
    ("max_frame_bytes", 1024, MAX_FRAME_BYTES),
    ("max_partial_bytes", 2048, 1 << 40),
    ("slow_sender_timeout_ms", 10, 3_600_000),
    ("max_in_flight", 1, 100_000),
    ("max_write_buffer_bytes", 1024, 1 << 30),
    ("slow_reader_timeout_ms", 10, 3_600_000),
    ("idle_timeout_ms", 10, 86_400_000),
    ("scan_interval_ms", 10, 60_000),
    ("max_watch_ms", 10, 3_600_000),
)

ALIASES: Final[Mapping[str, str]] = {
    "listenPort": "port",
    "bindAddress": "host",
    "scanNotActiveBrokerInterval": "scan_interval_ms",
    "serverChannelMaxIdleTimeSeconds": "idle_timeout_ms",
    "enableTopicList": "enable_topic_list",
    "enableAllTopicList": "enable_topic_list",
    "orderMessageEnable": "order_message_enable",
    "returnOrderTopicConfigToBroker": "return_order_topic_config_to_broker",
    "deleteTopicWithBrokerRegistration": "delete_topic_with_broker_registration",
}
_SECONDS: Final = frozenset({"serverChannelMaxIdleTimeSeconds"})

_KIND_BY_KEY: Final[Mapping[str, type]] = {
    field.name: Path if isinstance(field.default, Path) else type(field.default) for field in fields(NameServerConfig)
}


def load_config(path: Path, overrides: Mapping[str, ConfigValue]) -> NameServerConfig:
    """The configuration in a TOML file, its table `namesrv` if there is one; `overrides` win. Raises `ConfigError`."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file: {error}") from error
    section = document.get("namesrv", document)
    if not isinstance(section, dict):
        raise ConfigError(f"{path}: namesrv = {section!r}: expected a table")
    try:
        return build_config({**parse_values(section), **overrides})
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def build_config(values: Mapping[str, ConfigValue]) -> NameServerConfig:
    """A configuration from values of the right types by their keys. Raises `ConfigError`."""
    return NameServerConfig(**values)  # type: ignore[arg-type] # parse_values and the flags give each key its type


def parse_values(section: Mapping[str, object]) -> dict[str, ConfigValue]:
    """The values of a table, under their own keys and in their types. Raises `ConfigError`."""
    values: dict[str, ConfigValue] = {}
    source: dict[str, str] = {}
    for given, value in section.items():
        key = ALIASES.get(given, given)
        kind = _KIND_BY_KEY.get(key)
        if kind is None:
            near = difflib.get_close_matches(given, (*_KIND_BY_KEY, *ALIASES), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(sorted(_KIND_BY_KEY))}"
            raise ConfigError(f"{given} = {value!r}: no such key, {hint}")
        parsed = _parse(given, value, kind)
        if given in _SECONDS and isinstance(parsed, int):
            parsed *= 1000
        if key in values and values[key] != parsed:
            raise ConfigError(f"{given} = {value!r} contradicts {source[key]} = {values[key]!r}: keep one of them")
        values[key] = parsed
        source[key] = given
    return values


def _parse(key: str, value: object, kind: type) -> ConfigValue:
    if kind is bool:
        if isinstance(value, bool):
            return value
        if value in ("true", "false"):
            return value == "true"
        raise ConfigError(f"{key} = {value!r}: expected true or false")
    if kind is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and value.isascii() and value.isdecimal():
            return int(value)
        raise ConfigError(f"{key} = {value!r}: expected a whole number")
    if not isinstance(value, str) or not (value or key == "log_file"):
        raise ConfigError(f"{key} = {value!r}: expected a text")
    return Path(value) if kind is Path else value

"""The configuration of one broker node: a TOML file, or RocketMQ's `broker.conf`, and the files that it names.

`config_keys` declares the keys. docs/configuration.md explains them, and its tables follow from the declarations.
Nothing is read from the environment. Errors are `ConfigError` with the key, the value, the expected value and the
consequence.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dledger.errors import ConfigError as LogConfigError
from dledger.net.settings import PeerTls
from dledger.replication_keys import Replication
from dledger_base.access_keys import KeyFileWatch
from dledger_base.config_keys.declared import Table
from dledger_base.config_keys.origins import (
    SUFFIXES,
    Origin,
    lines_of_properties,
    lines_of_toml,
    origins,
    read_properties,
)
from dledger_base.config_keys.reading import Keys
from dledger_base.logs import LogLevels
from dledger_base.secret import SecretFile
from dledger_base.tls import TlsContext
from dledger_broker.addresses import Address, is_loopback, is_unspecified
from dledger_broker.broker_conf import with_effect
from dledger_broker.config_keys.identity import MAX_BROKER_ID, Addresses, Identity, TlsConnections
from dledger_broker.config_keys.limits import Limits
from dledger_broker.config_keys.messages import DelayedMessages, IdempotentSends, TopicsAndGroups, Transactions
from dledger_broker.config_keys.process import Logs, ReadingTheLog, Retention, Timing
from dledger_broker.errors import ConfigError

_DIGITS: Final = "0123456789"
_WATERMARK: Final = "disk_max_used_ratio"
_NOTHING_SAID: Final[Mapping[str, str]] = {}
_NOTHING_IGNORED: Final[Sequence[str]] = ()


@dataclass(frozen=True, kw_only=True)
class BrokerConfig(
    Identity,
    Addresses,
    TlsConnections,
    Replication,
    TopicsAndGroups,
    IdempotentSends,
    Transactions,
    DelayedMessages,
    ReadingTheLog,
    Retention,
    Timing,
    Limits,
    Logs,
    LogLevels,
):
    """The configuration of one broker node. Each section declares its keys. Some keys that are not set follow from
    other keys.
    """

    def __post_init__(self) -> None:
        """Fill in keys that follow from other keys, then check every value. Raises `ConfigError`."""
        self._derive()
        KEYS.check(self)
        self._check_peers()
        self._check_addresses()
        if self.missing_of_tls is not None:
            raise ConfigError(self.missing_of_tls)
        if self.access_mode != "off" and self.access_key_file is None:
            raise ConfigError(
                f"access_key_file is missing while access_control = {self.access_control!r}: name the key file, which "
                "is the same on every node; `dledger account new-key` makes a key"
            )
        if 2 * self.heartbeat_ms > self.election_min_ms:
            raise ConfigError(
                f"heartbeat_ms = {self.heartbeat_ms} must be at most half of election_min_ms = {self.election_min_ms}: "
                "followers would start elections when one heartbeat is late"
            )
        if self.max_partial_bytes < 2 * self.max_frame_bytes:
            raise ConfigError(
                f"max_partial_bytes = {self.max_partial_bytes} must be at least twice max_frame_bytes = "
                f"{self.max_frame_bytes}: the largest request could not arrive while others do"
            )

    said = _NOTHING_SAID
    """Keys that the file sets, each with the name that the file uses. Empty unless the configuration comes from a
    file.
    """
    ignored = _NOTHING_IGNORED
    """A line for each limit that the file sets without effect."""

    @property
    def advertised(self) -> Address:
        """The address that is announced to clients and name servers."""
        return Address(self.advertised_host, self.advertised_port)

    @property
    def access_mode(self) -> str:
        """The mode of access control: `off`, `log` or `on`. Without `access_control` a key file turns it on."""
        return self.access_control or ("off" if self.access_key_file is None else "on")

    @property
    def gives_tls_up(self) -> bool:
        """Return whether the file turns TLS off explicitly. A file that does not mention TLS does not."""
        return self.tls == "off" and "tls" in self.said and self.tls_peer_ca_file is None

    @property
    def alias_number(self) -> int:
        """Number of this node's write alias: k for node `n<k>`."""
        return self.broker_id_when_follower - 1

    def with_connections(self, most: int) -> BrokerConfig:
        """Return the same configuration with another `max_connections`."""
        changed = replace(self, max_connections=most)
        changed.remember(self.said, self.ignored)
        return changed

    def warnings(self) -> list[str]:
        """Return a line for each setting that is allowed but that the operator should know of."""
        found = self.changed_meanings()
        for key, host in (("host", self.host), ("peer_host", self.peer_host)):
            if not is_loopback(host) and self.access_mode != "on":
                found.append(
                    f"{key} = {host!r} accepts connections from other machines and access control is off: everyone who "
                    "reaches the port can read, write and delete"
                )
        if self.flush == "async":
            found.append(
                'flush = "async" acknowledges messages before they are on disk: a power loss of several nodes can lose '
                "them"
            )
        if not self.namesrv:
            found.append("namesrv is empty: clients find this node only by its address")
        return found

    def changed_meanings(self) -> list[str]:
        """Return a line for each key that the file sets and that had another meaning, or an effect, in an earlier
        version.
        """
        if _WATERMARK not in self.said:
            return list(self.ignored)
        return [
            *self.ignored,
            (
                f"{self.said[_WATERMARK]} is set: {_WATERMARK} = {self.disk_max_used_ratio:g} no longer deletes "
                "unexpired messages. Above it nodes warn, and messages that have expired by retention_hours or "
                f'retention_bytes are deleted at once. On a full disk when_full = "{self.when_full}" counts. To '
                'delete the oldest messages then, set "delete-oldest" and delete_oldest_ratio'
            ),
        ]

    def remember(self, said: Mapping[str, str], ignored: Sequence[str]) -> None:
        """Remember what a file says beside the values."""
        object.__setattr__(self, "said", said)
        object.__setattr__(self, "ignored", ignored)

    def _set(self, key: str, value: str | int) -> None:
        object.__setattr__(self, key, value)

    def _derive(self) -> None:
        if not self.advertised_host:
            self._set("advertised_host", self.host)
        if not self.advertised_port:
            self._set("advertised_port", self.port)
        if not self.peer_host:
            self._set("peer_host", self.host)
        if not self.peer_port:
            self._set("peer_port", self.port + 1)
        if self.http_port == -1:
            self._set("http_port", self.port + 2)
        if self.alias_port == -1:
            self._set("alias_port", self.port + 3)
        if not self.advertised_alias_port:
            self._set("advertised_alias_port", self.alias_port)
        if self.broker_id_when_follower == 0:
            self._set("broker_id_when_follower", _follower_broker_id(self.node_id, self.peers))

    def _check_peers(self) -> None:
        if self.node_id in self.peers:
            raise ConfigError(
                f"peers.{self.node_id} is this node itself (node_id = {self.node_id!r}): list the other nodes only"
            )
        if self.tls_peer_ca_file is not None and self.tls_cert_file is None:
            raise ConfigError(
                "tls_cert_file is missing while tls_peer_ca_file is set: nodes show each other their certificates"
            )
        if self.peers and self.secret_file is None and self.tls_peer_ca_file is None:
            raise ConfigError(
                f"secret_file is missing while peers lists {', '.join(self.peers)}: nodes authenticate each other with "
                "the group's secret; name a file that holds the same one on every node"
            )

    def _check_addresses(self) -> None:
        if is_unspecified(self.advertised_host):
            raise ConfigError(
                f"advertised_host is missing while host = {self.host!r}: clients cannot connect to that address; set "
                "advertised_host to one that they can reach"
            )
        used: dict[int, str] = {}
        for key in ("port", "peer_port", "http_port", "alias_port"):
            number = getattr(self, key)
            if number and number in used:
                raise ConfigError(f"{key} = {number} is already {used[number]}: each needs a port of its own")
            used[number] = key


KEYS: Final = Keys(BrokerConfig, ConfigError)
"""The keys of a broker."""


def _follower_broker_id(node_id: str, peers: Iterable[str]) -> int:
    """Return an id that no other node of the group takes by default, because clients see only one node for each id."""
    nodes = sorted({node_id, *peers})
    numbers = [int(node[len(node.rstrip(_DIGITS)) :] or 0) + 1 for node in nodes]
    if len(set(numbers)) < len(nodes) or max(numbers) > MAX_BROKER_ID:
        return nodes.index(node_id) + 1
    return numbers[nodes.index(node_id)]


def load_config(path: Path) -> BrokerConfig:
    """Read the configuration from a TOML file, or a properties file if its name ends with `.conf` or `.properties`.

    Relative paths in the file count from its own directory. Raises `ConfigError`.
    """
    table = _table_of(path, _text_of(path))
    try:
        return build_config(table, path.parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def origins_of(path: Path) -> dict[str, Origin]:
    """Return the origin of the value of each key that `load_config` reads from a file. Raises `ConfigError`."""
    text = _text_of(path)
    lines = lines_of_properties(text) if path.suffix in SUFFIXES else lines_of_toml(text)
    return origins(KEYS, KEYS.read(with_effect(_table_of(path, text)), path.parent), lines)


def build_config(table: Table, base: Path = Path()) -> BrokerConfig:
    """Return the configuration in a table of keys. Relative paths count from `base`. Raises `ConfigError`."""
    reading = KEYS.read(with_effect(table), base)
    KEYS.require(reading.values)
    config = BrokerConfig(**reading.values)
    config.remember(reading.names, reading.warnings(KEYS))
    return config


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # Windows editors begin a file with a byte order mark
    except OSError as error:
        raise ConfigError(f"configuration file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"configuration file {path} is no text in UTF-8, at byte {error.start}") from error


def _table_of(path: Path, text: str) -> Table:
    if path.suffix in SUFFIXES:
        try:
            return read_properties(text)
        except ValueError as error:
            raise ConfigError(f"{path}: {error}") from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"configuration file {path} is not TOML: {error}") from error


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

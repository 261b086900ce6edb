"""The configuration of one broker node: a TOML file, or RocketMQ's `broker.conf`.

Every key is a field of `BrokerConfig`, whose docstring is the reference. Keys of `broker.conf` are accepted as aliases
(see `broker_conf`). Nothing is read from the environment. Errors are `ConfigError` with key, value, what was expected
and what follows from it.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Final, TypeAlias

from dledger.logs import FORMATS, STDOUT
from dledger_broker.addresses import Address, is_loopback, is_unspecified, parse_address
from dledger_broker.broker_conf import ALIASES, ConfigValue, read_properties, translate
from dledger_broker.config_bounds import BOUNDS, MAX_BROKER_ID, MIB, ORDERED
from dledger_broker.errors import ConfigError
from dledger_broker.filter_process.targets import split_target
from dledger_remoting.delays import DEFAULT_LEVELS, parse_delay_levels
from dledger_remoting.errors import InvalidParameter, SubscriptionParseFailed
from dledger_remoting.filters.classes import class_name
from dledger_remoting.filters.limits import MAX_DEPTH, MAX_EXPRESSION_CHARS, MAX_OPERANDS
from dledger_remoting.topics import DEFAULT_TOPIC_QUEUES, validate_topic

DEFAULT_PORT: Final = 10911
_DIGITS: Final = "0123456789"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """One broker node.

    Identity
      cluster                    name of the cluster that name servers list the group under
      broker_group               name of the Raft group, `brokerName` to RocketMQ's clients
      group_ordinal              number of the group in its cluster, recorded in the group when it is founded and kept;
                                 readers of several groups tell their queues apart by it, so no two have the same
      node_id                    name of this node, unique in its group
      broker_id_when_follower    broker id to register while another node leads; by default the number at the end of
                                 `node_id` plus 1, or the node's place among those of the group if those numbers are
                                 the same or too large (the leader always registers 0)
      data_dir                   directory of log, state and views; belongs to this node alone
      secret_file                file with the secret that the group's nodes share

    Addresses
      host, port                 where clients connect
      advertised_host, _port     what name servers and clients are told; resolved to IPv4 at start
      peer_host, peer_port       where the group's other nodes connect; `host` and `port` + 1 by default
      peers                      `[peers.<node id>] address = "host:port"`: where this node dials each other one
      namesrv                    name servers, each "host:port"
      http_port                  metrics, health and status; `port` + 2 by default, 0 = none

    Replication
      flush                      "sync": acknowledged = fdatasync'ed on a majority; "async": written on a majority, so
                                 that a power loss of several nodes can lose acknowledged messages
      segment_bytes              size of a log file; fixed when the group is founded
      heartbeat_ms, election_min_ms, election_max_ms, max_uncommitted_bytes, snapshot_interval_s, reserve_bytes

    Topics and groups
      auto_create_topic          a send to an unknown topic creates it
      auto_create_group          a heartbeat or pull of an unknown consumer group creates it
      trace_topic                there is a topic for the traces of clients, RMQ_SYS_TRACE_TOPIC
      property_filter            consumers may filter by what properties hold, with expressions in SQL92
      class_filters              code of this node's own that consumers may name as their filter, each as
                                 "module:function" under the name that they say; run in processes of their own
      class_filter_timeout_ms    how long one look of such code at up to 800 messages may take
      class_filter_memory_bytes  address space of such a process
      pop_retry_topic_v2         popped messages come again in %RETRY%group+topic, not in %RETRY%group_topic, whose name
                                 two groups may share; old clients know only that
      default_request_mode       how consumers whose queues the broker assigns get messages, "pull" or "pop", as far as
                                 nobody has set that for their group and topic (401)
      default_topic_queues       most queues of a topic created by a send
      max_message_bytes          largest body

    Idempotent sends
      idempotent_window_ms       how long an opted-in send is remembered, so that a repetition is answered and not
                                 stored; 0 = not at all
      max_idempotent_keys        how many rows remember them, about 27 bytes of memory each: one for each send, or for
                                 up to 16 whose unique keys follow each other; others are only stored

    Transactions
      transaction_timeout_ms     how long after its send a half is checked first, unless it says so itself
      transaction_check_interval_ms  pause between two checks of a half
      transaction_check_max      how often a half is checked before it is given up
      max_open_halves            transactions that are neither committed nor rolled back; one more is answered 2

    Delayed messages
      delay_levels               the delays that messages name by number, from 1 on, each a number and s, m, h or d
      timer_max_delay_s          how far off the time may be that a message names
      max_pending_timers         how many messages may wait; a delayed send beyond is refused
      max_pending_timer_bytes    how many bytes of the log they may take, at most a quarter of what the smallest node
                                 may keep of it; 0 = no less than that

    Reading the log
      busy_range_bytes_per_s     what this node serves of ranges of the log, which Spark jobs read, while it takes in a
                                 megabyte a second or more and has to wait for a core; 0 = reading never gives way

    Retention
      retention_hours            how long messages are kept at least, unless size or disk force more
      retention_bytes            largest log, 0 = no limit
      disk_max_used_ratio        the oldest segments go, whatever their age, while the disk is fuller than this

    Timing
      drain_ms                   after SIGTERM: how long to go on forwarding
      forward_hold_ms            how long a request waits for a leader before it is answered 14
      quorum_timeout_ms          how long a write waits for a majority before its outcome is reported as unknown
      register_period_ms         pause between two signs of life to a name server
      register_timeout_ms        silence after which a name server drops this node
      offset_flush_ms            how long commits of consumer offsets are collected into one entry

    Limits (each has a counter of that name, without `_ms`, see `metrics`)
      max_connections            clients at a time; one more is closed at once
      max_in_flight              unanswered requests of one connection; reading pauses beyond
      max_held_pulls             long polls of one connection; one more is answered at once
      max_frame_bytes            largest request; a larger one closes the connection
      max_partial_bytes          what all connections together have sent of requests that are not complete; beyond three
                                 quarters those who send them take turns
      slow_sender_timeout_ms     how long a turn lasts; a connection whose request is not complete then is closed
      pause_outgoing_bytes       unread answers at which reading from a connection pauses
      max_outgoing_bytes         unread answers at which a connection is dropped
      slow_reader_timeout_ms     how long a connection may stay at `pause_outgoing_bytes` before it is dropped
      idle_timeout_ms            silence after which a connection is closed
      max_forward_bytes          requests that wait for a leader; one more is answered 2
      max_relayed_calls          requests of the broker that clients have not answered; one more is not sent
      max_locks_per_group        queues that the members of one consumer group have locked, and that one request names
      max_pop_in_flight          messages of a queue that a group has popped and not acknowledged; no more are popped
      max_request_modes          topics of groups of which is set how they are consumed; one more is refused
      max_filter_chars           characters in the expression of a subscription; a longer one is answered 23
      max_filter_depth           levels that an expression in SQL92 is nested; a deeper one is answered 23
      max_filter_operands        literals and names of properties in one; an expression with more is answered 23
      max_class_filter_waits     pulls and pops that wait for code in `class_filters`; one more is answered 2

    Logs
      log_format                 "text" or "json"
      log_file                   where they go, a path or "stdout"; "" = `log/broker.log` in `data_dir`
    """

    broker_group: str
    node_id: str
    data_dir: Path
    cluster: str = "DefaultCluster"
    group_ordinal: int = 0
    broker_id_when_follower: int = 0
    secret_file: Path | None = None

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    advertised_host: str = ""
    advertised_port: int = 0
    peer_host: str = ""
    peer_port: int = 0
    peers: Mapping[str, Address] = field(default_factory=dict)
    namesrv: tuple[Address, ...] = ()
    http_port: int = -1

    flush: str = "sync"
    segment_bytes: int = 1 << 30
    heartbeat_ms: int = 100
    election_min_ms: int = 500
    election_max_ms: int = 1000
    max_uncommitted_bytes: int = 64 * MIB
    snapshot_interval_s: int = 5
    reserve_bytes: int = 64 * MIB

    auto_create_topic: bool = True
    trace_topic: bool = True
    auto_create_group: bool = True
    property_filter: bool = True
    class_filters: Mapping[str, str] = field(default_factory=dict)
    class_filter_timeout_ms: int = 1_000
    class_filter_memory_bytes: int = 256 * MIB
    pop_retry_topic_v2: bool = False
    default_request_mode: str = "pull"
    default_topic_queues: int = DEFAULT_TOPIC_QUEUES
    max_message_bytes: int = 4 * MIB

    idempotent_window_ms: int = 120_000
    max_idempotent_keys: int = 5_000_000

    transaction_timeout_ms: int = 6_000
    transaction_check_interval_ms: int = 30_000
    transaction_check_max: int = 15
    max_open_halves: int = 100_000

    delay_levels: str = DEFAULT_LEVELS
    timer_max_delay_s: int = 259_200
    max_pending_timers: int = 10_000_000
    max_pending_timer_bytes: int = 0

    busy_range_bytes_per_s: int = 8 * MIB

    retention_hours: int = 72
    retention_bytes: int = 0
    disk_max_used_ratio: float = 0.75

    drain_ms: int = 35_000
    forward_hold_ms: int = 2_000
    quorum_timeout_ms: int = 2_500
    register_period_ms: int = 5_000
    register_timeout_ms: int = 15_000
    offset_flush_ms: int = 200

    max_connections: int = 10_000
    max_in_flight: int = 4_096
    max_held_pulls: int = 16_384
    max_frame_bytes: int = 16 * MIB
    max_partial_bytes: int = 64 * MIB
    slow_sender_timeout_ms: int = 2_000
    pause_outgoing_bytes: int = 4 * MIB
    max_outgoing_bytes: int = 64 * MIB
    slow_reader_timeout_ms: int = 30_000
    idle_timeout_ms: int = 120_000
    max_forward_bytes: int = 64 * MIB
    max_relayed_calls: int = 1_000
    max_locks_per_group: int = 4_096
    max_pop_in_flight: int = 20_000
    max_request_modes: int = 100_000
    max_filter_chars: int = MAX_EXPRESSION_CHARS
    max_filter_depth: int = MAX_DEPTH
    max_filter_operands: int = MAX_OPERANDS
    max_class_filter_waits: int = 256

    log_format: str = "text"
    log_file: str | Path = ""

    def __post_init__(self) -> None:
        """Fill in what follows from other keys, then check every value. Raises `ConfigError`."""
        self._derive()
        self._check_names()
        self._check_addresses()
        self._check_numbers()

    @property
    def advertised(self) -> Address:
        """What clients and name servers are told."""
        return Address(self.advertised_host, self.advertised_port)

    def warnings(self) -> list[str]:
        """What is allowed but should be known, one line each."""
        found: list[str] = []
        for key, host in (("host", self.host), ("peer_host", self.peer_host)):
            if not is_loopback(host):
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

    def _set(self, key: str, value: ConfigValue) -> None:
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
        if self.broker_id_when_follower == 0:
            self._set("broker_id_when_follower", _follower_broker_id(self.node_id, self.peers))

    def _check_names(self) -> None:
        for key in ("cluster", "broker_group", "node_id"):
            value = getattr(self, key)
            try:
                validate_topic(value)
            except InvalidParameter as error:
                raise ConfigError(f"{key} = {value!r}: {error.remark.replace('topic', key)}") from error
        if self.log_format not in FORMATS:
            raise ConfigError(f"log_format = {self.log_format!r}, expected one of {', '.join(FORMATS)}")
        if self.node_id in self.peers:
            raise ConfigError(
                f"peers.{self.node_id} is this node itself (node_id = {self.node_id!r}): list the other nodes only"
            )
        if self.peers and self.secret_file is None:
            raise ConfigError(
                f"secret_file is missing while peers lists {', '.join(self.peers)}: nodes authenticate each other with "
                "the group's secret; name a file that holds the same one on every node"
            )
        if self.flush not in ("sync", "async"):
            raise ConfigError(
                f"flush = {self.flush!r}, expected 'sync' (acknowledged = on disk on a majority) or 'async' (faster, a "
                "power loss of several nodes can lose acknowledged messages)"
            )
        if self.default_request_mode not in ("pull", "pop"):
            raise ConfigError(
                f"default_request_mode = {self.default_request_mode!r}, expected 'pull' or 'pop': how consumers whose "
                "queues the broker assigns get messages"
            )

        try:
            parse_delay_levels(self.delay_levels)
        except ValueError as error:
            raise ConfigError(f"delay_levels = {self.delay_levels!r}: {error}") from error

    def _check_addresses(self) -> None:
        for key in ("port", "advertised_port", "peer_port"):
            self._check_range(key, 1, 65_535)
        self._check_range("http_port", 0, 65_535)
        if is_unspecified(self.advertised_host):
            raise ConfigError(
                f"advertised_host is missing while host = {self.host!r}: clients cannot connect to that address; set "
                "advertised_host to one that they can reach"
            )
        used: dict[int, str] = {}
        for key in ("port", "peer_port", "http_port"):
            number = getattr(self, key)
            if number and number in used:
                raise ConfigError(f"{key} = {number} is already {used[number]}: each needs a port of its own")
            used[number] = key

    def _check_numbers(self) -> None:
        for key, low, high in BOUNDS:
            self._check_range(key, low, high)
        for low_key, high_key, consequence in ORDERED:
            low, high = getattr(self, low_key), getattr(self, high_key)
            if low >= high:
                raise ConfigError(f"{low_key} = {low} must be below {high_key} = {high}: {consequence}")
        if self.max_partial_bytes < 2 * self.max_frame_bytes:
            raise ConfigError(
                f"max_partial_bytes = {self.max_partial_bytes} must be at least twice max_frame_bytes = "
                f"{self.max_frame_bytes}: the largest request could not arrive while others do"
            )

    def _check_range(self, key: str, low: float, high: float) -> None:
        value = getattr(self, key)
        if not low <= value <= high:
            raise ConfigError(f"{key} = {value} is outside {low}..{high}")


def _follower_broker_id(node_id: str, peers: Iterable[str]) -> int:
    """An id that no other node of the group takes by default: clients see only one node for each."""
    nodes = sorted({node_id, *peers})
    numbers = [int(node[len(node.rstrip(_DIGITS)) :] or 0) + 1 for node in nodes]
    if len(set(numbers)) < len(nodes) or max(numbers) > MAX_BROKER_ID:
        return nodes.index(node_id) + 1
    return numbers[nodes.index(node_id)]


def load_config(path: Path) -> BrokerConfig:
    """The configuration in a TOML file, or in a properties file if its name ends with `.conf` or `.properties`.

    Relative paths in it count from its own directory. Raises `ConfigError`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"configuration file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"configuration file {path} is no text in UTF-8, at byte {error.start}") from error
    table: Mapping[str, ConfigValue]
    if path.suffix in (".conf", ".properties"):
        table = read_properties(text)
    else:
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"configuration file {path} is not TOML: {error}") from error
    try:
        return build_config(table, path.parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def build_config(table: Mapping[str, ConfigValue], base: Path = Path()) -> BrokerConfig:
    """The configuration in a table of keys; relative paths count from `base`. Raises `ConfigError`."""
    values = translate(table, frozenset(_FIELDS))
    for key in values:
        if key not in _FIELDS:
            near = difflib.get_close_matches(key, (*_FIELDS, *ALIASES), n=1)
            raise ConfigError(f"unknown key {key!r}" + (f", did you mean {near[0]!r}?" if near else ""))
    for key, entry in _FIELDS.items():
        if key not in values and entry.default is MISSING and entry.default_factory is MISSING:
            raise ConfigError(f"{key} is missing: {_WHY_REQUIRED[key]}")
    return BrokerConfig(**{key: _convert(key, value, base) for key, value in values.items()})  # type: ignore[arg-type]


_FIELDS: Final[Mapping[str, Field[object]]] = {entry.name: entry for entry in fields(BrokerConfig)}
_WHY_REQUIRED: Final = {
    "broker_group": "it names the Raft group, brokerName to clients",
    "node_id": "it names this node within its group",
    "data_dir": "it is where this node keeps its log",
}

_Converted: TypeAlias = str | int | float | bool | Path | tuple[Address, ...] | dict[str, Address] | dict[str, str]


def _convert(key: str, value: ConfigValue, base: Path) -> _Converted:
    if key == "peers":
        return _peers(value)
    if key == "namesrv":
        return _addresses(key, value)
    if key == "class_filters":
        return _class_filters(value)
    if key == "log_file" and value in ("", STDOUT):
        return str(value)
    expected = str(_FIELDS[key].type) if key != "log_file" else "Path"
    if expected.startswith("Path"):
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{key} = {value!r}, expected a path as text")
        return base / Path(value).expanduser()
    if expected == "bool" and isinstance(value, bool):
        return value
    if expected == "str" and isinstance(value, str):
        return value
    if not isinstance(value, bool) and (
        (expected == "int" and isinstance(value, int)) or (expected == "float" and isinstance(value, int | float))
    ):
        return value
    raise ConfigError(f"{key} = {value!r}, expected {_KIND_NAMES[expected]}")


_KIND_NAMES: Final = {"bool": "true or false", "str": "a text in quotes", "int": "a whole number", "float": "a number"}


def _peers(value: ConfigValue) -> dict[str, Address]:
    if not isinstance(value, dict):
        raise ConfigError(f'peers = {value!r}, expected tables [peers.<node id>] with address = "host:port"')
    peers: dict[str, Address] = {}
    for node_id, entry in value.items():
        if not isinstance(entry, dict) or list(entry) != ["address"]:
            raise ConfigError(f'peers.{node_id} = {entry!r}, expected exactly one key: address = "host:port"')
        peers[node_id] = parse_address(f"peers.{node_id}.address", entry["address"])
    return peers


def _class_filters(value: ConfigValue) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ConfigError(f'class_filters = {value!r}, expected a table [class_filters] of name = "module:function"')
    for name, target in value.items():
        try:
            split_target(str(target))
            class_name(name)
        except (ValueError, SubscriptionParseFailed) as error:
            raise ConfigError(f"class_filters.{name} = {target!r}: {error}") from error
    return {name: str(target) for name, target in value.items()}


def _addresses(key: str, value: ConfigValue) -> tuple[Address, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(";") if part.strip()]
    if not isinstance(value, list):
        raise ConfigError(f'{key} = {value!r}, expected a list such as ["127.0.0.1:9876"]')
    return tuple(parse_address(key, entry) for entry in value)

"""RocketMQ's `broker.conf`: its file form, and its keys as aliases of ours.

The file form is one `key=value` per line, `#` comments. Spelling is RocketMQ's own (`enableDLegerCommitLog`), because
people paste from it. A key that has no counterpart here but changes nothing that a client sees is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from dledger_broker.errors import ConfigError

ConfigValue: TypeAlias = str | int | float | bool | list["ConfigValue"] | dict[str, "ConfigValue"]


def read_properties(text: str) -> dict[str, ConfigValue]:
    """The keys of a properties file; numbers and booleans get their type. Raises `ConfigError`."""
    table: dict[str, ConfigValue] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith(("#", "!")):
            continue
        key, separator, value = line.partition("=")
        if not separator:
            raise ConfigError(f"line {number} is {line!r}, expected key=value")
        table[key.strip()] = _typed(value.strip())
    return table


def translate(table: Mapping[str, ConfigValue], known: frozenset[str]) -> dict[str, ConfigValue]:
    """`table` with aliases replaced by our keys. Raises `ConfigError` if two keys say different things."""
    values: dict[str, ConfigValue] = {}
    said_by: dict[str, str] = {}
    for key, value in table.items():
        if key in _WITHOUT_EFFECT:
            continue
        for target, converted in _translate(key, value, table, known):
            if target in values and values[target] != converted:
                raise ConfigError(
                    f"{key} = {value!r} contradicts {said_by[target]} = {table[said_by[target]]!r}: both say {target}; "
                    "remove one"
                )
            values[target] = converted
            said_by[target] = key
    return values


def _translate(
    key: str, value: ConfigValue, table: Mapping[str, ConfigValue], known: frozenset[str]
) -> list[tuple[str, ConfigValue]]:
    if key == "enableDLegerCommitLog":
        if value is not True:
            raise ConfigError(f"{key} = {value!r}: this broker always replicates by Raft; remove the key or say true")
        return []
    if key == "dLegerPeers":
        return _peers(value, table.get("dLegerSelfId", table.get("node_id")))
    if key in known or key not in ALIASES:
        return [(key, value)]
    target, convert = ALIASES[key]
    return [(target, convert(key, value))]


def _typed(text: str) -> ConfigValue:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.removeprefix("-").isdecimal() and text.isascii() else text


def _same(_key: str, value: ConfigValue) -> ConfigValue:
    return value


def _text(_key: str, value: ConfigValue) -> ConfigValue:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _flush(key: str, value: ConfigValue) -> ConfigValue:
    kinds: dict[ConfigValue, str] = {"SYNC_FLUSH": "sync", "ASYNC_FLUSH": "async"}
    if not isinstance(value, str) or value not in kinds:
        raise ConfigError(f"{key} = {value!r}, expected SYNC_FLUSH or ASYNC_FLUSH")
    return kinds[value]


def _request_mode(key: str, value: ConfigValue) -> ConfigValue:
    if value not in ("PULL", "POP"):
        raise ConfigError(f"{key} = {value!r}, expected PULL or POP")
    return str(value).lower()


def _percent(key: str, value: ConfigValue) -> ConfigValue:
    if isinstance(value, bool) or not isinstance(value, int) or not 10 <= value <= 95:
        raise ConfigError(f"{key} = {value!r}, expected a percentage of 10..95")
    return value / 100


def _broker_id(key: str, value: ConfigValue) -> ConfigValue:
    """Stock files say 0 for a master; here the leader is 0 by election, and 0 means "derive it from `node_id`"."""
    if isinstance(value, bool) or not isinstance(value, int) or value < -1:
        raise ConfigError(f"{key} = {value!r}, expected a whole number")
    return max(value, 0)


def _peers(value: ConfigValue, self_id: ConfigValue | None) -> list[tuple[str, ConfigValue]]:
    """`n0-127.0.0.1:40911;n1-127.0.0.1:40912`: the others are peers, the own entry gives the peer port."""
    if not isinstance(value, str):
        raise ConfigError(f"dLegerPeers = {value!r}, expected n0-host:port;n1-host:port;…")
    peers: dict[str, ConfigValue] = {}
    found: list[tuple[str, ConfigValue]] = []
    for part in filter(None, (part.strip() for part in value.split(";"))):
        node_id, _, address = part.partition("-")
        port = address.rpartition(":")[2]
        if not node_id or not port.isdecimal():
            raise ConfigError(f"dLegerPeers has {part!r}, expected <node id>-<host>:<port>")
        if node_id == self_id:
            found.append(("peer_port", int(port)))
        else:
            peers[node_id] = {"address": address}
    return [("peers", peers), *found]


ALIASES: Final[Mapping[str, tuple[str, Callable[[str, ConfigValue], ConfigValue]]]] = {
    "brokerClusterName": ("cluster", _text),
    "brokerName": ("broker_group", _text),
    "dLegerGroup": ("broker_group", _text),
    "dLegerSelfId": ("node_id", _text),
    "brokerId": ("broker_id_when_follower", _broker_id),
    "storePathRootDir": ("data_dir", _same),
    "bindAddress": ("host", _same),
    "listenPort": ("port", _same),
    "brokerIP1": ("advertised_host", _same),
    "namesrvAddr": ("namesrv", _same),
    "flushDiskType": ("flush", _flush),
    "mappedFileSizeCommitLog": ("segment_bytes", _same),
    "autoCreateTopicEnable": ("auto_create_topic", _same),
    "autoCreateSubscriptionGroup": ("auto_create_group", _same),
    "traceTopicEnable": ("trace_topic", _same),
    "enablePropertyFilter": ("property_filter", _same),
    "enableRetryTopicV2": ("pop_retry_topic_v2", _same),
    "defaultMessageRequestMode": ("default_request_mode", _request_mode),
    "defaultTopicQueueNums": ("default_topic_queues", _same),
    "maxMessageSize": ("max_message_bytes", _same),
    "fileReservedTime": ("retention_hours", _same),
    "diskMaxUsedSpaceRatio": ("disk_max_used_ratio", _percent),
    "messageDelayLevel": ("delay_levels", _text),
    "timerMaxDelaySec": ("timer_max_delay_s", _same),
    "registerNameServerPeriod": ("register_period_ms", _same),
}
"""Our key for each of RocketMQ's, and what makes our value of its value."""

_WITHOUT_EFFECT: Final = frozenset(
    {
        "brokerRole",
        "deleteWhen",
        "isEnableBatchPush",
        "longPollingEnable",
        "preferredLeaderId",
        "slaveReadEnable",
        "storePathCommitLog",
        "storePathDLedgerCommitLog",
        "traceOn",
    }
)
"""Replication, reading from followers and long polling are always on, and files lie below `data_dir`."""

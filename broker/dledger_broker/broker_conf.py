"""RocketMQ's `broker.conf`: translates values of its keys into the form of this broker's keys.

`config_keys` declares RocketMQ's names beside each key. The spelling is RocketMQ's own (`enableDLegerCommitLog`),
because people paste from it. A key without counterpart here is accepted if it changes nothing that a client sees.
"""

from __future__ import annotations

from typing import Final

from dledger_base.config_keys.declared import ConfigValue, Table, UnexpectedError
from dledger_broker.errors import ConfigError


def with_effect(table: Table) -> dict[str, ConfigValue]:
    """Return `table` without RocketMQ's keys that change nothing here. Raises `ConfigError` for values that are not
    supported.
    """
    if table.get(_REPLICATED, True) is not True:
        raise ConfigError(
            f"{_REPLICATED} = {table[_REPLICATED]!r}: this broker always replicates by Raft; remove the key or say true"
        )
    return {key: value for key, value in table.items() if key != _REPLICATED and key not in WITHOUT_EFFECT}


def as_text(_name: str, value: ConfigValue, _table: Table) -> ConfigValue:
    """Return a name as text. A properties file has a name that consists of digits as a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def percent(_name: str, value: ConfigValue, _table: Table) -> ConfigValue:
    """Return the ratio for a percentage."""
    if isinstance(value, bool) or not isinstance(value, int) or not 10 <= value <= 95:
        raise UnexpectedError("a percentage of 10..95")
    return value / 100


def broker_id(_name: str, value: ConfigValue, _table: Table) -> ConfigValue:
    """Return the broker id, and 0 for -1 too. Stock files give a master id 0.

    Here the leader gets id 0 by election, and 0 in a file means "derive the id from `node_id`".
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < -1:
        raise UnexpectedError("a whole number")
    return max(value, 0)


def other_peers(name: str, value: ConfigValue, table: Table) -> ConfigValue:
    """Return the other nodes in a list such as `n0-127.0.0.1:40911;n1-127.0.0.1:40912`."""
    own = _own_id(table)
    return {node_id: {"address": address} for node_id, address in _split(name, value) if node_id != own}


def own_peer_port(name: str, value: ConfigValue, table: Table) -> ConfigValue | None:
    """Return the port in the node's own entry of a list of nodes, None if the entry has no port."""
    own = _own_id(table)
    ports = [int(address.rpartition(":")[2]) for node_id, address in _split(name, value) if node_id == own]
    return ports[-1] if ports else None


def _own_id(table: Table) -> ConfigValue | None:
    return table.get("dLegerSelfId", table.get("node_id"))


def _split(name: str, value: ConfigValue) -> list[tuple[str, str]]:
    if not isinstance(value, str):
        raise UnexpectedError("n0-host:port;n1-host:port;…")
    found: list[tuple[str, str]] = []
    for part in filter(None, (part.strip() for part in value.split(";"))):
        node_id, _, address = part.partition("-")
        if not node_id or not address.rpartition(":")[2].isdecimal():
            raise ConfigError(f"{name} has {part!r}, expected <node id>-<host>:<port>")
        found.append((node_id, address))
    return found


_REPLICATED: Final = "enableDLegerCommitLog"
WITHOUT_EFFECT: Final = frozenset(
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
"""Keys that are accepted and ignored. Replication, reading from followers and long polling are always on, and files lie
below `data_dir`.
"""

"""Who a node is, and where it and others are reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dledger.config_keys.declared import Alias, ConfigValue, key, needed
from dledger_broker.addresses import Address, parse_address
from dledger_broker.broker_conf import as_text, broker_id, other_peers, own_peer_port
from dledger_broker.errors import ConfigError
from dledger_remoting.errors import InvalidParameter
from dledger_remoting.topics import validate_topic

DEFAULT_PORT: Final = 10911
MAX_BROKER_ID: Final = 2**31 - 1


def _name(name: str, value: str) -> None:
    try:
        validate_topic(value)
    except InvalidParameter as error:
        raise ValueError(error.remark.replace("topic", name)) from error


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Who a node is."""

    broker_group: str = field(
        metadata=needed(
            "name of the Raft group, `brokerName` to clients",
            "it names the Raft group, brokerName to clients",
            aliases=(Alias("brokerName", as_text), Alias("dLegerGroup", as_text)),
            check=_name,
        )
    )
    node_id: str = field(
        metadata=needed(
            "name of this node, unique in its group",
            "it names this node within its group",
            aliases=(Alias("dLegerSelfId", as_text),),
            check=_name,
        )
    )
    data_dir: Path = field(
        metadata=needed(
            "directory of log, state and views; belongs to this node alone",
            "it is where this node keeps its log",
            aliases=(Alias("storePathRootDir"),),
        )
    )
    cluster: str = key(
        "DefaultCluster",
        "name of the cluster that name servers list the group under",
        aliases=(Alias("brokerClusterName", as_text),),
        check=_name,
    )
    group_ordinal: int = key(
        0,
        "the group's number among the groups of its cluster; "
        "[recorded when the group is founded](decisions/group-ordinals.md), after which the key means nothing. "
        "`dledger up` sets it",
        bounds=(0, 32_767),
    )
    broker_id_when_follower: int = key(
        0,
        "broker id while another node leads, another one for each node, for clients see one node per id; the leader is "
        "always 0",
        bounds=(1, MAX_BROKER_ID),
        shown="number at the end of `node_id` + 1; where two nodes of the group have the same number there, or one "
        "above 2,147,483,646, the node's place among the group's, sorted by `node_id`",
        aliases=(Alias("brokerId", broker_id, "0 and below mean the default"),),
    )
    secret_file: Path | None = key(
        None,
        "file with the secret that the group's nodes share, at least 16 bytes, mode 0600; needed as soon as there are "
        "peers. `dledger node lead` and `remove` prove with it that they may change the group; a node without one "
        "refuses them",
    )
    access_key_file: Path | None = key(
        None,
        "file with the keys that secrets of accounts are [sealed with](wire.md#access-control), each 32 bytes in "
        "Base64 on a line of its own; the same on every node, and readable by its owner alone (`chmod 600`): who can "
        "read it is an administrator. Where it is named the node asks a signature and rights of each request",
    )


def _peers(_name: str, value: ConfigValue, _base: Path) -> dict[str, Address]:
    if not isinstance(value, dict):
        raise ConfigError(f'peers = {value!r}, expected tables [peers.<node id>] with address = "host:port"')
    peers: dict[str, Address] = {}
    for node_id, entry in value.items():
        if not isinstance(entry, dict) or list(entry) != ["address"]:
            raise ConfigError(f'peers.{node_id} = {entry!r}, expected exactly one key: address = "host:port"')
        peers[node_id] = parse_address(f"peers.{node_id}.address", entry["address"])
    return peers


def _addresses(name: str, value: ConfigValue, _base: Path) -> tuple[Address, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(";") if part.strip()]
    if not isinstance(value, list):
        raise ConfigError(f'{name} = {value!r}, expected a list such as ["127.0.0.1:9876"]')
    return tuple(parse_address(name, entry) for entry in value)


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Where a node and others are reached."""

    host: str = key(
        "127.0.0.1",
        "where to listen for clients and HTTP; anything but loopback is warned about, unless there is "
        "[access control](wire.md#access-control)",
        takes="an address",
        aliases=(Alias("bindAddress"),),
    )
    port: int = key(DEFAULT_PORT, "port for clients", bounds=(1, 65_535), aliases=(Alias("listenPort"),))
    advertised_host: str = key(
        "",
        "what name servers and clients are told; resolved to IPv4 at the start, which waits for a name that is not "
        "known yet",
        shown="`host`",
        takes="a name or address",
        aliases=(Alias("brokerIP1"),),
    )
    advertised_port: int = key(0, "the port that name servers and clients are told", bounds=(1, 65_535), shown="`port`")
    peer_host: str = key("", "where to listen for the group's other nodes", shown="`host`", takes="an address")
    peer_port: int = key(
        0,
        "port for the group's other nodes",
        bounds=(1, 65_535),
        shown="`port` + 1",
        aliases=(Alias("dLegerPeers", own_peer_port, "the own entry"),),
    )
    peers: Mapping[str, Address] = key(
        {},
        '`[peers.<node id>]` with `address = "host:port"`: where this node dials each *other* one',
        takes="tables",
        aliases=(Alias("dLegerPeers", other_peers, "`n0-host:port;n1-host:port`"),),
        read=_peers,
    )
    namesrv: tuple[Address, ...] = key(
        (),
        "name servers; every one is registered with",
        takes='a list of `"host:port"`',
        aliases=(Alias("namesrvAddr", note="`host:port;host:port`"),),
        read=_addresses,
    )
    http_port: int = key(
        -1,
        "metrics, health and status; [leadership and members](operations/cluster.md#changing-a-group) are changed here "
        "too, by who proves to know the group's secret; 0 = none",
        bounds=(0, 65_535),
        shown="`port` + 2",
    )
    alias_port: int = key(
        -1,
        "where producers send that find this node as a [write alias](wire.md#write-aliases); 0 = none",
        bounds=(0, 65_535),
        shown="`port` + 3",
    )
    advertised_alias_port: int = key(
        0, "the port of it that name servers and clients are told", bounds=(0, 65_535), shown="`alias_port`"
    )

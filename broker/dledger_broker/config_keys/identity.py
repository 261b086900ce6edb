"""Keys for the identity of a node, for the addresses of nodes, and for TLS of the node's connections."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dledger.net.settings import PeerTls
from dledger_base.access_keys import ACCESS_MODES
from dledger_base.config_keys.declared import Alias, ConfigValue, key, needed
from dledger_base.tls import TlsContext, TlsFiles
from dledger_base.tls_keys import TlsPorts
from dledger_broker.addresses import Address, parse_address
from dledger_broker.broker_conf import as_text, broker_id, other_peers, own_peer_port
from dledger_broker.errors import ConfigError
from dledger_remoting.errors import InvalidParameter
from dledger_remoting.topics import validate_topic

DEFAULT_PORT: Final = 10911
MAX_BROKER_ID: Final = 2**31 - 1
LOCAL_OFFSET: Final = "local"
"""Stands for the UTC offset of the node's own time zone."""
_OFFSET: Final = re.compile(r"([+-])(0\d|1[0-4]):([0-5]\d)")
"""Form of a UTC offset. The largest in use are -12:00 and +14:00."""


def _name(name: str, value: str) -> None:
    try:
        validate_topic(value)
    except InvalidParameter as error:
        raise ValueError(error.remark.replace("topic", name)) from error


def _offset_s(word: str) -> int:
    match = _OFFSET.fullmatch(word)
    if match is None:
        raise ValueError(f"expected UTC offsets such as +08:00, or {LOCAL_OFFSET}: {word!r}")
    return (1 if match[1] == "+" else -1) * (int(match[2]) * 3600 + int(match[3]) * 60)


def _check_offsets(_name: str, value: str) -> None:
    for word in value.split():
        if word != LOCAL_OFFSET:
            _offset_s(word)


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The names and numbers of a node, its directory, and the files with its secrets."""

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
        "number of the group in its cluster; `dledger up` sets it. [It is recorded when the group is "
        "founded](decisions/group-ordinals.md); from then on the key has no effect",
        bounds=(0, 32_767),
    )
    broker_id_when_follower: int = key(
        0,
        "broker id of this node while another node leads; the leader always has 0. It must differ between the nodes "
        "of a group, because clients see one node for each id",
        bounds=(1, MAX_BROKER_ID),
        shown="number at the end of `node_id` + 1. If two nodes of the group have the same number, or one a number "
        "above 2,147,483,646: position of the node among them, by `node_id`",
        aliases=(Alias("brokerId", broker_id, "0 and below mean the default"),),
    )
    secret_file: Path | None = key(
        None,
        "file with the secret that the group's nodes share: at least 16 bytes, mode 0600. It is needed if there are "
        "peers. A second line `also: SECRET` has another secret accepted while [the secret is "
        "changed](operations/access.md#changing-keys-and-secrets). `dledger node lead` and `remove` prove with it that "
        "they may change the group. A node without a secret refuses them",
    )
    access_key_file: Path | None = key(
        None,
        "file with the keys that [seal the secrets of accounts](wire.md#access-control), each 32 bytes in Base64 on "
        "its own line. It must be the same on every node. Only its owner may read it (`chmod 600`), because the keys "
        "make an administrator of every reader. A changed file is read again within 5 s",
    )
    access_control: str = key(
        "",
        "mode of access control. `on` requires a signature and rights for each request. `log` refuses nothing, and "
        "logs each request that `on` would refuse. `off` checks nothing. Once every node of a group says `on`, [the "
        "group's log records it](operations/access.md), and access control stays on until every node says `off`",
        choices=("", *ACCESS_MODES),
        expected="one of off, log, on",
        takes="`off`, `log`, `on`",
        shown="`on` with `access_key_file`, else `off`",
    )
    max_spoken_age_ms: int = key(
        300_000,
        "maximum age in ms of the date that a client signs when [a proxy sends its request](wire.md#proxies), and of a "
        "date that is ahead of the node's clock",
        consequence="a request with another date is refused (16)",
        bounds=(1_000, 86_400_000),
        live=True,
    )
    spoken_utc_offsets: str = key(
        LOCAL_OFFSET,
        "UTC offsets of clients that sign their local time as if it were UTC, as RocketMQ's clients for Java, Go and "
        "Python do: `+08:00`, several with blanks between them, and `local` for this node's. Dates in UTC are always "
        "accepted. [Each offset lengthens the use of a recorded signature](operations/access.md#proxies)",
        check=_check_offsets,
        takes='`"local"`, `"+08:00 -05:00"`',
    )

    def spoken_offsets_s(self, now_s: float) -> list[int]:
        """Return the UTC offsets in seconds that signed dates may have. `now_s` is the wall clock, for summer time."""
        words = self.spoken_utc_offsets.split()
        return [0, *(time.localtime(now_s).tm_gmtoff if word == LOCAL_OFFSET else _offset_s(word) for word in words)]


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
    """The addresses of a node, of its peers and of its name servers."""

    host: str = key(
        "127.0.0.1",
        "address to listen on for clients and HTTP; any other than loopback causes a warning, unless there is [access "
        "control](wire.md#access-control)",
        takes="an address",
        aliases=(Alias("bindAddress"),),
    )
    port: int = key(DEFAULT_PORT, "port for clients", bounds=(1, 65_535), aliases=(Alias("listenPort"),))
    advertised_host: str = key(
        "",
        "address that name servers and clients are told. A name is resolved to IPv4 at the start; the start waits "
        "until the name is known",
        shown="`host`",
        takes="a name or address",
        aliases=(Alias("brokerIP1"),),
    )
    advertised_port: int = key(0, "port that name servers and clients are told", bounds=(1, 65_535), shown="`port`")
    peer_host: str = key("", "address to listen on for the group's other nodes", shown="`host`", takes="an address")
    peer_port: int = key(
        0,
        "port for the group's other nodes",
        bounds=(1, 65_535),
        shown="`port` + 1",
        aliases=(Alias("dLegerPeers", own_peer_port, "the own entry"),),
    )
    peers: Mapping[str, Address] = key(
        {},
        "addresses at which this node dials the *other* nodes of the group: a table `[peers.<node id>]` with `address "
        '= "host:port"` for each',
        takes="tables",
        aliases=(Alias("dLegerPeers", other_peers, "`n0-host:port;n1-host:port`"),),
        read=_peers,
    )
    namesrv: tuple[Address, ...] = key(
        (),
        "name servers; the node registers with every one",
        takes='a list of `"host:port"`',
        aliases=(Alias("namesrvAddr", note="`host:port;host:port`"),),
        read=_addresses,
    )
    http_port: int = key(
        -1,
        "port for metrics, health and status; 0 = none. It also accepts changes of [leadership and "
        "members](operations/cluster.md#changing-a-group) from clients that prove that they know the group's secret",
        bounds=(0, 65_535),
        shown="`port` + 2",
    )
    alias_port: int = key(
        -1,
        "port for producers that find this node as a [write alias](wire.md#write-aliases); 0 = none",
        bounds=(0, 65_535),
        shown="`port` + 3",
    )
    advertised_alias_port: int = key(
        0, "port for write aliases that name servers and clients are told", bounds=(0, 65_535), shown="`alias_port`"
    )


@dataclass(frozen=True, kw_only=True)
class TlsConnections(TlsPorts):
    """TLS of the connections that a node opens. It shows `tls_cert_file` if the other side requires a certificate."""

    tls_namesrv_ca_file: Path | None = key(
        None,
        "authorities of name servers' certificates in PEM; with this key the node speaks TLS to name servers",
    )
    tls_peer_ca_file: Path | None = key(
        None,
        "authorities of the certificates of this group's nodes in PEM. With this key nodes speak TLS to each other, "
        "and both sides show `tls_cert_file`. `secret_file` may be missing then: every holder of a certificate of "
        "these authorities counts as a node",
    )
    tls_peer_names: bool = key(
        False,
        "whether the certificate of a node of this group must name its `node_id`, as a DNS name or as its common "
        "name. Otherwise a node may show any certificate that an authority in `tls_peer_ca_file` has signed",
    )
    tls_check_names: bool = key(
        True,
        "whether the certificate of a dialled node or name server must name the host that the configuration has for it",
    )

    def peer_contexts(self) -> PeerTls | None:
        """Return the contexts of links between nodes, None if these are plain. Raises `dledger.errors.ConfigError`."""
        if self.tls_peer_ca_file is None:
            return None
        names = ("tls_cert_file", "tls_key_file", "tls_peer_ca_file")
        files = TlsFiles(self.tls_cert_file, self.tls_key_file, self.tls_peer_ca_file, names, self.tls_crl_file)
        return PeerTls(
            TlsContext.for_server(files, ssl.CERT_REQUIRED),
            TlsContext.for_client(files, check_names=self.tls_check_names),
            binds_names=self.tls_peer_names,
        )

    def name_server_context(self) -> TlsContext | None:
        """Return the context of connections to name servers, None if these are plain. Raises
        `dledger.errors.ConfigError`.
        """
        if self.tls_namesrv_ca_file is None:
            return None
        names = ("tls_cert_file", "tls_key_file", "tls_namesrv_ca_file")
        files = TlsFiles(self.tls_cert_file, self.tls_key_file, self.tls_namesrv_ca_file, names, self.tls_crl_file)
        return TlsContext.for_client(files, check_names=self.tls_check_names)

"""Limits, counters and credentials that all links of a node share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from dledger.types import Lane
from dledger_base.tls import TlsContext

Address = tuple[str, int]
"""Host and port."""


def format_address(address: Address) -> str:
    """Return `host:port`, with an IPv6 host in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Limits of a node's links.

    A message that would take a lane's queue past its limit is refused, not queued. `dial_timeout_s` is for both lanes
    of a peer together, `handshake_timeout_s` for each accepted connection. A peer is disconnected if its kernel
    acknowledges nothing for `dead_peer_timeout_s`, or if it does not read for so long while its window is full. (That
    is on Linux. Elsewhere only keepalive finds dead peers, in about the same time.)

    A link that was up for `settled_s` is dialled again at once when it is lost. Before that, and after a failure, there
    is a pause that doubles from `redial_min_s` to `redial_max_s`. Otherwise two processes that share a node id would
    displace each other without rest.

    `max_strangers` bounds the connections that have not proven themselves. One more displaces the oldest of the host
    that has most. `max_learned_peers` bounds the nodes that dialled in and are not in the configuration.
    """

    control_queue_bytes: int = 4 << 20
    bulk_queue_bytes: int = 64 << 20
    dial_timeout_s: float = 1.0
    handshake_timeout_s: float = 2.0
    dead_peer_timeout_s: float = 2.0
    redial_min_s: float = 0.02
    redial_max_s: float = 0.5
    settled_s: float = 1.0
    max_strangers: int = 64
    max_learned_peers: int = 16

    @classmethod
    def for_elections(cls, election_max_ms: int) -> Self:
        """Return the limits for a group with this election timeout. A long timeout means that the network is slow."""
        slow_s = max(1.0, election_max_ms / 1000)
        return cls(dial_timeout_s=slow_s, handshake_timeout_s=2 * slow_s, dead_peer_timeout_s=2 * slow_s)

    def queue_bytes(self, lane: Lane) -> int:
        """Return the limit of one lane's queue in bytes."""
        return self.control_queue_bytes if lane is Lane.CONTROL else self.bulk_queue_bytes


@dataclass(slots=True)
class LinkCounters:
    """Counters of a node's links since it started. They only grow.

    Bytes and frames are counted after the handshake. `connects` counts peers that became reachable, `reconnects` those
    that had been reachable before. `refused_sends` counts messages dropped because a queue was full. `task_restarts`
    counts how often dialling continued after an unexpected exception.
    """

    bytes_in: int = 0
    bytes_out: int = 0
    frames_in: int = 0
    frames_out: int = 0
    connects: int = 0
    reconnects: int = 0
    disconnects: int = 0
    dial_failures: int = 0
    auth_failures: int = 0
    rejected_hellos: int = 0
    protocol_errors: int = 0
    refused_strangers: int = 0
    refused_sends: int = 0
    task_restarts: int = 0


@dataclass(frozen=True, slots=True)
class PeerTls:
    """TLS for both directions. The contexts carry certificates and the checks of the other end's certificate.

    With `binds_names` a node's certificate must name its node id.
    """

    server: TlsContext
    client: TlsContext
    binds_names: bool = False

"""Limits, counters and credentials that all links of a node share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from dledger.net.tls import TlsContext
from dledger.types import Lane

Address = tuple[str, int]
"""Host and port."""


def format_address(address: Address) -> str:
    """`host:port`, an IPv6 host in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Bounds of a node's links.

    A message that would take a lane's queue past its bound is refused, not queued.  `dial_timeout_s` is for both lanes
    of a peer together, `handshake_timeout_s` for each accepted connection.  A peer whose kernel has not acknowledged
    anything for `dead_peer_timeout_s`, or that does not read for so long while its window is full, is disconnected
    (Linux; elsewhere only keepalive finds dead peers, in about as long).

    A link that stood for `settled_s` is dialled again at once when it is lost.  Before that, and after a failure, there
    is a pause that doubles from `redial_min_s` to `redial_max_s`: two processes that share a node id would otherwise
    displace each other without rest.

    `max_strangers` bounds the connections that have not proven themselves: one more takes the place of the oldest from
    the host that has most.  `max_learned_peers` bounds the nodes that dialled in and that no configuration names.
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
        """The bounds of a group whose elections are as slow: whoever bears long pauses there has a slow network."""
        slow_s = max(1.0, election_max_ms / 1000)
        return cls(dial_timeout_s=slow_s, handshake_timeout_s=2 * slow_s, dead_peer_timeout_s=2 * slow_s)

    def queue_bytes(self, lane: Lane) -> int:
        """The bound of one lane's queue."""
        return self.control_queue_bytes if lane is Lane.CONTROL else self.bulk_queue_bytes


@dataclass(slots=True)
class LinkCounters:
    """What happened on a node's links since it started; every number only grows.

    Bytes and frames are counted after the handshake.  `connects` counts peers that became reachable, `reconnects` those
    of them that had been before, `refused_sends` messages dropped because a queue was full, `task_restarts` how often
    dialling went on after an unexpected exception.
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
    """TLS for both directions; the contexts carry certificates and what is checked of the other end's."""

    server: TlsContext
    client: TlsContext

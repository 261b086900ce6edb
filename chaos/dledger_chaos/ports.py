"""Ports of 127.0.0.1 for one cluster behind proxies, below the range of outgoing connections.

| offset in a group's block of 100 | port of |
|---|---|
| 10 k … 10 k + 5 | node k; our brokers use four: clients, peers, HTTP, write alias |
| 50 … 89 | the group's proxies |
| 93, 94 (first block only) | the proxies for RocketMQ 5's clients |
| 95, 96, 97 (first block only) | the name server, toxiproxy's API, the second name server |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dledger_client.testing.ports import GROUP_STEP, NODE_STEP, find_free_block

from .errors import ChaosError

__all__ = [
    "API",
    "GROUP_STEP",
    "GRPC_PROXIES",
    "NAMESRV",
    "NODE_PORTS",
    "NODE_STEP",
    "PROXIES",
    "SECOND_NAMESRV",
    "find_base_port",
    "proxy_ports",
]

NODE_PORTS: Final = 6
PROXIES: Final = range(50, 90)
GRPC_PROXIES: Final = (93, 94)
NAMESRV: Final = 95
API: Final = 96
SECOND_NAMESRV: Final = 97


def find_base_port(groups: int, nodes: int) -> int:
    """Return a base port whose whole block is free now; raises `ChaosError` if there is none."""
    try:
        return find_free_block(_iter_offsets(groups, nodes))
    except OSError as error:
        raise ChaosError(str(error)) from error


def proxy_ports(base: int, group: int) -> Iterator[int]:
    """Yield the ports of a group's proxies."""
    return iter(range(base + GROUP_STEP * group + PROXIES.start, base + GROUP_STEP * group + PROXIES.stop))


def _iter_offsets(groups: int, nodes: int) -> Iterator[int]:
    for group in range(groups):
        start = GROUP_STEP * group
        yield from (start + NODE_STEP * node + port for node in range(nodes) for port in range(NODE_PORTS))
        yield from proxy_ports(0, group)
    yield from GRPC_PROXIES
    yield NAMESRV
    yield API
    yield SECOND_NAMESRV

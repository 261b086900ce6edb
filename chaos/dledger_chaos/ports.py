"""Ports of 127.0.0.1 for one cluster behind proxies, below the range that outgoing connections are given.

| offset in a group's block of 100 | is |
|---|---|
| 10 k … 10 k + 5 | node k; of ours: clients, peers, HTTP |
| 50 … 89 | the group's proxies |
| 95, 96 (first block only) | the name server, toxiproxy's API |
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from typing import Final

from .errors import ChaosError

FIRST_BASE_PORT: Final = 20_000
LAST_BASE_PORT: Final = 31_000
GROUP_STEP: Final = 100
NODE_STEP: Final = 10
NODE_PORTS: Final = 6
PROXIES: Final = range(50, 90)
NAMESRV: Final = 95
API: Final = 96

_HOST: Final = "127.0.0.1"


def find_base_port(groups: int, nodes: int) -> int:
    """Return a base port whose whole block is free now; raises `ChaosError` if there is none."""
    candidates = list(range(FIRST_BASE_PORT, LAST_BASE_PORT, GROUP_STEP))
    random.SystemRandom().shuffle(candidates)  # clusters that start side by side rarely meet
    for base in candidates:
        if all(map(_is_free, _block(base, groups, nodes))):
            return base
    raise ChaosError(f"no block of free ports between {FIRST_BASE_PORT} and {LAST_BASE_PORT}")


def proxy_ports(base: int, group: int) -> Iterator[int]:
    """Yield the ports of a group's proxies."""
    return iter(range(base + GROUP_STEP * group + PROXIES.start, base + GROUP_STEP * group + PROXIES.stop))


def _block(base: int, groups: int, nodes: int) -> Iterator[int]:
    for group in range(groups):
        start = base + GROUP_STEP * group
        yield from (start + NODE_STEP * node + port for node in range(nodes) for port in range(NODE_PORTS))
        yield from proxy_ports(base, group)
    yield base + NAMESRV
    yield base + API


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
    return True

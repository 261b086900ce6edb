"""Finding free ports on 127.0.0.1 for a cluster's block."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable
from typing import Final

FIRST_BASE_PORT: Final = 20_000
LAST_BASE_PORT: Final = 31_000
"""Below the range from which the system takes ports for outgoing connections."""

GROUP_STEP: Final = 100
NODE_STEP: Final = 10
PORTS_PER_NODE: Final = 3
"""Client, peers, HTTP."""

NAMESRV_OFFSET: Final = 95


def block_ports(base_port: int, groups: int, nodes: int) -> list[int]:
    """All ports of a cluster whose first node has `base_port`, the name server's last."""
    brokers = [
        base_port + GROUP_STEP * group + NODE_STEP * node + offset
        for group in range(groups)
        for node in range(nodes)
        for offset in range(PORTS_PER_NODE)
    ]
    return [*brokers, base_port + NAMESRV_OFFSET]


def find_base_port(groups: int, nodes: int) -> int:
    """A base port whose whole block is free now. Raises OSError if there is none.

    Blocks are tried in random order, so that tests which run side by side rarely meet.
    """
    candidates = list(range(FIRST_BASE_PORT, LAST_BASE_PORT, GROUP_STEP))
    random.shuffle(candidates)
    for base_port in candidates:
        if _all_free(block_ports(base_port, groups, nodes)):
            return base_port
    raise OSError(f"no block of free ports for {groups} x {nodes} nodes from {FIRST_BASE_PORT} to {LAST_BASE_PORT}")


def _all_free(ports: Iterable[int]) -> bool:
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True

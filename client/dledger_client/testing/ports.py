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
PORTS_PER_NODE: Final = 4
"""Client, peers, HTTP, alias."""

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
    """A base port whose whole block is free now. Raises OSError if there is none."""
    return find_free_block(block_ports(0, groups, nodes), FIRST_BASE_PORT, LAST_BASE_PORT)


def find_free_block(offsets: Iterable[int], first: int = FIRST_BASE_PORT, last: int = LAST_BASE_PORT) -> int:
    """A base port from `first` up to `last`, exclusive, with base + each offset free now. Raises OSError if none is.

    Blocks are `GROUP_STEP` apart, and tried in an order that no seed decides, so that clusters which start side by side
    rarely meet.
    """
    wanted = list(offsets)
    candidates = range(first, last, GROUP_STEP)
    for base_port in random.SystemRandom().sample(candidates, len(candidates)):
        if all(_is_free(base_port + offset) for offset in wanted):
            return base_port
    raise OSError(f"no block of free ports for {len(wanted)} listeners from {first} to {last} on 127.0.0.1")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

"""Free ports on 127.0.0.1: a cluster of a test gets a block of them."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Iterable
from typing import Final

FIRST_BASE_PORT: Final = 20_000
LAST_BASE_PORT: Final = 31_000
"""Upper end of the base ports. It is below the range from which the system takes ports for outgoing connections."""

GROUP_STEP: Final = 100
NODE_STEP: Final = 10
PORTS_PER_NODE: Final = 4
"""Number of ports of a node: client, peers, HTTP, alias."""

NAMESRV_OFFSET: Final = 95

CLAIM_OFFSET: Final = 99
"""Offset of a block's port on which only the process that owns the block listens, for as long as it lives."""
OWN_BLOCKS: Final = 8
"""Number of blocks that a process claims before it reuses its own blocks, whose clusters have ended."""


def block_ports(base_port: int, groups: int, nodes: int) -> list[int]:
    """Return all ports of a cluster whose first node has `base_port`, the name server's last."""
    brokers = [
        base_port + GROUP_STEP * group + NODE_STEP * node + offset
        for group in range(groups)
        for node in range(nodes)
        for offset in range(PORTS_PER_NODE)
    ]
    return [*brokers, base_port + NAMESRV_OFFSET]


def find_base_port(groups: int, nodes: int) -> int:
    """Return a base port whose whole block is free now. Raises OSError without a free block."""
    return find_free_block(block_ports(0, groups, nodes), FIRST_BASE_PORT, LAST_BASE_PORT)


def find_free_block(offsets: Iterable[int], first: int = FIRST_BASE_PORT, last: int = LAST_BASE_PORT) -> int:
    """Return a base port from `first` up to `last`, exclusive, with base + each offset free now. Raises OSError if none
    is.

    Blocks are `GROUP_STEP` apart, and tried in a random order that no seed decides. A block belongs to one process as
    long as that lives. Without this, nothing would reserve the ports before a node is started, and while it is down.
    """
    global _blocks  # noqa: PLW0603 - one for each process, a forked one too
    with _LOCK:
        if _blocks is None or _blocks.pid != os.getpid():
            _blocks = _Blocks()
        return _blocks.give(list(offsets), range(first, last, GROUP_STEP))


class _Blocks:
    """Blocks that belong to this process, by their first ports, in the order in which they were given."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._claims: dict[int, socket.socket] = {}
        self._ports_by_block: dict[int, set[int]] = {}

    def give(self, offsets: list[int], bases: range) -> int:
        """Return a base port whose blocks belong to this process now. Raises OSError without a free block."""
        claimed = set(self._claims)
        spans = {
            base: {base + offset for offset in offsets} for base in [*self._claims, *_shuffle(bases)] if base in bases
        }
        own_blocks = [base for base, ports in spans.items() if claimed.intersection(_blocks_of(base, ports))]
        other_blocks = [base for base in spans if base not in own_blocks]
        for base in [*own_blocks, *other_blocks] if len(claimed) >= OWN_BLOCKS else [*other_blocks, *own_blocks]:
            if self._claim_blocks(base, spans[base]):
                return base
        raise OSError(
            f"no block of free ports for {len(offsets)} listeners from {bases.start} to {bases.stop} on 127.0.0.1"
        )

    def _claim_blocks(self, base: int, ports: set[int]) -> bool:
        firsts = _blocks_of(base, ports)
        if not all(map(_is_free, ports.union(*(self._ports_by_block.get(first, ()) for first in firsts)))):
            return False
        claims: dict[int, socket.socket] = {}
        for first in firsts:
            claim = self._claims.get(first) or _claim_block(first)
            if claim is None:
                for new_block in claims.keys() - self._claims.keys():
                    claims[new_block].close()
                return False
            claims[first] = claim
        for first, claim in claims.items():
            self._claims.pop(first, None)
            self._claims[first] = claim
            self._ports_by_block[first] = {port for port in ports if first <= port < first + GROUP_STEP}
        return True


_LOCK: Final = threading.Lock()
_blocks: _Blocks | None = None


def _shuffle(bases: range) -> list[int]:
    return random.SystemRandom().sample(bases, len(bases))


def _blocks_of(base: int, ports: set[int]) -> list[int]:
    """Return the first ports of the blocks that contain these ports. The first block begins at `base`."""
    return sorted({port - (port - base) % GROUP_STEP for port in ports})


def _claim_block(first: int) -> socket.socket | None:
    """Return a server that marks a block as owned; None if another process owns it."""
    try:
        return socket.create_server(("127.0.0.1", first + CLAIM_OFFSET))
    except OSError:
        return None


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

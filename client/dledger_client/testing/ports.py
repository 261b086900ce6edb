"""Finding free ports on 127.0.0.1 for a cluster's block."""

from __future__ import annotations

import os
import random
import socket
import threading
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

CLAIM_OFFSET: Final = 99
"""On this port of a block listens the process to which it was given, for as long as it lives, and nobody else."""
OWN_BLOCKS: Final = 8
"""So many blocks a process is given before it gets those again whose clusters have ended."""


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

    Blocks are `GROUP_STEP` apart, and tried in an order that no seed decides. No other process that asks here is given
    one of the same: until a node is started, and whenever it is down, nothing else says whose its ports are.
    """
    global _blocks  # noqa: PLW0603 - one for each process, a forked one too
    with _LOCK:
        if _blocks is None or _blocks.pid != os.getpid():
            _blocks = _Blocks()
        return _blocks.give(list(offsets), range(first, last, GROUP_STEP))


class _Blocks:
    """Blocks that belong to this process, by their first ports, those given longest ago first."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._claims: dict[int, socket.socket] = {}
        self._given: dict[int, set[int]] = {}

    def give(self, offsets: list[int], bases: range) -> int:
        """A base port whose block, or blocks, are this process's now. Raises OSError if there is none."""
        claimed = set(self._claims)
        spans = {
            base: {base + offset for offset in offsets} for base in [*self._claims, *_shuffled(bases)] if base in bases
        }
        own = [base for base, ports in spans.items() if claimed.intersection(_blocks_of(base, ports))]
        others = [base for base in spans if base not in own]
        for base in [*own, *others] if len(claimed) >= OWN_BLOCKS else [*others, *own]:
            if self._take(base, spans[base]):
                return base
        raise OSError(
            f"no block of free ports for {len(offsets)} listeners from {bases.start} to {bases.stop} on 127.0.0.1"
        )

    def _take(self, base: int, ports: set[int]) -> bool:
        firsts = _blocks_of(base, ports)
        if not all(map(_is_free, ports.union(*(self._given.get(first, ()) for first in firsts)))):
            return False
        claims: dict[int, socket.socket] = {}
        for first in firsts:
            claim = self._claims.get(first) or _claimed(first)
            if claim is None:
                for taken in claims.keys() - self._claims.keys():
                    claims[taken].close()
                return False
            claims[first] = claim
        for first, claim in claims.items():
            self._claims.pop(first, None)
            self._claims[first] = claim
            self._given[first] = {port for port in ports if first <= port < first + GROUP_STEP}
        return True


_LOCK: Final = threading.Lock()
_blocks: _Blocks | None = None


def _shuffled(bases: range) -> list[int]:
    return random.SystemRandom().sample(bases, len(bases))


def _blocks_of(base: int, ports: set[int]) -> list[int]:
    """The first ports of the blocks that lie at `base` and have these ports."""
    return sorted({port - (port - base) % GROUP_STEP for port in ports})


def _claimed(first: int) -> socket.socket | None:
    """A server that says whose a block is; None if another process was given it."""
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

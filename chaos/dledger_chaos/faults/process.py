"""Processes that die, are asked to leave, or stand still."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from ..convergence import wait_caught_up
from ..target import Target
from .base import FaultKind

LONGEST_PAUSE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL, all at the same moment; healed by starting them again."""

    nodes: tuple[str, ...]

    async def inject(self, target: Target) -> None:
        """See `Fault.inject`."""
        await target.kill(self.nodes)

    async def heal(self, target: Target) -> None:
        """See `Fault.heal`."""
        await asyncio.gather(*map(target.start_node, self.nodes))


@dataclass(frozen=True, slots=True)
class Terminate:
    """SIGTERM: they hand over, drain and leave; healed by starting them again."""

    nodes: tuple[str, ...]

    async def inject(self, target: Target) -> None:
        """See `Fault.inject`."""
        await asyncio.gather(*map(target.stop_node, self.nodes))

    async def heal(self, target: Target) -> None:
        """See `Fault.heal`."""
        await asyncio.gather(*map(target.start_node, self.nodes))


@dataclass(frozen=True, slots=True)
class Pause:
    """SIGSTOP: connections stay open, nothing moves, clocks go on; healed by SIGCONT."""

    nodes: tuple[str, ...]

    async def inject(self, target: Target) -> None:
        """See `Fault.inject`."""
        for node in self.nodes:
            target.pause(node)

    async def heal(self, target: Target) -> None:
        """See `Fault.heal`."""
        for node in self.nodes:
            target.resume(node)


@dataclass(frozen=True, slots=True)
class RollingRestart:
    """One node after the other leaves, comes back, and has caught up before the next one leaves."""

    nodes: tuple[str, ...]

    async def inject(self, target: Target) -> None:
        """See `Fault.inject`."""
        for node in self.nodes:
            await target.stop_node(node)
            await target.start_node(node)
            await wait_caught_up(target, node)

    async def heal(self, target: Target) -> None:
        """See `Fault.heal`."""
        await asyncio.gather(*map(target.start_node, self.nodes))


KINDS: Final = (
    FaultKind("kill-leader", "process", "SIGKILL the leader", lambda s: Kill((s.a_leader(),))),
    FaultKind("kill-follower", "process", "SIGKILL a follower", lambda s: Kill((s.a_follower(),))),
    FaultKind("kill-majority", "process", "SIGKILL a majority at once", lambda s: Kill(s.majority())),
    FaultKind("kill-all", "process", "SIGKILL all nodes of a group at once", lambda s: Kill(s.members), (0.0, 2.0)),
    FaultKind(
        "kill-namesrv",
        "process",
        "SIGKILL a name server",
        lambda s: Kill((s.a_name_server(),)),
        (0.0, 10.0),
        needs=frozenset({"namesrv"}),
    ),
    FaultKind("terminate-leader", "process", "SIGTERM the leader", lambda s: Terminate((s.a_leader(),))),
    FaultKind("terminate-follower", "process", "SIGTERM a follower", lambda s: Terminate((s.a_follower(),))),
    FaultKind(
        "pause-leader", "process", "SIGSTOP the leader", lambda s: Pause((s.a_leader(),)), (1.0, LONGEST_PAUSE_S)
    ),
    FaultKind(
        "pause-follower", "process", "SIGSTOP a follower", lambda s: Pause((s.a_follower(),)), (1.0, LONGEST_PAUSE_S)
    ),
    FaultKind("pause-majority", "process", "SIGSTOP a majority", lambda s: Pause(s.majority()), (1.0, 10.0)),
    FaultKind(
        "rolling-restart",
        "process",
        "SIGTERM and start all nodes, one after the other",
        lambda s: RollingRestart(tuple(s.rng.sample(s.members, len(s.members)))),
        (0.0, 0.0),
        alone=True,
    ),
)

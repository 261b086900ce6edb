"""Processes that are killed, terminated, or paused."""

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
    """SIGKILL for all nodes at the same moment. A new start heals the fault."""

    nodes: tuple[str, ...]

    async def inject(self, target: Target) -> None:
        """Inject the fault."""
        await target.kill(self.nodes)

    async def heal(self, target: Target) -> None:
        """End the fault."""
        await asyncio.gather(*map(target.start_node, self.nodes))


@dataclass(frozen=True, slots=True)
class Terminate:
    """SIGTERM: nodes transfer leadership, drain and end. A new start heals the fault."""

    nodes: tuple[str, ...]

    async def inject(self, target: Target) -> None:
        """Inject the fault."""
        await asyncio.gather(*map(target.stop_node, self.nodes))

    async def heal(self, target: Target) -> None:
        """End the fault."""
        await asyncio.gather(*map(target.start_node, self.nodes))


@dataclass(frozen=True, slots=True)
class Pause:
    """SIGSTOP: connections stay open, the process does nothing, clocks continue. SIGCONT heals the fault."""

    nodes: tuple[str, ...]

    async def inject(self, target: Target) -> None:
        """Inject the fault."""
        for node in self.nodes:
            target.pause(node)

    async def heal(self, target: Target) -> None:
        """End the fault."""
        for node in self.nodes:
            target.resume(node)


@dataclass(frozen=True, slots=True)
class RollingRestart:
    """Each node in turn stops, starts, and catches up before the next node stops."""

    nodes: tuple[str, ...]

    async def inject(self, target: Target) -> None:
        """Inject the fault."""
        for node in self.nodes:
            await target.stop_node(node)
            await target.start_node(node)
            await wait_caught_up(target, node)

    async def heal(self, target: Target) -> None:
        """End the fault."""
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

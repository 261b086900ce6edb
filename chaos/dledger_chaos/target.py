"""Interface of the system under test: what faults and workloads may know of it, and do to it.

A target is a cluster of processes behind a mesh of proxies.  Everything that a fault does goes through this protocol,
so that a fault knows nothing of how a particular system is started.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from .disk.control import DiskControl
from .toxiproxy.mesh import Mesh

FaultClass = Literal["process", "network", "disk", "power", "clock", "membership", "namesrv"]
"""What a target can suffer; a target's `capabilities` are some of these."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """What a node says of itself.  Positions are bytes of the log; `voters` are node ids."""

    node_id: str
    group: str
    role: str
    term: int
    ready: bool
    commit_index: int = 0
    applied_index: int = 0
    first_position: int = 0
    durable_position: int = 0
    voters: tuple[str, ...] = ()

    @property
    def leads(self) -> bool:
        """It leads its group and serves clients."""
        return self.role == "leader" and self.ready


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What does not change about a node: where clients and observers reach it, and where its files are."""

    node_id: str
    group: str
    client_address: str
    http_address: str
    directory: Path
    log_files: tuple[Path, ...]


class Target(Protocol):
    """A cluster under test.  Names are node ids; all waiting is awaited, nothing blocks the event loop."""

    @property
    def kind(self) -> str:
        """The target's name on the command line."""

    @property
    def namesrv(self) -> str:
        """What clients are told."""

    @property
    def nodes(self) -> Sequence[NodeFacts]:
        """All founding nodes, group by group."""

    @property
    def others(self) -> Sequence[str]:
        """Processes of the product that are no nodes, which no fault ends; `pid` knows them."""

    @property
    def other_logs(self) -> Sequence[Path]:
        """What processes of the product print that are no nodes."""

    @property
    def capabilities(self) -> frozenset[str]:
        """The classes of faults it can take, and what workloads may use besides."""

    @property
    def mesh(self) -> Mesh:
        """The links between its processes."""

    def disk(self, node_id: str) -> DiskControl:
        """A node's disk and clock; only for a target that can take such faults."""

    def pid(self, node_id: str) -> int | None:
        """The process of a node, or of one of `others`; None if it does not run."""

    def was_stopped(self, pid: int) -> bool:
        """Whether the rig ended this process of a node: everything else that ends has a reason of its own."""

    async def status(self, node_id: str) -> NodeView | None:
        """What a node says of itself, None if it does not answer."""

    async def start_node(self, node_id: str) -> None:
        """Start a node unless it runs, and wait until it answers; raises `TargetError`."""

    async def stop_node(self, node_id: str) -> None:
        """Ask a node to leave in good order (SIGTERM) and wait; nothing happens if it does not run."""

    async def kill(self, node_ids: Sequence[str]) -> None:
        """SIGKILL nodes as close to the same moment as can be, and wait until they are gone."""

    def pause(self, node_id: str) -> None:
        """SIGSTOP a node; nothing happens if it does not run."""

    def resume(self, node_id: str) -> None:
        """SIGCONT a node; nothing happens if it does not run."""

    async def transfer_leadership(self, node_id: str) -> None:
        """Have its group's leader hand over to a node; raises `TargetError` if that cannot be asked for."""

    async def remove_member(self, node_id: str) -> None:
        """Have its group's leader remove a node from the group; raises `TargetError` if that cannot be asked for."""

    async def lose_power(self, node_ids: Sequence[str], kept_share: float, seed: int) -> None:
        """Kill nodes as `kill` does, and take back what they had not synced before anybody can start them."""

    async def wipe(self, node_id: str) -> None:
        """Remove all data of a stopped node, as a new disk in its machine would."""

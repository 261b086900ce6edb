"""Interface of the system under test, for faults and workloads.

A target is a cluster of processes behind a mesh of proxies. Faults act only through this protocol, so that they do not
depend on a particular system.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from .disk.control import DiskControl
from .toxiproxy.mesh import Mesh

FaultClass = Literal["process", "network", "disk", "power", "clock", "membership", "namesrv", "proxies"]
"""Class of faults. A target's `capabilities` are some of these."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node's own view.  Positions are bytes of the log; `voters` are node ids."""

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
        """True if the node leads its group and serves clients."""
        return self.role == "leader" and self.ready


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Constant facts of a node: its addresses for clients and observers, and its files."""

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
        """Addresses of the name servers for clients."""

    @property
    def nodes(self) -> Sequence[NodeFacts]:
        """All founding nodes, group by group."""

    @property
    def others(self) -> Sequence[str]:
        """Names of the product's processes other than nodes: name servers and proxies. `pid` accepts them, too."""

    @property
    def other_logs(self) -> Sequence[Path]:
        """Log files of the product's processes other than nodes."""

    @property
    def capabilities(self) -> frozenset[str]:
        """The classes of faults that it can take, and the capabilities that workloads need."""

    @property
    def mesh(self) -> Mesh:
        """The links between its processes."""

    def disk(self, node_id: str) -> DiskControl:
        """Return a node's disk and clock; only for a target that can take such faults."""

    def pid(self, node_id: str) -> int | None:
        """Return the process of a node, or of one of `others`; None if it does not run."""

    def was_stopped(self, pid: int) -> bool:
        """Return True if the rig stopped or killed this process of a node."""

    async def status(self, node_id: str) -> NodeView | None:
        """Return a node's own view, None if it does not answer."""

    async def start_node(self, node_id: str) -> None:
        """Start a node unless it runs, and wait until it answers; raises `TargetError`."""

    async def found_again(self, node_id: str) -> None:
        """Start a node with an empty directory and `--bootstrap`, as for the founding of its group.

        Return once its process runs. The node does not serve before its peers have answered it.
        """

    async def stop_node(self, node_id: str) -> None:
        """Stop a node in an orderly way (SIGTERM) and wait; do nothing if it does not run."""

    async def kill(self, node_ids: Sequence[str]) -> None:
        """Kill nodes (SIGKILL), all as close to the same time as possible, and wait until they have ended."""

    def pause(self, node_id: str) -> None:
        """Pause a node (SIGSTOP); do nothing if it does not run."""

    def slow_down(self, node_id: str, run_s: float, stand_s: float) -> None:
        """Slow a node down: pause it (SIGSTOP) for `stand_s` after every `run_s`, until `resume`."""

    def resume(self, node_id: str) -> None:
        """Resume a node (SIGCONT), and end its slow-down; do nothing if it does not run."""

    async def transfer_leadership(self, node_id: str) -> None:
        """Let a group's leader transfer its leadership to a node. Raises `TargetError` if the target cannot do that."""

    async def remove_member(self, node_id: str) -> None:
        """Let a group's leader remove a node from the group. Raises `TargetError` if the target cannot do that."""

    async def lose_power(self, node_ids: Sequence[str], kept_share: float, seed: int) -> None:
        """Kill nodes as `kill` does, and undo their unsynced writes before they can be started."""

    async def wipe(self, node_id: str) -> None:
        """Remove all data of a stopped node, as a new disk in its machine would."""

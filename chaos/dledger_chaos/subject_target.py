"""Register nodes as a target: our replicated log used directly, or stock PySyncObj, under the same faults.

The nodes are child processes (`subjects.group`). There is no name server. A node is observed by its client port,
without the proxy.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from . import ports
from .disk.build import disk_shim
from .disk.control import DiskControl, shim_environment
from .disk.undo import forget
from .errors import TargetError
from .signalled import SignalledNodes
from .subjects.client import SubjectClient
from .subjects.group import Address, Kind, SubjectGroup
from .target import NodeFacts, NodeView
from .toxiproxy.mesh import CLIENTS, Link, Mesh
from .toxiproxy.proxies import Proxies
from .toxiproxy.server import HOST

GROUP: Final = "registers"
NODE_IDS: Final = ("a", "b", "c")
START_S: Final = 30.0
STATUS_S: Final = 1.0

REGISTER_CAPABILITIES: Final = frozenset({"process", "network", "power", "clock", "register"})
PYSYNCOBJ_CAPABILITIES: Final = frozenset({"process", "network", "clock", "register"})
"""Its journal is written through mmap, so the disk shim cannot see unsynced writes, and power losses are impossible."""

_POLL_S: Final = 0.05


class SubjectTarget(SignalledNodes):
    """Three register nodes of one kind in `directory`; `environment` is added to their environment.

    Use it as an async context.
    """

    namesrv = ""
    others: Sequence[str] = ()
    other_logs: Sequence[Path] = ()
    stop_s = 20.0

    def __init__(
        self, kind: Kind, directory: Path, *, seed: int = 0, environment: Mapping[str, str] | None = None
    ) -> None:
        self.kind = "pysyncobj" if kind == "pysyncobj_node" else "register"
        self.directory = directory.resolve()
        self._subject_kind = kind
        self._environment = environment or {}
        self._proxies = Proxies(self.directory, seed)
        self._shim_directory = self.directory / "disks"
        self._disks: dict[str, DiskControl] = {}
        super().__init__()
        self._group: SubjectGroup | None = None

    @property
    def capabilities(self) -> frozenset[str]:
        """The classes of faults that this target can suffer."""
        return PYSYNCOBJ_CAPABILITIES if self.kind == "pysyncobj" else REGISTER_CAPABILITIES

    @property
    def nodes(self) -> Sequence[NodeFacts]:
        """The nodes and their places."""
        return [
            NodeFacts(
                node,
                GROUP,
                self.mesh.address(CLIENTS, node),
                "",
                self.directory / node,
                (self.directory / f"{node}.log",),
            )
            for node in NODE_IDS
        ]

    @property
    def mesh(self) -> Mesh:
        """The proxied links."""
        return self._proxies.mesh

    async def __aenter__(self) -> Self:
        try:
            await self._start_processes()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Kill everything; the data stays."""
        if self._group is not None:
            await asyncio.to_thread(self._group.stop)
        await self._proxies.stop()

    def disk(self, node_id: str) -> DiskControl:
        """Return the control of a node's disk and clock."""
        return self._disks[node_id]

    def pid(self, node_id: str) -> int | None:
        """Return the pid of a node's process, None if it does not run."""
        return None if self._group is None else self._group[node_id].pid

    async def status(self, node_id: str) -> NodeView | None:
        """Return a node's own view, None if it does not answer."""
        if self._group is None or self.pid(node_id) is None:
            return None
        async with SubjectClient(self._group.client_addresses[node_id]) as client:
            answer = await client.call("status", timeout_s=STATUS_S)
        if not answer.ok or not isinstance(answer.value, dict):
            return None
        status = answer.value
        voters = status["voters"]
        return NodeView(
            node_id,
            GROUP,
            str(status["role"]),
            int(str(status["term"])),
            status["ready"] is True,
            commit_index=int(str(status["commit_index"])),
            applied_index=int(str(status["applied_index"])),
            voters=tuple(map(str, voters)) if isinstance(voters, list) else (),
        )

    async def _launch(self, node_id: str) -> None:
        if self._group is None:
            raise TargetError("the group is not started")
        self._group[node_id].start()
        try:
            async with asyncio.timeout(START_S):
                while await self.status(node_id) is None:
                    if self.pid(node_id) is None:
                        raise TargetError(f"{node_id} ended: see {self._group[node_id].log}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise TargetError(f"{node_id} did not answer within {START_S:g} s") from None

    async def transfer_leadership(self, node_id: str) -> None:
        """Raise `TargetError`: this target has no such command."""
        raise TargetError(f"{node_id} is a register node: leadership is not handed over on demand")

    async def remove_member(self, node_id: str) -> None:
        """Raise `TargetError`: this target has no such command."""
        raise TargetError(f"{node_id} is a register node: its group does not change")

    async def wipe(self, node_id: str) -> None:
        """Empty a stopped node's directory."""
        async with self._block_starts([node_id]):
            await asyncio.to_thread(shutil.rmtree, self.directory / node_id)
            await asyncio.to_thread(forget, self._shim_directory / node_id)

    def _find_disk_directories(self, node_id: str) -> tuple[Path, Path]:
        return self._shim_directory / node_id, self.directory / node_id

    async def _start_processes(self) -> None:
        await self._proxies.build()
        library = await asyncio.to_thread(disk_shim)
        self.directory.mkdir(parents=True, exist_ok=True)
        base = ports.find_base_port(1, len(NODE_IDS))
        clients: dict[str, Address] = {node: (HOST, base + ports.NODE_STEP * at) for at, node in enumerate(NODE_IDS)}
        peers: dict[str, Address] = {node: (HOST, port + 1) for node, (_, port) in clients.items()}
        listen = ports.proxy_ports(base, 0)
        links = [
            Link(source, node, next(listen), f"{HOST}:{(clients if source == CLIENTS else peers)[node][1]}")
            for node in NODE_IDS
            for source in (*NODE_IDS, CLIENTS)
            if source != node
        ]
        await self._proxies.start(base + ports.API, links)
        self._disks = {node: DiskControl(self._shim_directory / node) for node in NODE_IDS}
        shim = shim_environment(library, self.directory, self._shim_directory)
        self._group = SubjectGroup(
            self._subject_kind,
            self.directory,
            node_ids=NODE_IDS,
            dial={(link.source, link.target): (HOST, link.listen) for link in links if link.source != CLIENTS},
            client_addresses=clients,
            peer_addresses=peers,
            environments={node: {**shim, **self._environment, "SHIM_NODE": node} for node in NODE_IDS},
        )
        self._group.start()
        try:
            await self._group.leader(voters=len(NODE_IDS))
        except TimeoutError:
            raise TargetError(f"no leader of {len(NODE_IDS)} voters: see {self.directory}/*.log") from None
        for disk in self._disks.values():
            disk.require_shim()

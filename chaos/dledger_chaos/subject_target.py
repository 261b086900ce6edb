"""Register nodes as a target: our replicated log used directly, or stock PySyncObj, under the same faults.

The processes are children of this one (`subjects.group`).  There is no name server, and a node is observed over its own
client port, past the proxy.
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
"""Its journal is written through mmap, where no library sees what was synced: power losses cannot be played."""

_POLL_S: Final = 0.05


class SubjectTarget(SignalledNodes):
    """Three register nodes of one kind in `directory`, with `environment` beside their own.

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
        self._subject = kind
        self._environment = environment or {}
        self._proxies = Proxies(self.directory, seed)
        self._state = self.directory / "disks"
        self._disks: dict[str, DiskControl] = {}
        super().__init__()
        self._group: SubjectGroup | None = None

    @property
    def capabilities(self) -> frozenset[str]:
        """See `Target.capabilities`."""
        return PYSYNCOBJ_CAPABILITIES if self.kind == "pysyncobj" else REGISTER_CAPABILITIES

    @property
    def nodes(self) -> Sequence[NodeFacts]:
        """See `Target.nodes`."""
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
        """See `Target.mesh`."""
        return self._proxies.mesh

    async def __aenter__(self) -> Self:
        try:
            await self._start()
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
        """See `Target.disk`."""
        return self._disks[node_id]

    def pid(self, node_id: str) -> int | None:
        """See `Target.pid`."""
        return None if self._group is None else self._group[node_id].pid

    async def status(self, node_id: str) -> NodeView | None:
        """See `Target.status`."""
        if self._group is None or self.pid(node_id) is None:
            return None
        async with SubjectClient(self._group.client_addresses[node_id]) as client:
            answer = await client.call("status", timeout_s=STATUS_S)
        if not answer.ok or not isinstance(answer.value, dict):
            return None
        said = answer.value
        voters = said["voters"]
        return NodeView(
            node_id,
            GROUP,
            str(said["role"]),
            int(str(said["term"])),
            said["ready"] is True,
            commit_index=int(str(said["commit_index"])),
            applied_index=int(str(said["applied_index"])),
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
        """See `Target.transfer_leadership`; not for this target."""
        raise TargetError(f"{node_id} is a register node: leadership is not handed over on demand")

    async def remove_member(self, node_id: str) -> None:
        """See `Target.remove_member`; not for this target."""
        raise TargetError(f"{node_id} is a register node: its group does not change")

    async def wipe(self, node_id: str) -> None:
        """See `Target.wipe`."""
        async with self._settled([node_id]):
            await asyncio.to_thread(shutil.rmtree, self.directory / node_id)
            await asyncio.to_thread(forget, self._state / node_id)

    def _disk_places(self, node_id: str) -> tuple[Path, Path]:
        return self._state / node_id, self.directory / node_id

    async def _start(self) -> None:
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
        self._disks = {node: DiskControl(self._state / node) for node in NODE_IDS}
        shim = shim_environment(library, self.directory, self._state)
        self._group = SubjectGroup(
            self._subject,
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

"""A real RocketMQ as a target: a name server and a DLedger group of three brokers, from the published jars.

Brokers dial each other and the name server through proxies. A broker announces `brokerIP1:listenPort` to clients, and
cannot announce another port. So the clients' proxies listen on the same port of 127.0.0.2.

The log is written through mmap, so the disk shim cannot see unsynced writes. The target takes faults of processes and
of the network only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, Self

from dledger_client import Admin, ClientError

from . import ports
from .disk.control import DiskControl
from .errors import TargetError
from .rocketmq_jars import java, rocketmq_jars
from .rocketmq_servers import Server, broker_config, config_path, namesrv_config, server_command
from .signalled import SignalledNodes
from .target import NodeFacts, NodeView
from .toxiproxy.mesh import CLIENTS, NAMESRV, Link, Mesh
from .toxiproxy.proxies import Proxies
from .toxiproxy.server import HOST

GROUP: Final = "broker-a"
NODE_IDS: Final = ("n0", "n1", "n2")
ADVERTISED_HOST: Final = "127.0.0.2"
ROCKETMQ_CAPABILITIES: Final = frozenset({"process", "network", "broker"})
START_S: Final = 120.0
STATUS_S: Final = 1.0

_CLIENT_PORT: Final = 2
"""Offset of the broker's port for clients. The broker also uses the port two below, for clients with priority."""
_HA_PORT: Final = 3
_RAFT_PORT: Final = 5
_POLL_S: Final = 0.2
_FILE_SIZES: Final = {
    "mappedFileSizeCommitLog": 67108864,
    "mappedFileSizeConsumeQueue": 1200000,
    "maxHashSlotNum": 500000,
    "maxIndexNum": 2000000,
}


class RocketmqTarget(SignalledNodes):
    """RocketMQ in `directory`.  Use it as an async context."""

    kind = "rocketmq"
    capabilities = ROCKETMQ_CAPABILITIES

    def __init__(self, directory: Path, *, seed: int = 0) -> None:
        self.directory = directory.resolve()
        self._proxies = Proxies(self.directory, seed)
        self._base_port = 0
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        super().__init__()
        self._jars = Path()
        self._admin: Admin | None = None

    @property
    def namesrv(self) -> str:
        """Address of the name server for clients."""
        return f"{HOST}:{self._base_port + ports.NAMESRV}"

    @property
    def nodes(self) -> Sequence[NodeFacts]:
        """The nodes and their places."""
        return [
            NodeFacts(node, GROUP, self.mesh.address(CLIENTS, node), "", self.directory / node, ()) for node in NODE_IDS
        ]

    @property
    def others(self) -> Sequence[str]:
        """No other processes: only the brokers are judged."""
        return ()

    @property
    def other_logs(self) -> Sequence[Path]:
        """No other logs: RocketMQ's output is not judged."""
        return ()

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
        if self._admin is not None:
            await self._admin.close()
            self._admin = None
        await self.kill([*NODE_IDS, NAMESRV])
        await self._proxies.stop()

    def disk(self, node_id: str) -> DiskControl:
        """Return the control of a node's disk and clock."""
        raise TargetError(f"{node_id} is a RocketMQ broker: its disk and clock take no faults")

    def pid(self, node_id: str) -> int | None:
        """Return the pid of a node's process, None if it does not run."""
        process = self._processes.get(node_id)
        return process.pid if process is not None and process.poll() is None else None

    async def status(self, node_id: str) -> NodeView | None:
        """Return a node's role by the name server. Terms and indexes are unknown."""
        if self.pid(node_id) is None or not await self._is_listening(node_id):
            return None
        leads = await self._find_leader_address() == self.mesh.address(CLIENTS, node_id)
        return NodeView(node_id, GROUP, "leader" if leads else "follower", 0, leads)

    async def _launch(self, node_id: str) -> None:
        if self.pid(node_id) is None:
            self._spawn(node_id, "broker")
        await self._wait_until(lambda: self._is_listening(node_id), f"{node_id} does not listen")

    async def transfer_leadership(self, node_id: str) -> None:
        """Raise `TargetError`: this target has no such command."""
        raise TargetError(f"{node_id} is a RocketMQ broker: leadership is not handed over on demand")

    async def remove_member(self, node_id: str) -> None:
        """Raise `TargetError`: this target has no such command."""
        raise TargetError(f"{node_id} is a RocketMQ broker: its group does not change")

    async def wipe(self, node_id: str) -> None:
        """Raise `TargetError`: this target has no such command."""
        raise TargetError(f"{node_id} is a RocketMQ broker: it is not wiped")

    def _find_disk_directories(self, node_id: str) -> tuple[Path, Path]:
        raise TargetError(f"{node_id} is a RocketMQ broker: what it had not synced is not known")

    async def _start_processes(self) -> None:
        java()
        self._jars = await asyncio.to_thread(rocketmq_jars)
        await self._proxies.build()
        self._base_port = ports.find_base_port(1, len(NODE_IDS))
        self.directory.mkdir(parents=True, exist_ok=True)
        await self._proxies.start(self._base_port + ports.API, self._make_links())
        self._write_config(NAMESRV, namesrv_config(self.directory / NAMESRV, self._base_port + ports.NAMESRV))
        self._spawn(NAMESRV, "namesrv")
        for node in NODE_IDS:
            self._write_broker_config(node)
            self._spawn(node, "broker")
        self._admin = Admin(self.namesrv, timeout=STATUS_S)
        await self._admin.start()
        for node in NODE_IDS:
            await self.start_node(node)
        await self._wait_until(self._has_leader, "no leader is registered")

    def _make_links(self) -> list[Link]:
        listen = ports.proxy_ports(self._base_port, 0)
        links = []
        for node in NODE_IDS:
            port = self._get_client_port(node)
            raft = f"{HOST}:{port - _CLIENT_PORT + _RAFT_PORT}"
            links += [Link(other, node, next(listen), raft) for other in NODE_IDS if other != node]
            links.append(Link(CLIENTS, node, port, f"{HOST}:{port}", ADVERTISED_HOST))
            links.append(Link(node, NAMESRV, next(listen), self.namesrv))
        return links

    def _get_client_port(self, node_id: str) -> int:
        return self._base_port + ports.NODE_STEP * NODE_IDS.index(node_id) + _CLIENT_PORT

    def _write_config(self, name: str, config: str) -> None:
        home = self.directory / name
        home.mkdir(parents=True, exist_ok=True)
        config_path(home).write_text(config, encoding="utf-8")

    def _write_broker_config(self, node: str) -> None:
        port = self._get_client_port(node)
        own = f"{HOST}:{port - _CLIENT_PORT + _RAFT_PORT}"
        peers = ";".join(f"{each}-{own if each == node else self.mesh.address(node, each)}" for each in NODE_IDS)
        group = {"enableDLegerCommitLog": "true", "dLegerGroup": GROUP, "dLegerPeers": peers, "dLegerSelfId": node}
        config = broker_config(
            self.directory / node,
            namesrv=self.mesh.address(node, NAMESRV),
            group=GROUP,
            advertised=ADVERTISED_HOST,
            port=port,
            ha_port=port - _CLIENT_PORT + _HA_PORT,
            more=_FILE_SIZES | group | {"slaveReadEnable": "true"},
        )
        self._write_config(node, config)

    def _spawn(self, name: str, server: Server) -> None:
        home = self.directory / name
        command, environment = server_command(java(), self._jars, server, home)
        with (home / "console.log").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                command,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    async def _is_listening(self, node_id: str) -> bool:
        try:
            async with asyncio.timeout(STATUS_S):
                _, writer = await asyncio.open_connection(HOST, self._get_client_port(node_id))
        except (OSError, TimeoutError):
            return False
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return True

    async def _find_leader_address(self) -> str | None:
        if self._admin is None:
            return None
        try:
            groups = await self._admin.broker_groups()
        except ClientError:
            return None
        return groups[GROUP].broker_addrs.get(0) if GROUP in groups else None

    async def _has_leader(self) -> bool:
        return await self._find_leader_address() is not None

    async def _wait_until(self, condition: Callable[[], Awaitable[bool]], otherwise: str) -> None:
        try:
            async with asyncio.timeout(START_S):
                while True:
                    if await condition():
                        return
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise TargetError(f"{otherwise} after {START_S:g} s: see {self.directory}/*/console.log") from None

"""Our own cluster as a target: started, stopped and configured through the public `dledger` command.

Every link of every node leads through a proxy: peers are dialled, name servers are dialled and clients are told the
proxies' addresses (`[nodes.<id>]` of the file given to `dledger up --config`).  The HTTP port is not proxied, so that
observation goes on while a node is cut off.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Self

import aiohttp
import msgspec

from . import ports
from .disk.build import disk_shim
from .disk.control import DiskControl, shim_environment
from .disk.undo import forget
from .errors import TargetError
from .processes import pid_in
from .second_name_server import SecondNameServer
from .signalled import SignalledNodes
from .target import NodeFacts, NodeView
from .toxiproxy.mesh import CLIENTS, NAMESRV, SECOND_NAMESRV, Link, Mesh
from .toxiproxy.proxies import Proxies

HOST: Final = "127.0.0.1"
START_S: Final = 90.0
STOP_S: Final = 60.0
STATUS_S: Final = 1.0
ASK_S: Final = 30.0
START_ATTEMPTS: Final = 3
"""Another process may take a port between the moment it is found free and the start."""

CONFIG: Final = "segment_bytes = 8388608\ndrain_ms = 2000\nsnapshot_interval_s = 3\n"
"""Small segments and frequent snapshots, so that a run of minutes has many; a drain as long as a test can wait."""

CAPABILITIES: Final = frozenset(
    {
        *("process", "network", "disk", "power", "clock", "membership", "namesrv", "broker"),
        *("follower-reads", "retention", "sql-filters"),
    }
)

_WORDS: Final = 600


class LocalTarget(SignalledNodes):
    """One or two name servers and `groups` × `nodes` broker nodes in `directory`, on 127.0.0.1.

    All nodes know both name servers; the second one starts when they run, so that for a while one of two is down.
    `environment` is added to what the nodes inherit, `config` is TOML for every node, `engine` names its engine.
    `with_shim` puts the disk shim under every node; without it the cluster takes no disk, power and clock faults.  Use
    it as an async context.
    """

    kind = "local"

    def __init__(
        self,
        directory: Path,
        *,
        groups: int = 1,
        name_servers: int = 1,
        nodes: int = 3,
        seed: int = 0,
        config: str = CONFIG,
        engine: str | None = None,
        with_shim: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory.resolve()
        self.data_dir = self.directory / "data"
        self.groups = tuple(f"broker-{chr(ord('a') + number)}" for number in range(groups))
        self.with_shim = with_shim
        self._state = self.directory / "disks"
        self._config = config
        self._engine = engine
        self._proxies = Proxies(self.directory, seed)
        self._members = {group: tuple(f"{group}-n{number}" for number in range(nodes)) for group in self.groups}
        self._name_servers = (NAMESRV, SECOND_NAMESRV)[:name_servers]
        self._second: SecondNameServer | None = None
        self._environment = dict(environment or {})
        self._disks: dict[str, DiskControl] = {}
        self._stopping: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        super().__init__()
        self._base = 0
        self._http: aiohttp.ClientSession | None = None

    @property
    def namesrv(self) -> str:
        """See `Target.namesrv`; clients reach them directly."""
        return ";".join(map(self._name_server_address, self._name_servers))

    @property
    def nodes(self) -> Sequence[NodeFacts]:
        """See `Target.nodes`."""
        return [
            NodeFacts(
                node_id,
                group,
                self.mesh.address(CLIENTS, node_id),
                f"{HOST}:{self._port(node_id) + 2}",
                self.data_dir / node_id,
                tuple(sorted((self.data_dir / node_id / "log").glob("*.log*"))),
            )
            for group, members in self._members.items()
            for node_id in members
        ]

    @property
    def others(self) -> Sequence[str]:
        """See `Target.others`."""
        return self._name_servers

    @property
    def other_logs(self) -> Sequence[Path]:
        """See `Target.other_logs`."""
        return sorted(file for name in self._name_servers for file in (self.data_dir / name / "log").glob("*.log*"))

    @property
    def capabilities(self) -> frozenset[str]:
        """See `Target.capabilities`."""
        return CAPABILITIES if self.with_shim else CAPABILITIES - {"disk", "power", "clock"}

    @property
    def mesh(self) -> Mesh:
        """See `Target.mesh`."""
        return self._proxies.mesh

    async def start(self) -> None:
        """Start the proxy, the name servers and all nodes, and wait until every group takes messages.

        Raises `ChaosError`; nothing runs then.
        """
        await self._proxies.build()
        if self.with_shim:
            self._environment |= shim_environment(await asyncio.to_thread(disk_shim), self.data_dir, self._state)
            self._disks = {node: DiskControl(self._state / node) for node in self._all()}
        self.directory.mkdir(parents=True, exist_ok=True)
        for attempt in range(START_ATTEMPTS):
            self._base = ports.find_base_port(len(self.groups), max(map(len, self._members.values())))
            try:
                await self._start()
            except TargetError as error:
                await self.stop()
                if attempt + 1 == START_ATTEMPTS or "in use" not in str(error):
                    raise
            except BaseException:
                await self.stop()
                raise
            else:
                return

    async def stop(self) -> None:
        """Stop everything, whatever state it is in; the data stays."""
        for node_id in self._all():
            self.resume(node_id)
        if (self.data_dir / "cluster.json").exists():
            try:
                await self._dledger("down", "--data", str(self.data_dir), timeout_s=STOP_S)
            except TargetError:
                pass  # whatever did not stop is killed here
        await self.kill([*self._all(), *self._name_servers])
        await self._proxies.stop()
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def disk(self, node_id: str) -> DiskControl:
        """See `Target.disk`."""
        if node_id not in self._disks:
            raise TargetError(f"{node_id} runs without the disk shim")
        return self._disks[node_id]

    def pid(self, node_id: str) -> int | None:
        """See `Target.pid`."""
        return pid_in(self.data_dir / node_id / "pid", str(self.data_dir / node_id))

    async def status(self, node_id: str) -> NodeView | None:
        """See `Target.status`."""
        if self._http is None:
            self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=STATUS_S))
        try:
            async with self._http.get(f"http://{HOST}:{self._port(node_id) + 2}/status") as response:
                return msgspec.json.decode(await response.read(), type=_Status).view()
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError):
            return None

    async def stop_node(self, node_id: str) -> None:
        """See `Target.stop_node`.

        Nobody starts the node before the command has ended, which looks for its process only once it is up itself:

        1. It begins. 2. The node is killed, and started again. 3. The command stops the process that has just come up.
        """
        async with AsyncExitStack() as stack:
            async with self._settled([node_id]):
                pid = self.pid(node_id)
                await stack.enter_async_context(self._stopping[node_id])
            if pid is not None:
                self._stopped.add(pid)
                await self._dledger("node", "stop", "--data", str(self.data_dir), node_id, timeout_s=STOP_S)

    async def transfer_leadership(self, node_id: str) -> None:
        """See `Target.transfer_leadership`."""
        await self._dledger("node", "lead", "--data", str(self.data_dir), node_id, timeout_s=ASK_S)

    async def remove_member(self, node_id: str) -> None:
        """See `Target.remove_member`."""
        await self._dledger("node", "remove", "--data", str(self.data_dir), node_id, timeout_s=ASK_S)

    async def wipe(self, node_id: str) -> None:
        """See `Target.wipe`; the log files of the process stay, for whoever reads them afterwards."""
        async with self._settled([node_id]):
            if self.pid(node_id) is not None:
                raise TargetError(f"{node_id} runs: only a stopped node can be wiped")
            for path in (self.data_dir / node_id).iterdir():
                if path.name != "log":
                    await asyncio.to_thread(shutil.rmtree if path.is_dir() else Path.unlink, path)
            if self.with_shim:
                await asyncio.to_thread(forget, self._state / node_id)

    async def _launch(self, node_id: str) -> None:
        async with self._stopping[node_id]:
            if self.pid(node_id) is not None:
                return
            if node_id == SECOND_NAMESRV and self._second is not None:
                await self._second.start()
            else:
                arguments = ("node", "start", "--data", str(self.data_dir), node_id, "--detach")
                await self._dledger(*arguments, timeout_s=START_S)

    def _disk_places(self, node_id: str) -> tuple[Path, Path]:
        if not self.with_shim:
            raise TargetError(f"{node_id} runs without the disk shim")
        return self._state / node_id, self.data_dir / node_id

    def _all(self) -> tuple[str, ...]:
        return tuple(node_id for members in self._members.values() for node_id in members)

    def _port(self, node_id: str) -> int:
        for number, (group, members) in enumerate(self._members.items()):
            if node_id in members:
                return self._base + ports.GROUP_STEP * number + ports.NODE_STEP * int(node_id[len(group) + 2 :])
        raise TargetError(f"there is no node {node_id!r}, only {', '.join(self._all())}")

    async def _start(self) -> None:
        await self._proxies.start(self._base + ports.API, self._links())
        config = self.directory / "nodes.toml"
        config.write_text(self._config + self._addresses(), encoding="utf-8")
        members = next(iter(self._members.values()))
        await self._dledger(
            *("up", "--data", str(self.data_dir), "--config", str(config), "--detach"),
            *(() if self._engine is None else ("--engine", self._engine)),
            *("--groups", str(len(self.groups)), "--nodes", str(len(members))),
            *("--base-port", str(self._base), "--namesrv-port", str(self._base + ports.NAMESRV)),
            timeout_s=START_S,
        )
        for disk in self._disks.values():
            disk.require_shim()
        if SECOND_NAMESRV in self._name_servers:
            self._second = SecondNameServer(self.data_dir / SECOND_NAMESRV, self._base + ports.SECOND_NAMESRV)
            await self.start_node(SECOND_NAMESRV)

    def _name_server_address(self, name: str) -> str:
        return f"{HOST}:{self._base + (ports.NAMESRV if name == NAMESRV else ports.SECOND_NAMESRV)}"

    def _links(self) -> list[Link]:
        links = []
        for number, members in enumerate(self._members.values()):
            listen = ports.proxy_ports(self._base, number)
            for node in members:
                client = self._port(node)
                links += [Link(other, node, next(listen), f"{HOST}:{client + 1}") for other in members if other != node]
                links.append(Link(CLIENTS, node, next(listen), f"{HOST}:{client}"))
                links += [
                    Link(node, name, next(listen), self._name_server_address(name)) for name in self._name_servers
                ]
        return links

    def _addresses(self) -> str:
        """The part of the configuration that leads every link through its proxy."""
        lines = []
        for members in self._members.values():
            for node in members:
                advertised = self.mesh.links[f"{CLIENTS}-to-{node}"].listen
                lines.append(f"\n[nodes.{node}]\nadvertised_port = {advertised}")
                name_servers = [self.mesh.address(node, name) for name in self._name_servers]
                lines.append(f"namesrv = {json.dumps(name_servers)}")
                lines += [
                    f'[nodes.{node}.peers.{other}]\naddress = "{self.mesh.address(node, other)}"'
                    for other in members
                    if other != node
                ]
        return "\n".join(lines) + "\n"

    async def _dledger(self, *arguments: str, timeout_s: float) -> str:
        """Run the command and return what it printed; raises `TargetError` with its words."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dledger_admin", *arguments),
            env=os.environ | self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said = f"`dledger {' '.join(arguments)}`"
        try:
            async with asyncio.timeout(timeout_s):
                out, err = await process.communicate()
        except TimeoutError:
            raise TargetError(f"{said} took longer than {timeout_s:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            words = (err or out).decode(errors="replace").strip()
            raise TargetError(f"{said} ended with exit code {process.returncode}: {words[-_WORDS:]}")
        return out.decode(errors="replace")


class _Status(msgspec.Struct, frozen=True):
    """The part of a node's `/status` that the rig looks at."""

    node_id: str
    group: str
    role: str
    term: int
    ready: bool
    commit_index: int
    applied_index: int
    first_position: int
    durable_position: int
    voters: list[str]

    def view(self) -> NodeView:
        """The same as the rig has it."""
        return NodeView(
            self.node_id,
            self.group,
            self.role,
            self.term,
            self.ready,
            self.commit_index,
            self.applied_index,
            self.first_position,
            self.durable_position,
            tuple(self.voters),
        )

"""Our own cluster as a target: started, stopped and configured through the public `dledger` command.

Every link of every node leads through a proxy. Nodes dial peers and name servers by the proxies' addresses, and clients
get these addresses, too (`[nodes.<id>]` of the file given to `dledger up --config`). The HTTP port has no proxy, so
that observation continues while a node is cut off.
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
from .founder import start_founder
from .grpc_proxies import GrpcProxy
from .processes import pid_in
from .second_name_server import SecondNameServer
from .signalled import SignalledNodes
from .target import NodeFacts, NodeView
from .toxiproxy.mesh import CLIENTS, NAMESRV, PROXY_NAMES, SECOND_NAMESRV, Link, Mesh
from .toxiproxy.proxies import Proxies

HOST: Final = "127.0.0.1"
START_S: Final = 90.0
STOP_S: Final = 60.0
STATUS_S: Final = 1.0
ASK_S: Final = 30.0
START_ATTEMPTS: Final = 3
"""Number of attempts to start a cluster. Another process may take a port that was found free."""

CONFIG: Final = "segment_bytes = 8388608\ndrain_ms = 2000\nsnapshot_interval_s = 3\n"
"""Configuration of the nodes: small segments and frequent snapshots, so that a short run has many; a short drain."""

CAPABILITIES: Final = frozenset(
    {
        *("process", "network", "disk", "power", "clock", "membership", "namesrv", "broker"),
        *("follower-reads", "retention", "sql-filters"),
    }
)

_SHOWN_CHARACTERS: Final = 600


class LocalTarget(SignalledNodes):
    """One or two name servers and `groups` × `nodes` broker nodes in `directory`, on 127.0.0.1.

    All nodes know all name servers. The second one starts after the nodes, so that it is down at first. `environment`
    is added to the environment of the nodes, `config` is TOML for every node, and `engine` names their engine.
    `with_proxies` starts two proxies for RocketMQ 5's clients.
    `with_shim` loads the disk shim into every node; without it the cluster takes no faults of disks, power and clocks.
    Use it as an async context.
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
        with_proxies: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory.resolve()
        self.data_dir = self.directory / "data"
        self.groups = tuple(f"broker-{chr(ord('a') + number)}" for number in range(groups))
        self.with_shim = with_shim
        self._shim_directory = self.directory / "disks"
        self._config = config
        self._engine = engine
        self._proxies = Proxies(self.directory, seed)
        self._members = {group: tuple(f"{group}-n{number}" for number in range(nodes)) for group in self.groups}
        self._name_servers = (NAMESRV, SECOND_NAMESRV)[:name_servers]
        self._second_name_server: SecondNameServer | None = None
        self._grpc_proxies: dict[str, GrpcProxy] = {}
        self._proxy_names = PROXY_NAMES if with_proxies else ()
        self._environment = dict(environment or {})
        self._disks: dict[str, DiskControl] = {}
        self._stop_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        super().__init__()
        self._base_port = 0
        self._http: aiohttp.ClientSession | None = None

    @property
    def namesrv(self) -> str:
        """Addresses of the name servers, which clients reach directly."""
        return ";".join(map(self._get_name_server_address, self._name_servers))

    @property
    def nodes(self) -> Sequence[NodeFacts]:
        """The nodes and their places."""
        return [
            NodeFacts(
                node_id,
                group,
                self.mesh.address(CLIENTS, node_id),
                f"{HOST}:{self._get_client_port(node_id) + 2}",
                self.data_dir / node_id,
                tuple(sorted((self.data_dir / node_id / "log").glob("*.log*"))),
            )
            for group, members in self._members.items()
            for node_id in members
        ]

    @property
    def others(self) -> Sequence[str]:
        """Names of the processes other than nodes."""
        return (*self._name_servers, *self._proxy_names)

    @property
    def other_logs(self) -> Sequence[Path]:
        """Log files of the processes other than nodes."""
        return sorted(file for name in self.others for file in (self.data_dir / name / "log").glob("*.log*"))

    @property
    def capabilities(self) -> frozenset[str]:
        """The classes of faults that this target can suffer."""
        proxies = frozenset({"proxies"} if self._proxy_names else ())
        return (CAPABILITIES | proxies) - (frozenset() if self.with_shim else {"disk", "power", "clock"})

    @property
    def mesh(self) -> Mesh:
        """The proxied links."""
        return self._proxies.mesh

    async def start(self) -> None:
        """Start the proxy, the name servers and all nodes, and wait until every group takes messages.

        Raises `ChaosError`; nothing runs then.
        """
        await self._proxies.build()
        if self.with_shim:
            self._environment |= shim_environment(
                await asyncio.to_thread(disk_shim), self.data_dir, self._shim_directory
            )
            self._disks = {node: DiskControl(self._shim_directory / node) for node in self._get_node_ids()}
        self.directory.mkdir(parents=True, exist_ok=True)
        for attempt in range(START_ATTEMPTS):
            self._base_port = ports.find_base_port(len(self.groups), max(map(len, self._members.values())))
            try:
                await self._start_processes()
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
        for name in (*self._get_node_ids(), *self._proxy_names):
            self.resume(name)
        if (self.data_dir / "cluster.json").exists():
            try:
                await self._run_dledger("down", "--data", str(self.data_dir), timeout_s=STOP_S)
            except TargetError:
                pass  # processes that did not stop are killed here
        await self.kill([*self._get_node_ids(), *self.others])
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
        """Return the control of a node's disk and clock."""
        if node_id not in self._disks:
            raise TargetError(f"{node_id} runs without the disk shim")
        return self._disks[node_id]

    def pid(self, node_id: str) -> int | None:
        """Return the pid of a node's process, None if it does not run."""
        return pid_in(self.data_dir / node_id / "pid", str(self.data_dir / node_id))

    async def status(self, node_id: str) -> NodeView | None:
        """Return a node's own view, None if it does not answer."""
        if self._http is None:
            self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=STATUS_S))
        try:
            async with self._http.get(f"http://{HOST}:{self._get_client_port(node_id) + 2}/status") as response:
                return msgspec.json.decode(await response.read(), type=_Status).view()
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError):
            return None

    async def stop_node(self, node_id: str) -> None:
        """Stop a node in an orderly way (SIGTERM) and wait.

        The node is not started before the command has ended. Otherwise the command might stop the new process:

        1. The command begins.
        2. The node is killed, and started again.
        3. The command looks for the process and finds the new one.
        """
        async with AsyncExitStack() as stack:
            async with self._block_starts([node_id]):
                pid = self.pid(node_id)
                await stack.enter_async_context(self._stop_locks[node_id])
            if pid is not None:
                self._stopped_pids.add(pid)
                await self._run_dledger("node", "stop", "--data", str(self.data_dir), node_id, timeout_s=STOP_S)

    async def transfer_leadership(self, node_id: str) -> None:
        """Transfer leadership to a node."""
        await self._run_dledger("node", "lead", "--data", str(self.data_dir), node_id, timeout_s=ASK_S)

    async def remove_member(self, node_id: str) -> None:
        """Remove a node from its group."""
        await self._run_dledger("node", "remove", "--yes", "--data", str(self.data_dir), node_id, timeout_s=ASK_S)

    async def found_again(self, node_id: str) -> None:
        """Start a node with `--bootstrap`, which `dledger node start` does not pass on."""
        async with self._block_starts([node_id]), self._stop_locks[node_id]:
            if self.pid(node_id) is None:
                await asyncio.to_thread(start_founder, self.data_dir, node_id, os.environ | self._environment)

    async def wipe(self, node_id: str) -> None:
        """Empty a stopped node's directory, except for the log files of its process, which are read afterwards."""
        async with self._block_starts([node_id]):
            if self.pid(node_id) is not None:
                raise TargetError(f"{node_id} runs: only a stopped node can be wiped")
            for path in (self.data_dir / node_id).iterdir():
                if path.name != "log":
                    await asyncio.to_thread(shutil.rmtree if path.is_dir() else Path.unlink, path)
            if self.with_shim:
                await asyncio.to_thread(forget, self._shim_directory / node_id)

    async def _launch(self, node_id: str) -> None:
        async with self._stop_locks[node_id]:
            if self.pid(node_id) is not None:
                return
            if node_id in self._grpc_proxies:
                await self._grpc_proxies[node_id].start()
            elif node_id == SECOND_NAMESRV and self._second_name_server is not None:
                await self._second_name_server.start()
            else:
                arguments = ("node", "start", "--data", str(self.data_dir), node_id, "--detach")
                await self._run_dledger(*arguments, timeout_s=START_S)

    def _find_disk_directories(self, node_id: str) -> tuple[Path, Path]:
        if not self.with_shim:
            raise TargetError(f"{node_id} runs without the disk shim")
        return self._shim_directory / node_id, self.data_dir / node_id

    def _get_node_ids(self) -> tuple[str, ...]:
        return tuple(node_id for members in self._members.values() for node_id in members)

    def _get_client_port(self, node_id: str) -> int:
        for number, (group, members) in enumerate(self._members.items()):
            if node_id in members:
                return self._base_port + ports.GROUP_STEP * number + ports.NODE_STEP * int(node_id[len(group) + 2 :])
        raise TargetError(f"there is no node {node_id!r}, only {', '.join(self._get_node_ids())}")

    async def _start_processes(self) -> None:
        await self._proxies.start(self._base_port + ports.API, self._make_links())
        config = self.directory / "nodes.toml"
        config.write_text(self._config + self._format_addresses(), encoding="utf-8")
        members = next(iter(self._members.values()))
        await self._run_dledger(
            *("up", "--data", str(self.data_dir), "--config", str(config), "--detach", "--console-port", "0"),
            *(() if self._engine is None else ("--engine", self._engine)),
            *("--groups", str(len(self.groups)), "--nodes", str(len(members))),
            *("--base-port", str(self._base_port), "--namesrv-port", str(self._base_port + ports.NAMESRV)),
            timeout_s=START_S,
        )
        for disk in self._disks.values():
            disk.require_shim()
        if SECOND_NAMESRV in self._name_servers:
            self._second_name_server = SecondNameServer(
                self.data_dir / SECOND_NAMESRV, self._base_port + ports.SECOND_NAMESRV
            )
            await self.start_node(SECOND_NAMESRV)
        await self._start_proxies()

    async def _start_proxies(self) -> None:
        """Start the proxies for RocketMQ 5's clients, each of which tells its clients the links to all of them."""
        links = [self.mesh.address(CLIENTS, name) for name in self._proxy_names]
        for name in self._proxy_names:
            port = self._get_proxy_port(name)
            self._grpc_proxies[name] = GrpcProxy(self.data_dir / name, port, self.namesrv, links)
            await self.start_node(name)

    def _get_proxy_port(self, name: str) -> int:
        return self._base_port + ports.GRPC_PROXIES[PROXY_NAMES.index(name)]

    def _get_name_server_address(self, name: str) -> str:
        return f"{HOST}:{self._base_port + (ports.NAMESRV if name == NAMESRV else ports.SECOND_NAMESRV)}"

    def _make_links(self) -> list[Link]:
        links = []
        for number, members in enumerate(self._members.values()):
            listen = ports.proxy_ports(self._base_port, number)
            for node in members:
                client = self._get_client_port(node)
                links += [Link(other, node, next(listen), f"{HOST}:{client + 1}") for other in members if other != node]
                links.append(Link(CLIENTS, node, next(listen), f"{HOST}:{client}"))
                links += [
                    Link(node, name, next(listen), self._get_name_server_address(name)) for name in self._name_servers
                ]
            if number == 0:
                for name in self._proxy_names:
                    links.append(Link(CLIENTS, name, next(listen), f"{HOST}:{self._get_proxy_port(name)}"))
        return links

    def _format_addresses(self) -> str:
        """Return the part of the configuration that routes every link through its proxy."""
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

    async def _run_dledger(self, *arguments: str, timeout_s: float) -> str:
        """Run the command and return what it printed; raises `TargetError` with its output."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dledger_admin", *arguments),
            env=os.environ | self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        command = f"`dledger {' '.join(arguments)}`"
        try:
            async with asyncio.timeout(timeout_s):
                out, err = await process.communicate()
        except TimeoutError:
            raise TargetError(f"{command} took longer than {timeout_s:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            output = (err or out).decode(errors="replace").strip()
            raise TargetError(f"{command} ended with exit code {process.returncode}: {output[-_SHOWN_CHARACTERS:]}")
        return out.decode(errors="replace")


class _Status(msgspec.Struct, frozen=True):
    """The part of a node's `/status` that the rig uses."""

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
        """Return the status in the rig's own type."""
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

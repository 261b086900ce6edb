"""Cluster of a name server and broker groups, as processes on 127.0.0.1, started and stopped by the public commands.

`local_cluster_fixture` makes it a fixture of pytest."""

from __future__ import annotations

import asyncio
import http.client
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias

import msgspec

from dledger_base.room import look_for_room

from .ports import GROUP_STEP, NAMESRV_OFFSET, NODE_STEP, find_base_port

if TYPE_CHECKING:
    from _pytest.fixtures import FixtureFunctionDefinition


START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0
LEADER_SECONDS: Final = 30.0

_POLL_SECONDS: Final = 0.02
_STATUS_SECONDS: Final = 1.0
_START_ATTEMPTS: Final = 3
"""Maximum number of attempts to start: another process may take a port after it was found free."""

_NODE_BYTES: Final = 16 << 20
"""Space in bytes below which a node may refuse its first messages: the reserve of its log, snapshots and small files.
"""

_HTTP_OFFSET: Final = 2
_NAMESRV: Final = "namesrv"


_logger: Final = logging.getLogger(__name__)


class ClusterError(Exception):
    """The cluster did not do what was required. The text ends with the command's output."""


class NodeStatus(msgspec.Struct, frozen=True):
    """Status of a node from `/status`. Positions are bytes of the log."""

    node_id: str
    group: str
    role: str
    term: int
    leader_id: str | None
    commit_index: int
    applied_index: int
    first_position: int
    last_position: int
    durable_position: int
    ready: bool = True


class LocalCluster:
    """A cluster in a temporary directory, or in `data_dir`, which is then kept.

        with LocalCluster() as cluster:
            producer = SyncProducer(cluster.namesrv)
            ...
            cluster.kill_leader()

    `config` is TOML text that overrides the configuration of every node. `engine` names the engine with which nodes are
    founded; by default `DLEDGER_ENGINE` of the environment names it, so that tests run on any engine. All methods
    block. `async with LocalCluster()` starts and stops without blocking the event loop, and
    `asyncio.to_thread(cluster.leader)` does the same for a single call. Nodes are named `broker-<g>-n<k>`, their groups
    `broker-<g>`, with g = a, b, … and k = 0, 1, ….
    """

    def __init__(
        self,
        *,
        groups: int = 1,
        nodes: int = 3,
        data_dir: Path | None = None,
        config: str | None = None,
        engine: str | None = None,
    ) -> None:
        self.groups = tuple(f"broker-{chr(ord('a') + number)}" for number in range(groups))
        self.nodes_per_group = nodes
        self._config = config
        self._engine = engine or os.environ.get("DLEDGER_ENGINE") or None
        self._data_dir = data_dir
        self._scratch: Path | None = None
        self._base_port = 0
        self._paused: set[str] = set()

    @property
    def data_dir(self) -> Path:
        """Directory of all files: `<node id>/commitlog`, `<node id>/log`, `<node id>/pid`, `namesrv/`."""
        if self._data_dir is None:
            raise ClusterError("the cluster is not started")
        return self._data_dir

    @property
    def namesrv(self) -> str:
        """The name server's address, for clients."""
        return f"127.0.0.1:{self._base_port + NAMESRV_OFFSET}"

    @property
    def node_ids(self) -> tuple[str, ...]:
        """All nodes, group by group."""
        return tuple(f"{group}-n{number}" for group in self.groups for number in range(self.nodes_per_group))

    def members(self, group: str) -> tuple[str, ...]:
        """Return the nodes of one group."""
        return tuple(node_id for node_id in self.node_ids if node_id.startswith(f"{group}-n"))

    def client_address(self, node_id: str) -> str:
        """Return the address of a node for clients."""
        return f"127.0.0.1:{self._client_port(node_id)}"

    def start(self) -> None:
        """Start all processes and wait until every group takes messages. A second start keeps ports and data.

        Raises `ClusterError` if that fails, or if any of the processes already runs.
        """
        if self._data_dir is not None:
            running = [name for name in self._processes if self.pid(name) is not None]
            if running:
                raise ClusterError(f"{', '.join(running)} of the cluster run: stop it first, or restart single nodes")
        self._check_disk_space()
        clean_up = self._stop_processes
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="dledger-"))
            clean_up = self.stop
        if self._data_dir is None:
            self._data_dir = self._scratch / "data"
        try:
            self._start()
        except BaseException:
            clean_up()
            raise

    def stop(self) -> None:
        """Stop everything, paused nodes included, and remove the temporary directory."""
        if self._data_dir is None or self._scratch is None:
            return
        self._stop_processes()
        if self._data_dir.is_relative_to(self._scratch):
            self._data_dir = None
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:  # the thread does not notice the cancellation
            with suppress(ClusterError, OSError):
                await starting
            await asyncio.to_thread(self.stop)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    def status(self, node_id: str) -> NodeStatus | None:
        """Return the status of a node, None if it does not answer within a second."""
        connection = http.client.HTTPConnection(
            "127.0.0.1", self._client_port(node_id) + _HTTP_OFFSET, timeout=_STATUS_SECONDS
        )
        try:
            connection.request("GET", "/status")
            return msgspec.json.decode(connection.getresponse().read(), type=NodeStatus)
        except (OSError, http.client.HTTPException, msgspec.DecodeError):
            return None
        finally:
            connection.close()

    def leader(self, group: str = "broker-a", *, timeout: float = LEADER_SECONDS) -> str:
        """Return the leader of a group, once elected. Raises `ClusterError` without a leader in time."""
        return self._wait_for_leader(group, timeout).node_id

    def wait_ready(self, *, timeout: float = LEADER_SECONDS) -> None:
        """Wait until every node runs and has applied the entries that its group's leader had committed at some moment.

        Raises `ClusterError` if that takes too long.
        """
        deadline = time.monotonic() + timeout
        for group in self.groups:
            target = self._wait_for_leader(group, max(deadline - time.monotonic(), 0.0)).commit_index
            for node_id in self.members(group):
                self._wait(
                    partial(self._has_applied, node_id, target),
                    max(deadline - time.monotonic(), 0.0),
                    f"{node_id} has not applied index {target}",
                )

    def kill(self, node_id: str) -> None:
        """Kill a node with SIGKILL and wait until it is gone."""
        self._paused.discard(node_id)
        self._kill(node_id)

    def kill_leader(self, group: str = "broker-a") -> str:
        """Kill the leader of a group with SIGKILL. Returns its id."""
        node_id = self.leader(group)
        self.kill(node_id)
        return node_id

    def pause(self, node_id: str) -> None:
        """Stop a node with SIGSTOP: its connections stay open and nothing answers."""
        self._signal(node_id, signal.SIGSTOP)
        self._paused.add(node_id)

    def resume(self, node_id: str) -> None:
        """Continue a paused node with SIGCONT."""
        self._signal(node_id, signal.SIGCONT)
        self._paused.discard(node_id)

    def restart(self, node_id: str) -> None:
        """Start a node that was killed or stopped, and wait until it answers. Kills it first if it runs."""
        self.kill(node_id)
        self._run_command("node", "start", "--data", str(self.data_dir), node_id, "--detach", seconds=START_SECONDS)

    def mend(self) -> None:
        """Continue paused nodes, start dead processes again, and wait until all nodes are ready.

        Returns at once if nothing is broken. Raises `ClusterError` if a process does not come up again.
        """
        paused, dead = sorted(self._paused), [name for name in self._processes if self.pid(name) is None]
        for node_id in paused:
            if node_id in dead:
                self._paused.discard(node_id)
            else:
                self.resume(node_id)
        if _NAMESRV in dead:  # no command starts a name server alone
            self._stop_processes()
            self._start()
        else:
            for node_id in dead:
                self.restart(node_id)
        if paused or dead:
            self.wait_ready()

    def pid(self, name: str) -> int | None:
        """Return the process id of a node or of `"namesrv"`, None if it does not run."""
        directory = self.data_dir / name
        try:
            pid = int((directory / "pid").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return None
        return pid if _is_running(pid) and _may_use_directory(pid, directory) else None

    def _wait_for_leader(self, group: str, seconds: float) -> NodeStatus:
        """Return the status of a group's leader, once elected."""
        leaders: list[NodeStatus] = []

        def is_led() -> bool:
            statuses = [self.status(node_id) for node_id in self.members(group) if node_id not in self._paused]
            leaders[:] = [
                status for status in statuses if status is not None and status.role == "leader" and status.ready
            ]
            return bool(leaders)

        self._wait(is_led, seconds, f"{group} has no leader")
        return max(leaders, key=lambda status: status.term)

    @property
    def _processes(self) -> tuple[str, ...]:
        return (*self.node_ids, _NAMESRV)

    def _stop_processes(self) -> None:
        self._paused.clear()
        try:
            self._run_command("down", "--data", str(self.data_dir), seconds=STOP_SECONDS)
        except ClusterError:
            pass  # processes that did not stop are killed here
        for name in self._processes:
            self._kill(name)

    def _check_disk_space(self) -> None:
        """Log if the disk is above the watermark. Raises `ClusterError` if the processes would find no space."""
        directory = self._data_dir or Path(tempfile.gettempdir())
        needed = len(self.node_ids) * _NODE_BYTES
        room = look_for_room(directory, needed, f"a cluster of {len(self.node_ids)} nodes")
        if room.lack is not None:
            raise ClusterError(room.lack)
        if room.warning is not None:
            _logger.warning("event=little_room text=%r", room.warning)

    def _start(self) -> None:
        for attempt in range(_START_ATTEMPTS):
            if not self._base_port:
                self._base_port = find_base_port(len(self.groups), self.nodes_per_group)
            try:
                self._run_command("up", *self._up_options(), seconds=START_SECONDS)
            except ClusterError as error:
                if attempt + 1 == _START_ATTEMPTS or "in use" not in str(error):
                    raise
                self._base_port = 0
            else:
                return

    def _up_options(self) -> list[str]:
        options = [
            *("--data", str(self.data_dir), "--groups", str(len(self.groups)), "--nodes", str(self.nodes_per_group)),
            *("--base-port", str(self._base_port), "--namesrv-port", str(self._base_port + NAMESRV_OFFSET)),
            *("--detach", "--console-port", "0"),
        ]
        if self._engine is not None:
            options += ["--engine", self._engine]
        if self._config is not None and self._scratch is not None:
            file = self._scratch / "nodes.toml"
            file.write_text(self._config, encoding="utf-8")
            options += ["--config", str(file)]
        return options

    def _client_port(self, node_id: str) -> int:
        group, _, number = node_id.rpartition("-n")
        if group not in self.groups or not number.isdecimal() or int(number) >= self.nodes_per_group:
            raise ClusterError(f"there is no node {node_id!r}, only {', '.join(self.node_ids)}")
        return self._base_port + GROUP_STEP * self.groups.index(group) + NODE_STEP * int(number)

    def _has_applied(self, node_id: str, index: int) -> bool:
        status = self.status(node_id)
        return status is not None and status.applied_index >= index

    def _run_command(self, *arguments: str, seconds: float) -> None:
        # -P: a test file in the working directory must not be mistaken for a module of Python's.
        command = [sys.executable, "-P", "-m", "dledger_admin", *arguments]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                output, errors = process.communicate(timeout=seconds)
            except BaseException as error:
                process.terminate()  # lets `up` stop the processes that it has started
                try:
                    process.communicate(timeout=STOP_SECONDS)
                finally:
                    process.kill()
                if isinstance(error, subprocess.TimeoutExpired):
                    raise ClusterError(f"`dledger {' '.join(arguments)}` took longer than {seconds:g} s") from error
                raise
        if process.returncode != 0:
            raise ClusterError(
                f"`dledger {' '.join(arguments)}` ended with {process.returncode}: {(errors or output).strip()}"
            )

    def _signal(self, name: str, number: signal.Signals) -> None:
        pid = self.pid(name)
        if pid is None:
            raise ClusterError(f"{name} does not run")
        os.kill(pid, number)

    def _kill(self, name: str) -> None:
        pid = self.pid(name)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self._wait(lambda: not _is_running(pid), STOP_SECONDS, f"{name} (pid {pid}) is still there")

    @staticmethod
    def _wait(condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() >= deadline:
                raise ClusterError(f"{otherwise} after {seconds:.0f} s")
            time.sleep(_POLL_SECONDS)


def _may_use_directory(pid: int, directory: Path) -> bool:
    """Return whether a process may have the configuration in `directory`: an old pid file may name another process.

    An ending process has lost its arguments, and on some systems they cannot be read at all.
    """
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True
    return not arguments or b"--config\0" + os.fsencode(directory.resolve()) + b"/" in arguments


def _is_running(pid: int) -> bool:
    """Return whether a process exists and is more than a zombie.

    Its ports are free once the last of its threads has ended.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        threads = len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return not Path("/proc/self/stat").exists()
    return bool(state) and state[0] != "X" and (state[0] != "Z" or threads > 1)


Scope: TypeAlias = Literal["function", "class", "module", "package", "session"]


def local_cluster_fixture(
    *, scope: Scope = "module", groups: int = 1, nodes: int = 3, config: str | None = None
) -> FixtureFunctionDefinition:
    """Return a fixture that yields a started cluster; needs pytest.

        cluster = local_cluster_fixture(scope="module")

        def test_something(cluster):
            ...

    Tests that share a cluster (any scope but `"function"`) find it as the previous test has left it.
    """
    import pytest

    @pytest.fixture(scope=scope)
    def cluster() -> Iterator[LocalCluster]:
        with LocalCluster(groups=groups, nodes=nodes, config=config) as started:
            yield started

    return cluster

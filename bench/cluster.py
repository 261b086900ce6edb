"""A cluster under test: one name server and one group of three brokers, driven only through the public `dledger`
command.
"""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, TypeVar

import msgspec

from dledger_client.testing.ports import NAMESRV_OFFSET, NODE_STEP, find_base_port

Flush = Literal["sync", "async"]
T = TypeVar("T")

NODE_COUNT = 3
_POLL_S = 0.01
_COMMAND_TIMEOUT_S = 60.0


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a node's `/status` that the benchmarks use."""

    node_id: str
    role: str
    term: int
    commit_index: int
    applied_index: int
    first_position: int
    last_position: int


@dataclass(frozen=True, slots=True)
class BenchNode:
    """One broker process, with its port and the directory of its files."""

    node_id: str
    client_port: int
    directory: Path

    def pid(self) -> int:
        """Return the process id from the node's pid file."""
        return int((self.directory / "pid").read_text().split()[0])

    def status(self) -> NodeStatus | None:
        """Return the node's status, None if it does not answer within a second."""
        url = f"http://127.0.0.1:{self.client_port + 2}/status"
        try:
            with urllib.request.urlopen(url, timeout=1.0) as answer:
                return msgspec.json.decode(answer.read(), type=NodeStatus)
        except (OSError, urllib.error.URLError, msgspec.DecodeError):
            return None


class ClusterError(RuntimeError):
    """The cluster did not do in time what it was asked for. The message says what, and where its logs are."""


@dataclass(frozen=True, slots=True)
class BenchCluster:
    """A running cluster; `started_at` is the monotonic time just before its first process was started."""

    data_dir: Path
    namesrv_port: int
    nodes: tuple[BenchNode, ...]
    started_at: float

    @classmethod
    def start(cls, data_dir: Path, flush: Flush, engine: str = "native") -> Self:
        """Bootstrap a cluster in `data_dir`, which must not exist yet, and return once it has a leader."""
        config = data_dir.with_name(data_dir.name + ".toml")
        config.write_text(f'flush = "{flush}"\n')
        base_port = find_base_port(1, NODE_COUNT)
        namesrv_port = base_port + NAMESRV_OFFSET
        nodes = tuple(
            BenchNode(f"broker-a-n{k}", base_port + NODE_STEP * k, data_dir / f"broker-a-n{k}")
            for k in range(NODE_COUNT)
        )
        cluster = cls(data_dir, namesrv_port, nodes, time.monotonic())
        try:
            cluster.command(
                "up", "--data", str(data_dir), "--groups", "1", "--nodes", str(NODE_COUNT), "--namesrv-port",
                str(namesrv_port), "--base-port", str(base_port), "--config", str(config), "--detach",
                "--engine", engine, "--console-port", "0",
            )  # fmt: skip
        except BaseException:
            with suppress(ClusterError):
                cluster.stop()  # stops everything that was started before the failure or interruption
            raise
        return cluster

    def stop(self) -> None:
        """Stop every process of the cluster."""
        self.command("down", "--data", str(self.data_dir))

    def command(self, *arguments: str) -> str:
        """Run `dledger` with `arguments` and return its output. Raises `ClusterError` when it fails."""
        program = Path(sys.executable).with_name("dledger")
        result = subprocess.run(
            [str(program), *arguments], capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False
        )
        if result.returncode != 0:
            raise ClusterError(
                f"dledger {arguments[0]} failed ({result.returncode}): {(result.stderr or result.stdout).strip()}"
            )
        return result.stdout

    def leader(self, timeout_s: float = 15.0) -> BenchNode:
        """Return the leader, once a node says that it leads."""
        return self._await(self._find_leader, "a leader", timeout_s)

    def await_equal(self, timeout_s: float = 60.0) -> None:
        """Wait until all nodes answer, one leads, and all have applied the leader's committed entries."""
        self._await(self._all_equal, "all replicas to be equal", timeout_s)

    def await_queue_files(self, topic: str, queues: int, timeout_s: float = 60.0) -> None:
        """Wait until every node has files for `queues` queues of a topic: they are written behind the sends."""
        directories = [node.directory / "consumequeue" / topic for node in self.nodes]

        def all_written() -> bool | None:
            return all(path.is_dir() and sum(1 for _ in path.iterdir()) >= queues for path in directories) or None

        self._await(all_written, f"files for {queues} queues of {topic}", timeout_s)

    def kill(self, node: BenchNode) -> None:
        """End `node` with SIGKILL."""
        os.kill(node.pid(), signal.SIGKILL)

    def restart(self, *nodes: BenchNode) -> None:
        """Start nodes that were killed, all at the same time."""
        with ThreadPoolExecutor(len(nodes)) as pool:
            list(pool.map(self._start_node, nodes))

    def _start_node(self, node: BenchNode) -> None:
        self.command("node", "start", "--data", str(self.data_dir), node.node_id, "--detach")

    def create_topic(self, name: str, queues: int) -> None:
        """Create a topic. Returns once the name server knows it."""
        server = f"127.0.0.1:{self.namesrv_port}"
        self.command("topic", "create", name, "--queues", str(queues), "--namesrv", server)

    def log_bytes(self) -> int:
        """Return the size of the leader's log in bytes, without space that is only reserved."""
        log = self.leader().status()
        return 0 if log is None else log.last_position - log.first_position

    def _find_leader(self) -> BenchNode | None:
        for node in self.nodes:
            status = node.status()
            if status is not None and status.role == "leader":
                return node
        return None

    def _all_equal(self) -> bool | None:
        statuses = [node.status() for node in self.nodes]
        answered = [status for status in statuses if status is not None]
        leading = [status for status in answered if status.role == "leader"]
        if len(answered) < len(self.nodes) or len(leading) != 1:
            return None
        return all(status.applied_index >= leading[0].commit_index for status in answered) or None

    def _await(self, probe: Callable[[], T | None], what: str, timeout_s: float) -> T:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if (result := probe()) is not None:
                return result
            time.sleep(_POLL_S)
        raise ClusterError(f"waited {timeout_s:.0f} s for {what}; logs are in {self.data_dir}/*/log")


@contextmanager
def running_cluster(data_dir: Path, flush: Flush, engine: str = "native") -> Iterator[BenchCluster]:
    """Start a cluster, and stop it at the end of the block."""
    cluster = BenchCluster.start(data_dir, flush, engine)
    try:
        yield cluster
    finally:
        cluster.stop()

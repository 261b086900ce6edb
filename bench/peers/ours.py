"""Our own service, as `dledger up` starts it."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.cluster import BenchCluster, ClusterError, Flush, running_cluster
from bench.generator import LoadResult
from bench.peers.remoting_load import RemotingLoad, build_generators
from bench.peers.rows import Row
from bench.peers.service import CannotRunError, Edges, Timing
from dledger_base import native_part

READY_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class RunningOurs:
    """A group of three nodes that takes messages."""

    cluster: BenchCluster
    load: RemotingLoad

    @property
    def pids(self) -> Sequence[int]:
        """The nodes' processes."""
        return [node.pid() for node in self.cluster.nodes]

    def fill(self, messages: int) -> None:
        """Create the backlog of the row that consumes, and wait until all replicas are equal."""
        self.load.fill(messages)
        self.cluster.await_equal()

    def measure(self, row: Row, timing: Timing, edges: Edges) -> LoadResult:
        """Run one row."""
        return self.load.measure(row, timing, edges)


class Ours:
    """Our own service."""

    name = "ours"
    about = f"one group of 3 nodes; sync: flush = sync; native part: {native_part.version()}"

    def fetch(self) -> None:
        """Compile the load generators."""
        build_generators()

    @contextmanager
    def running(self, flush: Flush, directory: Path) -> Iterator[RunningOurs]:
        """Start a cluster and stop it at the end of the block."""
        generator, tail = build_generators()
        try:
            with running_cluster(directory / "cluster", flush) as cluster:
                load = RemotingLoad(generator, tail, cluster.leader().client_port)
                load.await_send(READY_S)
                yield RunningOurs(cluster, load)
        except ClusterError as error:
            raise CannotRunError(str(error)) from error


def interpreter_build() -> str:
    """Describe how this Python was built. Without profile-guided optimization a node takes a quarter more CPU time."""
    if "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or ""):
        return "configured with --enable-optimizations"
    if sys.base_prefix == "/usr":
        return "of the system's distribution, which may optimize without the option, as Debian does"
    return "configured without --enable-optimizations"

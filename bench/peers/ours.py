"""Our own service, as `dledger up` starts it."""

from __future__ import annotations

import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.cluster import BenchCluster, ClusterError, Flush, running_cluster
from bench.generator import GeneratorError, LoadResult
from bench.peers.remoting_load import RemotingLoad, build_generators
from bench.peers.rows import Row
from bench.peers.service import CannotRunError, Edges, Timing
from dledger import native_part

READY_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class RunningOurs:
    """A group of three nodes that takes messages."""

    cluster: BenchCluster
    load: RemotingLoad

    @property
    def pids(self) -> Sequence[int]:
        """See `RunningService`."""
        return [node.pid() for node in self.cluster.nodes]

    def fill(self, messages: int) -> None:
        """See `RunningService`."""
        self.load.fill(messages)
        self.cluster.await_equal()

    def measure(self, row: Row, timing: Timing, edges: Edges) -> LoadResult:
        """See `RunningService`."""
        return self.load.measure(row, timing, edges)


class Ours:
    """See `Service`."""

    name = "ours"
    about = f"one group of 3 nodes; sync: flush = sync; native part: {native_part.version()}"

    def fetch(self) -> None:
        """See `Service`."""
        build_generators()

    @contextmanager
    def running(self, flush: Flush, directory: Path) -> Iterator[RunningOurs]:
        """See `Service`."""
        generator, tail = build_generators()
        try:
            with running_cluster(directory / "cluster", flush) as cluster:
                load = RemotingLoad(generator, tail, cluster.leader().client_port)
                _await_send(load)
                yield RunningOurs(cluster, load)
        except ClusterError as error:
            raise CannotRunError(str(error)) from error


def interpreter_build() -> str:
    """Say whether this Python was built with profile-guided optimization, which is worth a quarter of the rate."""
    optimized = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    return "optimized" if optimized else "plain"


def _await_send(load: RemotingLoad) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        try:
            load.send_one()
        except GeneratorError:
            if time.monotonic() > deadline:
                raise
        else:
            return

"""Interface of workloads: their surroundings, and the methods that a run awaits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias

from dledger_chaos.history import Recorder

TargetKind: TypeAlias = Literal["broker", "register"]
"""`broker`: RocketMQ's protocol; `register`: nodes that speak the line protocol of `subjects/`."""


FOLLOWER_READS: Final = "follower-reads"
"""Capability: every node serves reads of everything that is committed."""

SQL_FILTERS: Final = "sql-filters"
"""Capability: the brokers filter by expressions in SQL92."""

PROXIES: Final = "proxies"
"""Capability: proxies for RocketMQ 5's clients stand in front of the cluster."""

RETENTION: Final = "retention"
"""Capability: the target takes configuration that trims its log."""


@dataclass(frozen=True, slots=True)
class NodeAddresses:
    """Addresses of one node, as `host:port`.

    `client` is the address of the node's proxy. `http` has no proxy, so that a node can be observed while clients are
    cut off. It is empty if the node has no HTTP port.
    """

    node_id: str
    group: str
    client: str
    http: str = ""


@dataclass(frozen=True, slots=True)
class WorkloadContext:
    """Surroundings of a workload. `rng` is its own and seeded; `directory` is its own and exists.

    `capabilities` are those of the target. When `stopping` is set, `run` ends within the deadline of its operations.
    `healed` is set while `run` works, once all faults are healed and the cluster is whole.
    """

    namesrv: str
    nodes: Sequence[NodeAddresses]
    rng: random.Random
    recorder: Recorder
    stopping: asyncio.Event
    capabilities: frozenset[str]
    directory: Path
    healed: asyncio.Event = field(default_factory=asyncio.Event)
    proxies: Sequence[str] = ()
    """Addresses of the links to the proxies for RocketMQ 5's clients, as `host:port`."""


async def sleep_or_stop(ctx: WorkloadContext, seconds: float) -> None:
    """Sleep, but not beyond the end of the run."""
    try:
        async with asyncio.timeout(seconds):
            await ctx.stopping.wait()
    except TimeoutError:
        pass


class Workload(Protocol):
    """Clients of one kind. The three methods are awaited once each, in this order, all on one event loop."""

    @property
    def name(self) -> str:
        """Name of the workload in the registry and in all recorded operations."""
        ...

    async def setup(self, ctx: WorkloadContext) -> None:
        """Make topics and start clients, before the first fault. An exception ends the run without a verdict."""
        ...

    async def run(self, ctx: WorkloadContext) -> None:
        """Work until `ctx.stopping` is set, whatever happens to the cluster."""
        ...

    async def finish(self, ctx: WorkloadContext) -> None:
        """Read the final content, once all faults are healed and all nodes have caught up; then stop the clients.

        It is awaited even if `run` failed. Failed reads are recorded; the checkers call the run unknown then.
        """
        ...


@dataclass(frozen=True, slots=True)
class WorkloadEntry:
    """A line of the registry.

    `needs` are capabilities that the target must have, `config` is TOML for its nodes. `unavailable` says why the
    workload cannot run on this machine, or returns an empty text.
    """

    name: str
    summary: str
    target: TargetKind
    make: Callable[[], Workload]
    needs: frozenset[str] = frozenset()
    unavailable: Callable[[], str] = str
    config: str = ""

"""Traffic of the demonstration: files out, files in, and a leader that dies in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from dledger_client import Admin, Producer, PushConsumer

from ..cluster.lifecycle import RunningCluster
from ..cluster.probes import NodeStatus
from ..errors import AdminError
from .bars import Bars
from .corpus import SourceFile
from .failover import KilledLeader, await_equal, await_new_leader, kill_leader, restart
from .rebuilding import Rebuilder
from .shipping import CLOSING_TAG, NUMBER_PROPERTY, Shipper

TOPIC = "source-lines"
PROBE_TOPIC = "probes"
CONSUMER_GROUP = "rebuilders"
QUEUES = 16
CONSUMERS = 2

KILL_AT_SHARE = 0.4
"""The leader is killed once this share of the bytes is acknowledged."""

RESTART_AT_SHARE = 0.7
STALL_TIMEOUT_S = 45.0
"""Time limit in seconds without a received message. Then the demonstration has failed."""

_PULL_BATCH = 256
_MAX_OUTSTANDING = 4096


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of the traffic. Times are monotonic seconds."""

    shipper: Shipper
    rebuilder: Rebuilder
    killed: KilledLeader
    new_leader: NodeStatus
    first_acknowledged_at: float
    began_at: float
    ended_at: float


async def run_traffic(cluster: RunningCluster, files: list[SourceFile], target: Path, bars: Bars) -> Outcome:
    """Ship and rebuild `files` at the same time; the cluster is whole again, its replicas equal, when this returns."""
    (group,) = cluster.layout.group_names()
    rebuilder = Rebuilder(target, lambda _: bars.file_complete(rebuilder.received_bytes))
    async with _consumers(cluster, rebuilder), Producer(cluster.layout.namesrv_address) as producer:
        shipper = Shipper(producer, TOPIC, bars.sent)
        await producer.send(PROBE_TOPIC, b"the cluster is up")
        first_acknowledged_at = time.monotonic()
        async with Admin(cluster.layout.namesrv_address) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        began_at = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            shipping = tasks.create_task(_ship(shipper, files, bars))
            await bars.sent_share(KILL_AT_SHARE)
            killed = await kill_leader(cluster, group)
            tasks.create_task(_probe(producer, shipper))
            new_leader = await await_new_leader(cluster, group, killed)
            bars.say(
                f"killed the leader {killed.node_id} (SIGKILL), {new_leader.node_id} leads in term {new_leader.term}"
            )
            await bars.sent_share(RESTART_AT_SHARE)
            restart(cluster, killed.node_id)
            bars.say(f"started {killed.node_id} again")
            await shipping
            await _await_all_received(bars, rebuilder)
        ended_at = time.monotonic()
    await await_equal(cluster, group)
    return Outcome(shipper, rebuilder, killed, new_leader, first_acknowledged_at, began_at, ended_at)


async def _ship(shipper: Shipper, files: list[SourceFile], bars: Bars) -> None:
    await shipper.ship(files, parallel=2 * QUEUES)
    bars.all_sent()


async def _probe(producer: Producer, shipper: Shipper) -> None:
    """Send one message right after the kill: the gap shows even when everything else was sent before."""
    await producer.send(PROBE_TOPIC, b"the leader is gone")
    shipper.acknowledged_at.append(time.monotonic())


async def _await_all_received(bars: Bars, rebuilder: Rebuilder) -> None:
    """Wait for the last file; raises `AdminError` when nothing arrives any more."""
    while not bars.all_received.is_set():
        before = rebuilder.messages
        try:
            async with asyncio.timeout(STALL_TIMEOUT_S):
                await bars.all_received.wait()
        except TimeoutError:
            if rebuilder.messages == before:
                raise AdminError(
                    f"{len(rebuilder.digests)} files are complete and nothing arrived for {STALL_TIMEOUT_S:.0f} s"
                ) from None


@asynccontextmanager
async def _consumers(cluster: RunningCluster, rebuilder: Rebuilder) -> AsyncIterator[None]:
    """Run two consumers of one group that both feed the rebuilder; an error of theirs ends what runs meanwhile."""

    async def consume() -> None:
        async with PushConsumer(
            cluster.layout.namesrv_address,
            CONSUMER_GROUP,
            TOPIC,
            pull_batch_size=_PULL_BATCH,
            max_outstanding=_MAX_OUTSTANDING,
        ) as consumer:
            async for message in consumer:
                key, number = message.key or "", int(message.properties[NUMBER_PROPERTY])
                if message.tags == CLOSING_TAG:
                    rebuilder.closing(key, number)
                else:
                    rebuilder.line(key, number, message.body)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(consume(), name=f"consumer {number}") for number in range(CONSUMERS)]
        yield
        for task in tasks:
            task.cancel()

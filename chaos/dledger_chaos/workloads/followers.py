"""Reads from chosen nodes, followers above all, while the leader writes.

One producer sends a steady trickle; for every node a reader tails the queues on exactly that node with long polls, and
now and then goes back to read again what it has read before.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from dledger_client import Admin, ClientError, MessageQueue, Producer

from .base import FOLLOWER_READS, NodeAddresses, WorkloadContext, WorkloadEntry
from .reading import TopicReader
from .sending import RecordedSends

NAME: Final = "followers"
TOPIC: Final = "chaos-followers"
QUEUES: Final = 2

_SEND_PAUSE_SECONDS: Final = 0.02
_PULL_PAUSE_SECONDS: Final = 0.05
_FAILED_PAUSE_SECONDS: Final = 0.25
_SUSPEND_SECONDS: Final = 1.0
_BACK: Final = 0.05
"""The share of pulls that go back to an earlier offset."""


class FollowersWorkload:
    """See the module."""

    name = NAME

    def __init__(self) -> None:
        self._producer: Producer | None = None

    async def setup(self, ctx: WorkloadContext) -> None:
        """Make the topic and start the producer."""
        async with Admin(ctx.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        self._producer = Producer(ctx.namesrv, group="chaos-followers", retry_unknown=False)
        await self._producer.start()

    async def run(self, ctx: WorkloadContext) -> None:
        """Write to the leader and read from everybody until the end."""
        assert self._producer is not None
        sends = RecordedSends(ctx.recorder, NAME, "writer", self._producer, TOPIC)
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write(ctx, sends, random.Random(ctx.rng.random())))
            for node in ctx.nodes:
                tasks.create_task(self._read(ctx, reader, node, random.Random(ctx.rng.random())))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Read everything from every node."""
        if self._producer is not None:
            await self._producer.close()
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader:
            await reader.scan(TOPIC, ctx)

    async def _write(self, ctx: WorkloadContext, sends: RecordedSends, rng: random.Random) -> None:
        while not ctx.stopping.is_set():
            await sends.send(rng.randint(0, 500))
            await asyncio.sleep(_SEND_PAUSE_SECONDS)

    async def _read(self, ctx: WorkloadContext, reader: TopicReader, node: NodeAddresses, rng: random.Random) -> None:
        positions: dict[MessageQueue, int] = {}
        while not ctx.stopping.is_set():
            if not positions:
                try:
                    queues = await reader.queues(TOPIC)
                except ClientError:
                    await asyncio.sleep(_FAILED_PAUSE_SECONDS)
                    continue
                positions = {queue: 0 for queue in queues if queue.broker_group == node.group}
                if not positions:
                    return
            queue = rng.choice(list(positions))
            back = rng.random() < _BACK
            offset = rng.randint(0, positions[queue]) if back else positions[queue]
            result = await reader.pull(queue, offset, node, suspend_seconds=_SUSPEND_SECONDS)
            if result is None:
                await asyncio.sleep(_FAILED_PAUSE_SECONDS)
                continue
            if not back:
                positions[queue] = result.next_offset
            await asyncio.sleep(_PULL_PAUSE_SECONDS)


ENTRY: Final = WorkloadEntry(
    NAME,
    "one writer, and a reader on every node that reads from that node only",
    "broker",
    FollowersWorkload,
    needs=frozenset({FOLLOWER_READS}),
)

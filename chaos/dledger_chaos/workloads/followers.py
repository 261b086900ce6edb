"""Reads from each node, followers above all, while one producer sends.

For every node a reader follows the queues on this node only, with long polls. Now and then it goes back to an earlier
offset and reads some messages again.
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
_BACK_SHARE: Final = 0.05
"""Share of pulls that go back to an earlier offset."""


class FollowersWorkload:
    """Clients of the workload `followers`, as the module describes it."""

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
        """Send to the leader and read from every node until the end."""
        assert self._producer is not None
        sends = RecordedSends(ctx.recorder, NAME, "writer", self._producer, TOPIC)
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send_messages(ctx, sends, random.Random(ctx.rng.random())))
            for node in ctx.nodes:
                tasks.create_task(self._read_queues(ctx, reader, node, random.Random(ctx.rng.random())))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Read everything from every node."""
        if self._producer is not None:
            await self._producer.close()
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader:
            await reader.scan(TOPIC, ctx)

    async def _send_messages(self, ctx: WorkloadContext, sends: RecordedSends, rng: random.Random) -> None:
        while not ctx.stopping.is_set():
            await sends.send(rng.randint(0, 500))
            await asyncio.sleep(_SEND_PAUSE_SECONDS)

    async def _read_queues(
        self, ctx: WorkloadContext, reader: TopicReader, node: NodeAddresses, rng: random.Random
    ) -> None:
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
            back = rng.random() < _BACK_SHARE
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
    "one producer, and for every node a reader that reads from this node only",
    "broker",
    FollowersWorkload,
    needs=frozenset({FOLLOWER_READS}),
)

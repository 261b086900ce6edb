"""Messages with ordering keys: bursts of sends with one key, whose order must survive repeated attempts.

The producer repeats attempts of unknown outcome, so that a message may be stored twice. The first copy of a message
counts. At the end every queue is read from every node.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from dledger_client import Admin, Producer

from .base import WorkloadContext, WorkloadEntry
from .reading import TopicReader
from .sending import RecordedSends

NAME: Final = "ordered"
TOPIC: Final = "chaos-ordered"
QUEUES: Final = 4
KEYS: Final = 8
BURST: Final = 4
"""Number of sends of one key that are called one after another without waiting."""

_PAUSE_SECONDS: Final = 0.1


class OrderedWorkload:
    """Clients of the workload `ordered`, as the module describes it."""

    name = NAME

    def __init__(self) -> None:
        self._producer: Producer | None = None

    async def setup(self, ctx: WorkloadContext) -> None:
        """Make the topic and start the producer."""
        async with Admin(ctx.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        self._producer = Producer(ctx.namesrv, group="chaos-ordered")
        await self._producer.start()

    async def run(self, ctx: WorkloadContext) -> None:
        """Send until the end."""
        assert self._producer is not None
        async with asyncio.TaskGroup() as tasks:
            for number in range(KEYS):
                sends = RecordedSends(ctx.recorder, NAME, f"key-{number}", self._producer, TOPIC)
                tasks.create_task(self._send_bursts(ctx, sends, f"key-{number}", random.Random(ctx.rng.random())))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Read everything from every node."""
        if self._producer is not None:
            await self._producer.close()
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader:
            await reader.scan(TOPIC, ctx)

    async def _send_bursts(self, ctx: WorkloadContext, sends: RecordedSends, key: str, rng: random.Random) -> None:
        while not ctx.stopping.is_set():
            burst = rng.randint(1, BURST)
            await asyncio.gather(*(sends.send_ordered(key, rng.randint(0, 500)) for _ in range(burst)))
            await asyncio.sleep(_PAUSE_SECONDS)


ENTRY: Final = WorkloadEntry(
    NAME, "bursts of messages with ordering keys, which are repeated after unknown outcomes", "broker", OrderedWorkload
)

"""A log that is trimmed all the time, and readers that ask for trimmed messages.

The log is limited to a few segments, and messages are large, so that the leader trims the log all the time. Only the
oldest messages may be trimmed, and the same messages on all nodes. A reader of trimmed messages is told the offset at
which to continue. In a short run there may be no trim. Then the workload sends after healing until the first trim.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from dledger_client import Admin, ClientError, MessageQueue, Producer

from .base import RETENTION, WorkloadContext, WorkloadEntry
from .reading import TopicReader, moved
from .sending import RecordedSends

NAME: Final = "retention"
TOPIC: Final = "chaos-retention"
QUEUES: Final = 2
CONFIG: Final = "retention_bytes = 67108864\n"
MESSAGE_BYTES: Final = 120_000

_SEND_PAUSE_SECONDS: Final = 0.04
_PULL_PAUSE_SECONDS: Final = 0.3
_TRIM_SECONDS: Final = 120.0
_LAST_SENDS: Final = 8
_SUSPEND_SECONDS: Final = 1.0


class RetentionWorkload:
    """Clients of the workload `retention`, as the module describes it."""

    name = NAME

    def __init__(self) -> None:
        self._producer: Producer | None = None

    async def setup(self, ctx: WorkloadContext) -> None:
        """Make the topic and start the producer. It does not compress bodies, because they must fill the log."""
        async with Admin(ctx.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        self._producer = Producer(ctx.namesrv, group="chaos-retention", retry_unknown=False, compress_over_bytes=None)
        await self._producer.start()

    async def run(self, ctx: WorkloadContext) -> None:
        """Send, and read offsets that may be trimmed, until the end."""
        assert self._producer is not None
        sends = RecordedSends(ctx.recorder, NAME, "writer", self._producer, TOPIC)
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write(ctx, sends))
            tasks.create_task(self._read_old(ctx, reader, random.Random(ctx.rng.random())))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Read below the first offset on every node, then a new message, then all messages that are kept."""
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader:
            if self._producer is not None:
                await self._write_until_trimmed(
                    ctx, reader, RecordedSends(ctx.recorder, NAME, "last", self._producer, TOPIC)
                )
                await self._read_newest(ctx, reader, RecordedSends(ctx.recorder, NAME, "newest", self._producer, TOPIC))
                await self._producer.close()
            await reader.scan(TOPIC, ctx)

    async def _write_until_trimmed(self, ctx: WorkloadContext, reader: TopicReader, sends: RecordedSends) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _TRIM_SECONDS
        queue = (await reader.queues(TOPIC))[0]
        for node in ctx.nodes:
            while node.group == queue.broker_group and loop.time() < deadline:
                result = await reader.pull(queue, 0, node)
                if result is not None and moved(result):
                    break
                await asyncio.gather(*(sends.send(MESSAGE_BYTES) for _ in range(_LAST_SENDS)))

    async def _read_newest(self, ctx: WorkloadContext, reader: TopicReader, sends: RecordedSends) -> None:
        """Send a last message, which is not trimmed any more, and read it from every node."""
        sent = await sends.send(MESSAGE_BYTES)
        if sent is not None:
            stored = sent[1]
            queue = MessageQueue(TOPIC, stored.broker_group, stored.queue_id)
            for node in ctx.nodes:
                if node.group == queue.broker_group:
                    await reader.pull(queue, stored.queue_offset, node, suspend_seconds=_SUSPEND_SECONDS)

    async def _write(self, ctx: WorkloadContext, sends: RecordedSends) -> None:
        while not ctx.stopping.is_set():
            await sends.send(MESSAGE_BYTES)
            await asyncio.sleep(_SEND_PAUSE_SECONDS)

    async def _read_old(self, ctx: WorkloadContext, reader: TopicReader, rng: random.Random) -> None:
        """Read offsets that may be trimmed: 0, or a random offset below the newest one."""
        next_offset = 0
        while not ctx.stopping.is_set():
            try:
                queue = rng.choice(list(await reader.queues(TOPIC)))
            except ClientError:
                await asyncio.sleep(_PULL_PAUSE_SECONDS)
                continue
            node = rng.choice([node for node in ctx.nodes if node.group == queue.broker_group])
            result = await reader.pull(queue, rng.choice((0, rng.randint(0, next_offset))), node)
            if result is not None:
                next_offset = max(next_offset, result.next_offset)
            await asyncio.sleep(_PULL_PAUSE_SECONDS)


ENTRY: Final = WorkloadEntry(
    NAME,
    "a log that is trimmed all the time, and readers that ask for trimmed messages",
    "broker",
    RetentionWorkload,
    needs=frozenset({RETENTION}),
    config=CONFIG,
)

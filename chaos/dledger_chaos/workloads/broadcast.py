"""Broadcasting consumers: each member gets every message, and keeps its offsets in a file of its own.

Members leave after a few seconds and come back with their files. At the end each member stays until all acknowledged
messages have been delivered to it.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import Final

from dledger_client import Admin, Producer, PushConsumer, ReceivedMessage, SendResult

from .base import WorkloadContext, WorkloadEntry
from .members import come_and_go, send_on
from .payload import decode_payload
from .reading import TopicReader
from .records import seen_of
from .sending import RecordedSends
from .tailing import Arrivals

NAME: Final = "broadcast"
TOPIC: Final = "chaos-broadcast"
GROUP: Final = "chaos-broadcast"
QUEUES: Final = 2
MEMBERS: Final = ("member-0", "member-1")

_SEND_PAUSE_SECONDS: Final = 0.02
_LIFE_SECONDS: Final = (2.0, 8.0)
_FINAL_SECONDS: Final = 90.0


class BroadcastWorkload:
    """Clients of the workload `broadcast`, as the module describes it."""

    name = NAME

    def __init__(self) -> None:
        self._producer: Producer | None = None
        self._arrivals = {member: Arrivals() for member in MEMBERS}

    async def setup(self, ctx: WorkloadContext) -> None:
        """Make the topic and start the producer."""
        async with Admin(ctx.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        self._producer = Producer(ctx.namesrv, group="chaos-broadcast-producer", retry_unknown=False)
        await self._producer.start()

    async def run(self, ctx: WorkloadContext) -> None:
        """Send and consume until the end."""
        assert self._producer is not None
        sends = RecordedSends(ctx.recorder, NAME, "producer", self._producer, TOPIC)
        async with asyncio.TaskGroup() as tasks:
            rng = random.Random(ctx.rng.random())
            tasks.create_task(send_on(ctx, sends, rng, _SEND_PAUSE_SECONDS, self._on_acknowledged))
            for member in MEMBERS:
                consumer = partial(self._make_consumer, ctx, member)
                tasks.create_task(come_and_go(ctx, random.Random(ctx.rng.random()), _LIFE_SECONDS, consumer))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Wait until everything is delivered to everyone; read every queue from every node."""
        if self._producer is not None:
            await self._producer.close()
        await asyncio.gather(*(self._deliver_rest(ctx, member) for member in MEMBERS))
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader:
            await reader.scan(TOPIC, ctx)

    def _on_acknowledged(self, value: str, _: SendResult) -> None:
        for arrivals in self._arrivals.values():
            arrivals.expect(value)

    async def _deliver_rest(self, ctx: WorkloadContext, member: str) -> None:
        async with self._make_consumer(ctx, member):
            await self._arrivals[member].wait(_FINAL_SECONDS)

    def _make_consumer(self, ctx: WorkloadContext, member: str) -> PushConsumer:
        async def handle(message: ReceivedMessage) -> None:
            ctx.recorder.invoke(NAME, member, "deliver", str(message.queue)).ok(seen_of(message))
            self._arrivals[member].came(decode_payload(message.body))

        offsets = ctx.directory / f"{member}.json"
        return PushConsumer(
            ctx.namesrv, GROUP, TOPIC, handle, broadcast=True, offset_file=offsets, concurrency=1, start_timeout=None
        )


ENTRY: Final = WorkloadEntry(
    NAME, "broadcasting consumers that leave and come back with their files of offsets", "broker", BroadcastWorkload
)

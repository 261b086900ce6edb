"""Consumers that broadcast: each is to be given every message, and keeps in a file of its own how far it is.

Members leave after a few seconds and come back with their files. At the end each stays until everything that was
acknowledged has been delivered to it.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from dledger_client import Admin, Producer, PushConsumer, ReceivedMessage

from .base import WorkloadContext, WorkloadEntry, sleep_or_stop
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
_AWAY_SECONDS: Final = (0.0, 3.0)
_FINAL_SECONDS: Final = 90.0


class BroadcastWorkload:
    """See the module."""

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
            tasks.create_task(self._send(ctx, sends, random.Random(ctx.rng.random())))
            for member in MEMBERS:
                tasks.create_task(self._come_and_go(ctx, member, random.Random(ctx.rng.random())))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Wait until everything is delivered to everyone; read every queue from every node."""
        if self._producer is not None:
            await self._producer.close()
        await asyncio.gather(*(self._deliver_the_rest(ctx, member) for member in MEMBERS))
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader:
            await reader.scan(TOPIC, ctx)

    async def _send(self, ctx: WorkloadContext, sends: RecordedSends, rng: random.Random) -> None:
        while not ctx.stopping.is_set():
            sent = await sends.send(rng.randint(0, 500))
            if sent is not None:
                for arrivals in self._arrivals.values():
                    arrivals.expect(sent[0])
            await asyncio.sleep(_SEND_PAUSE_SECONDS)

    async def _come_and_go(self, ctx: WorkloadContext, member: str, rng: random.Random) -> None:
        while not ctx.stopping.is_set():
            async with self._consumer(ctx, member):
                await sleep_or_stop(ctx, rng.uniform(*_LIFE_SECONDS))
            await sleep_or_stop(ctx, rng.uniform(*_AWAY_SECONDS))

    async def _deliver_the_rest(self, ctx: WorkloadContext, member: str) -> None:
        async with self._consumer(ctx, member):
            await self._arrivals[member].wait(_FINAL_SECONDS)

    def _consumer(self, ctx: WorkloadContext, member: str) -> PushConsumer:
        async def handle(message: ReceivedMessage) -> None:
            ctx.recorder.invoke(NAME, member, "deliver", str(message.queue)).ok(seen_of(message))
            self._arrivals[member].came(decode_payload(message.body))

        offsets = ctx.directory / f"{member}.json"
        return PushConsumer(
            ctx.namesrv, GROUP, TOPIC, handle, broadcast=True, offset_file=offsets, concurrency=1, start_timeout=None
        )


ENTRY: Final = WorkloadEntry(
    NAME, "consumers that broadcast come and go while messages are sent", "broker", BroadcastWorkload
)
"""The line of the registry."""

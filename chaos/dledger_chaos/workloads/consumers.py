"""A consumer group whose members come and go while messages are sent.

Three members handle one message at a time; each leaves after a few seconds and comes back, so that queues move all the
time. At the end one more member stays until everything that was acknowledged has been delivered, and the group's
committed offsets are read.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from dledger_client import Admin, ClientError, Handler, MessageQueue, Producer, PushConsumer, ReceivedMessage

from .base import WorkloadContext, WorkloadEntry, sleep_or_stop
from .payload import decode_payload
from .reading import TopicReader
from .records import seen_of
from .sending import RecordedSends

NAME: Final = "consumers"
TOPIC: Final = "chaos-consumers"
GROUP: Final = "chaos-consumers"
QUEUES: Final = 4
MEMBERS: Final = 3

_SEND_PAUSE_SECONDS: Final = 0.01
_LIFE_SECONDS: Final = (3.0, 12.0)
_AWAY_SECONDS: Final = (0.0, 3.0)
_FINAL_SECONDS: Final = 90.0
_POLL_SECONDS: Final = 0.1


class ConsumersWorkload:
    """See the module."""

    name = NAME

    def __init__(self) -> None:
        self._producer: Producer | None = None
        self._acknowledged: set[str] = set()
        self._delivered: set[str] = set()

    async def setup(self, ctx: WorkloadContext) -> None:
        """Make the topic and start the producer."""
        async with Admin(ctx.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        self._producer = Producer(ctx.namesrv, group="chaos-consumers-producer", retry_unknown=False)
        await self._producer.start()

    async def run(self, ctx: WorkloadContext) -> None:
        """Send and consume until the end."""
        assert self._producer is not None
        sends = RecordedSends(ctx.recorder, NAME, "producer", self._producer, TOPIC)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send(ctx, sends, random.Random(ctx.rng.random())))
            for number in range(MEMBERS):
                tasks.create_task(self._member(ctx, f"member-{number}", random.Random(ctx.rng.random())))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Wait until everything is delivered; read every queue from every node, and the committed offsets."""
        if self._producer is not None:
            await self._producer.close()
        await self._deliver_the_rest(ctx)
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader, Admin(ctx.namesrv) as admin:
            await reader.scan(TOPIC, ctx)
            committed = ctx.recorder.invoke(NAME, "final", "group-offsets", GROUP)
            try:
                statuses = await admin.offsets(GROUP, TOPIC)
            except ClientError as error:
                committed.fail(str(error))
            else:
                committed.ok([[str(status.queue), status.committed] for status in statuses])

    async def _send(self, ctx: WorkloadContext, sends: RecordedSends, rng: random.Random) -> None:
        while not ctx.stopping.is_set():
            sent = await sends.send(rng.randint(0, 500))
            if sent is not None:
                self._acknowledged.add(sent[0])
            await asyncio.sleep(_SEND_PAUSE_SECONDS)

    async def _member(self, ctx: WorkloadContext, process: str, rng: random.Random) -> None:
        while not ctx.stopping.is_set():
            async with PushConsumer(ctx.namesrv, GROUP, TOPIC, self._handler(ctx, process), concurrency=1):
                await sleep_or_stop(ctx, rng.uniform(*_LIFE_SECONDS))
            await sleep_or_stop(ctx, rng.uniform(*_AWAY_SECONDS))

    async def _deliver_the_rest(self, ctx: WorkloadContext) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _FINAL_SECONDS
        async with PushConsumer(ctx.namesrv, GROUP, TOPIC, self._handler(ctx, "last"), concurrency=1):
            while loop.time() < deadline:
                if self._acknowledged <= self._delivered:
                    break
                await asyncio.sleep(_POLL_SECONDS)

    def _handler(self, ctx: WorkloadContext, process: str) -> Handler:
        async def handle(message: ReceivedMessage) -> None:
            queue = MessageQueue(*message.queue)
            ctx.recorder.invoke(NAME, process, "deliver", str(queue)).ok(seen_of(message))
            self._delivered.add(decode_payload(message.body))

        return handle


ENTRY: Final = WorkloadEntry(
    NAME, "a consumer group whose members come and go while messages are sent", "broker", ConsumersWorkload
)

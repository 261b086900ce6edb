"""A consumer group whose members come and go while messages are sent.

Three members handle one message at a time. Some handlings last longer than a rebalancing. Each member leaves after a
few seconds and comes back, so that queues change their owners all the time. At the end one more member stays until all
acknowledged messages have been delivered. Then the group's committed offsets are read.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import Final

from dledger_client import Admin, ClientError, MessageQueue, Producer, PushConsumer, ReceivedMessage, SendResult

from .base import WorkloadContext, WorkloadEntry
from .members import come_and_go, send_on, work
from .payload import decode_payload
from .reading import TopicReader
from .records import seen_of
from .sending import RecordedSends
from .tailing import Arrivals

NAME: Final = "consumers"
TOPIC: Final = "chaos-consumers"
GROUP: Final = "chaos-consumers"
QUEUES: Final = 4
MEMBERS: Final = 3

_SEND_PAUSE_SECONDS: Final = 0.01
_LIFE_SECONDS: Final = (3.0, 12.0)
_FINAL_SECONDS: Final = 90.0


class ConsumersWorkload:
    """Clients of the workload `consumers`, as the module describes it."""

    name = NAME

    def __init__(self) -> None:
        self._producer: Producer | None = None
        self._arrivals = Arrivals()

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
            rng = random.Random(ctx.rng.random())
            tasks.create_task(send_on(ctx, sends, rng, _SEND_PAUSE_SECONDS, self._on_acknowledged))
            for number in range(MEMBERS):
                rng = random.Random(ctx.rng.random())
                consumer = partial(self._make_consumer, ctx, f"member-{number}", rng)
                tasks.create_task(come_and_go(ctx, rng, _LIFE_SECONDS, consumer))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Wait until everything is delivered; read every queue from every node, and the committed offsets."""
        if self._producer is not None:
            await self._producer.close()
        await self._deliver_rest(ctx)
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader, Admin(ctx.namesrv) as admin:
            await reader.scan(TOPIC, ctx)
            committed = ctx.recorder.invoke(NAME, "final", "group-offsets", GROUP)
            try:
                statuses = await admin.offsets(GROUP, TOPIC)
            except ClientError as error:
                committed.fail(str(error))
            else:
                committed.ok([[str(status.queue), status.committed] for status in statuses])

    def _on_acknowledged(self, value: str, _: SendResult) -> None:
        self._arrivals.expect(value)

    async def _deliver_rest(self, ctx: WorkloadContext) -> None:
        ctx.recorder.invoke(NAME, "last", "stay", "").ok()
        async with self._make_consumer(ctx, "last", None):
            await self._arrivals.wait(_FINAL_SECONDS)

    def _make_consumer(self, ctx: WorkloadContext, process: str, rng: random.Random | None) -> PushConsumer:
        """Return a member. Without `rng` its handler takes no time."""

        async def handle(message: ReceivedMessage) -> None:
            queue = MessageQueue(*message.queue)
            ctx.recorder.invoke(NAME, process, "deliver", str(queue)).ok(seen_of(message))
            self._arrivals.came(decode_payload(message.body))
            if rng is not None:
                await work(ctx, rng, 0.0)

        return PushConsumer(ctx.namesrv, GROUP, TOPIC, handle, concurrency=1, start_timeout=None)


ENTRY: Final = WorkloadEntry(
    NAME, "a consumer group whose members come and go while messages are sent", "broker", ConsumersWorkload
)

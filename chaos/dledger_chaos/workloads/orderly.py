"""Ordered consumers of ours, who come and go while messages are sent: each queue in order, by one member at a time.

A few handlings fail, so that the message is tried again in its place. At the end one more member stays until each queue
has been handled to its end.
"""

from __future__ import annotations

import asyncio
import random
from itertools import count
from typing import Final

from dledger_client import Admin, Handler, OrderlyConsumer, Producer, ReceivedMessage, SendResult

from .base import WorkloadContext, WorkloadEntry
from .members import come_and_go, send_on
from .payload import decode_payload
from .reading import TopicReader
from .records import Seen, queue_key_of
from .sending import RecordedSends

NAME: Final = "orderly"
TOPIC: Final = "chaos-orderly"
GROUP: Final = "chaos-orderly"
QUEUES: Final = 6
MEMBERS: Final = 3

_SEND_PAUSE_SECONDS: Final = 0.03
_HANDLING_SECONDS: Final = 0.02
"""A handling takes up to so long."""
_FAILURES: Final = 0.02
_LIFE_SECONDS: Final = (5.0, 20.0)
_FINAL_SECONDS: Final = 150.0
"""Longer than the lock of a member lasts that could not give it up."""


class OrderlyWorkload:
    """See the module."""

    name = NAME

    def __init__(self) -> None:
        self._producer: Producer | None = None
        self._acknowledged: dict[str, int] = {}
        self._handled: dict[str, int] = {}
        self._caught_up = asyncio.Event()

    async def setup(self, ctx: WorkloadContext) -> None:
        """Make the topic and start the producer."""
        async with Admin(ctx.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        self._producer = Producer(ctx.namesrv, group="chaos-orderly-producer", retry_unknown=False)
        await self._producer.start()

    async def run(self, ctx: WorkloadContext) -> None:
        """Send and consume until the end."""
        assert self._producer is not None
        sends = RecordedSends(ctx.recorder, NAME, "producer", self._producer, TOPIC)
        async with asyncio.TaskGroup() as tasks:
            rng = random.Random(ctx.rng.random())
            tasks.create_task(send_on(ctx, sends, rng, _SEND_PAUSE_SECONDS, self._on_acknowledged))
            for number in range(MEMBERS):
                tasks.create_task(self._member(ctx, f"member-{number}", random.Random(ctx.rng.random())))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Wait until each queue is handled to its end; read every queue from every node."""
        if self._producer is not None:
            await self._producer.close()
        self._look()
        async with OrderlyConsumer(ctx.namesrv, GROUP, TOPIC, self._handler(ctx, "last", None)):
            try:
                async with asyncio.timeout(_FINAL_SECONDS):
                    await self._caught_up.wait()
            except TimeoutError:
                pass  # what is missing is for the checkers to judge
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader:
            await reader.scan(TOPIC, ctx)

    def _on_acknowledged(self, _: str, result: SendResult) -> None:
        queue = queue_key_of(result)
        self._acknowledged[queue] = max(result.queue_offset, self._acknowledged.get(queue, -1))

    async def _member(self, ctx: WorkloadContext, process: str, rng: random.Random) -> None:
        lives = count(1)

        def consumer() -> OrderlyConsumer:
            handler = self._handler(ctx, f"{process}-{next(lives)}", rng)
            return OrderlyConsumer(ctx.namesrv, GROUP, TOPIC, handler, start_timeout=None)

        await come_and_go(ctx, rng, _LIFE_SECONDS, consumer)

    def _handler(self, ctx: WorkloadContext, process: str, rng: random.Random | None) -> Handler:
        """A handler whose work takes time and may fail; without `rng` it does neither."""

        async def handle(message: ReceivedMessage) -> None:
            value = decode_payload(message.body)
            seen = Seen(message.queue_offset, value, message.physical_offset)
            handling = ctx.recorder.invoke(NAME, process, "deliver", str(message.queue), seen)
            if rng is not None:
                try:
                    await asyncio.sleep(rng.random() * _HANDLING_SECONDS)
                except asyncio.CancelledError:
                    handling.info("cut off by the end of its consumer")
                    raise
                if rng.random() < _FAILURES:
                    handling.fail("it is tried again")
                    raise _FailedError
            handling.ok()
            queue = str(message.queue)
            self._handled[queue] = max(message.queue_offset, self._handled.get(queue, -1))
            self._look()

        return handle

    def _look(self) -> None:
        """See whether the last acknowledged message of each queue is handled: what is left out a trim has taken."""
        if all(self._handled.get(queue, -1) >= offset for queue, offset in self._acknowledged.items()):
            self._caught_up.set()
        else:
            self._caught_up.clear()


class _FailedError(Exception):
    """A handler that does not want a message now."""


ENTRY: Final = WorkloadEntry(
    NAME, "ordered consumers who come and go while messages are sent", "broker", OrderlyWorkload
)
"""The line of the registry."""

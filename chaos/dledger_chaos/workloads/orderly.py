"""Our ordered consumers, which come and go while messages are sent. One member at a time handles a queue, in order.

A few handlings fail, so that the message is handled again before the next message. A few last longer than a
rebalancing. At the end one more member stays until it has handled the last acknowledged message of each queue.
"""

from __future__ import annotations

import asyncio
import random
from itertools import count
from typing import Final

from dledger_client import Admin, Handler, OrderlyConsumer, Producer, ReceivedMessage, SendResult

from .base import WorkloadContext, WorkloadEntry
from .members import come_and_go, send_on, work
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
"""Maximum time in seconds of most handlings."""
_FAILURE_SHARE: Final = 0.02
_LIFE_SECONDS: Final = (5.0, 20.0)
_FINAL_SECONDS: Final = 150.0
"""Time limit for the final member. A lock that a member could not release lasts a minute."""


class OrderlyWorkload:
    """Clients of the workload `orderly`, as the module describes it."""

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
                tasks.create_task(self._run_member(ctx, f"member-{number}", random.Random(ctx.rng.random())))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Wait until the last acknowledged message of each queue is handled; read every queue from every node."""
        if self._producer is not None:
            await self._producer.close()
        self._update_caught_up()
        ctx.recorder.invoke(NAME, "last", "stay", "").ok()
        async with OrderlyConsumer(ctx.namesrv, GROUP, TOPIC, self._make_handler(ctx, "last", None)):
            try:
                async with asyncio.timeout(_FINAL_SECONDS):
                    await self._caught_up.wait()
            except TimeoutError:
                pass  # the checkers judge what is missing
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader:
            await reader.scan(TOPIC, ctx)

    def _on_acknowledged(self, _: str, result: SendResult) -> None:
        queue = queue_key_of(result)
        self._acknowledged[queue] = max(result.queue_offset, self._acknowledged.get(queue, -1))

    async def _run_member(self, ctx: WorkloadContext, process: str, rng: random.Random) -> None:
        lives = count(1)

        def consumer() -> OrderlyConsumer:
            handler = self._make_handler(ctx, f"{process}-{next(lives)}", rng)
            return OrderlyConsumer(ctx.namesrv, GROUP, TOPIC, handler, start_timeout=None)

        await come_and_go(ctx, rng, _LIFE_SECONDS, consumer)

    def _make_handler(self, ctx: WorkloadContext, process: str, rng: random.Random | None) -> Handler:
        """Return a handler that takes time and may fail. Without `rng` it takes no time and never fails."""

        async def handle(message: ReceivedMessage) -> None:
            value = decode_payload(message.body)
            seen = Seen(message.queue_offset, value, message.physical_offset)
            handling = ctx.recorder.invoke(NAME, process, "deliver", str(message.queue), seen)
            if rng is not None:
                try:
                    await work(ctx, rng, _HANDLING_SECONDS)
                except asyncio.CancelledError:
                    handling.info("cut off by the end of its consumer")
                    raise
                if rng.random() < _FAILURE_SHARE:
                    handling.fail("it is tried again")
                    raise _FailedError
            handling.ok()
            queue = str(message.queue)
            self._handled[queue] = max(message.queue_offset, self._handled.get(queue, -1))
            self._update_caught_up()

        return handle

    def _update_caught_up(self) -> None:
        """Set or clear `_caught_up`: whether the last acknowledged message of each queue has been handled.

        Earlier messages that were not handled have been trimmed.
        """
        if all(self._handled.get(queue, -1) >= offset for queue, offset in self._acknowledged.items()):
            self._caught_up.set()
        else:
            self._caught_up.clear()


class _FailedError(Exception):
    """Raised by a handler that fails on purpose."""


ENTRY: Final = WorkloadEntry(
    NAME, "our ordered consumers, which come and go while messages are sent", "broker", OrderlyWorkload
)

"""Unique messages, sent in all ways that a producer has. Some are looked up as soon as they are acknowledged.

| process | sends |
|---|---|
| `one-0`, `one-1` | one message after another; their waits show how long clients wait for a new leader |
| `many` | up to 32 messages concurrently |
| `batch` | batches of 2 to 100 messages |
| `repeat` | one message after another, repeated after an unknown outcome |
| `idempotent` | like `repeat`, but as idempotent sends, of which brokers store no repetition |
| `oneway` | one-way messages, which get no answer |

Only `repeat` may store a message twice. At the end every queue is read from every node.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

import msgspec

from dledger_client import Admin, ClientError, MessageQueue, NotFoundError, Producer, SendResult

from .base import WorkloadContext, WorkloadEntry
from .payload import decode_payload
from .reading import TopicReader
from .records import Found, queue_key_of
from .sending import RecordedSends, end_with_error

NAME: Final = "append"
TOPIC: Final = "chaos-append"
QUEUES: Final = 4
IN_FLIGHT: Final = 32
LARGEST_BYTES: Final = 200_000
LARGEST_BATCH: Final = 100

SINGLE_SENDS: Final = {"repeat": "send-repeating", "idempotent": "send-idempotent"}
"""Functions under which sends are recorded, by process, for processes that repeat attempts of unknown outcome."""

_PAUSE_SECONDS: Final = 0.005
_BATCH_PAUSE_SECONDS: Final = 0.05
_LOOK_UP_SHARE: Final = 0.03
"""Share of acknowledged messages that is looked up at once."""


class AppendWorkload:
    """Clients of the workload `append`, as the module describes it."""

    name = NAME

    def __init__(self) -> None:
        self._producers: dict[str, Producer] = {}
        self._admin: Admin | None = None

    async def setup(self, ctx: WorkloadContext) -> None:
        """Make the topic and start the producers."""
        self._admin = Admin(ctx.namesrv)
        await self._admin.start()
        await self._admin.create_topic(TOPIC, queues=QUEUES)
        for process in ("one-0", "one-1", "many", "batch", "repeat", "idempotent", "oneway"):
            producer = Producer(
                ctx.namesrv,
                group=f"chaos-{process}",
                retry_unknown=process in SINGLE_SENDS,
                idempotent=process == "idempotent",
            )
            await producer.start()
            self._producers[process] = producer

    async def run(self, ctx: WorkloadContext) -> None:
        """Send until the end."""
        async with asyncio.TaskGroup() as tasks:
            for process, producer in self._producers.items():
                f = SINGLE_SENDS.get(process, "send")
                sends = RecordedSends(ctx.recorder, NAME, process, producer, TOPIC, f=f)
                rng = random.Random(ctx.rng.random())
                work = {"many": self._send_concurrently, "batch": self._send_batches, "oneway": self._send_oneway}.get(
                    process, self._send_singly
                )
                tasks.create_task(work(ctx, sends, rng), name=f"append {process}")

    async def finish(self, ctx: WorkloadContext) -> None:
        """Read everything from every node."""
        for producer in self._producers.values():
            await producer.close()
        if self._admin is not None:
            await self._admin.close()
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader:
            await reader.scan(TOPIC, ctx)

    async def _send_singly(self, ctx: WorkloadContext, sends: RecordedSends, rng: random.Random) -> None:
        while not ctx.stopping.is_set():
            sent = await sends.send(message_bytes(rng))
            if sent is not None and rng.random() < _LOOK_UP_SHARE:
                await self._look_up(ctx, rng, *sent)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _send_concurrently(self, ctx: WorkloadContext, sends: RecordedSends, rng: random.Random) -> None:
        while not ctx.stopping.is_set():
            await asyncio.gather(*(sends.send(message_bytes(rng)) for _ in range(rng.randint(1, IN_FLIGHT))))
            await asyncio.sleep(_PAUSE_SECONDS * IN_FLIGHT / 2)

    async def _send_batches(self, ctx: WorkloadContext, sends: RecordedSends, rng: random.Random) -> None:
        while not ctx.stopping.is_set():
            await sends.send_batch([rng.randint(0, 300) for _ in range(rng.randint(2, LARGEST_BATCH))])
            await asyncio.sleep(_BATCH_PAUSE_SECONDS)

    async def _send_oneway(self, ctx: WorkloadContext, sends: RecordedSends, rng: random.Random) -> None:
        while not ctx.stopping.is_set():
            await sends.send_oneway(message_bytes(rng))
            await asyncio.sleep(_BATCH_PAUSE_SECONDS)

    async def _look_up(self, ctx: WorkloadContext, rng: random.Random, value: str, result: SendResult) -> None:
        """Find a message that was just acknowledged: by its id, by its key, or by its queue's end."""
        if self._admin is None:
            return
        by = rng.choice(("id", "key", "end"))
        queue = queue_key_of(result)
        if by == "end":
            end = ctx.recorder.invoke(NAME, "look-up", "end", queue)
            try:
                end.ok(await self._admin.end_offset(MessageQueue(TOPIC, result.broker_group, result.queue_id)))
            except ClientError as error:
                end_with_error(end, error)
            return
        view = ctx.recorder.invoke(NAME, "look-up", "view", queue, [result.queue_offset, value])
        try:
            if by == "id":
                found = [await self._admin.message_by_id(result.offset_message_id)]
            else:
                found = await self._admin.messages_by_key(TOPIC, value)
        except NotFoundError:
            found = []
        except ClientError as error:
            end_with_error(view, error)
            return
        seen = decode_payload(found[0].body) if found else None
        view.ok(**msgspec.structs.asdict(Found(seen, by)))


def message_bytes(rng: random.Random) -> int:
    """Return the size of a message: mostly small, sometimes large."""
    return rng.randint(0, 2_000) if rng.random() < 0.99 else rng.randint(2_000, LARGEST_BYTES)


ENTRY: Final = WorkloadEntry(
    NAME,
    "unique messages, sent one by one, concurrently, in batches and one-way; some are looked up once acknowledged",
    "broker",
    AppendWorkload,
)

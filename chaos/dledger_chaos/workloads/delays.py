"""Messages that are to be delivered later: by delay levels, in so many seconds or milliseconds, and at a time.

Some are taken back, at once or a moment later. Others go to the same queues at once. Readers follow the queues, so that
it is known when each message was there; at the end they wait for all that was acknowledged and not taken back, and
every queue is read from every node.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final, NamedTuple

import msgspec

from dledger_chaos.history import Recorder
from dledger_client import Admin, ClientError, Message, Producer, ReceivedMessage, RefusedError
from dledger_client.core import ClientCore
from dledger_client.outgoing import OutgoingEncoder
from dledger_client.sender import Sender
from dledger_remoting.codes import ResponseCode
from dledger_remoting.properties import (
    DELAY,
    NAME_END,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    VALUE_END,
)

from .base import FOLLOWER_READS, WorkloadContext, WorkloadEntry
from .payload import encode_payload
from .reading import TopicReader
from .records import Delayed, value_of
from .sending import RecordedSends, attempt
from .tailing import Arrivals, TopicTail

NAME: Final = "delays"
TOPIC: Final = "chaos-delays"
QUEUES: Final = 4
SENDERS: Final = 2
LEVELS_MS: Final = {1: 1_000, 2: 5_000, 3: 10_000}
"""The first of RocketMQ's levels."""
LONGEST_MS: Final = 12_000

_AT_ONCE: Final = 0.2
"""The share of messages without a delay."""
_TAKEN_BACK: Final = 0.1
"""The share of the others that their producer recalls."""
_SECOND_THOUGHT_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.04
_DEADLINE_SECONDS: Final = 10.0
_ATTEMPT_SECONDS: Final = 3.0
_FINAL_SECONDS: Final = 90.0


class Wish(NamedTuple):
    """A delay in milliseconds, and the property that asks for it."""

    delay_ms: int
    name: str
    value: int


def draw_wish(rng: random.Random, now_ms: int) -> Wish:
    """Any delay that this workload asks for; `now_ms` is the client's wall clock."""
    delay_ms = rng.randint(100, LONGEST_MS)
    name = rng.choice((DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS))
    if name == DELAY:
        level = rng.choice(list(LEVELS_MS))
        return Wish(LEVELS_MS[level], name, level)
    if name == TIMER_DELAY_SEC:
        seconds = max(1, delay_ms // 1000)
        return Wish(seconds * 1000, name, seconds)
    return Wish(delay_ms, name, delay_ms if name == TIMER_DELAY_MS else now_ms + delay_ms)


class DelaysWorkload:
    """See the module."""

    name = NAME

    def __init__(self) -> None:
        self._producer: Producer | None = None
        self._core: ClientCore | None = None
        self._tail: TopicTail | None = None
        self._arrivals = Arrivals()

    async def setup(self, ctx: WorkloadContext) -> None:
        """Make the topic and start the clients."""
        async with Admin(ctx.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        self._producer = Producer(ctx.namesrv, group="chaos-delays", retry_unknown=False)
        await self._producer.start()
        self._core = ClientCore(ctx.namesrv)
        self._core.start()
        self._tail = TopicTail(TOPIC, ctx, self._seen)

    async def run(self, ctx: WorkloadContext) -> None:
        """Send until the end, and see what comes when."""
        assert self._producer is not None
        assert self._core is not None
        assert self._tail is not None
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tail.follow(reader, ctx.stopping))
            for number in range(SENDERS):
                process = f"sender-{number}"
                at_once = RecordedSends(ctx.recorder, NAME, f"{process}-at-once", self._producer, TOPIC)
                later = _DelayedSends(ctx.recorder, process, self._core, self._producer)
                tasks.create_task(self._send(ctx, at_once, later, random.Random(ctx.rng.random())))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Wait for what was acknowledged, and read everything from every node."""
        if self._producer is not None:
            await self._producer.close()
        if self._core is not None:
            await self._core.close()
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader:
            if self._tail is not None:
                await self._tail.follow_until(reader, self._arrivals.complete, _FINAL_SECONDS)
            await reader.scan(TOPIC, ctx)

    def _seen(self, message: ReceivedMessage) -> None:
        self._arrivals.came(value_of(message.body, message.reconsume_times))

    async def _send(
        self, ctx: WorkloadContext, at_once: RecordedSends, later: _DelayedSends, rng: random.Random
    ) -> None:
        while not ctx.stopping.is_set():
            size_bytes = rng.randint(0, 500)
            if rng.random() < _AT_ONCE:
                await at_once.send(size_bytes)
            else:
                sent = await later.send(draw_wish(rng, time.time_ns() // 1_000_000), size_bytes)
                if sent is not None and not await self._thinks_better_of(later, sent, rng):
                    self._arrivals.expect(sent.value)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _thinks_better_of(self, later: _DelayedSends, sent: _Waiting, rng: random.Random) -> bool:
        """Take a message back, or leave it; False if it is sure to come."""
        if rng.random() >= _TAKEN_BACK:
            return False
        await asyncio.sleep(rng.choice((0.0, rng.uniform(0.0, _SECOND_THOUGHT_SECONDS))))
        return await later.recall(sent)


class _Waiting(NamedTuple):
    """An acknowledged message, and by what it can be taken back."""

    value: str
    handle: str


class _DelayedSends:
    """The delayed sends of one process of the history, each of one attempt of unknown outcome at most, and recalls."""

    def __init__(self, recorder: Recorder, process: str, core: ClientCore, producer: Producer) -> None:
        self._recorder = recorder
        self._process = process
        self._core = core
        self._producer = producer
        self._encoder = OutgoingEncoder()
        self._sender = Sender(core, "chaos-delays", attempt_timeout=_ATTEMPT_SECONDS, retry_unknown=False)
        self._count = 0

    async def send(self, wish: Wish, size_bytes: int) -> _Waiting | None:
        """Send one message; None if it is not acknowledged."""
        self._count += 1
        value = f"{NAME}.{self._process}:{self._count}"
        plain = self._encoder.encode(TOPIC, Message(encode_payload(value, size_bytes), key=value))
        asked = f"{wish.name}{NAME_END}{wish.value}{VALUE_END}"
        outgoing = msgspec.structs.replace(plain, properties=plain.properties + asked)
        delayed = msgspec.structs.asdict(Delayed(wish.delay_ms))
        invocation = self._recorder.invoke(NAME, self._process, "send-delayed", TOPIC, value, **delayed)
        deadline = self._core.loop.time() + _DEADLINE_SECONDS
        call = self._sender.deliver(outgoing, self._sender.next_queue, deadline)
        stored = await attempt(invocation, call)
        if stored is None:
            return None
        invocation.ok()
        _, placement, _ = stored
        return _Waiting(value, placement.recall_handle or "")

    async def recall(self, sent: _Waiting) -> bool:
        """Take a message back; False if it is delivered all the same: only a broker that says so knows that."""
        if not sent.handle:  # its time had come when it was stored
            return False
        invocation = self._recorder.invoke(NAME, self._process, "recall", TOPIC, sent.value)
        try:
            await self._producer.recall(TOPIC, sent.handle, timeout=_DEADLINE_SECONDS)
        except RefusedError as error:
            if error.code == ResponseCode.ILLEGAL_OPERATION:
                invocation.fail(str(error), error.code)
                return False
            invocation.info(str(error), error.code)
        except ClientError as error:
            invocation.info(str(error))
        else:
            invocation.ok()
        return True


ENTRY: Final = WorkloadEntry(
    NAME,
    "messages that are to be delivered later, and readers who see when they are",
    "broker",
    DelaysWorkload,
    needs=frozenset({FOLLOWER_READS}),
)
"""The line of the registry."""

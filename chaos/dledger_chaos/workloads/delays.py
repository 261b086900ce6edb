"""Delayed messages: with a delay level, with a delay in seconds or milliseconds, and with a delivery time.

Some are recalled, at once or up to a second later. Other messages go to the same queues without a delay. Readers follow
the queues and record when each message is there. At the end they wait for all acknowledged messages that were not
recalled, and every queue is read from every node.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final, NamedTuple

import msgspec

from dledger_chaos.history import Recorder
from dledger_client import Admin, ClientError, Message, Producer, ReceivedMessage, RefusedError
from dledger_client.cluster.core import ClientCore
from dledger_client.sending.outgoing import OutgoingEncoder
from dledger_client.sending.sender import Sender
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
"""RocketMQ's first delay levels, and their delays."""
LONGEST_MS: Final = 12_000

_UNDELAYED_SHARE: Final = 0.2
"""Share of messages without a delay."""
_RECALLED_SHARE: Final = 0.1
"""Share of acknowledged delayed messages that their producer recalls."""
_RECALL_DELAY_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.04
_DEADLINE_SECONDS: Final = 10.0
_ATTEMPT_SECONDS: Final = 3.0
_FINAL_SECONDS: Final = 90.0


class Wish(NamedTuple):
    """A delay in milliseconds, and name and value of the property that requests it."""

    delay_ms: int
    name: str
    value: int


def draw_wish(rng: random.Random, now_ms: int) -> Wish:
    """Return a random delay; `now_ms` is the client's wall clock."""
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
    """Clients of the workload `delays`, as the module describes it."""

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
        self._tail = TopicTail(TOPIC, ctx, self._on_message)

    async def run(self, ctx: WorkloadContext) -> None:
        """Send until the end, and record when messages are there."""
        assert self._producer is not None
        assert self._core is not None
        assert self._tail is not None
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tail.follow(reader, ctx.stopping))
            for number in range(SENDERS):
                process = f"sender-{number}"
                at_once = RecordedSends(ctx.recorder, NAME, f"{process}-at-once", self._producer, TOPIC)
                later = _DelayedSends(ctx.recorder, process, self._core, self._producer)
                tasks.create_task(self._send_messages(ctx, at_once, later, random.Random(ctx.rng.random())))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Wait for all acknowledged messages, and read everything from every node."""
        if self._producer is not None:
            await self._producer.close()
        if self._core is not None:
            await self._core.close()
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader:
            if self._tail is not None:
                await self._tail.follow_until(reader, self._arrivals.complete, _FINAL_SECONDS)
            await reader.scan(TOPIC, ctx)

    def _on_message(self, message: ReceivedMessage) -> None:
        self._arrivals.came(value_of(message.body, message.reconsume_times))

    async def _send_messages(
        self, ctx: WorkloadContext, at_once: RecordedSends, later: _DelayedSends, rng: random.Random
    ) -> None:
        while not ctx.stopping.is_set():
            size_bytes = rng.randint(0, 500)
            if rng.random() < _UNDELAYED_SHARE:
                await at_once.send(size_bytes)
            else:
                sent = await later.send(draw_wish(rng, time.time_ns() // 1_000_000), size_bytes)
                if sent is not None and not await self._maybe_recall(later, sent, rng):
                    self._arrivals.expect(sent.value)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _maybe_recall(self, later: _DelayedSends, sent: _AcknowledgedSend, rng: random.Random) -> bool:
        """Recall a part of the messages. Return False if a message is certain to be delivered."""
        if rng.random() >= _RECALLED_SHARE:
            return False
        await asyncio.sleep(rng.choice((0.0, rng.uniform(0.0, _RECALL_DELAY_SECONDS))))
        return await later.recall(sent)


class _AcknowledgedSend(NamedTuple):
    """An acknowledged message, and the handle that recalls it."""

    value: str
    handle: str


class _DelayedSends:
    """The delayed sends and recalls of one process of the history. A send of unknown outcome is not repeated."""

    def __init__(self, recorder: Recorder, process: str, core: ClientCore, producer: Producer) -> None:
        self._recorder = recorder
        self._process = process
        self._core = core
        self._producer = producer
        self._encoder = OutgoingEncoder()
        self._sender = Sender(core, "chaos-delays", attempt_timeout=_ATTEMPT_SECONDS, retry_unknown=False)
        self._count = 0

    async def send(self, wish: Wish, size_bytes: int) -> _AcknowledgedSend | None:
        """Send one message; return None if it is not acknowledged."""
        self._count += 1
        value = f"{NAME}.{self._process}:{self._count}"
        plain = self._encoder.encode(TOPIC, Message(encode_payload(value, size_bytes), key=value))
        delay_property = f"{wish.name}{NAME_END}{wish.value}{VALUE_END}"
        outgoing = msgspec.structs.replace(plain, properties=plain.properties + delay_property)
        delayed = msgspec.structs.asdict(Delayed(wish.delay_ms))
        invocation = self._recorder.invoke(NAME, self._process, "send-delayed", TOPIC, value, **delayed)
        deadline = self._core.loop.time() + _DEADLINE_SECONDS
        call = self._sender.deliver(outgoing, self._sender.next_queue, deadline)
        stored = await attempt(invocation, call)
        if stored is None:
            return None
        invocation.ok()
        return _AcknowledgedSend(value, stored.placement.recall_handle or "")

    async def recall(self, sent: _AcknowledgedSend) -> bool:
        """Recall a message. Return False if it is delivered nevertheless, which only a broker's refusal proves."""
        if not sent.handle:  # it was due when it was stored
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
    "messages with a delay level, a delay or a delivery time, some of them recalled; readers record their arrival",
    "broker",
    DelaysWorkload,
    needs=frozenset({FOLLOWER_READS}),
)

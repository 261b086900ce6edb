"""Messages that a consumer sends back (36): they are delivered again after a delay, until they are dead letters.

Readers follow the topic, the group's retry topic and its dead letters. Workers finish some of the messages, send some
back, and make some dead letters at once. They repeat half of the requests of unknown outcome, and each request may
store another copy. At the end the workload waits for all acknowledged copies, and reads every queue from every node.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from dledger_chaos.history import Recorder
from dledger_client import Admin, ClientError, Producer, ReceivedMessage
from dledger_client.cluster.core import ClientCore
from dledger_remoting.codes import RequestCode
from dledger_remoting.headers import ConsumerSendBackHeader, encode_ext
from dledger_remoting.properties import ORIGIN_MESSAGE_ID
from dledger_remoting.topics import SubscriptionGroupConfig, dead_letter_topic, retry_topic

from .base import FOLLOWER_READS, WorkloadContext, WorkloadEntry
from .payload import decode_payload
from .reading import TopicReader
from .records import Delayed, position_of, value_of
from .sending import RecordedSends, end_with_error
from .tailing import Arrivals, TopicTail

NAME: Final = "retries"
TOPIC: Final = "chaos-retries"
GROUP: Final = "chaos-retries"
RETRIES: Final = retry_topic(GROUP)
DEAD_LETTERS: Final = dead_letter_topic(GROUP)
QUEUES: Final = 2
LIMIT: Final = 2
"""Maximum number of redeliveries. A message sent back once more becomes a dead letter."""
LEVELS_MS: Final = {1: 1_000, 2: 5_000}
AT_ONCE: Final = -1
"""Delay level that requests a dead letter."""

_WORKERS: Final = 4
_FINISHED_SHARE: Final = 0.5
_DEAD_LETTER_SHARE: Final = 0.1
"""Shares of messages that are finished, and that are made dead letters at once."""
_REPEATED_SHARE: Final = 0.5
"""Share of the requests of unknown outcome that are repeated."""
_SEND_PAUSE_SECONDS: Final = 0.06
_DEADLINE_SECONDS: Final = 5.0
_TOPICS_SECONDS: Final = 30.0
_FINAL_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Delivery:
    """A message that was read: the value of its body, the number of its redeliveries, and its place."""

    value: str
    reconsume_times: int
    broker_group: str
    position: int
    message_id: str


class RetriesWorkload:
    """Workload of messages that are sent back."""

    name = NAME

    def __init__(self) -> None:
        self._producer: Producer | None = None
        self._core: ClientCore | None = None
        self._tails: list[TopicTail] = []
        self._deliveries: asyncio.Queue[_Delivery | None] = asyncio.Queue()
        self._arrivals = Arrivals()

    async def setup(self, ctx: WorkloadContext) -> None:
        """Make the topic and the group, start the clients, and send a message back at each delay level.

        That makes the retry topic and the topic of dead letters.
        """
        async with Admin(ctx.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
            await admin.create_group(SubscriptionGroupConfig(GROUP, retry_max_times=LIMIT))
        self._producer = Producer(ctx.namesrv, group="chaos-retries-producer", retry_unknown=False)
        await self._producer.start()
        self._core = ClientCore(ctx.namesrv)
        self._core.start()
        await self._core.routes.get(
            TOPIC, self._core.loop.time() + _TOPICS_SECONDS
        )  # afterwards the core knows the broker groups
        self._tails = [
            TopicTail(topic, ctx, partial(self._on_message, ctx.recorder)) for topic in (TOPIC, RETRIES, DEAD_LETTERS)
        ]
        sends = RecordedSends(ctx.recorder, NAME, "first", self._producer, TOPIC)
        for level in (*LEVELS_MS, AT_ONCE):
            sent = await sends.send(0)
            if sent is not None:
                value, result = sent
                first = _Delivery(
                    value, 0, result.broker_group, position_of(result.offset_message_id), result.offset_message_id
                )
                await self._send_back(ctx.recorder, self._core, "first", first, level)
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader, asyncio.timeout(_TOPICS_SECONDS):
            for topic in (TOPIC, RETRIES, DEAD_LETTERS):
                await reader.wait_for_queues(topic)

    async def run(self, ctx: WorkloadContext) -> None:
        """Send messages, and send them back, until the run stops."""
        assert self._producer is not None
        assert self._core is not None
        sends = RecordedSends(ctx.recorder, NAME, "producer", self._producer, TOPIC)
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader, asyncio.TaskGroup() as tasks:
            for number in range(_WORKERS):
                rng = random.Random(ctx.rng.random())
                tasks.create_task(self._handle_deliveries(ctx, self._core, f"consumer-{number}", rng))
            for tail in self._tails:
                tasks.create_task(tail.follow(reader, ctx.stopping))
            await _send_messages(ctx, sends, random.Random(ctx.rng.random()))
            for _ in range(_WORKERS):
                self._deliveries.put_nowait(None)

    async def finish(self, ctx: WorkloadContext) -> None:
        """Wait for all acknowledged copies, and read everything from every node."""
        if self._producer is not None:
            await self._producer.close()
        if self._core is not None:
            await self._core.close()
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader:
            complete = self._arrivals.complete
            await asyncio.gather(*(tail.follow_until(reader, complete, _FINAL_SECONDS) for tail in self._tails))
            for topic in (TOPIC, RETRIES, DEAD_LETTERS):
                await reader.scan(topic, ctx)

    def _on_message(self, recorder: Recorder, message: ReceivedMessage) -> None:
        value, times = decode_payload(message.body), message.reconsume_times
        if times:
            self._arrivals.came(value_of(message.body, times))
            origin = [message.topic, position_of(message.properties.get(ORIGIN_MESSAGE_ID, ""))]
            recorder.invoke(NAME, "reader", "came-again", value, origin).ok()
        if message.queue.topic != DEAD_LETTERS:
            queue, position = message.queue, message.physical_offset
            self._deliveries.put_nowait(
                _Delivery(value, times, queue.broker_group, position, message.offset_message_id)
            )

    async def _handle_deliveries(
        self, ctx: WorkloadContext, core: ClientCore, process: str, rng: random.Random
    ) -> None:
        """Handle messages until the run stops. Finish each, send it back, or make it a dead letter."""
        while (delivery := await self._deliveries.get()) is not None and not ctx.stopping.is_set():
            chance = rng.random()
            if chance < _FINISHED_SHARE:
                continue
            level = AT_ONCE if chance < _FINISHED_SHARE + _DEAD_LETTER_SHARE else rng.choice(list(LEVELS_MS))
            while (
                not await self._send_back(ctx.recorder, core, process, delivery, level)
                and rng.random() < _REPEATED_SHARE
            ):
                pass

    async def _send_back(
        self, recorder: Recorder, core: ClientCore, process: str, delivery: _Delivery, level: int
    ) -> bool:
        """Send a message back. Return False if the outcome is unknown."""
        is_dead = level == AT_ONCE or delivery.reconsume_times >= LIMIT
        value = f"{delivery.value}#{delivery.reconsume_times + 1}"
        delayed = {} if is_dead else msgspec.structs.asdict(Delayed(LEVELS_MS[level]))
        header = ConsumerSendBackHeader(
            offset=delivery.position,
            group=GROUP,
            delay_level=level,
            origin_msg_id=delivery.message_id,
            origin_topic=TOPIC,
            unit_mode=False,
        )
        topic = DEAD_LETTERS if is_dead else RETRIES
        invocation = recorder.invoke(NAME, process, "send-back", topic, value, **delayed)
        call = core.call_leader(
            core.routes.group(delivery.broker_group),
            RequestCode.CONSUMER_SEND_MSG_BACK,
            encode_ext(header),
            deadline=core.loop.time() + _DEADLINE_SECONDS,
            idempotent=False,
        )
        try:
            await call
        except ClientError as error:
            end_with_error(invocation, error)
            return error.outcome == "not_sent"
        invocation.ok()
        self._arrivals.expect(value)
        return True


async def _send_messages(ctx: WorkloadContext, sends: RecordedSends, rng: random.Random) -> None:
    while not ctx.stopping.is_set():
        await sends.send(rng.randint(0, 500))
        await asyncio.sleep(_SEND_PAUSE_SECONDS)


ENTRY: Final = WorkloadEntry(
    NAME,
    "messages that a consumer sends back until they are dead letters; some requests of unknown outcome are repeated",
    "broker",
    RetriesWorkload,
    needs=frozenset({FOLLOWER_READS}),
)

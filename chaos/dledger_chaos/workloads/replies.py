"""Requests whose producers wait for a reply, and consumers that reply at once, late, twice, or not at all.

Another producer sends ordinary messages to the same queues. The repliers follow the queues. After healing each
requester sends a few more requests, all of which must get a reply.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

import msgspec

from dledger_chaos.history import Recorder
from dledger_client import Admin, ClientError, Producer, ReceivedMessage, SendError
from dledger_remoting.properties import CORRELATION_ID
from dledger_sim.seen.replies import Replied

from .base import FOLLOWER_READS, WorkloadContext, WorkloadEntry
from .payload import decode_payload, encode_payload
from .reading import TopicReader
from .sending import RecordedSends, end_with_error
from .tailing import TopicTail

NAME: Final = "replies"
TOPIC: Final = "chaos-replies"
QUEUES: Final = 4
REQUESTERS: Final = 3
REPLIERS: Final = 4
FINAL: Final = "final"
"""Name of the process that sends requests after healing. Repliers reply to each of them at once."""
MARK: Final = ">"
"""Separator in the value of a reply, between the value of its request and a number."""

_TIMEOUT_SECONDS: Final = 4.0
_FINAL_TIMEOUT_SECONDS: Final = 30.0
_FINAL_REQUESTS: Final = 3
_LATE_SECONDS: Final = 6.0
_PLANS: Final = ("at once", "late", "twice", "never")
_WEIGHTS: Final = (16, 1, 2, 1)
_PAUSE_SECONDS: Final = 0.03


class RepliesWorkload:
    """Clients of the workload `replies`, as the module describes it."""

    name = NAME

    def __init__(self) -> None:
        self._requesters: list[Producer] = []
        self._replier: Producer | None = None
        self._plain_producer: Producer | None = None
        self._tail: TopicTail | None = None
        self._requests: asyncio.Queue[ReceivedMessage] = asyncio.Queue()

    async def setup(self, ctx: WorkloadContext) -> None:
        """Make the topic, and start the producers."""
        async with Admin(ctx.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        self._tail = TopicTail(TOPIC, ctx, self._on_message)
        self._plain_producer = await _start_producer(ctx, "plain")
        self._replier = await _start_producer(ctx, "replier")
        self._requesters = [await _start_producer(ctx, f"requester-{number}") for number in range(REQUESTERS)]

    async def run(self, ctx: WorkloadContext) -> None:
        """Send requests and replies until the end."""
        assert self._tail is not None
        assert self._plain_producer is not None
        plain = RecordedSends(ctx.recorder, NAME, "plain", self._plain_producer, TOPIC)
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader, asyncio.TaskGroup() as tasks:
            replying = self._start_repliers(ctx, tasks)
            following = tasks.create_task(self._tail.follow(reader, ctx.stopping))
            asking = [
                tasks.create_task(self._keep_requesting(ctx, number, random.Random(ctx.rng.random())))
                for number in range(REQUESTERS)
            ]
            sending = tasks.create_task(_send_plain_messages(ctx, plain, random.Random(ctx.rng.random())))
            await asyncio.gather(following, sending, *asking)
            for task in replying:
                task.cancel()

    async def finish(self, ctx: WorkloadContext) -> None:
        """Send final requests, all of which must be answered; then read every queue from every node."""
        ended = asyncio.Event()
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader:
            if self._tail is not None:
                async with asyncio.TaskGroup() as tasks:
                    replying = self._start_repliers(ctx, tasks)
                    tasks.create_task(self._tail.follow(reader, ended))
                    await asyncio.gather(*(self._request_at_end(ctx.recorder, number) for number in range(REQUESTERS)))
                    ended.set()
                    for task in replying:
                        task.cancel()
            for producer in (*self._requesters, self._replier, self._plain_producer):
                if producer is not None:
                    await producer.close()
            await reader.scan(TOPIC, ctx)

    def _on_message(self, message: ReceivedMessage) -> None:
        if CORRELATION_ID in message.properties:
            self._requests.put_nowait(message)

    # ---------------------------------------------------------------- requesters

    async def _keep_requesting(self, ctx: WorkloadContext, number: int, rng: random.Random) -> None:
        count, process = 0, f"requester-{number}"
        while not ctx.stopping.is_set():
            count += 1
            value, size = f"{NAME}.{process}:{count}", rng.randint(0, 500)
            await _request(ctx.recorder, process, self._requesters[number], value, size, _TIMEOUT_SECONDS)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _request_at_end(self, recorder: Recorder, number: int) -> None:
        for count in range(_FINAL_REQUESTS):
            value = f"{NAME}.{FINAL}-{number}:{count}"
            await _request(recorder, FINAL, self._requesters[number], value, 0, _FINAL_TIMEOUT_SECONDS)

    # ---------------------------------------------------------------- repliers

    def _start_repliers(self, ctx: WorkloadContext, tasks: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        return [
            tasks.create_task(self._keep_replying(ctx.recorder, f"replier-{number}", random.Random(ctx.rng.random())))
            for number in range(REPLIERS)
        ]

    async def _keep_replying(self, recorder: Recorder, process: str, rng: random.Random) -> None:
        while True:
            message = await self._requests.get()
            value = decode_payload(message.body)
            is_final = value.startswith(f"{NAME}.{FINAL}-")
            plan = "at once" if is_final else rng.choices(_PLANS, _WEIGHTS)[0]
            if plan == "late":
                await asyncio.sleep(rng.random() * _LATE_SECONDS)
            times = {"never": 0, "twice": 2}.get(plan, 1)
            for number in range(times):
                await self._reply(recorder, process, message, f"{value}{MARK}{number}", rng.randint(0, 500))

    async def _reply(
        self, recorder: Recorder, process: str, message: ReceivedMessage, value: str, size_bytes: int
    ) -> None:
        assert self._replier is not None
        invocation = recorder.invoke(NAME, process, "reply", decode_payload(message.body), value)
        body = encode_payload(value, size_bytes)
        try:
            await self._replier.reply(message, body, timeout=_TIMEOUT_SECONDS)
        except ClientError as error:
            end_with_error(invocation, error)
        else:
            invocation.ok()


async def _start_producer(ctx: WorkloadContext, name: str) -> Producer:
    producer = Producer(ctx.namesrv, group=f"chaos-{NAME}-{name}", retry_unknown=False)
    await producer.start()
    return producer


async def _send_plain_messages(ctx: WorkloadContext, sends: RecordedSends, rng: random.Random) -> None:
    """Send messages that are no requests."""
    while not ctx.stopping.is_set():
        await sends.send(rng.randint(0, 500))
        await asyncio.sleep(_PAUSE_SECONDS)


async def _request(
    recorder: Recorder, process: str, producer: Producer, value: str, size_bytes: int, timeout_s: float
) -> None:
    """Send one request and record it, with its reply or without."""
    invocation = recorder.invoke(NAME, process, "request", TOPIC, value)
    body = encode_payload(value, size_bytes)
    try:
        reply = await producer.request(TOPIC, body, key=value, timeout=timeout_s)
    except SendError as error:
        end_with_error(invocation, error)
    except ClientError as error:
        end_with_error(invocation, error, **msgspec.structs.asdict(Replied(waited=error.outcome == "unknown")))
    else:
        invocation.ok(**msgspec.structs.asdict(Replied(decode_payload(reply.body))))


ENTRY: Final = WorkloadEntry(
    NAME,
    "requests whose producers wait for a reply, and consumers that reply at once, late, twice, or not at all",
    "broker",
    RepliesWorkload,
    needs=frozenset({FOLLOWER_READS}),
)

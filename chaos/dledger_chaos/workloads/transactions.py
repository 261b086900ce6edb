"""Transactions: halves that are committed, rolled back, both at once, or left open until the brokers ask.

Two producers of one group send halves, and a broker may ask (39) either of them about any half. Another producer sends
ordinary messages to the same queues. A reader follows the queues. At the end the workload waits for the brokers'
questions. Then it ends all halves that are still open, and every queue is read from every node.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from dledger_chaos.history import Recorder
from dledger_client import (
    Admin,
    ClientError,
    Decision,
    NotFoundError,
    OpenTransaction,
    Producer,
    ReceivedMessage,
    TransactionProducer,
)

from .base import FOLLOWER_READS, WorkloadContext, WorkloadEntry
from .payload import decode_payload, encode_payload
from .reading import TopicReader
from .sending import RecordedSends, attempt, end_with_error
from .tailing import Arrivals, TopicTail

NAME: Final = "transactions"
TOPIC: Final = "chaos-transactions"
GROUP: Final = "chaos-transactions"
QUEUES: Final = 4
PRODUCERS: Final = 2
FINAL: Final = "final"
"""Name of the process that ends open halves after healing."""
CONFIG: Final = """\
transaction_timeout_ms = 2000
transaction_check_interval_ms = 3000
transaction_check_max = 1000
"""

_PLANS: Final = ("commit", "rollback", "both", "commit when asked", "rollback when asked")
_WEIGHTS: Final = (10, 5, 1, 3, 2)
_UNKNOWN_SHARE: Final = 0.2
"""Share of checks that are answered with "unknown", so that brokers ask again later."""
_LOOK_UP_SHARE: Final = 0.05
"""Share of halves that are looked up by their key before they are ended."""
_ATTEMPTS: Final = 3
_PAUSE_SECONDS: Final = 0.05
_ASKED_SECONDS: Final = 60.0
_FINAL_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Half:
    """An acknowledged half, and the end that is planned for it."""

    value: str
    transaction: OpenTransaction
    wish: Literal["commit", "rollback"]


class TransactionsWorkload:
    """Clients of the workload `transactions`, as the module describes it."""

    name = NAME

    def __init__(self) -> None:
        self._plain_producer: Producer | None = None
        self._producers: list[TransactionProducer] = []
        self._tail: TopicTail | None = None
        self._planned_ends: dict[str, Literal["commit", "rollback"]] = {}
        self._open_halves: dict[str, _Half] = {}
        self._check_arrivals = Arrivals()
        self._message_arrivals = Arrivals()

    async def setup(self, ctx: WorkloadContext) -> None:
        """Make the topic and start the producers."""
        async with Admin(ctx.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        self._plain_producer = Producer(ctx.namesrv, group="chaos-transactions-plain", retry_unknown=False)
        await self._plain_producer.start()
        for number in range(PRODUCERS):
            check = partial(self._answer_check, ctx.recorder, f"producer-{number}", random.Random(ctx.rng.random()))
            producer = TransactionProducer(ctx.namesrv, group=GROUP, check=check)
            await producer.__aenter__()
            self._producers.append(producer)
        self._tail = TopicTail(TOPIC, ctx, self._on_message)

    async def run(self, ctx: WorkloadContext) -> None:
        """Begin and end transactions until the end."""
        assert self._plain_producer is not None
        assert self._tail is not None
        plain = RecordedSends(ctx.recorder, NAME, "plain", self._plain_producer, TOPIC)
        async with (
            TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader,
            Admin(ctx.namesrv) as admin,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(self._tail.follow(reader, ctx.stopping))
            tasks.create_task(_send_plain_messages(ctx, plain, random.Random(ctx.rng.random())))
            for number in range(PRODUCERS):
                tasks.create_task(self._run_transactions(ctx, admin, number, random.Random(ctx.rng.random())))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Wait for the brokers' questions, end open halves, and read everything from every node."""
        if self._plain_producer is not None:
            await self._plain_producer.close()
        await _wait_for_event(self._check_arrivals.complete, _ASKED_SECONDS)
        for half in list(self._open_halves.values()):
            await self._end_until_answered(ctx.recorder, FINAL, self._producers[0], half)
        for producer in self._producers:
            await producer.__aexit__(None, None, None)
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader:
            if self._tail is not None:
                await self._tail.follow_until(reader, self._message_arrivals.complete, _FINAL_SECONDS)
            await reader.scan(TOPIC, ctx)

    def _on_message(self, message: ReceivedMessage) -> None:
        self._message_arrivals.came(decode_payload(message.body))

    async def _answer_check(
        self, recorder: Recorder, process: str, rng: random.Random, transaction: OpenTransaction
    ) -> Decision:
        """Answer a broker's question. Nothing tells whether the answer takes effect."""
        value = decode_payload(transaction.body)
        decision: Decision = "unknown" if rng.random() < _UNKNOWN_SHARE else self._planned_ends.get(value, "rollback")
        recorder.invoke(NAME, process, "check", value, decision).info(
            "brokers do not acknowledge the answer to a check"
        )
        self._check_arrivals.came(value)
        return decision

    async def _run_transactions(self, ctx: WorkloadContext, admin: Admin, number: int, rng: random.Random) -> None:
        process, producer, count = f"producer-{number}", self._producers[number], 0
        while not ctx.stopping.is_set():
            count += 1
            value, plan = f"{NAME}.{process}:{count}", rng.choices(_PLANS, _WEIGHTS)[0]
            self._planned_ends[value] = "rollback" if plan.startswith("rollback") else "commit"
            half = await self._begin(ctx.recorder, process, producer, value, rng.randint(0, 500))
            if half is not None:
                if rng.random() < _LOOK_UP_SHARE:
                    await _look_up(ctx.recorder, admin, value)
                if plan.endswith("asked"):
                    self._check_arrivals.expect(value)
                elif plan == "both":
                    await self._end_both_ways(ctx.recorder, half, rng)
                else:
                    await self._end_until_answered(ctx.recorder, process, producer, half)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _begin(
        self, recorder: Recorder, process: str, producer: TransactionProducer, value: str, size_bytes: int
    ) -> _Half | None:
        invocation = recorder.invoke(NAME, process, "send-half", TOPIC, value)
        transaction = await attempt(invocation, producer.begin(TOPIC, encode_payload(value, size_bytes), key=value))
        if transaction is None:
            return None
        invocation.ok()
        half = self._open_halves[value] = _Half(value, transaction, self._planned_ends[value])
        return half

    async def _end_until_answered(
        self, recorder: Recorder, process: str, producer: TransactionProducer, half: _Half
    ) -> None:
        """End a half as planned, and repeat that after an unknown outcome."""
        for _ in range(_ATTEMPTS):
            if await self._end(recorder, process, producer, half, half.wish):
                return

    async def _end_both_ways(self, recorder: Recorder, half: _Half, rng: random.Random) -> None:
        """Request a commit and a rollback at once, through both producers."""
        producers = rng.sample(self._producers, PRODUCERS)
        await asyncio.gather(
            self._end(recorder, "both-commit", producers[0], half, "commit"),
            self._end(recorder, "both-rollback", producers[1], half, "rollback"),
        )

    async def _end(
        self,
        recorder: Recorder,
        process: str,
        producer: TransactionProducer,
        half: _Half,
        wish: Literal["commit", "rollback"],
    ) -> bool:
        """Request an end of a half; return False if the outcome is unknown."""
        invocation = recorder.invoke(NAME, process, "end-half", half.value, wish)
        try:
            await (producer.commit if wish == "commit" else producer.rollback)(half.transaction)
        except ClientError as error:
            end_with_error(invocation, error)
            return error.outcome == "not_sent"
        invocation.ok()
        self._open_halves.pop(half.value, None)
        if wish == "commit":
            self._message_arrivals.expect(half.value)
        return True


async def _look_up(recorder: Recorder, admin: Admin, value: str) -> None:
    """Look for a half by its key."""
    invocation = recorder.invoke(NAME, "look-up", "find-half", value)
    try:
        found = bool(await admin.messages_by_key(TOPIC, value))
    except NotFoundError:
        found = False
    except ClientError as error:
        end_with_error(invocation, error)
        return
    invocation.ok(found)


async def _send_plain_messages(ctx: WorkloadContext, sends: RecordedSends, rng: random.Random) -> None:
    while not ctx.stopping.is_set():
        await sends.send(rng.randint(0, 500))
        await asyncio.sleep(_PAUSE_SECONDS)


async def _wait_for_event(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, for `seconds` at most. The checkers judge messages still missing."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


ENTRY: Final = WorkloadEntry(
    NAME,
    "transactions that are committed, rolled back, both at once, or left open until the brokers ask",
    "broker",
    TransactionsWorkload,
    needs=frozenset({FOLLOWER_READS}),
    config=CONFIG,
)

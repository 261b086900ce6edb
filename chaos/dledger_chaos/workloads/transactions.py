"""Transactions: halves that are committed, rolled back, both at once, or left until the brokers ask.

Two producers of one group send them, and either may be asked (39) what becomes of a half of the other. Others send to
the same queues without a transaction. A reader follows the queues; at the end what nobody has asked about for long is
ended by its producer, and every queue is read from every node.
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
"""The process that ends what is open at the end, when everything is healed."""
CONFIG: Final = """\
transaction_timeout_ms = 2000
transaction_check_interval_ms = 3000
transaction_check_max = 1000
"""

_PLANS: Final = ("commit", "rollback", "both", "commit when asked", "rollback when asked")
_WEIGHTS: Final = (10, 5, 1, 3, 2)
_UNKNOWN: Final = 0.2
"""The share of checks that are answered with "ask again later"."""
_LOOK_UPS: Final = 0.05
"""The share of halves that are looked for, by key, before they are ended."""
_ATTEMPTS: Final = 3
_PAUSE_SECONDS: Final = 0.05
_ASKED_SECONDS: Final = 60.0
_FINAL_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Half:
    """A half that was acknowledged, and what its producer wants."""

    value: str
    transaction: OpenTransaction
    wish: Literal["commit", "rollback"]


class TransactionsWorkload:
    """See the module."""

    name = NAME

    def __init__(self) -> None:
        self._plain: Producer | None = None
        self._producers: list[TransactionProducer] = []
        self._tail: TopicTail | None = None
        self._wishes: dict[str, Literal["commit", "rollback"]] = {}
        self._open: dict[str, _Half] = {}
        self._checks = Arrivals()
        self._messages = Arrivals()

    async def setup(self, ctx: WorkloadContext) -> None:
        """Make the topic and start the producers."""
        async with Admin(ctx.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        self._plain = Producer(ctx.namesrv, group="chaos-transactions-plain", retry_unknown=False)
        await self._plain.start()
        for number in range(PRODUCERS):
            check = partial(self._check, ctx.recorder, f"producer-{number}", random.Random(ctx.rng.random()))
            producer = TransactionProducer(ctx.namesrv, group=GROUP, check=check)
            await producer.__aenter__()
            self._producers.append(producer)
        self._tail = TopicTail(TOPIC, ctx, self._seen)

    async def run(self, ctx: WorkloadContext) -> None:
        """Begin and end transactions until the end."""
        assert self._plain is not None
        assert self._tail is not None
        plain = RecordedSends(ctx.recorder, NAME, "plain", self._plain, TOPIC)
        async with (
            TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader,
            Admin(ctx.namesrv) as admin,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(self._tail.follow(reader, ctx.stopping))
            tasks.create_task(_send_plainly(ctx, plain, random.Random(ctx.rng.random())))
            for number in range(PRODUCERS):
                tasks.create_task(self._work(ctx, admin, number, random.Random(ctx.rng.random())))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Wait until the brokers have asked, end what is open, and read everything from every node."""
        if self._plain is not None:
            await self._plain.close()
        await _wait(self._checks.complete, _ASKED_SECONDS)
        for half in list(self._open.values()):
            await self._insist(ctx.recorder, FINAL, self._producers[0], half)
        for producer in self._producers:
            await producer.__aexit__(None, None, None)
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader:
            if self._tail is not None:
                await self._tail.follow_until(reader, self._messages.complete, _FINAL_SECONDS)
            await reader.scan(TOPIC, ctx)

    def _seen(self, message: ReceivedMessage) -> None:
        self._messages.came(decode_payload(message.body))

    async def _check(
        self, recorder: Recorder, process: str, rng: random.Random, transaction: OpenTransaction
    ) -> Decision:
        """Answer a broker that asks; what becomes of the answer nobody tells."""
        value = decode_payload(transaction.body)
        decision: Decision = "unknown" if rng.random() < _UNKNOWN else self._wishes.get(value, "rollback")
        recorder.invoke(NAME, process, "check", value, decision).info("nobody answers an answer")
        self._checks.came(value)
        return decision

    async def _work(self, ctx: WorkloadContext, admin: Admin, number: int, rng: random.Random) -> None:
        process, producer, count = f"producer-{number}", self._producers[number], 0
        while not ctx.stopping.is_set():
            count += 1
            value, plan = f"{NAME}.{process}:{count}", rng.choices(_PLANS, _WEIGHTS)[0]
            self._wishes[value] = "rollback" if plan.startswith("rollback") else "commit"
            half = await self._begin(ctx.recorder, process, producer, value, rng.randint(0, 500))
            if half is not None:
                if rng.random() < _LOOK_UPS:
                    await _look_up(ctx.recorder, admin, value)
                if plan.endswith("asked"):
                    self._checks.expect(value)
                elif plan == "both":
                    await self._end_both_ways(ctx.recorder, half, rng)
                else:
                    await self._insist(ctx.recorder, process, producer, half)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _begin(
        self, recorder: Recorder, process: str, producer: TransactionProducer, value: str, size_bytes: int
    ) -> _Half | None:
        invocation = recorder.invoke(NAME, process, "send-half", TOPIC, value)
        transaction = await attempt(invocation, producer.begin(TOPIC, encode_payload(value, size_bytes), key=value))
        if transaction is None:
            return None
        invocation.ok()
        half = self._open[value] = _Half(value, transaction, self._wishes[value])
        return half

    async def _insist(self, recorder: Recorder, process: str, producer: TransactionProducer, half: _Half) -> None:
        """End a half as its producer wants it, again after an unknown outcome."""
        for _ in range(_ATTEMPTS):
            if await self._end(recorder, process, producer, half, half.wish):
                return

    async def _end_both_ways(self, recorder: Recorder, half: _Half, rng: random.Random) -> None:
        """Ask for a commit and a rollback at once, through both producers."""
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
        """Ask for an end of a half; False if its outcome is not known."""
        invocation = recorder.invoke(NAME, process, "end-half", half.value, wish)
        try:
            await (producer.commit if wish == "commit" else producer.rollback)(half.transaction)
        except ClientError as error:
            end_with_error(invocation, error)
            return error.outcome == "not_sent"
        invocation.ok()
        self._open.pop(half.value, None)
        if wish == "commit":
            self._messages.expect(half.value)
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


async def _send_plainly(ctx: WorkloadContext, sends: RecordedSends, rng: random.Random) -> None:
    while not ctx.stopping.is_set():
        await sends.send(rng.randint(0, 500))
        await asyncio.sleep(_PAUSE_SECONDS)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, for some time: what is missing is for the checkers to judge."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


ENTRY: Final = WorkloadEntry(
    NAME,
    "transactions that are committed, rolled back, both at once, or left until the brokers ask",
    "broker",
    TransactionsWorkload,
    needs=frozenset({FOLLOWER_READS}),
    config=CONFIG,
)
"""The line of the registry."""

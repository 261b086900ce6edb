"""Benchmarks of a cluster with one client: sends, reads, and the way of a message from its send to its reader.

Each has a topic of its own, which is deleted at the end, unless a topic is given. The client is one process in Python,
which reaches its own limit before a large cluster does.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import msgspec

from dledger_client import Admin, ClientError, NoRouteError, NotFoundError, Producer

from .access import Access
from .errors import OperationError
from .latencies import Histogram, Latencies

Kind: TypeAlias = Literal["send", "consume", "end-to-end"]

MIN_BYTES: Final = 16
"""Minimum size of a body: it begins with the time of its send and the number of its run."""
FILL_BATCH: Final = 100
"""Number of messages in each request that stores the messages which are then read."""
QUIET_SECONDS: Final = 30.0
"""Time limit for the next message of a reader. Then the rest is reported as missing."""
_POLL_MESSAGES: Final = 256
_FILLERS: Final = 16
_HEAD: Final = struct.Struct(">QQ")
_PRODUCER_GROUP: Final = "dledger-bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A benchmark.

    topic         existing topic, "" for one of its own with `queues` queues on each broker group
    messages      number of messages, None for as many as `seconds` allow
    seconds       time after which no send begins, None without a limit
    rate          messages per second in all, None for as many as go
    concurrency   requests under way
    batch         messages in a request
    keep          True to keep the topic of its own
    """

    kind: Kind
    topic: str = ""
    queues: int = 8
    messages: int | None = None
    seconds: float | None = None
    body_bytes: int = 1024
    rate: float | None = None
    concurrency: int = 64
    batch: int = 1
    keep: bool = False


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a benchmark. `latency` is that of a request of `send` and `consume`, and of a message end to end.

    `failed` messages were not acknowledged, `missing` ones were acknowledged and not read; `error` is the first error.
    `kept` says that the topic is still there.
    """

    kind: Kind
    topic: str
    messages: int
    body_bytes: int
    seconds: float
    messages_per_s: float
    bytes_per_s: float
    latency: Latencies
    failed: int
    missing: int
    error: str
    kept: bool

    @property
    def is_complete(self) -> bool:
        """True if every message was acknowledged, and read where reading is measured."""
        return not (self.failed or self.missing)


Tell: TypeAlias = Callable[[str], None]
"""Told of the progress after each request."""


async def run(access: Access, plan: Plan, tell: Tell) -> BenchResult:
    """Carry out a benchmark. Raises `OperationError` and `ClientError` if it cannot begin.

    A topic of its own is deleted even if the benchmark fails or is cancelled.
    """
    async with access.admin() as admin, _topic_of(admin, plan) as topic:
        match plan.kind:
            case "send":
                return await _measure_sends(access, plan, topic, tell)
            case "consume":
                return await _measure_reads(access, plan, topic, tell)
            case "end-to-end":
                return await _measure_way(access, plan, topic, tell)


@asynccontextmanager
async def _topic_of(admin: Admin, plan: Plan) -> AsyncIterator[str]:
    if plan.topic:
        try:
            await admin.topic_route(plan.topic)
        except (NoRouteError, NotFoundError) as error:
            raise OperationError(
                f"topic {plan.topic!r} does not exist: create it, or leave --topic out for a topic that is made and "
                "deleted"
            ) from error
        yield plan.topic
        return
    topic = f"bench-{time.strftime('%Y%m%d%H%M%S')}-{os.urandom(3).hex()}"
    await admin.create_topic(topic, queues=plan.queues)
    try:
        yield topic
    finally:
        if not plan.keep:
            await admin.delete_topic(topic)


class _Sending:
    """Sends by several workers that share the numbers of their messages, and what came of them."""

    def __init__(self, producer: Producer, plan: Plan, topic: str, tell: Tell) -> None:
        self._producer = producer
        self._plan = plan
        self._topic = topic
        self._tell = tell
        self._numbers = itertools.count()
        self._padding = os.urandom(plan.body_bytes - _HEAD.size)
        self.run_id = int.from_bytes(os.urandom(8), "big")
        self.histogram = Histogram()
        self.sent = 0
        self.failed = 0
        self.error = ""
        self.seconds = 0.0

    async def run(self, workers: int) -> None:
        """Send everything that is planned."""
        begun = time.perf_counter()
        await asyncio.gather(*(self._work(begun) for _ in range(workers)))
        self.seconds = time.perf_counter() - begun

    async def _work(self, begun: float) -> None:
        plan = self._plan
        while True:
            first = next(self._numbers) * plan.batch
            count = plan.batch if plan.messages is None else min(plan.batch, plan.messages - first)
            due = begun + first / plan.rate if plan.rate else time.perf_counter()
            if count <= 0 or (plan.seconds is not None and due - begun >= plan.seconds):
                return
            wait_s = due - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            await self._send(count, due)
            self._tell(f"{self.sent:,} messages sent, {self.sent / (time.perf_counter() - begun):,.0f} a second")

    async def _send(self, count: int, due: float) -> None:
        """Send one request. Its latency counts from the time at which it was due, even if it began late."""
        body = _HEAD.pack(round(due * 1e9), self.run_id) + self._padding
        try:
            if self._plan.batch == 1:
                await self._producer.send(self._topic, body)
            else:
                await self._producer.send_batch(self._topic, [body] * count)
        except ClientError as error:
            self.failed += count
            self.error = self.error or str(error)
            return
        self.histogram.add(time.perf_counter() - due)
        self.sent += count


async def _measure_sends(access: Access, plan: Plan, topic: str, tell: Tell) -> BenchResult:
    async with _producer(access) as producer:
        sending = _Sending(producer, plan, topic, tell)
        await sending.run(plan.concurrency)
    return _result(plan, topic, sending.sent, sending.seconds, sending.histogram, sending=sending)


async def _measure_reads(access: Access, plan: Plan, topic: str, tell: Tell) -> BenchResult:
    """Read messages that are there. Into a topic of its own they are stored before, which is not measured."""
    filled: _Sending | None = None
    wanted = plan.messages or 0
    if not plan.topic:
        async with _producer(access) as producer:
            filled = _Sending(producer, _fill_plan(plan), topic, lambda text: tell(f"storing: {text}"))
            await filled.run(_FILLERS)
            wanted = filled.sent
    histogram = Histogram()
    read = 0
    async with access.reader() as reader:
        await reader.assign(await reader.queues(topic))
        await reader.seek_to_begin()
        begun = last = time.perf_counter()
        while (read < wanted or not wanted) and not _is_over(plan, begun):
            polled = time.perf_counter()
            page = await reader.poll(_POLL_MESSAGES, timeout=1.0)
            now = time.perf_counter()
            if page:
                histogram.add(now - polled)
                read, last = read + len(page), now
                tell(f"{read:,} messages read, {read / (now - begun):,.0f} a second")
            elif plan.topic or now - last > QUIET_SECONDS:
                break  # the topic's end
    missing = max(0, wanted - read) if filled is not None and plan.seconds is None else 0
    return _result(plan, topic, read, last - begun, histogram, sending=filled, missing=missing)


async def _measure_way(access: Access, plan: Plan, topic: str, tell: Tell) -> BenchResult:
    """Send and read at the same time. The latency of a message ends when the reader has it."""
    histogram = Histogram()
    async with _producer(access) as producer, access.reader() as reader:
        await reader.assign(await reader.queues(topic))
        await reader.seek_to_end()
        sending = _Sending(producer, plan, topic, tell)
        sends = asyncio.create_task(sending.run(plan.concurrency))
        begun = last = time.perf_counter()
        read = 0
        try:
            while not (sends.done() and read >= sending.sent):
                page = await reader.poll(_POLL_MESSAGES, timeout=0.5)
                now = time.perf_counter()
                for message in page:
                    sent_ns, run_id = _HEAD.unpack_from(message.body) if len(message.body) >= MIN_BYTES else (0, 0)
                    if run_id == sending.run_id:
                        histogram.add(now - sent_ns / 1e9)
                        read, last = read + 1, now
                if sends.done() and now - last > QUIET_SECONDS:
                    break
        finally:
            sends.cancel()
            await asyncio.gather(sends, return_exceptions=True)
    missing = max(0, sending.sent - read)
    return _result(plan, topic, read, last - begun, histogram, sending=sending, missing=missing)


def _fill_plan(plan: Plan) -> Plan:
    return Plan(kind="send", messages=plan.messages or 100_000, body_bytes=plan.body_bytes, batch=FILL_BATCH)


def _is_over(plan: Plan, begun: float) -> bool:
    return plan.seconds is not None and time.perf_counter() - begun >= plan.seconds


def _producer(access: Access) -> Producer:
    return access.producer(_PRODUCER_GROUP)


def _result(
    plan: Plan,
    topic: str,
    messages: int,
    seconds: float,
    histogram: Histogram,
    *,
    sending: _Sending | None,
    missing: int = 0,
) -> BenchResult:
    rate = messages / seconds if seconds > 0 else 0.0
    return BenchResult(
        kind=plan.kind,
        topic=topic,
        messages=messages,
        body_bytes=plan.body_bytes,
        seconds=seconds,
        messages_per_s=rate,
        bytes_per_s=rate * plan.body_bytes,
        latency=histogram.summary(),
        failed=0 if sending is None else sending.failed,
        missing=missing,
        error="" if sending is None else sending.error,
        kept=bool(plan.topic) or plan.keep,
    )

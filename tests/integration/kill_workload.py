"""Workload that remembers every acknowledgement, and the promises that hold for them after any kills."""

from __future__ import annotations

import asyncio
from itertools import count
from types import TracebackType
from typing import Self

from cluster_checks import assert_offsets_unique_and_dense, read_topic

from dledger_client import Admin, ClientError, MessageQueue, Producer, SendError, SendResult

TOPIC = "Killed"
GROUP = "committers"
QUEUES = 4
SENDERS = 6
SEND_SECONDS = 40.0
PROGRESS_SECONDS = 40.0


class Workload:
    """Workload that sends from `SENDERS` tasks, and commits ever higher offsets, until it is closed.

    async with Workload(namesrv) as load:
        await load.progress(100)
        ...
        await load.check()
    """

    def __init__(self, namesrv: str) -> None:
        self.acknowledged: dict[tuple[MessageQueue, int], bytes] = {}
        self.not_sent: set[bytes] = set()
        self.committed = 0
        self.violations: list[str] = []
        self.namesrv = namesrv
        self._numbers = count()
        self._stop = asyncio.Event()
        self._more = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []
        self._producer = Producer(namesrv, group="killed-producers", timeout=SEND_SECONDS)
        self._admin = Admin(namesrv, timeout=SEND_SECONDS)
        self._queue = MessageQueue(TOPIC, "broker-a", 0)

    async def __aenter__(self) -> Self:
        await self._producer.start()
        await self._admin.start()
        await self._admin.create_topic(TOPIC, queues=QUEUES)
        self._tasks = [asyncio.create_task(self._send()) for _ in range(SENDERS)]
        self._tasks.append(asyncio.create_task(self._commit()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        try:
            await asyncio.gather(*self._tasks)
        finally:
            await self._producer.close()
            await self._admin.close()

    async def progress(self, messages: int) -> None:
        """Wait until this many more messages are acknowledged."""
        target = len(self.acknowledged) + messages
        async with asyncio.timeout(PROGRESS_SECONDS), self._more:
            await self._more.wait_for(lambda: len(self.acknowledged) >= target)

    async def check(self) -> None:
        """Check every promise against the present content of the cluster."""
        assert not self.violations, self.violations
        stored = await read_topic(self.namesrv, TOPIC)
        assert_offsets_unique_and_dense(stored)
        found = {(message.queue, message.queue_offset): message.body for message in stored}
        lost = {place: body for place, body in self.acknowledged.items() if found.get(place) != body}
        assert not lost, f"{len(lost)} of {len(self.acknowledged)} acknowledged messages are not where they were stored"
        ghosts = self.not_sent & set(found.values())
        assert not ghosts, f"reported as not stored, but stored: {ghosts}"
        async with Admin(self.namesrv) as admin:
            committed = {status.queue: status.committed for status in await admin.offsets(GROUP, TOPIC)}
        assert (committed[self._queue] or 0) >= self.committed

    async def _send(self) -> None:
        while not self._stop.is_set():
            body = b"%d" % next(self._numbers)
            try:
                result = await self._producer.send(TOPIC, body)
            except SendError as error:
                if error.outcome == "not_sent":
                    self.not_sent.add(body)
                continue
            await self._acknowledge(body, result)

    async def _acknowledge(self, body: bytes, result: SendResult) -> None:
        place = (MessageQueue(result.topic, result.broker_group, result.queue_id), result.queue_offset)
        if place in self.acknowledged:
            self.violations.append(f"{place} was given to {self.acknowledged[place]!r} and to {body!r}")
        self.acknowledged[place] = body
        async with self._more:
            self._more.notify_all()

    async def _commit(self) -> None:
        """Commit 1, 2, 3, … for one queue, and check that no read returns less than was acknowledged."""
        attempt = 0
        while not self._stop.is_set():
            attempt += 1
            try:
                await self._admin.set_offset(GROUP, self._queue, attempt)
                self.committed = attempt
                statuses = await self._admin.offsets(GROUP, TOPIC)
            except ClientError:
                continue
            seen = next(status.committed for status in statuses if status.queue == self._queue) or 0
            if seen < self.committed:
                self.violations.append(f"committed {self.committed}, then read {seen}")

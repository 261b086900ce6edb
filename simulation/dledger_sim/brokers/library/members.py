"""Programs that run in client processes: members of consumer groups with slow handlers, and producers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from dledger_client import ClientError, OrderlyConsumer, Producer, PushConsumer, ReceivedMessage
from dledger_sim.brokers.library.judge import Deliveries, Work
from dledger_sim.brokers.library.process import NAME_SERVER, Process
from dledger_sim.brokers.message_bodies import position_in
from dledger_sim.brokers.workload import Workload
from dledger_sim.log.violation import PlannedFailureError

TAKERS: Final = 2
"""Number of tasks that iterate over a consumer without a handler."""
WAIT_S: Final = 0.1
"""Interval at which a producer checks whether its topics exist, in seconds.

A send to a missing topic would create it.
"""
GIVE_BACK_S: Final = 1.0
"""Delay after which a message that is given back by hand is redelivered, in seconds."""


@dataclass(frozen=True, slots=True)
class Habits:
    """Habits of members: the shares of slow messages, which take up to `slow_s`, and of failing messages."""

    slow_share: float = 0.03
    slow_s: float = 12.0
    usual_s: float = 0.02
    fail_share: float = 0.03


class Member:
    """Consumer in its own process. A subclass chooses how it takes messages."""

    def __init__(
        self,
        process: Process,
        group: str,
        topics: tuple[str, ...],
        deliveries: Deliveries,
        random: Random,
        habits: Habits,
        is_calm: Callable[[], bool],
    ) -> None:
        self.process = process
        self.group = group
        self._topics = dict.fromkeys(topics, "*")
        self._deliveries = deliveries
        self._random = random
        self._habits = habits
        self._is_calm = is_calm
        """Returns True once no more work may be slow or fail."""
        self.is_closed = False
        self.consumer: PushConsumer | OrderlyConsumer | None = None

    def start(self) -> None:
        """Start to consume."""
        self.process.run(self._start)

    def leave(self) -> None:
        """Close the consumer, as a program does at its end."""
        self.process.run(self._leave)

    def kill(self) -> None:
        """Kill the process (SIGKILL)."""
        self.process.kill()
        self._deliveries.gone(self.process.name)

    def reads(self, topic: str) -> bool:
        """Return whether a queue of a topic is in its share."""
        return self.consumer is not None and any(queue.topic == topic for queue in self.consumer.assignment)

    async def _start(self) -> None:
        self.consumer = self._make_consumer()
        await self.consumer.start()

    async def _leave(self) -> None:
        if self.consumer is not None:
            await self.consumer.close()
        self.is_closed = True
        self._deliveries.gone(self.process.name)

    def _make_consumer(self) -> PushConsumer | OrderlyConsumer:
        raise NotImplementedError

    async def _work_on(self, message: ReceivedMessage) -> tuple[Work | None, bool]:
        """Work on a message for a while. Return the work, and whether it succeeds."""
        habits, random = self._habits, self._random
        work = self._deliveries.begin(self.process, self.group, message)
        is_slow = random.random() < habits.slow_share and not self._is_calm()
        fails = random.random() < habits.fail_share and not self._is_calm()
        try:
            await asyncio.sleep(random.uniform(1.0, habits.slow_s) if is_slow else random.random() * habits.usual_s)
        except asyncio.CancelledError:
            self._deliveries.abandon(work)
            raise
        return work, not fails

    async def _handle(self, message: ReceivedMessage) -> None:
        work, success = await self._work_on(message)
        self._deliveries.end(work, success=success)
        if not success and self._random.random() < 0.5:
            message.retry(delay_s=GIVE_BACK_S)
        elif not success:
            raise PlannedFailureError


class Handling(Member):
    """`PushConsumer` with a handler, which works on several messages of a queue at a time."""

    def _make_consumer(self) -> PushConsumer:
        return PushConsumer(
            NAME_SERVER,
            self.group,
            self._topics,
            self._handle,
            concurrency=self._random.choice((1, 4, 20)),
            pull_batch_size=self._random.choice((1, 4, 32)),
            close_timeout=self._random.choice((0.5, 5.0)),
            start_timeout=None,
            client_id=self.process.name,
        )


class Ordered(Member):
    """`OrderlyConsumer`."""

    def _make_consumer(self) -> OrderlyConsumer:
        return OrderlyConsumer(
            NAME_SERVER,
            self.group,
            self._topics,
            self._handle,
            concurrency=self._random.choice((1, 4)),
            close_timeout=self._random.choice((0.5, 5.0)),
            start_timeout=None,
            client_id=self.process.name,
        )


class Taking(Member):
    """`PushConsumer` over which tasks iterate."""

    def _make_consumer(self) -> PushConsumer:
        return PushConsumer(
            NAME_SERVER,
            self.group,
            self._topics,
            close_timeout=self._random.choice((0.5, 5.0)),
            start_timeout=None,
            client_id=self.process.name,
        )

    async def _start(self) -> None:
        await super()._start()
        for _ in range(TAKERS):
            self.process.run(self._take_messages)

    async def _take_messages(self) -> None:
        consumer = self.consumer
        assert isinstance(consumer, PushConsumer)
        async for message in consumer:
            work, success = await self._work_on(message)
            self._deliveries.end(work, success=success)
            if not success:
                message.retry(delay_s=GIVE_BACK_S)


class Sending:
    """`Producer` in its own process. It sends to a queue of the client's choice, or by an ordering key."""

    def __init__(self, process: Process, workload: Workload) -> None:
        self.process = process
        self._workload = workload
        self._random = Random(f"{workload.random.random()} {process.name}")

    def start(self) -> None:
        """Start to send."""
        self.process.run(self._send)

    async def _send(self) -> None:
        workload, random, truth = self._workload, self._random, self._workload.truth
        while not truth.topics.keys() >= workload.lasting:  # noqa: ASYNC110 - the log notifies no event loop
            await asyncio.sleep(WAIT_S)
        async with Producer(
            NAME_SERVER,
            client_id=self.process.name,
            timeout=random.choice((2.0, 8.0)),
            idempotent=random.random() < 0.5,
            compress_over_bytes=None,
        ) as producer:
            while workload.active:
                operation = workload.next_operation()
                truth.sent_again.add(operation)
                _, _, body = workload.make_send("any", 0, [operation], batch=False)
                key = f"key-{random.randrange(8)}" if random.random() < 0.5 else None
                topic = random.choice(sorted(workload.lasting))
                try:
                    sent = await producer.send(topic, body, ordering_key=key)
                except ClientError as error:
                    workload.counts["info" if error.outcome == "unknown" else "fail"] += 1
                    if error.outcome == "not_sent":
                        truth.refuse(operation)
                else:
                    workload.counts["ok"] += 1
                    position = position_in(sent.offset_message_id)
                    truth.acknowledged(operation, sent.queue_id, sent.queue_offset, position)
                await asyncio.sleep(random.expovariate(1.0) * workload.settings.think_s)

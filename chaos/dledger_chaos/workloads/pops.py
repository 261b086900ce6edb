"""Messages that members of two groups pop: one takes them of any queue, and again what was not acknowledged; one takes
each queue in order.

Members acknowledge one by one or many at once, hide some for longer, and leave some alone on purpose. Acknowledgements
of unknown outcome are repeated. At the end members take and acknowledge what is left; every queue is read from every
node.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from dledger_chaos.history import Outcome
from dledger_client import Admin, ClientError, Producer, ReceivedMessage
from dledger_client.core import ClientCore
from dledger_remoting.pop import Retry, pop_retry_topic
from dledger_remoting.topics import SubscriptionGroupConfig

from .base import WorkloadContext, WorkloadEntry
from .payload import decode_payload
from .popping import PopGroup, RecordedPops
from .reading import TopicReader
from .sending import RecordedSends
from .tailing import Arrivals

NAME: Final = "pops"
SHARED: Final = PopGroup("chaos-pops", "chaos-pops", is_ordered=False)
ORDERED: Final = PopGroup("chaos-pops-ordered", "chaos-pops-ordered", is_ordered=True)
GROUPS: Final = (SHARED, ORDERED)
QUEUES: Final = 4
MEMBERS: Final = 3
"""Of each group."""
RETRIES: Final = 10_000
"""So that nothing becomes a dead letter."""
INVISIBLE_S: Final = (1.5, 3.0, 6.0)
"""Shorter than what a new leader waits before it delivers again what an earlier one has delivered."""

_LEFT_ALONE: Final = 0.1
_HIDDEN: Final = 0.1
_IN_BATCHES: Final = 0.4
"""Shares of messages that are left alone and hidden anew, and of pops whose messages are acknowledged all at once."""
_ATTEMPTS: Final = 3
_POLL_SECONDS: Final = (0.0, 1.0)
_HANDLING_SECONDS: Final = 0.05
_BURSTS: Final = (1, 1, 1, 12)
"""Messages that are sent at once, so that pops bring several of a queue."""
_SEND_PAUSE_SECONDS: Final = 0.15
_PAUSE_SECONDS: Final = 0.05
_FINAL_SECONDS: Final = 120.0
"""Longer than a new leader, a wrong clock that was believed, and the longest invisible time take together."""


class PopsWorkload:
    """See the module."""

    name = NAME

    def __init__(self) -> None:
        self._producer: Producer | None = None
        self._core: ClientCore | None = None
        self._arrivals = Arrivals()
        self._done: set[str] = set()

    async def setup(self, ctx: WorkloadContext) -> None:
        """Make topics and groups, and start the clients."""
        async with Admin(ctx.namesrv) as admin:
            for group in GROUPS:
                await admin.create_topic(group.topic, queues=QUEUES)
                await admin.create_group(SubscriptionGroupConfig(group.name, retry_max_times=RETRIES))
        self._producer = Producer(ctx.namesrv, group="chaos-pops-producer", retry_unknown=False)
        await self._producer.start()
        self._core = ClientCore(ctx.namesrv)
        self._core.start()

    async def run(self, ctx: WorkloadContext) -> None:
        """Send, pop and acknowledge until the end."""
        assert self._producer is not None
        async with asyncio.TaskGroup() as tasks:
            for group in GROUPS:
                sends = RecordedSends(ctx.recorder, NAME, f"producer-{group.topic}", self._producer, group.topic)
                tasks.create_task(self._send(ctx, sends, random.Random(ctx.rng.random())))
                for number in range(MEMBERS):
                    rng = random.Random(ctx.rng.random())
                    member = self._member(ctx, f"{group.name}-{number}", group, rng)
                    tasks.create_task(self._work(member, rng, ctx.stopping))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Take and acknowledge what is left; read every queue from every node."""
        if self._producer is not None:
            await self._producer.close()
        try:
            async with asyncio.timeout(_FINAL_SECONDS), asyncio.TaskGroup() as tasks:
                for group in GROUPS:
                    rng = random.Random(ctx.rng.random())
                    member = self._member(ctx, f"{group.name}-last", group, rng)
                    tasks.create_task(self._finish(member))
        except TimeoutError:
            pass  # what is missing is for the checkers to judge
        if self._core is not None:
            await self._core.close()
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader:
            for group in GROUPS:
                await reader.scan(group.topic, ctx)
            await _look_at_retries(reader)

    def _member(self, ctx: WorkloadContext, process: str, group: PopGroup, rng: random.Random) -> RecordedPops:
        assert self._core is not None
        return RecordedPops(self._core, ctx.recorder, NAME, process, group, rng)

    async def _send(self, ctx: WorkloadContext, sends: RecordedSends, rng: random.Random) -> None:
        while not ctx.stopping.is_set():
            sizes = [rng.randint(0, 500) for _ in range(rng.choice(_BURSTS))]
            for sent in await asyncio.gather(*(sends.send(size) for size in sizes)):
                if sent is not None:
                    self._arrivals.expect(sent[0])
            await asyncio.sleep(_SEND_PAUSE_SECONDS)

    async def _work(self, member: RecordedPops, rng: random.Random, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            messages = await member.pop(rng.choice((1, 4, 16)), rng.choice(INVISIBLE_S), rng.choice(_POLL_SECONDS))
            if not messages:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            await asyncio.sleep(rng.random() * _HANDLING_SECONDS)
            await self._handle(member, messages, rng)

    async def _handle(self, member: RecordedPops, messages: Sequence[ReceivedMessage], rng: random.Random) -> None:
        """Decide what becomes of messages."""
        together: list[ReceivedMessage] = []
        in_batch = rng.random() < _IN_BATCHES
        for message in messages:
            chance, own = rng.random(), message
            if chance < _LEFT_ALONE:
                continue
            if chance < _LEFT_ALONE + _HIDDEN:
                hidden = await member.hide(message, rng.choice(INVISIBLE_S))
                if hidden is None:
                    continue
                own = hidden
            if in_batch:
                together.append(own)
            else:
                await self._acknowledge(member, [own])
        if together:
            await self._acknowledge(member, together)

    async def _finish(self, member: RecordedPops) -> None:
        """Take what is left, until all that was sent is done with."""
        while not self._arrivals.complete.is_set():
            messages = await member.pop(32, INVISIBLE_S[1], 1.0)
            if messages:
                await self._acknowledge(member, messages)
            else:
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _acknowledge(self, member: RecordedPops, messages: Sequence[ReceivedMessage]) -> None:
        """Acknowledge messages, again after an unknown outcome; what that may have done does not have to come again."""
        outcomes: list[Outcome] = []
        while (not outcomes or outcomes[-1] == "info") and len(outcomes) < _ATTEMPTS:
            outcomes.append(await member.ack(messages))
        if set(outcomes) == {"fail"}:
            return
        for value in {decode_payload(message.body) for message in messages} - self._done:
            self._done.add(value)
            self._arrivals.came(value)


async def _look_at_retries(reader: TopicReader) -> None:
    """Record how much of the topic of what came again is kept: what was trimmed need not have been taken."""
    try:
        queues = await reader.wait_for_queues(pop_retry_topic(SHARED.name, SHARED.topic, Retry.V1))
    except ClientError:
        return  # nothing came again
    for queue in queues:
        await reader.bounds(queue, f="kept")


ENTRY: Final = WorkloadEntry(
    NAME, "messages that members of groups pop: acknowledged, hidden anew, left alone, in order", "broker", PopsWorkload
)
"""The line of the registry."""

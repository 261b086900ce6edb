"""Messages that members of two consumer groups pop; one of the groups pops each queue in order.

Members acknowledge messages singly or in batches, change the invisible time of some, and ignore some on purpose.
Acknowledgements of unknown outcome are repeated. At the end one more member of each group pops and acknowledges the
remaining messages. Then every queue is read from every node.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from dledger_chaos.history import Outcome
from dledger_client import Admin, ClientError, Producer, ReceivedMessage
from dledger_client.cluster.core import ClientCore
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
"""Number of members of each group."""
RETRIES: Final = 10_000
"""Maximum number of redeliveries. It is so large that no message becomes a dead letter."""
INVISIBLE_S: Final = (1.5, 3.0, 6.0)
"""Invisible times in seconds. A new leader waits longer before it redelivers messages of an earlier leader."""

_LEFT_ALONE_SHARE: Final = 0.1
_HIDDEN_SHARE: Final = 0.1
_BATCH_SHARE: Final = 0.4
"""Shares of messages that are ignored or get a new invisible time, and of pops that are acknowledged in batches."""
_ATTEMPTS: Final = 3
_POLL_SECONDS: Final = (0.0, 1.0)
_HANDLING_SECONDS: Final = 0.05
_BURST_SIZES: Final = (1, 1, 1, 12)
"""Numbers of messages that are sent at once, so that a pop returns several messages of a queue."""
_SEND_PAUSE_SECONDS: Final = 0.15
_PAUSE_SECONDS: Final = 0.05
_FINAL_SECONDS: Final = 120.0
"""Time limit for the final pops: longer than a new leader, a wrong group time and the longest invisible time take."""


class PopsWorkload:
    """Clients of the workload `pops`, as the module describes it."""

    name = NAME

    def __init__(self) -> None:
        self._producer: Producer | None = None
        self._core: ClientCore | None = None
        self._arrivals = Arrivals()
        self._done_values: set[str] = set()

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
                tasks.create_task(self._send_messages(ctx, sends, random.Random(ctx.rng.random())))
                for number in range(MEMBERS):
                    rng = random.Random(ctx.rng.random())
                    member = self._make_member(ctx, f"{group.name}-{number}", group, rng)
                    tasks.create_task(self._pop_messages(member, rng, ctx.stopping))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Pop and acknowledge the remaining messages; read every queue from every node."""
        if self._producer is not None:
            await self._producer.close()
        try:
            async with asyncio.timeout(_FINAL_SECONDS), asyncio.TaskGroup() as tasks:
                for group in GROUPS:
                    rng = random.Random(ctx.rng.random())
                    member = self._make_member(ctx, f"{group.name}-last", group, rng)
                    tasks.create_task(self._pop_rest(member))
        except TimeoutError:
            pass  # the checkers judge what is missing
        if self._core is not None:
            await self._core.close()
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader:
            for group in GROUPS:
                await reader.scan(group.topic, ctx)
            await _record_retry_bounds(reader)

    def _make_member(self, ctx: WorkloadContext, process: str, group: PopGroup, rng: random.Random) -> RecordedPops:
        assert self._core is not None
        return RecordedPops(self._core, ctx.recorder, NAME, process, group, rng)

    async def _send_messages(self, ctx: WorkloadContext, sends: RecordedSends, rng: random.Random) -> None:
        while not ctx.stopping.is_set():
            sizes = [rng.randint(0, 500) for _ in range(rng.choice(_BURST_SIZES))]
            for sent in await asyncio.gather(*(sends.send(size) for size in sizes)):
                if sent is not None:
                    self._arrivals.expect(sent[0])
            await asyncio.sleep(_SEND_PAUSE_SECONDS)

    async def _pop_messages(self, member: RecordedPops, rng: random.Random, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            messages = await member.pop(rng.choice((1, 4, 16)), rng.choice(INVISIBLE_S), rng.choice(_POLL_SECONDS))
            if not messages:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            await asyncio.sleep(rng.random() * _HANDLING_SECONDS)
            await self._handle(member, messages, rng)

    async def _handle(self, member: RecordedPops, messages: Sequence[ReceivedMessage], rng: random.Random) -> None:
        """Acknowledge popped messages, give them a new invisible time, or ignore them."""
        batch: list[ReceivedMessage] = []
        in_batch = rng.random() < _BATCH_SHARE
        for message in messages:
            chance, current = rng.random(), message
            if chance < _LEFT_ALONE_SHARE:
                continue
            if chance < _LEFT_ALONE_SHARE + _HIDDEN_SHARE:
                hidden = await member.hide(message, rng.choice(INVISIBLE_S))
                if hidden is None:
                    continue
                current = hidden
            if in_batch:
                batch.append(current)
            else:
                await self._acknowledge(member, [current])
        if batch:
            await self._acknowledge(member, batch)

    async def _pop_rest(self, member: RecordedPops) -> None:
        """Pop and acknowledge the remaining messages, until all sent messages are done."""
        while not self._arrivals.complete.is_set():
            messages = await member.pop(32, INVISIBLE_S[1], 1.0)
            if messages:
                await self._acknowledge(member, messages)
            else:
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _acknowledge(self, member: RecordedPops, messages: Sequence[ReceivedMessage]) -> None:
        """Acknowledge messages, and repeat this after an unknown outcome. Unless refused, the messages are done."""
        outcomes: list[Outcome] = []
        while (not outcomes or outcomes[-1] == "info") and len(outcomes) < _ATTEMPTS:
            outcomes.append(await member.ack(messages))
        if set(outcomes) == {"fail"}:
            return
        for value in {decode_payload(message.body) for message in messages} - self._done_values:
            self._done_values.add(value)
            self._arrivals.came(value)


async def _record_retry_bounds(reader: TopicReader) -> None:
    """Record the bounds of the retry topic's queues. Trimmed messages need not have been acknowledged."""
    try:
        queues = await reader.wait_for_queues(pop_retry_topic(SHARED.name, SHARED.topic, Retry.V1))
    except ClientError:
        return  # no message was delivered again
    for queue in queues:
        await reader.bounds(queue, f="kept")


ENTRY: Final = WorkloadEntry(
    NAME,
    "messages that two groups pop, one in order: acknowledged singly or in batches, hidden for longer, or ignored",
    "broker",
    PopsWorkload,
)

"""A consumer group that is reset while its members come and go, and when it has none.

| process | does |
|---|---|
| `member-<n>` | consumes for a few seconds, leaves and comes back |
| `resetter` | resets one queue to an offset, or all of a broker group to the first message or to the end |
| `watcher` | asks through the leader or any node how far the group is |
| `final` | resets it at the end, when everything is healed, once while a member reads and once while nobody does |

A reset is asked for once, and not repeated if its outcome is unknown. Each of `final` is waited for: everything from
there on has to be delivered.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from dledger_client import (
    Admin,
    ClientError,
    Handler,
    MessageQueue,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
)
from dledger_client.core import ClientCore, check_response
from dledger_client.errors import refusal
from dledger_client.offsets import QueueOffsets
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.errors import RemotingError
from dledger_remoting.headers import OffsetResponseHeader, QueryConsumerOffsetHeader, decode_ext, encode_ext
from dledger_remoting.resets import AT_END, ResetOffsetHeader, decode_reset
from dledger_remoting.topics import SubscriptionGroupConfig

from .base import FOLLOWER_READS, NodeAddresses, WorkloadContext, WorkloadEntry, sleep_or_stop
from .members import come_and_go, send_on
from .reading import TopicReader
from .records import seen_of
from .sending import RecordedSends, end_with_error

NAME: Final = "resets"
TOPIC: Final = "chaos-resets"
GROUP: Final = "chaos-resets"
QUEUES: Final = 4
MEMBERS: Final = 3
FINAL: Final = "final"
"""The process that resets at the end, when everything is healed; each of its resets has to be obeyed."""

_AT_FIRST: Final = 0
_FARTHEST: Final = 150
"""So many messages a reset goes back at the most, unless it goes to the first one."""
_WAYS: Final = ("offset", "first", "last")
_WEIGHTS: Final = (10, 1, 1)
_DEADLINE_SECONDS: Final = 5.0
_SEND_PAUSE_SECONDS: Final = 0.05
_WATCH_PAUSE_SECONDS: Final = 0.05
_RESET_PAUSE_SECONDS: Final = (0.5, 5.0)
_LIFE_SECONDS: Final = (3.0, 12.0)
_HANDLING_SECONDS: Final = 0.02
"""So that what was read before a reset is still in work then."""
_FINAL_SECONDS: Final = 90.0
_POLL_SECONDS: Final = 0.05
_TRIMMED_SECONDS: Final = 5.0
"""So often the last resets look for what a trim has taken of what they wait for."""


class ResetsWorkload:
    """See the module."""

    name = NAME

    def __init__(self) -> None:
        self._producer: Producer | None = None
        self._core: ClientCore | None = None
        self._queues: list[MessageQueue] = []
        self._ends: dict[MessageQueue, int] = {}
        """Behind the last acknowledged message of each queue."""
        self._given: set[tuple[MessageQueue, int]] = set()
        self._missing: set[tuple[MessageQueue, int]] = set()
        self._obeyed = asyncio.Event()
        """Nothing is missing of what members are to be given behind the last reset of `final`."""

    async def setup(self, ctx: WorkloadContext) -> None:
        """Make topic and group, and start the clients."""
        async with Admin(ctx.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
            await admin.create_group(SubscriptionGroupConfig(GROUP))
            self._queues = list((await admin.topic_route(TOPIC)).readable)
        self._producer = Producer(ctx.namesrv, group="chaos-resets-producer", retry_unknown=False)
        await self._producer.start()
        self._core = ClientCore(ctx.namesrv)
        self._core.start()
        await self._core.routes.get(TOPIC, self._core.loop.time() + _DEADLINE_SECONDS)

    async def run(self, ctx: WorkloadContext) -> None:
        """Send, consume and reset until the end."""
        assert self._producer is not None
        sends = RecordedSends(ctx.recorder, NAME, "producer", self._producer, TOPIC)
        async with asyncio.TaskGroup() as tasks:
            rng = random.Random(ctx.rng.random())
            tasks.create_task(send_on(ctx, sends, rng, _SEND_PAUSE_SECONDS, self._on_acknowledged))
            tasks.create_task(self._reset_on(ctx, random.Random(ctx.rng.random())))
            tasks.create_task(self._watch(ctx, random.Random(ctx.rng.random())))
            for number in range(MEMBERS):
                tasks.create_task(self._member(ctx, f"member-{number}", random.Random(ctx.rng.random())))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Reset the group, and have it obey; read every queue from every node."""
        if self._producer is not None:
            await self._producer.close()
        if self._core is not None:
            await self._reset_finally(ctx, random.Random(ctx.rng.random()))
            await self._core.close()
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader:
            await reader.scan(TOPIC, ctx)

    def _on_acknowledged(self, _: str, result: SendResult) -> None:
        queue = MessageQueue(result.topic, result.broker_group, result.queue_id)
        self._ends[queue] = max(self._ends.get(queue, 0), result.queue_offset + 1)

    # ---------------------------------------------------------------- members

    async def _member(self, ctx: WorkloadContext, process: str, rng: random.Random) -> None:
        def consumer() -> PushConsumer:
            return self._consumer(ctx, process, rng.random() * _HANDLING_SECONDS)

        await come_and_go(ctx, rng, _LIFE_SECONDS, consumer)

    def _consumer(self, ctx: WorkloadContext, process: str, handling_s: float) -> PushConsumer:
        handler = self._handler(ctx, process, handling_s)
        return PushConsumer(ctx.namesrv, GROUP, TOPIC, handler, concurrency=1, start_timeout=None)

    def _handler(self, ctx: WorkloadContext, process: str, handling_s: float) -> Handler:
        async def handle(message: ReceivedMessage) -> None:
            queue = MessageQueue(*message.queue)
            ctx.recorder.invoke(NAME, process, "deliver", str(queue)).ok(seen_of(message))
            self._given.add((queue, message.queue_offset))
            self._missing.discard((queue, message.queue_offset))
            if not self._missing:
                self._obeyed.set()
            await asyncio.sleep(handling_s)

        return handle

    # ---------------------------------------------------------------- resets

    async def _reset_on(self, ctx: WorkloadContext, rng: random.Random) -> None:
        while not ctx.stopping.is_set():
            await sleep_or_stop(ctx, rng.uniform(*_RESET_PAUSE_SECONDS))
            queue, node = rng.choice(self._queues), self._any_node(ctx, rng)
            way = rng.choices(_WAYS, _WEIGHTS)[0]
            if way == "offset":
                await self._reset_queue(ctx, "resetter", queue, self._place(queue, rng), node)
            else:
                at_ms = AT_END if way == "last" else _AT_FIRST
                await self._reset_all(ctx, "resetter", queue.broker_group, at_ms, node)

    def _place(self, queue: MessageQueue, rng: random.Random) -> int:
        end = self._ends.get(queue, 0)
        return rng.randint(max(0, end - _FARTHEST), end)

    def _any_node(self, ctx: WorkloadContext, rng: random.Random) -> NodeAddresses | None:
        """A node to ask, None for whoever leads."""
        if FOLLOWER_READS not in ctx.capabilities or rng.random() < 0.5:
            return None
        return rng.choice(ctx.nodes)

    async def _reset_queue(
        self, ctx: WorkloadContext, process: str, queue: MessageQueue, offset: int, node: NodeAddresses | None
    ) -> Mapping[MessageQueue, int] | None:
        header = ResetOffsetHeader(TOPIC, GROUP, AT_END, is_force=True, queue_id=queue.queue_id, offset=offset)
        return await self._reset(ctx, process, header, {queue: offset}, node)

    async def _reset_all(
        self, ctx: WorkloadContext, process: str, broker_group: str, at_ms: int, node: NodeAddresses | None
    ) -> Mapping[MessageQueue, int] | None:
        """Reset all queues of a broker group."""
        header = ResetOffsetHeader(TOPIC, GROUP, at_ms, is_force=True)
        wanted = {queue: None for queue in self._queues if queue.broker_group == broker_group}
        return await self._reset(ctx, process, header, wanted, node)

    async def _reset(
        self,
        ctx: WorkloadContext,
        process: str,
        header: ResetOffsetHeader,
        wanted: Mapping[MessageQueue, int | None],
        node: NodeAddresses | None,
    ) -> Mapping[MessageQueue, int] | None:
        """Ask for a reset once; where the group goes on, None if it was not done or nobody knows."""
        assert self._core is not None
        core, broker_group = self._core, next(iter(wanted)).broker_group
        if node is not None and node.group != broker_group:
            node = None
        deadline = core.loop.time() + _DEADLINE_SECONDS
        code, ext = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, encode_ext(header)
        invocation = ctx.recorder.invoke(NAME, process, "reset", GROUP, _as_rows(wanted))
        try:
            if node is None:
                group = core.routes.group(broker_group)
                answer = await core.call_leader(group, code, ext, deadline=deadline, idempotent=False)
            else:
                answer = check_response(await core.call(node.client, code, ext, deadline=deadline))
            moved = {
                MessageQueue(queue.topic, queue.broker_name, queue.queue_id): offset
                for queue, offset in decode_reset(bytes(answer.body)).items()
            }
        except RemotingError as error:
            end_with_error(invocation, refusal(error))
        except ClientError as error:
            end_with_error(invocation, error)
        else:
            invocation.ok(_as_rows(moved))
            return moved
        return None

    # ---------------------------------------------------------------- how far it is

    async def _watch(self, ctx: WorkloadContext, rng: random.Random) -> None:
        while not ctx.stopping.is_set():
            await self._ask(ctx, rng.choice(self._queues), self._any_node(ctx, rng))
            await asyncio.sleep(_WATCH_PAUSE_SECONDS)

    async def _ask(self, ctx: WorkloadContext, queue: MessageQueue, node: NodeAddresses | None) -> None:
        assert self._core is not None
        core, deadline = self._core, self._core.loop.time() + _DEADLINE_SECONDS
        header = QueryConsumerOffsetHeader(GROUP, TOPIC, queue.queue_id, set_zero_if_not_found=False)
        code, ext = RequestCode.QUERY_CONSUMER_OFFSET, encode_ext(header)
        none = frozenset({int(ResponseCode.QUERY_NOT_FOUND)})
        invocation = ctx.recorder.invoke(NAME, "watcher", "committed", f"{GROUP}@{queue}")
        try:
            if node is None or node.group != queue.broker_group:
                group = core.routes.group(queue.broker_group)
                answer = await core.call_leader(group, code, ext, deadline=deadline, accept=none)
            else:
                answer = await core.call(node.client, code, ext, deadline=deadline)
            found = None
            if answer.code not in none:
                found = decode_ext(OffsetResponseHeader, check_response(answer).ext).offset
        except (ClientError, RemotingError) as error:
            invocation.fail(str(error))
        else:
            invocation.ok(found)

    # ---------------------------------------------------------------- the end

    async def _reset_finally(self, ctx: WorkloadContext, rng: random.Random) -> None:
        """Reset the group in every queue: under a member, and when nobody reads, who is to come."""
        with suppress(TimeoutError):  # what is missing then is for the checker to judge
            async with asyncio.timeout(_FINAL_SECONDS), self._consumer(ctx, "last", 0.0):
                await self._await_obedience(
                    await self._insist(ctx, {queue: self._place(queue, rng) for queue in self._queues})
                )
        with suppress(TimeoutError):
            async with asyncio.timeout(_FINAL_SECONDS):
                moved = await self._insist(ctx, dict.fromkeys(self._queues, _AT_FIRST))
                async with self._consumer(ctx, "last", 0.0):
                    await self._await_obedience(moved)

    async def _insist(self, ctx: WorkloadContext, wanted: Mapping[MessageQueue, int]) -> Mapping[MessageQueue, int]:
        """Reset each queue, until that is answered. What a trim has taken is not asked for: brokers refuse that."""
        self._given.clear()
        moved: dict[MessageQueue, int] = {}
        while missing := wanted.keys() - moved.keys():
            for queue in sorted(missing):
                with suppress(ClientError):
                    offset = max(wanted[queue], await self._first(queue))
                    moved.update(await self._reset_queue(ctx, FINAL, queue, offset, None) or {})
            await asyncio.sleep(_POLL_SECONDS)
        return moved

    async def _first(self, queue: MessageQueue) -> int:
        assert self._core is not None
        return await QueueOffsets(self._core).first(queue, self._core.loop.time() + _DEADLINE_SECONDS)

    async def _await_obedience(self, moved: Mapping[MessageQueue, int]) -> None:
        """Wait until everything behind a reset was delivered, but for what a trim has taken meanwhile."""
        wanted = {(queue, at) for queue, begin in moved.items() for at in range(begin, self._ends.get(queue, 0))}
        self._missing = wanted - self._given
        self._obeyed.clear()
        while self._missing:
            with suppress(TimeoutError):
                async with asyncio.timeout(_TRIMMED_SECONDS):
                    await self._obeyed.wait()
            for queue in sorted({queue for queue, _ in self._missing}):
                with suppress(ClientError):
                    first = await self._first(queue)
                    self._missing = {(of, at) for of, at in self._missing if of != queue or at >= first}


def _as_rows(offsets: Mapping[MessageQueue, int | None]) -> Sequence[tuple[str, int | None]]:
    return [(str(queue), offset) for queue, offset in offsets.items()]


ENTRY: Final = WorkloadEntry(
    NAME,
    "a consumer group that is reset while its members come and go, and when it has none",
    "broker",
    ResetsWorkload,
)
"""The line of the registry."""

"""A consumer group whose offsets are reset, while its members come and go and while it has none.

| process | action |
|---|---|
| `member-<n>` | consumes for a few seconds, leaves and comes back |
| `resetter` | resets one queue to an offset, or all queues of a broker group to their first or end offsets |
| `watcher` | reads the group's committed offsets through the leader or any node |
| `final` | after healing, resets every queue twice: while a member consumes, and while the group has no members |
| `last` | the member that consumes during and after the resets of `final` |

A reset is not repeated if its outcome is unknown, except for the resets of `final`. After each reset of `final`, all
messages from its offset on must be delivered.
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
from dledger_client.cluster.core import ClientCore, check_response
from dledger_client.consuming.offsets import QueueOffsets
from dledger_client.errors import refusal
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.errors import RemotingError
from dledger_remoting.headers import OffsetResponseHeader, QueryConsumerOffsetHeader, decode_ext, encode_ext
from dledger_remoting.resets import AT_END, ResetOffsetHeader, decode_reset
from dledger_remoting.topics import SubscriptionGroupConfig

from .base import FOLLOWER_READS, NodeAddresses, WorkloadContext, WorkloadEntry, sleep_or_stop
from .members import come_and_go, send_on, work
from .reading import TopicReader
from .records import seen_of
from .sending import RecordedSends, end_with_error

NAME: Final = "resets"
TOPIC: Final = "chaos-resets"
GROUP: Final = "chaos-resets"
QUEUES: Final = 4
MEMBERS: Final = 3
FINAL: Final = "final"
"""Name of the process that resets the group after healing. The group must obey each of its resets."""

_AT_FIRST: Final = 0
_MAX_STEP_BACK: Final = 150
"""Maximum number of messages that a reset to an offset goes back."""
_WAYS: Final = ("offset", "first", "last")
_WEIGHTS: Final = (10, 1, 1)
_DEADLINE_SECONDS: Final = 5.0
_SEND_PAUSE_SECONDS: Final = 0.05
_WATCH_PAUSE_SECONDS: Final = 0.05
_RESET_PAUSE_SECONDS: Final = (0.5, 5.0)
_LIFE_SECONDS: Final = (3.0, 12.0)
_HANDLING_SECONDS: Final = 0.02
"""Maximum time in seconds of most handlings, so that messages read before a reset are still handled after it."""
_FINAL_SECONDS: Final = 90.0
_POLL_SECONDS: Final = 0.05
_TRIMMED_SECONDS: Final = 5.0
"""Interval in seconds at which the final resets check whether missing messages have been trimmed."""


class ResetsWorkload:
    """Clients of the workload `resets`, as the module describes it."""

    name = NAME

    def __init__(self) -> None:
        self._producer: Producer | None = None
        self._core: ClientCore | None = None
        self._queues: list[MessageQueue] = []
        self._ends: dict[MessageQueue, int] = {}
        """Offset behind the last acknowledged message of each queue."""
        self._delivered: set[tuple[MessageQueue, int]] = set()
        self._missing: set[tuple[MessageQueue, int]] = set()
        self._reset_obeyed = asyncio.Event()
        """Set while no message behind the last reset of `final` is missing."""

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
            tasks.create_task(self._keep_resetting(ctx, random.Random(ctx.rng.random())))
            tasks.create_task(self._keep_reading_offsets(ctx, random.Random(ctx.rng.random())))
            for number in range(MEMBERS):
                tasks.create_task(self._run_member(ctx, f"member-{number}", random.Random(ctx.rng.random())))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Reset the group and wait until it has obeyed; read every queue from every node."""
        if self._producer is not None:
            await self._producer.close()
        if self._core is not None:
            await self._reset_at_end(ctx, random.Random(ctx.rng.random()))
            await self._core.close()
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader:
            await reader.scan(TOPIC, ctx)

    def _on_acknowledged(self, _: str, result: SendResult) -> None:
        queue = MessageQueue(result.topic, result.broker_group, result.queue_id)
        self._ends[queue] = max(self._ends.get(queue, 0), result.queue_offset + 1)

    # ---------------------------------------------------------------- members

    async def _run_member(self, ctx: WorkloadContext, process: str, rng: random.Random) -> None:
        def consumer() -> PushConsumer:
            return self._make_consumer(ctx, process, rng)

        await come_and_go(ctx, rng, _LIFE_SECONDS, consumer)

    def _make_consumer(self, ctx: WorkloadContext, process: str, rng: random.Random | None) -> PushConsumer:
        handler = self._make_handler(ctx, process, rng)
        return PushConsumer(ctx.namesrv, GROUP, TOPIC, handler, concurrency=1, start_timeout=None)

    def _make_handler(self, ctx: WorkloadContext, process: str, rng: random.Random | None) -> Handler:
        """Return a handler that takes time. Without `rng` it takes no time."""

        async def handle(message: ReceivedMessage) -> None:
            queue = MessageQueue(*message.queue)
            ctx.recorder.invoke(NAME, process, "deliver", str(queue)).ok(seen_of(message))
            self._delivered.add((queue, message.queue_offset))
            self._missing.discard((queue, message.queue_offset))
            if not self._missing:
                self._reset_obeyed.set()
            if rng is not None:
                await work(ctx, rng, _HANDLING_SECONDS)

        return handle

    # ---------------------------------------------------------------- resets

    async def _keep_resetting(self, ctx: WorkloadContext, rng: random.Random) -> None:
        while not ctx.stopping.is_set():
            await sleep_or_stop(ctx, rng.uniform(*_RESET_PAUSE_SECONDS))
            queue, node = rng.choice(self._queues), self._draw_node(ctx, rng)
            way = rng.choices(_WAYS, _WEIGHTS)[0]
            if way == "offset":
                await self._reset_queue(ctx, "resetter", queue, self._draw_offset(queue, rng), node)
            else:
                at_ms = AT_END if way == "last" else _AT_FIRST
                await self._reset_all(ctx, "resetter", queue.broker_group, at_ms, node)

    def _draw_offset(self, queue: MessageQueue, rng: random.Random) -> int:
        end = self._ends.get(queue, 0)
        return rng.randint(max(0, end - _MAX_STEP_BACK), end)

    def _draw_node(self, ctx: WorkloadContext, rng: random.Random) -> NodeAddresses | None:
        """Return a random node, or None for the leader."""
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
        """Reset once. Return the offsets at which the group continues, None unless the reset was acknowledged."""
        assert self._core is not None
        core, broker_group = self._core, next(iter(wanted)).broker_group
        if node is not None and node.group != broker_group:
            node = None
        deadline = core.loop.time() + _DEADLINE_SECONDS
        code, ext = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, encode_ext(header)
        invocation = ctx.recorder.invoke(NAME, process, "reset", GROUP, _to_rows(wanted))
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
            invocation.ok(_to_rows(moved))
            return moved
        return None

    # ---------------------------------------------------------------- committed offsets

    async def _keep_reading_offsets(self, ctx: WorkloadContext, rng: random.Random) -> None:
        while not ctx.stopping.is_set():
            await self._read_offset(ctx, rng.choice(self._queues), self._draw_node(ctx, rng))
            await asyncio.sleep(_WATCH_PAUSE_SECONDS)

    async def _read_offset(self, ctx: WorkloadContext, queue: MessageQueue, node: NodeAddresses | None) -> None:
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

    async def _reset_at_end(self, ctx: WorkloadContext, rng: random.Random) -> None:
        """Reset the group in every queue: once while a member reads, and once before a member starts."""
        with suppress(TimeoutError):  # the checker judges what is missing then
            async with asyncio.timeout(_FINAL_SECONDS), self._make_consumer(ctx, "last", None):
                await self._wait_until_obeyed(
                    await self._reset_until_answered(
                        ctx, {queue: self._draw_offset(queue, rng) for queue in self._queues}
                    )
                )
        with suppress(TimeoutError):
            async with asyncio.timeout(_FINAL_SECONDS):
                moved = await self._reset_until_answered(ctx, dict.fromkeys(self._queues, _AT_FIRST))
                async with self._make_consumer(ctx, "last", None):
                    await self._wait_until_obeyed(moved)

    async def _reset_until_answered(
        self, ctx: WorkloadContext, wanted: Mapping[MessageQueue, int]
    ) -> Mapping[MessageQueue, int]:
        """Reset each queue, and repeat this until it is acknowledged. Return the offsets at which the group continues.

        No reset goes to a trimmed offset, because brokers refuse that. Messages that were delivered before the reset of
        their queue must be delivered again.
        """
        moved: dict[MessageQueue, int] = {}
        while missing := wanted.keys() - moved.keys():
            for queue in sorted(missing):
                with suppress(ClientError):
                    offset = max(wanted[queue], await self._read_first_offset(queue))
                    self._delivered = {given for given in self._delivered if given[0] != queue}
                    moved.update(await self._reset_queue(ctx, FINAL, queue, offset, None) or {})
            await asyncio.sleep(_POLL_SECONDS)
        return moved

    async def _read_first_offset(self, queue: MessageQueue) -> int:
        assert self._core is not None
        return await QueueOffsets(self._core).first(queue, self._core.loop.time() + _DEADLINE_SECONDS)

    async def _wait_until_obeyed(self, moved: Mapping[MessageQueue, int]) -> None:
        """Wait until all messages behind a reset were delivered, except for trimmed messages."""
        wanted = {(queue, at) for queue, begin in moved.items() for at in range(begin, self._ends.get(queue, 0))}
        self._missing = wanted - self._delivered
        self._reset_obeyed.clear()
        while self._missing:
            with suppress(TimeoutError):
                async with asyncio.timeout(_TRIMMED_SECONDS):
                    await self._reset_obeyed.wait()
            for queue in sorted({queue for queue, _ in self._missing}):
                with suppress(ClientError):
                    first = await self._read_first_offset(queue)
                    self._missing = {(of, at) for of, at in self._missing if of != queue or at >= first}


def _to_rows(offsets: Mapping[MessageQueue, int | None]) -> Sequence[tuple[str, int | None]]:
    return [(str(queue), offset) for queue, offset in offsets.items()]


ENTRY: Final = WorkloadEntry(
    NAME,
    "a consumer group whose offsets are reset through any node, while members come and go and while it has none",
    "broker",
    ResetsWorkload,
)

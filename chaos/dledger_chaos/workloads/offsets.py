"""Consumer offsets that only rise, committed and read through leaders and followers.

| process | action |
|---|---|
| `committer-<n>` | commits one group's offset at the leader, repeats commits without an answer, and reads it there |
| `racer-<n>` | commits another group's offset through a random node and a higher offset through another, concurrently |
| `reader-<node>` | reads the offsets of all groups from this node only, whether it leads or not |
| `final` | reads all offsets once more at the end |

Racers and readers run only if followers forward requests that they cannot answer.

No read may return less than an offset that was acknowledged or read before. A repeated or forwarded commit that arrives
late must not undo a higher commit.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from dledger_client import Admin, ClientError, MessageQueue
from dledger_client.cluster.core import ClientCore, check_response
from dledger_client.consuming.offsets import QueueOffsets
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.errors import RemotingError
from dledger_remoting.headers import (
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    UpdateConsumerOffsetHeader,
    decode_ext,
    encode_ext,
)
from dledger_remoting.topics import SubscriptionGroupConfig

from .base import FOLLOWER_READS, NodeAddresses, WorkloadContext, WorkloadEntry

NAME: Final = "offsets"
TOPIC: Final = "chaos-offsets"
COMMITTERS: Final = 6
RACERS: Final = 2
MOST_UNDER_WAY: Final = 16
"""Maximum number of unanswered commits of one racer."""

_DEADLINE_SECONDS: Final = 5.0
_FINAL_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.02
_READ_PAUSE_SECONDS: Final = 0.05
_LONGEST_LEADS_SECONDS: Final = (0.0, 0.01, 0.1, 0.5)
"""Maximum times in seconds between two commits of a racer."""
_LARGEST_STEP: Final = 5


class OffsetsWorkload:
    """Clients of the workload `offsets`, as the module describes it."""

    name = NAME

    def __init__(self) -> None:
        self._offsets: list[_Offset] = []

    async def setup(self, ctx: WorkloadContext) -> None:
        """Make the topic and the groups."""
        async with Admin(ctx.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=COMMITTERS)
            queues = list((await admin.topic_route(TOPIC)).readable)
            for number in range(COMMITTERS + RACERS):
                group = f"chaos-offsets-{number}"
                await admin.create_group(SubscriptionGroupConfig(group))
                self._offsets.append(_Offset(ctx, group, queues[number % len(queues)]))

    async def run(self, ctx: WorkloadContext) -> None:
        """Commit and read until the end."""
        async with asyncio.TaskGroup() as tasks:
            for number, offset in enumerate(self._offsets):
                rng = random.Random(ctx.rng.random())
                if number < COMMITTERS:
                    tasks.create_task(self._keep_committing(ctx, f"committer-{number}", offset, rng))
                elif FOLLOWER_READS in ctx.capabilities:
                    tasks.create_task(self._keep_racing(ctx, f"racer-{number - COMMITTERS}", offset, rng))
            for node in ctx.nodes if FOLLOWER_READS in ctx.capabilities else ():
                tasks.create_task(self._keep_reading(ctx, node, random.Random(ctx.rng.random())))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Read every offset once more."""
        async with _open_core(ctx) as core:
            for offset in self._offsets:
                await offset.read(core, "final", _FINAL_SECONDS)

    async def _keep_committing(self, ctx: WorkloadContext, process: str, offset: _Offset, rng: random.Random) -> None:
        value = 0
        async with _open_core(ctx) as core:
            while not ctx.stopping.is_set():
                value += rng.randint(1, _LARGEST_STEP)
                await offset.commit(core, process, value)
                if rng.random() < 0.5:
                    await offset.read(core, process, _DEADLINE_SECONDS)
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _keep_racing(self, ctx: WorkloadContext, process: str, offset: _Offset, rng: random.Random) -> None:
        """Commit like a client that gets no answer in time: send the next commit through another node."""
        nodes = [node for node in ctx.nodes if node.group == offset.broker_group]
        room = asyncio.Semaphore(MOST_UNDER_WAY)
        value = 0
        async with _open_core(ctx) as core, asyncio.TaskGroup() as tasks:
            while not ctx.stopping.is_set():
                for node in rng.sample(nodes, len(nodes))[:2]:
                    value += rng.randint(1, _LARGEST_STEP)
                    await room.acquire()
                    commit = tasks.create_task(offset.commit_at(core, node, process, value))
                    commit.add_done_callback(lambda _: room.release())
                    await asyncio.sleep(rng.random() * rng.choice(_LONGEST_LEADS_SECONDS))
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _keep_reading(self, ctx: WorkloadContext, node: NodeAddresses, rng: random.Random) -> None:
        offsets = [offset for offset in self._offsets if offset.broker_group == node.group]
        async with _open_core(ctx) as core:
            while offsets and not ctx.stopping.is_set():
                await rng.choice(offsets).read_at(core, node)
                await asyncio.sleep(_READ_PAUSE_SECONDS)


class _Offset:
    """The offset of one group and queue, with recorded operations on it."""

    def __init__(self, ctx: WorkloadContext, group: str, queue: MessageQueue) -> None:
        self.broker_group = queue.broker_group
        self._recorder = ctx.recorder
        self._group = group
        self._queue = queue
        self._key = f"{group}@{queue}"

    async def commit(self, core: ClientCore, process: str, value: int) -> None:
        """Commit at the leader. Without an acknowledgement any of the attempts may have taken effect."""
        deadline = core.loop.time() + _DEADLINE_SECONDS
        invocation = self._recorder.invoke(NAME, process, "commit", self._key, value)
        try:
            await core.routes.get(self._queue.topic, deadline)
            await QueueOffsets(core).commit(self._group, self._queue, value, deadline)
        except ClientError as error:
            invocation.info(str(error))
        else:
            invocation.ok()

    async def read(self, core: ClientCore, process: str, seconds: float) -> None:
        """Read at the leader."""
        deadline = core.loop.time() + seconds
        invocation = self._recorder.invoke(NAME, process, "committed", self._key)
        try:
            await core.routes.get(self._queue.topic, deadline)
            found = await QueueOffsets(core).committed(self._group, self._queue, deadline)
        except ClientError as error:
            invocation.fail(str(error))
        else:
            invocation.ok(found)

    async def commit_at(self, core: ClientCore, node: NodeAddresses, process: str, value: int) -> None:
        """Commit through one node, once."""
        invocation = self._recorder.invoke(NAME, process, "commit", self._key, value, node=node.node_id)
        header = UpdateConsumerOffsetHeader(self._group, self._queue.topic, self._queue.queue_id, value)
        try:
            response = await core.call(
                node.client,
                RequestCode.UPDATE_CONSUMER_OFFSET,
                encode_ext(header),
                deadline=core.loop.time() + _DEADLINE_SECONDS,
            )
            check_response(response)
        except ClientError as error:
            invocation.info(str(error))
        else:
            invocation.ok()

    async def read_at(self, core: ClientCore, node: NodeAddresses) -> None:
        """Read from one node."""
        invocation = self._recorder.invoke(NAME, f"reader-{node.node_id}", "committed", self._key, node=node.node_id)
        header = QueryConsumerOffsetHeader(
            self._group, self._queue.topic, self._queue.queue_id, set_zero_if_not_found=False
        )
        try:
            response = await core.call(
                node.client,
                RequestCode.QUERY_CONSUMER_OFFSET,
                encode_ext(header),
                deadline=core.loop.time() + _DEADLINE_SECONDS,
            )
            found = None
            if response.code != ResponseCode.QUERY_NOT_FOUND:
                found = decode_ext(OffsetResponseHeader, check_response(response).ext).offset
        except (ClientError, RemotingError) as error:
            invocation.fail(str(error))
        else:
            invocation.ok(found)


@asynccontextmanager
async def _open_core(ctx: WorkloadContext) -> AsyncIterator[ClientCore]:
    """Open the connections of one client for the context."""
    core = ClientCore(ctx.namesrv)
    core.start()
    try:
        yield core
    finally:
        await core.close()


ENTRY: Final = WorkloadEntry(
    NAME,
    "consumer offsets that only rise, committed at the leader and through two nodes at once, and read from every node",
    "broker",
    OffsetsWorkload,
)

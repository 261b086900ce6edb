"""Consumer offsets: each committer raises the offset of one group and queue, and reads back what is committed.

Nobody else touches that offset, so that it may never be read lower than what was acknowledged, or read, before. Commits
are repeated while their outcome is unknown; a delayed repetition must not undo a newer commit.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from dledger_client import Admin, ClientError, MessageQueue
from dledger_client.core import ClientCore
from dledger_client.offsets import QueueOffsets
from dledger_remoting.topics import SubscriptionGroupConfig

from .base import WorkloadContext, WorkloadEntry

NAME: Final = "offsets"
TOPIC: Final = "chaos-offsets"
COMMITTERS: Final = 6

_DEADLINE_SECONDS: Final = 5.0
_FINAL_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.02


class OffsetsWorkload:
    """See the module."""

    name = NAME

    def __init__(self) -> None:
        self._queues: list[MessageQueue] = []

    async def setup(self, ctx: WorkloadContext) -> None:
        """Make the topic and the groups."""
        async with Admin(ctx.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=COMMITTERS)
            for number in range(COMMITTERS):
                await admin.create_group(SubscriptionGroupConfig(f"chaos-offsets-{number}"))
            self._queues = list((await admin.topic_route(TOPIC)).readable)

    async def run(self, ctx: WorkloadContext) -> None:
        """Commit and read until the end."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(COMMITTERS):
                tasks.create_task(self._work(ctx, number, random.Random(ctx.rng.random())))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Read every offset once more."""
        for number in range(COMMITTERS):
            committer = _Committer(ctx, number, self._queues[number % len(self._queues)])
            deadline = asyncio.get_running_loop().time() + _FINAL_SECONDS
            try:
                await committer.start()
                await committer.read(deadline)
            finally:
                await committer.close()

    async def _work(self, ctx: WorkloadContext, number: int, rng: random.Random) -> None:
        committer = _Committer(ctx, number, self._queues[number % len(self._queues)])
        await committer.start()
        offset = 0
        loop = asyncio.get_running_loop()
        try:
            while not ctx.stopping.is_set():
                offset += rng.randint(1, 5)
                await committer.commit(offset, loop.time() + _DEADLINE_SECONDS)
                if rng.random() < 0.5:
                    await committer.read(loop.time() + _DEADLINE_SECONDS)
                await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            await committer.close()


class _Committer:
    """One process of the history: the only one that commits for its group and queue."""

    def __init__(self, ctx: WorkloadContext, number: int, queue: MessageQueue) -> None:
        self._recorder = ctx.recorder
        self._namesrv = ctx.namesrv
        self._process = f"committer-{number}"
        self._group = f"chaos-offsets-{number}"
        self._queue = queue
        self._core: ClientCore | None = None

    async def start(self) -> None:
        """Open connections."""
        self._core = ClientCore(self._namesrv)
        self._core.start()

    async def close(self) -> None:
        """Close connections."""
        if self._core is not None:
            await self._core.close()

    async def commit(self, offset: int, deadline: float) -> None:
        """Commit an offset. One that is not acknowledged may have been committed by any of its attempts."""
        invocation = self._recorder.invoke(NAME, self._process, "commit", self._key, offset)
        try:
            await (await self._offsets(deadline)).commit(self._group, self._queue, offset, deadline)
        except ClientError as error:
            invocation.info(str(error))
        else:
            invocation.ok()

    async def read(self, deadline: float) -> None:
        """Read the committed offset."""
        invocation = self._recorder.invoke(NAME, self._process, "committed", self._key)
        try:
            found = await (await self._offsets(deadline)).committed(self._group, self._queue, deadline)
        except ClientError as error:
            invocation.fail(str(error))
        else:
            invocation.ok(found)

    async def _offsets(self, deadline: float) -> QueueOffsets:
        assert self._core is not None
        await self._core.routes.get(self._queue.topic, deadline)
        return QueueOffsets(self._core)

    @property
    def _key(self) -> str:
        return f"{self._group}@{self._queue}"


ENTRY: Final = WorkloadEntry(
    NAME, "consumer offsets: committed upwards by one client each, and read", "broker", OffsetsWorkload
)

"""Recorded reads: single pulls from chosen nodes, and whole topics at the end of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

import msgspec

from dledger_chaos.history import Recorder
from dledger_client import ClientError, MessageQueue
from dledger_client.cluster.core import ClientCore
from dledger_client.consuming.offsets import QueueOffsets
from dledger_client.consuming.pulls import PullResult, pull
from dledger_client.errors import refusal
from dledger_client.subscriptions import Subscription
from dledger_remoting.codes import ResponseCode
from dledger_remoting.errors import RemotingError

from .base import FOLLOWER_READS, NodeAddresses, WorkloadContext
from .records import Pulled, seen_of

READER_GROUP: Final = "chaos-reader"
DEADLINE_SECONDS: Final = 10.0
SCAN_SECONDS: Final = 40.0
"""Time limit for the final read of one queue on one node. It is slow only if something is wrong."""

_MAX_MESSAGES: Final = 512
_PAUSE_SECONDS: Final = 0.1

_ResultT = TypeVar("_ResultT")


class TopicReader:
    """Reads queues for one workload and records the reads. Use it as an async context manager."""

    def __init__(self, namesrv: str, recorder: Recorder, workload: str) -> None:
        self._namesrv = namesrv
        self._recorder = recorder
        self._workload = workload
        self._core: ClientCore | None = None

    async def __aenter__(self) -> Self:
        self._core = ClientCore(self._namesrv)
        self._core.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._require_core().close()

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Return the queues of a topic. Raises `ClientError`."""
        core = self._require_core()
        return (await core.routes.get(topic, self._make_deadline())).all_readable

    async def wait_for_queues(self, topic: str) -> Sequence[MessageQueue]:
        """Return the queues of a topic, once it exists. Raises `ClientError` if it does not exist in time."""
        return await self._repeat_until_answered(lambda: self.queues(topic))

    async def pull(
        self, queue: MessageQueue, offset: int, node: NodeAddresses, *, f: str = "pull", suspend_seconds: float = 0.0
    ) -> PullResult | None:
        """Pull once from one node and record it; return None if it failed."""
        process = f"{f}-{node.node_id}"
        invocation = self._recorder.invoke(self._workload, process, f, str(queue), [], node=node.node_id, offset=offset)
        try:
            result = await self._pull(queue, offset, node.client, suspend_seconds)
        except ClientError as error:
            invocation.fail(str(error))
            return None
        found = [seen_of(message) for message in result.messages]
        answer = Pulled(node.node_id, offset, result.code, result.next_offset)
        invocation.ok(found, **msgspec.structs.asdict(answer))
        return result

    async def bounds(self, queue: MessageQueue, *, f: str = "bounds") -> tuple[int, int] | None:
        """Read and record the first kept offset and the end of a queue; return None if they cannot be read."""
        invocation = self._recorder.invoke(self._workload, f, f, str(queue), None)
        offsets = QueueOffsets(self._require_core())
        try:
            first = await self._repeat_until_answered(lambda: offsets.first(queue, self._make_deadline()))
            end = await self._repeat_until_answered(lambda: offsets.end(queue, self._make_deadline()))
        except ClientError as error:
            invocation.fail(str(error))
            return None
        invocation.ok([first, end])
        return first, end

    async def scan(self, topic: str, ctx: WorkloadContext) -> None:
        """Read a whole topic from its first to its end offsets, from every node of its queues' groups.

        Without the capability `follower-reads`, read from the leaders only.
        """
        try:
            queues = await self.wait_for_queues(topic)
        except ClientError as error:
            self._recorder.invoke(self._workload, "scan", "scan", topic).fail(str(error))
            return
        for queue in queues:
            bounds = await self.bounds(queue)
            if bounds is not None:
                nodes = self._select_nodes(queue, ctx)
                await asyncio.gather(*(self._scan_queue(queue, *bounds, node) for node in nodes))

    def _select_nodes(self, queue: MessageQueue, ctx: WorkloadContext) -> list[NodeAddresses]:
        members = [node for node in ctx.nodes if node.group == queue.broker_group]
        if FOLLOWER_READS in ctx.capabilities:
            return members
        leader = self._require_core().routes.group(queue.broker_group).any_address()
        return [node for node in members if node.client == leader]

    async def _scan_queue(self, queue: MessageQueue, offset: int, end: int, node: NodeAddresses) -> None:
        deadline = self._require_core().loop.time() + SCAN_SECONDS
        while offset < end and self._require_core().loop.time() < deadline:
            result = await self.pull(queue, offset, node, f="scan")
            if result is None or result.next_offset <= offset:
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                offset = result.next_offset

    async def _pull(self, queue: MessageQueue, offset: int, address: str, suspend_seconds: float) -> PullResult:
        try:
            return await pull(
                self._require_core(),
                address,
                READER_GROUP,
                queue,
                offset,
                Subscription(queue.topic, "*", 0),
                max_messages=_MAX_MESSAGES,
                suspend_seconds=suspend_seconds,
            )
        except RemotingError as error:
            raise refusal(error) from error

    async def _repeat_until_answered(self, request: Callable[[], Awaitable[_ResultT]]) -> _ResultT:
        """Repeat a request until it succeeds. Raises `ClientError` after a time limit."""
        deadline = self._require_core().loop.time() + SCAN_SECONDS
        while True:
            try:
                return await request()
            except ClientError:
                if self._require_core().loop.time() >= deadline:
                    raise
                await asyncio.sleep(_PAUSE_SECONDS)

    def _make_deadline(self) -> float:
        return self._require_core().loop.time() + DEADLINE_SECONDS

    def _require_core(self) -> ClientCore:
        assert self._core is not None, "use 'async with TopicReader(...)'"
        return self._core


def moved(result: PullResult) -> bool:
    """Return True if the wanted offset lies outside the queue."""
    return result.code == ResponseCode.PULL_OFFSET_MOVED

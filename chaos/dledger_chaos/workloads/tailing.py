"""Readers that follow topics to their ends while faults strike, and the messages that they still expect."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Final

from dledger_client import ClientError, MessageQueue, ReceivedMessage

from .base import NodeAddresses, WorkloadContext
from .reading import TopicReader

_SUSPEND_SECONDS: Final = 1.0
_FAILED_PAUSE_SECONDS: Final = 0.25


class Arrivals:
    """Counts expected and received messages; `complete` is set while no message is missing."""

    def __init__(self) -> None:
        self.complete = asyncio.Event()
        self.complete.set()
        self._expected: Counter[str] = Counter()
        self._received: Counter[str] = Counter()
        self._missing: set[str] = set()

    def expect(self, value: str) -> None:
        """Expect a message, or one more copy of it."""
        self._expected[value] += 1
        self._update(value)

    def came(self, value: str) -> None:
        """Note that a message was received, or one more copy of it."""
        self._received[value] += 1
        self._update(value)

    async def wait(self, seconds: float) -> None:
        """Wait until no message is missing, or for a time limit. The checkers judge messages still missing."""
        try:
            async with asyncio.timeout(seconds):
                await self.complete.wait()
        except TimeoutError:
            pass

    def _update(self, value: str) -> None:
        if self._received[value] < self._expected[value]:
            self._missing.add(value)
            self.complete.clear()
        else:
            self._missing.discard(value)
            if not self._missing:
                self.complete.set()


class TopicTail:
    """Follows all queues of a topic; `on_message` is called once for every message.

    It stays with a node while the node answers. `follow` may be called again, and continues where it stopped.
    """

    def __init__(self, topic: str, ctx: WorkloadContext, on_message: Callable[[ReceivedMessage], None]) -> None:
        self._topic = topic
        self._ctx = ctx
        self._rng = random.Random(ctx.rng.random())
        self._on_message = on_message
        self._offsets: dict[MessageQueue, int] = {}

    async def follow(self, reader: TopicReader, ended: asyncio.Event) -> None:
        """Read until `ended` is set."""
        while not self._offsets and not ended.is_set():
            try:
                self._offsets = dict.fromkeys(await reader.queues(self._topic), 0)
            except ClientError:
                await asyncio.sleep(_FAILED_PAUSE_SECONDS)
        async with asyncio.TaskGroup() as tasks:
            for queue in self._offsets:
                tasks.create_task(self._follow_queue(reader, queue, ended))

    async def follow_until(self, reader: TopicReader, ended: asyncio.Event, seconds: float) -> None:
        """Read until `ended` is set, for `seconds` at most. The checkers judge messages still missing."""
        try:
            async with asyncio.timeout(seconds):
                await self.follow(reader, ended)
        except TimeoutError:
            pass

    async def _follow_queue(self, reader: TopicReader, queue: MessageQueue, ended: asyncio.Event) -> None:
        node = self._draw_node(queue)
        while not ended.is_set():
            result = await reader.pull(queue, self._offsets[queue], node, suspend_seconds=_SUSPEND_SECONDS)
            if result is None:
                await asyncio.sleep(_FAILED_PAUSE_SECONDS)
                node = self._draw_node(queue)
                continue
            self._offsets[queue] = result.next_offset
            for message in result.messages:
                self._on_message(message)

    def _draw_node(self, queue: MessageQueue) -> NodeAddresses:
        return self._rng.choice([node for node in self._ctx.nodes if node.group == queue.broker_group])

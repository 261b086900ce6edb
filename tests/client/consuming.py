"""Helpers for tests that consume."""

from __future__ import annotations

import asyncio

from client_fakes import until

from dledger_remoting.codes import RequestCode
from dledger_remoting.properties import format_properties


async def take(consumer, count):
    messages = []
    async with asyncio.timeout(10):
        async for message in consumer:
            messages.append(message)
            if len(messages) == count:
                if consumer.settings.delivery.auto_ack:  # as a program does before it leaves the loop
                    message.ack()
                return messages
    raise AssertionError("the consumer was closed")


def fill(cluster, count, topic="T", queue_id=0, queues=(), **properties):
    """Store messages in one queue, or in each of several."""
    for place in queues or (queue_id,):
        for number in range(count):
            cluster.group.store(topic, place, b"%04d" % number, format_properties(properties).encode())


def ack(messages):
    for message in messages:
        message.ack()


def is_pull_of(command, offset):
    ext = command.ext
    return command.code == RequestCode.PULL_MESSAGE and (ext["topic"], ext["queueOffset"]) == ("T", str(offset))


async def pulled(cluster, offset):
    """Wait until the leader has been asked for the messages from an offset on."""
    await until(lambda: any(is_pull_of(command, offset) for command in cluster.group.nodes[0].received))


def topic_queues(consumer):
    return {queue for queue in consumer.assignment if queue.topic == "T"}


def fetcher_of(consumer, queue_id=0):
    """Return the reader of a queue of `T`, or None."""
    fetchers = consumer._running.assignments.fetchers()
    return next((one for one in fetchers if one.queue[::2] == ("T", queue_id)), None)


def is_read_anew(consumer):
    """Return whether the queue of `T` has a reader that does not know yet where to begin."""
    fetcher = fetcher_of(consumer)
    return fetcher is not None and fetcher.progress is None


class Share:
    """Strategy that gives a consumer a slice of the queues, which the test chooses."""

    def __init__(self, *part):
        self.part = slice(*part or (None,))

    def __call__(self, _client_id, _members, queues):
        return list(queues)[self.part]

    async def goes_and_comes_back(self, consumer):
        await self.becomes(consumer, 0)
        await self.becomes(consumer, None)

    async def becomes(self, consumer, *part):
        """Change the slice, and wait until the consumer has none of the queues of `T` any more, or some."""
        self.part = slice(*part)
        consumer._running.assignments.rebalance_soon()
        await until(lambda: bool(topic_queues(consumer)) == (part != (0,)))


class AtWork:
    """Handler that works on its first message until the test sets `finish`. It may get one message at a time."""

    def __init__(self):
        self.seen = []
        self.begun = asyncio.Event()
        self.finish = asyncio.Event()
        self._is_busy = False

    async def __call__(self, message):
        assert not self._is_busy, "two messages of a queue in work"
        self._is_busy = True
        self.seen.append(message.queue_offset)
        self.begun.set()
        await self.finish.wait()
        self._is_busy = False


class Failing:
    """Handler that records bodies and numbers of retries, and raises an error for the messages that `fails` selects."""

    def __init__(self, fails=lambda _message: True, error=ValueError):
        self.seen = []
        self._fails = fails
        self._error = error

    async def __call__(self, message):
        self.seen.append((message.body, message.reconsume_times))
        if self._fails(message):
            raise self._error


async def committed(consumer, cluster, offset):
    """Commit until the group has reached an offset of `T`."""
    async with asyncio.timeout(10):
        while cluster.group.offsets.get(("CG", "T", 0)) != offset:
            await consumer.commit()

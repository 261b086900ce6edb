"""Locks of the queues that an ordered consumer reads. Brokers grant each lock to one member of a group.

The client relies on a lock for `BELIEF_S` after the request for it was *sent*. The broker keeps the lock for longer.

A broker may grant a lock that the client does not want any more:

1. A request for a lock is cut off, or a renewal is under way.
2. The client gives the queue up.
3. The request takes effect.

Such a lock would keep the queue from all members for a minute. So the client gives it up again, and does not ask for
the queue until that is answered. Requests also have numbers, so that the broker itself ignores late ones. Brokers of
earlier versions do not look at the numbers.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby
from typing import Final

from dledger_remoting.bodies import decode_body, encode_body
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import RemotingError
from dledger_remoting.headers import encode_ext
from dledger_remoting.queue_locks import LockedQueuesBody, LockNumberHeader, QueueLocksBody
from dledger_remoting.topics import MessageQueue as QueueName

from ..cluster.core import ClientCore
from ..cluster.surroundings import random_bits
from ..errors import ClientError, refusal
from ..messages import MessageQueue

logger = logging.getLogger(__name__)

BELIEF_S: Final = 30.0
RENEWAL_S: Final = 10.0
ASK_AGAIN_S: Final = 0.5
_ANSWER_S: Final = 5.0


class QueueLocks:
    """Asks for locks, renews them, gives them up. `on_lost` gets queues that another member may have locked."""

    def __init__(self, core: ClientCore, consumer_group: str, on_lost: Callable[[MessageQueue], None]) -> None:
        self._core = core
        self._consumer_group = consumer_group
        self._on_lost = on_lost
        self._held_until: dict[MessageQueue, float] = {}
        self._epoch_numbers = itertools.count(1)
        self._session = f"{random_bits(64):016x}"
        self._request_numbers = itertools.count(1)
        self._epochs: dict[MessageQueue, int] = {}
        """Number of the lock that is asked for, or held, by queue. An answer with another number means nothing."""
        self._unrenewed: set[MessageQueue] = set()
        """Queues whose locks are not renewed any more."""
        self._release_tasks: dict[MessageQueue, asyncio.Task[None]] = {}
        """Releases of locks that may have been granted although the client does not want them any more."""

    def holds(self, queue: MessageQueue) -> bool:
        """Return True while no other member can be granted a queue."""
        return self._core.loop.time() < self._held_until.get(queue, 0.0)

    async def acquire(self, queue: MessageQueue) -> None:
        """Wait until the lock of a queue is granted. Another member may have it, or no broker may answer."""
        self._unrenewed.discard(queue)
        while (release_task := self._release_tasks.get(queue)) is not None:
            await asyncio.wait((release_task,))
        if self.holds(queue):
            return
        self._held_until.pop(queue, None)
        number = self._epochs[queue] = next(self._epoch_numbers)
        try:
            while not self.holds(queue):
                self._held_until.pop(queue, None)
                try:
                    if queue in await self._request_locks([queue]):
                        return
                except ClientError as error:
                    logger.warning("%s is not locked yet: %s", queue, error)
                await asyncio.sleep(ASK_AGAIN_S)
        except asyncio.CancelledError:
            if self._epochs.get(queue) == number:  # otherwise the lock is requested again
                self._forget(queue)
                self._release_unwanted([queue])
            raise

    def _forget(self, queue: MessageQueue) -> bool:
        """Stop relying on a lock; return True if the client did. Answers still on their way are then ignored."""
        self._epochs.pop(queue, None)
        self._unrenewed.discard(queue)
        return self._held_until.pop(queue, None) is not None

    def _release_unwanted(self, queues: Iterable[MessageQueue]) -> None:
        """Give up locks that the client does not rely on, but that a request on its way may have obtained."""
        for queue in queues:
            if queue in self._epochs or queue in self._release_tasks or self._core.is_closed:
                continue
            task = self._release_tasks[queue] = self._core.spawn(
                self._send_release([queue]), f"give up the lock of {queue}"
            )
            task.add_done_callback(partial(self._on_release_done, queue))

    def _on_release_done(self, queue: MessageQueue, _task: asyncio.Task[None]) -> None:
        self._release_tasks.pop(queue, None)

    async def renew_regularly(self) -> None:
        """Renew the held locks for ever. A lock that was not renewed in time is lost, even if it is granted again."""
        while True:
            await asyncio.sleep(RENEWAL_S)
            renewed = self._held_until.keys() - self._unrenewed
            await asyncio.gather(*(self._renew(queues) for queues in _by_broker_group(renewed)))

    async def _renew(self, queues: list[MessageQueue]) -> None:
        epochs = {queue: self._epochs.get(queue) for queue in queues}
        granted: set[MessageQueue] = set()
        try:
            granted = await self._request_locks(queues)
        except ClientError as error:
            logger.warning("locks of %s are not renewed: %s", ", ".join(map(str, queues)), error)
            granted = {queue for queue in queues if self.holds(queue)}
            self._release_unwanted(queue for queue in queues if queue not in self._epochs)
        for queue in queues:
            if queue in self._held_until and self._epochs.get(queue) == epochs[queue] and queue not in granted:
                logger.warning("%s has lost the lock of %s", self._core.client_id, queue)
                self._forget(queue)
                self._on_lost(queue)

    async def _request_locks(self, queues: list[MessageQueue]) -> set[MessageQueue]:
        """Lock queues of one broker group. Returns those that were granted, and not lost or given up in between.

        Raises `ClientError`.
        """
        sent_at = self._core.loop.time()
        epochs = {queue: self._epochs.get(queue) for queue in queues}
        response = await self._call(RequestCode.LOCK_BATCH_MQ, queues)
        try:
            body = decode_body(LockedQueuesBody, response)
        except RemotingError as error:
            raise refusal(error) from error
        locked_queues = {MessageQueue(each.topic, each.broker_name, each.queue_id) for each in body.queues}
        current_queues = {
            queue for queue in queues if epochs[queue] is not None and self._epochs.get(queue) == epochs[queue]
        }
        granted = {
            queue for queue in current_queues & locked_queues if queue not in self._held_until or self.holds(queue)
        }
        self._held_until.update(dict.fromkeys(granted, sent_at + BELIEF_S))
        self._release_unwanted(queue for queue in queues if queue not in self._epochs)
        return granted

    async def release(self, queues: Iterable[MessageQueue]) -> None:
        """Give queues up. If that fails, a lock ends by itself a minute after its last renewal."""
        held_queues = [queue for queue in queues if self._forget(queue)]
        await asyncio.gather(*(self._send_release(group) for group in _by_broker_group(held_queues)))

    def let_end(self, queue: MessageQueue) -> None:
        """Stop renewing a lock, unless the queue is asked for again. It ends a minute after its last renewal.

        The lock is not given up, because a commit in this queue may be under way.
        """
        self._unrenewed.add(queue)

    async def _send_release(self, queues: list[MessageQueue]) -> None:
        try:
            await self._call(RequestCode.UNLOCK_BATCH_MQ, queues)
        except ClientError as error:
            logger.info("locks of %s end by themselves: %s", ", ".join(map(str, queues)), error)

    async def _call(self, code: int, queues: list[MessageQueue]) -> bytes:
        group = self._core.routes.group(queues[0].broker_group)
        names = [QueueName(queue.broker_group, queue.queue_id, queue.topic) for queue in queues]
        body = encode_body(QueueLocksBody(self._consumer_group, self._core.client_id, names))
        ext = encode_ext(LockNumberHeader(self._session, next(self._request_numbers)))
        deadline = self._core.loop.time() + _ANSWER_S
        response = await self._core.call_leader(group, code, ext, body, deadline=deadline, proves_leader=True)
        return response.body


def _by_broker_group(queues: Iterable[MessageQueue]) -> list[list[MessageQueue]]:
    def group_of(queue: MessageQueue) -> str:
        return queue.broker_group

    return [list(group) for _, group in groupby(sorted(sorted(queues), key=group_of), group_of)]

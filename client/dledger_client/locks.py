"""Locks of the queues that an ordered consumer reads: at the brokers, which grant each to one member of a group.

A lock is believed in for `BELIEF_S` after the request for it was *sent*; the broker keeps it from others for longer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Final

from dledger_remoting.bodies import decode_body, encode_body
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import RemotingError
from dledger_remoting.queue_locks import LockedQueuesBody, QueueLocksBody
from dledger_remoting.topics import MessageQueue as QueueName

from .core import ClientCore
from .errors import ClientError, refusal
from .messages import MessageQueue

logger = logging.getLogger(__name__)

BELIEF_S: Final = 30.0
RENEWAL_S: Final = 10.0
ASK_AGAIN_S: Final = 0.5
_ANSWER_S: Final = 5.0


class QueueLocks:
    """Asks for locks, renews them, gives them up. `on_lost` is told of queues that somebody else may have had since."""

    def __init__(self, core: ClientCore, consumer_group: str, on_lost: Callable[[MessageQueue], None]) -> None:
        self._core = core
        self._consumer_group = consumer_group
        self._on_lost = on_lost
        self._until: dict[MessageQueue, float] = {}

    def holds(self, queue: MessageQueue) -> bool:
        """True while nobody else is granted a queue."""
        return self._core.loop.time() < self._until.get(queue, 0.0)

    async def acquire(self, queue: MessageQueue) -> None:
        """Wait until a queue is granted: while another member has it, or no broker answers."""
        while not self.holds(queue):
            self._until.pop(queue, None)
            try:
                if queue in await self._ask([queue]):
                    return
            except ClientError as error:
                logger.warning("%s is not locked yet: %s", queue, error)
            await asyncio.sleep(ASK_AGAIN_S)

    async def renew_regularly(self) -> None:
        """Renew what is held, for ever; what was not renewed in time is lost, even if it is granted again."""
        while True:
            await asyncio.sleep(RENEWAL_S)
            await asyncio.gather(*(self._renew(queues) for queues in _by_broker_group(self._until)))

    async def _renew(self, queues: list[MessageQueue]) -> None:
        granted: set[MessageQueue] = set()
        try:
            granted = await self._ask(queues)
        except ClientError as error:
            logger.warning("locks of %s are not renewed: %s", ", ".join(map(str, queues)), error)
            granted = {queue for queue in queues if self.holds(queue)}
        for queue in queues:
            if queue in self._until and queue not in granted:
                logger.warning("%s has lost the lock of %s", self._core.client_id, queue)
                del self._until[queue]
                self._on_lost(queue)

    async def _ask(self, queues: list[MessageQueue]) -> set[MessageQueue]:
        """Lock queues of one broker group; those that were granted, and not lost in between. Raises `ClientError`."""
        sent = self._core.loop.time()
        response = await self._call(RequestCode.LOCK_BATCH_MQ, queues)
        try:
            body = decode_body(LockedQueuesBody, response)
        except RemotingError as error:
            raise refusal(error) from error
        named = {MessageQueue(one.topic, one.broker_name, one.queue_id) for one in body.queues}
        granted = {queue for queue in queues if queue in named and (queue not in self._until or self.holds(queue))}
        self._until.update(dict.fromkeys(granted, sent + BELIEF_S))
        return granted

    async def release(self, queues: Iterable[MessageQueue]) -> None:
        """Give queues up. Where that fails the lock ends by itself, a minute after it was last renewed."""
        held = [queue for queue in queues if self._until.pop(queue, None) is not None]
        await asyncio.gather(*(self._release(group) for group in _by_broker_group(held)))

    async def _release(self, queues: list[MessageQueue]) -> None:
        try:
            await self._call(RequestCode.UNLOCK_BATCH_MQ, queues)
        except ClientError as error:
            logger.info("locks of %s end by themselves: %s", ", ".join(map(str, queues)), error)

    async def _call(self, code: int, queues: list[MessageQueue]) -> bytes:
        group = self._core.routes.group(queues[0].broker_group)
        names = [QueueName(queue.broker_group, queue.queue_id, queue.topic) for queue in queues]
        body = encode_body(QueueLocksBody(self._consumer_group, self._core.client_id, names))
        deadline = self._core.loop.time() + _ANSWER_S
        response = await self._core.call_leader(group, code, {}, body, deadline=deadline, proves_leader=True)
        return response.body


def _by_broker_group(queues: Iterable[MessageQueue]) -> list[list[MessageQueue]]:
    def group_of(queue: MessageQueue) -> str:
        return queue.broker_group

    return [list(group) for _, group in groupby(sorted(queues, key=group_of), group_of)]

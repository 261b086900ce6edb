"""Search for the leaders of broker groups that their clients pass over.

Sends go to the groups whose leader is known. Without a search, a group whose leader was lost would get none any more:
1. the connection to its leader breaks, or an answer does not come in time; 2. sends go to the other groups, and nobody
asks this one; 3. it goes on being led by the same node, so that neither a notice nor a route says anything new.

What is asked is the end of a queue. Only a leader that a majority has confirmed answers that, and it changes nothing. A
node that refuses it for another reason than that it does not lead is taken for the leader: it lives, and a send that it
cannot store either is told by it who leads.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Final

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.errors import ServiceNotAvailable, SystemBusy, error_from_response
from dledger_remoting.headers import MaxOffsetHeader, encode_ext

from .core import ATTEMPT_SECONDS, NO_FORWARD, ClientCore
from .errors import ClientError
from .leaders import BrokerGroup
from .messages import MessageQueue

logger = logging.getLogger(__name__)

MIN_PAUSE_SECONDS: Final = 0.05
MAX_PAUSE_SECONDS: Final = 1.0
"""Between two rounds of questions, and from a leader that was found to the next search in its group: one whose disk is
full is found at once, and stores nothing.
"""


class LeaderSearch:
    """Asks all nodes of a group in the background until one leads, or nobody passes the group over any more. Belongs to
    one event loop.
    """

    def __init__(self, core: ClientCore) -> None:
        self._core = core
        self._under_way: set[str] = set()
        self._wanted: set[str] = set()
        """Groups that were passed over since their nodes were asked last."""
        self._found_at: dict[str, float] = {}

    def begin(self, queue: MessageQueue) -> None:
        """Look for the leader of a queue's broker group, unless that is under way."""
        name = queue.broker_group
        self._wanted.add(name)
        if name not in self._under_way and not self._core.is_closed:
            self._under_way.add(name)
            self._core.spawn(self._search(queue, self._core.routes.group(name)), f"search for the leader of {name}")

    async def _search(self, queue: MessageQueue, group: BrokerGroup) -> None:
        loop, pause = self._core.loop, MIN_PAUSE_SECONDS
        try:
            await asyncio.sleep(self._found_at.get(group.name, -math.inf) + MAX_PAUSE_SECONDS - loop.time())
            while group.leader is None and group.name in self._wanted:
                self._wanted.discard(group.name)
                await asyncio.gather(*(self._ask(queue, group, address) for address in group.addresses))
                if group.leader is None:
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, MAX_PAUSE_SECONDS)
            if group.leader is not None:
                self._found_at[group.name] = loop.time()
        finally:
            self._under_way.discard(group.name)

    async def _ask(self, queue: MessageQueue, group: BrokerGroup, address: str) -> None:
        ext = encode_ext(MaxOffsetHeader(topic=queue.topic, queue_id=queue.queue_id)) | NO_FORWARD
        try:
            deadline = self._core.loop.time() + ATTEMPT_SECONDS
            answer = await self._core.call(address, RequestCode.GET_MAX_OFFSET, ext, deadline=deadline)
        except ClientError as error:
            logger.debug("%s was not told by %s who leads: %s", group.name, address, error)
            return
        if group.leader is not None:
            return
        if answer.code != ResponseCode.SUCCESS:
            refused = error_from_response(answer.code, answer.remark, answer.ext)
            if isinstance(refused, ServiceNotAvailable):
                self._core.note_not_leader(group, address, refused)
            if isinstance(refused, ServiceNotAvailable | SystemBusy) or refused.outcome_unknown:
                return
        group.confirm(address)

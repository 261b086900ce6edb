"""Search for the leaders of broker groups that sends currently avoid.

Sends go to groups whose leader is known. Without a search, a group whose leader was lost would never get sends again:

1. The connection to its leader breaks, or an answer does not come in time.
2. Sends go to the other groups, and no send asks this group.
3. The same node remains its leader, so neither a notice nor a route brings news.

The search asks for the end of a queue. Only a leader that a majority has confirmed answers that, and the question
changes nothing. The search goes on after a refusal with code 2 (busy) or 14 (not the leader), or of unknown outcome.
Any other refusal comes from a live node, which is taken for the leader. If it does not lead, it refuses the next send
and names the leader.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Final

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.errors import ServiceNotAvailable, SystemBusy, error_from_response
from dledger_remoting.headers import MaxOffsetHeader, encode_ext

from ..errors import ClientError
from ..messages import MessageQueue
from .core import ATTEMPT_SECONDS, NO_FORWARD, ClientCore
from .leaders import BrokerGroup

logger = logging.getLogger(__name__)

MIN_PAUSE_SECONDS: Final = 0.05
MAX_PAUSE_SECONDS: Final = 1.0
"""Maximum pause in seconds between two rounds of questions, and pause after a found leader before the next search.

A leader with a full disk is found at once, and refuses the next send. Without the pause, every send would begin a
search.
"""


class LeaderSearch:
    """Asks all nodes of a group in the background until one leads, or sends no longer need the group.

    Belongs to one event loop.
    """

    def __init__(self, core: ClientCore) -> None:
        self._core = core
        self._active_searches: set[str] = set()
        self._wanted_groups: set[str] = set()
        """Groups that sends avoided since their nodes were asked last."""
        self._found_at: dict[str, float] = {}

    def begin(self, queue: MessageQueue) -> None:
        """Look for the leader of a queue's broker group, unless a search is under way."""
        name = queue.broker_group
        self._wanted_groups.add(name)
        if name not in self._active_searches and not self._core.is_closed:
            self._active_searches.add(name)
            self._core.spawn(self._search(queue, self._core.routes.group(name)), f"search for the leader of {name}")

    async def _search(self, queue: MessageQueue, group: BrokerGroup) -> None:
        loop, pause = self._core.loop, MIN_PAUSE_SECONDS
        try:
            await asyncio.sleep(self._found_at.get(group.name, -math.inf) + MAX_PAUSE_SECONDS - loop.time())
            while group.leader is None and group.name in self._wanted_groups:
                self._wanted_groups.discard(group.name)
                await asyncio.gather(*(self._ask_node(queue, group, address) for address in group.addresses))
                if group.leader is None:
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, MAX_PAUSE_SECONDS)
            if group.leader is not None:
                self._found_at[group.name] = loop.time()
        finally:
            self._active_searches.discard(group.name)

    async def _ask_node(self, queue: MessageQueue, group: BrokerGroup, address: str) -> None:
        ext = encode_ext(MaxOffsetHeader(topic=queue.topic, queue_id=queue.queue_id)) | NO_FORWARD
        try:
            deadline = self._core.loop.time() + ATTEMPT_SECONDS
            answer = await self._core.call(address, RequestCode.GET_MAX_OFFSET, ext, deadline=deadline)
        except ClientError as error:
            logger.debug("the leader of %s was not learned from %s: %s", group.name, address, error)
            return
        if group.leader is not None:
            return
        if answer.code != ResponseCode.SUCCESS:
            wire_error = error_from_response(answer.code, answer.remark, answer.ext)
            if isinstance(wire_error, ServiceNotAvailable):
                self._core.note_not_leader(group, address, wire_error)
            if isinstance(wire_error, ServiceNotAvailable | SystemBusy) or wire_error.outcome_unknown:
                return
        group.confirm(address)

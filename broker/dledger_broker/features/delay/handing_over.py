"""Job that hands over when this node's time index is not whole, though it was built anew: what it lacks would be late.

It hands over only to a node whose index is whole, and seldom: leaders that change all the time would cost more than
messages that are late. If there is none, this node goes on: its index delivers what it has.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from dledger.environment import Environment
from dledger.log import Log
from dledger_broker.clients.gossip import Gossip
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.views.timeindex import TimeIndex

INDEX_WHOLE: Final = "time_index_whole"
"""The fact by which nodes tell that their indexes agree with the state: 1, else 0."""
LOOK_S: Final = 5.0
PAUSE_S: Final = 600.0
"""So long a node does not hand over again for this."""

_logger = logging.getLogger(__name__)


class HandOverToAWholeIndex:
    """A leader's job; implements `dledger_broker.kernel.jobs.Job`."""

    name: Final = "timer_index"

    def __init__(self, log: Log, env: Environment, gossip: Gossip, index: TimeIndex) -> None:
        self._log = log
        self._env = env
        self._gossip = gossip
        self._index = index
        self._not_before = 0.0
        gossip.facts[INDEX_WHOLE] = self._is_whole

    def _is_whole(self) -> int:
        return int(self._index.follower.whole is True)

    def run(self, handle: JobHandle) -> None:
        """See `Job.run`."""
        handle.call_later(LOOK_S, partial(self.run, handle))
        now = self._env.now()
        if self._index.follower.whole is not False or now < self._not_before:
            return
        voters = {str(voter.node_id) for voter in self._log.membership.voters}
        heirs = [node_id for node_id, whole in self._gossip.told(INDEX_WHOLE).items() if whole and node_id in voters]
        if heirs and handle.hand_over(min(heirs)):
            self._not_before = now + PAUSE_S
            _logger.warning("event=timer_index_hands_over to=%s reason='the time index is not whole'", min(heirs))

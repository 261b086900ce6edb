"""Leader job that hands over the leadership while this node's time index is not whole, although it was built anew.

Rows that the index lacks would be delivered late. The job hands over only to a node whose index is whole, and seldom:
frequent changes of the leader would cost more than late messages. Without a candidate this node keeps leading, and
delivers the rows that its index has.
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
"""Name of the gossip fact that is 1 if a node's index agrees with the state, else 0."""
LOOK_S: Final = 5.0
PAUSE_S: Final = 600.0
"""Minimum time in seconds between two handovers of a node because of its index."""

_logger = logging.getLogger(__name__)


class IndexHandover:
    """Leader job that hands over to a node with a whole index; implements `dledger_broker.kernel.jobs.Job`."""

    name: Final = "timer_index"

    def __init__(self, log: Log, env: Environment, gossip: Gossip, index: TimeIndex) -> None:
        self._log = log
        self._env = env
        self._gossip = gossip
        self._index = index
        self._next_handover_s = 0.0
        gossip.facts[INDEX_WHOLE] = self._is_whole

    def _is_whole(self) -> int:
        return int(self._index.follower.whole is True)

    def run(self, handle: JobHandle) -> None:
        """Check whether the index is whole, and hand over if it is not. Check again after `LOOK_S`."""
        handle.call_later(LOOK_S, partial(self.run, handle))
        now = self._env.now()
        if self._index.follower.whole is not False or now < self._next_handover_s:
            return
        voters = {str(voter.node_id) for voter in self._log.membership.voters}
        candidates = [
            node_id
            for node_id, whole in self._gossip.reported_facts(INDEX_WHOLE).items()
            if whole and node_id in voters
        ]
        if candidates and handle.hand_over(min(candidates)):
            self._next_handover_s = now + PAUSE_S
            _logger.warning("event=timer_index_hands_over to=%s reason='the time index is not whole'", min(candidates))

"""Handover of a leader whose log begins later than that of another voter.

A replica that joined from a snapshot has less of the group's log than an older replica, and it is the leader who
answers readers. So a leader hands over to a caught-up voter that keeps earlier entries. This only moves leadership. If
the other voter is dead, the replica with less may lead.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from dledger.consensus.engine import Engine
from dledger.consensus.peers import Mode
from dledger.replica.leading import Leading
from dledger.replica.snapshotter import Snapshotter
from dledger.store.log import LogStore
from dledger.types import ReplicaId

MIN_ADVANTAGE_S = 2.0
"""Minimum time in seconds for which another voter has had more.

A voter about to carry out the same trim has more only briefly.
"""
RETRY_INTERVAL_S = 30.0
"""Minimum time in seconds before this kind of handover is tried again after it failed."""

logger = logging.getLogger(__name__)


class LongerLogHandover:
    """Decides whether this leader should hand over.

    `connected` maps node ids to the incarnation that can be sent to.
    """

    def __init__(
        self,
        node_id: str,
        store: LogStore,
        snapshotter: Snapshotter,
        connected: Mapping[str, ReplicaId],
        engine: Engine,
        leading: Leading,
    ) -> None:
        self._node_id = node_id
        self._store = store
        self._snapshotter = snapshotter
        self._connected = connected
        self._engine = engine
        self._leading = leading
        self._candidate: tuple[ReplicaId, int, float] | None = None
        """The voter whose log begins first, the term, and since when this is known."""
        self._next_attempt_at = float("-inf")

    def check(self, now: float) -> None:
        """Hand over if another voter has had more for a while. A ready leader calls this a few times a second."""
        voter, term = self._voter_with_longer_log(), self._engine.term
        if voter is None:
            self._candidate = None
        elif self._candidate is None or self._candidate[:2] != (voter, term):
            self._candidate = voter, term, now
        elif now - self._candidate[2] >= MIN_ADVANTAGE_S and now >= self._next_attempt_at:
            self._next_attempt_at = now + RETRY_INTERVAL_S
            logger.info(
                "node=%s event=hands_over_to_earlier_log to=%s first_position=%d",
                self._node_id,
                voter,
                self._store.first_position,
            )
            self._leading.transfer(voter, "its log begins earlier")

    def _voter_with_longer_log(self) -> ReplicaId | None:
        """Return the caught-up voter whose log begins first, unless the group has trimmed what that voter has more."""
        engine, own_first_position = self._engine, self._store.first_position
        if own_first_position <= self._snapshotter.trim_position:
            return None
        candidates = [
            (peer.first_position, replica)
            for replica, peer in engine.progress.items()
            if 0 <= peer.first_position < own_first_position
            and replica in engine.membership.voters
            and self._connected.get(replica.node_id) == replica
            and peer.healthy
            and peer.mode is Mode.STREAM
            and peer.match_index >= engine.commit_index
        ]
        return min(candidates)[1] if candidates else None

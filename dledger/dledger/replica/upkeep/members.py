"""Members of a group: whom a leader adds, replaces and promotes, to whom it hands over, and whom the log lists.

The leader makes one change at a time:

- A node that shows another incarnation than the listed one has lost its directory. The new incarnation replaces the
  listed one, as a learner, once the listed one has been silent for `REPLACE_AFTER_S`.
- A connected node that is in the configuration and not in the log's membership is added as a learner.
- A learner is promoted once it durably has everything that was committed at the previous call of `JoiningPolicy.due`.
  Learners that the configuration makes permanent are not promoted.

A replica that joined from a snapshot has less of the group's log than an older replica, and it is the leader who
answers readers. So a leader hands over to a caught-up voter that keeps earlier entries. This only moves leadership. If
the other voter is dead, the replica with less may lead.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import msgspec

from dledger.consensus.engine import Engine
from dledger.consensus.peers import Mode, Peer
from dledger.replica.snapshots.taking import SnapshotTaker
from dledger.replica.standing import ConnectedPeers
from dledger.replica.upkeep.scrub import PromiseScrub
from dledger.replica.writing.leading import Leading
from dledger.store.identity import Identity, IdentityFiles
from dledger.store.log import LogStore
from dledger.types import Membership, ReplicaId
from dledger_base.group_identity import GroupIdentity

REPLACE_AFTER_S = 10.0
MIN_ADVANTAGE_S = 2.0
"""Minimum time in seconds for which another voter has had more.

A voter about to carry out the same trim has more only briefly.
"""
RETRY_INTERVAL_S = 30.0
"""Minimum time in seconds before this kind of handover is tried again after it failed."""

logger = logging.getLogger(__name__)


class JoiningPolicy:
    """Proposes the next membership, if a change is due. A ready leader calls `next_membership` a few times a second."""

    def __init__(self, wanted: Iterable[str], permanent_learners: Iterable[str]) -> None:
        self._configured = frozenset(wanted)
        self._permanent_learners = frozenset(permanent_learners)
        self._round_goals: dict[ReplicaId, int] = {}

    def next_membership(
        self,
        membership: Membership,
        connected: Iterable[ReplicaId],
        progress: Mapping[ReplicaId, Peer],
        commit_index: int,
        now: float,
    ) -> Membership | None:
        """Return the membership to propose now, or None."""
        for peer in connected:
            if peer not in membership.members and peer.node_id in self._configured:
                listed = membership.find(peer.node_id)
                if listed is None:
                    return Membership(membership.voters, (*membership.learners, peer))
                known = progress.get(listed)
                if known is not None and now - known.contact_at >= REPLACE_AFTER_S:
                    return replace(membership, listed, peer)
        for learner in membership.learners:
            known = progress.get(learner)
            caught_up = known is not None and known.mode is Mode.STREAM and known.healthy
            if learner.node_id in self._permanent_learners or known is None or not caught_up:
                self._round_goals.pop(learner, None)
                continue
            goal = self._round_goals.setdefault(learner, commit_index)
            if known.match_index >= goal:
                del self._round_goals[learner]
                return promote(membership, learner)
            self._round_goals[learner] = commit_index
        return None


def replace(membership: Membership, old: ReplicaId, new: ReplicaId) -> Membership:
    """Return a membership without `old` and with `new` as a learner."""
    return Membership(
        tuple(voter for voter in membership.voters if voter != old),
        (*(learner for learner in membership.learners if learner != old), new),
    )


def promote(membership: Membership, learner: ReplicaId) -> Membership:
    """Return a membership in which a learner has become a voter."""
    return Membership(
        (*membership.voters, learner), tuple(member for member in membership.learners if member != learner)
    )


def without(membership: Membership, member: ReplicaId) -> Membership:
    """Return a membership without a member."""
    return Membership(
        tuple(voter for voter in membership.voters if voter != member),
        tuple(learner for learner in membership.learners if learner != member),
    )


class LongerLogHandover:
    """Decides whether this leader should hand over."""

    def __init__(
        self,
        node_id: str,
        store: LogStore,
        taker: SnapshotTaker,
        connected: ConnectedPeers,
        engine: Engine,
        leading: Leading,
    ) -> None:
        self._node_id = node_id
        self._store = store
        self._taker = taker
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
        if own_first_position <= self._taker.trim_position:
            return None
        candidates = [
            (peer.first_position, replica)
            for replica, peer in engine.progress.items()
            if 0 <= peer.first_position < own_first_position
            and replica in engine.membership.voters
            and replica in self._connected
            and peer.healthy
            and peer.mode is Mode.STREAM
            and peer.match_index >= engine.commit_index
        ]
        return min(candidates)[1] if candidates else None


class OwnGroup:
    """Identity of the group, and the replicas listed in it."""

    def __init__(self, files: IdentityFiles, engine: Engine, promises: PromiseScrub) -> None:
        self._files = files
        self._engine = engine
        self._promises = promises

    @property
    def directory(self) -> Identity:
        """Identity of the replica that owns the directory."""
        return self._files.identity

    def lists(self, replica: ReplicaId) -> bool:
        """Return whether the log has a replica as a member. True while the members are not known."""
        engine = self._engine
        return not engine.membership_is_known or replica in engine.membership.members

    def adopt(self, group_id: str) -> bool:
        """Take over the group identity that the log has. Returns False if the directory's identity takes precedence.

        A state from before a rescue has the earlier identity. The directory's is right until the entries behind that
        state are applied.
        """
        mine = self.directory.group_id
        if mine and not GroupIdentity.parse(mine).precedes(GroupIdentity.parse(group_id)):
            return False
        self._files.identity = msgspec.structs.replace(self.directory, group_id=group_id)
        self._promises.request_round()
        return True

"""Policy of a leader that adds, replaces and promotes members, one change at a time.

- A node that shows another incarnation than the listed one has lost its directory. The new incarnation replaces the
  listed one, as a learner, once the listed one has been silent for `REPLACE_AFTER_S`.
- A connected node that is in the configuration and not in the log's membership is added as a learner.
- A learner is promoted once it durably has everything that was committed at the previous call of `JoiningPolicy.due`.
  Learners that the configuration makes permanent are not promoted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dledger.consensus.peers import Mode, Peer
from dledger.types import Membership, ReplicaId

REPLACE_AFTER_S = 10.0


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

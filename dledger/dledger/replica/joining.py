"""Admission of members, decided by the leader, one change at a time.

- A node that says another incarnation than the listed one has lost its directory.  The listed incarnation is replaced
  (as a learner) once nothing was heard of it for `REPLACE_AFTER_S`.
- A node that the configuration names and the log does not is added as a learner.
- A learner that the configuration does not want to stay one is promoted once it has, durably, what was committed a
  round ago.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dledger.consensus.peers import Mode, Peer
from dledger.types import Membership, ReplicaId

REPLACE_AFTER_S = 10.0


class JoiningPolicy:
    """Proposes the next membership, if one is due; `due` is called by a ready leader a few times a second."""

    def __init__(self, wanted: Iterable[str], permanent_learners: Iterable[str]) -> None:
        self._wanted = frozenset(wanted)
        self._permanent_learners = frozenset(permanent_learners)
        self._round: dict[ReplicaId, int] = {}

    def due(
        self,
        membership: Membership,
        connected: Iterable[ReplicaId],
        progress: Mapping[ReplicaId, Peer],
        commit_index: int,
        now: float,
    ) -> Membership | None:
        """The membership to propose now, or None."""
        for peer in connected:
            if peer not in membership.members and peer.node_id in self._wanted:
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
                self._round.pop(learner, None)
                continue
            goal = self._round.setdefault(learner, commit_index)
            if known.match_index >= goal:
                del self._round[learner]
                return promote(membership, learner)
            self._round[learner] = commit_index
        return None


def replace(membership: Membership, old: ReplicaId, new: ReplicaId) -> Membership:
    """`old` out, `new` in as a learner."""
    return Membership(
        tuple(voter for voter in membership.voters if voter != old),
        (*(learner for learner in membership.learners if learner != old), new),
    )


def promote(membership: Membership, learner: ReplicaId) -> Membership:
    """A learner becomes a voter."""
    return Membership(
        (*membership.voters, learner), tuple(member for member in membership.learners if member != learner)
    )


def without(membership: Membership, member: ReplicaId) -> Membership:
    """A member leaves."""
    return Membership(
        tuple(voter for voter in membership.voters if voter != member),
        tuple(learner for learner in membership.learners if learner != member),
    )

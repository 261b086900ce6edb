"""History of leaders as one replica has seen them since its start, each with the reason.

A replica knows why it campaigned and why it stopped leading. Of other nodes it only knows that they lead. So the whole
story of a group is that of all its nodes together. The history is in memory and bounded.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from dledger.environment import Environment
from dledger.types import ReplicaId, Role

MAX_CHANGES: Final = 100
"""Maximum number of remembered changes, the newest ones."""

_CAMPAIGNS: Final = frozenset({Role.PRE_CANDIDATE, Role.CANDIDATE})


class LeaderChange(msgspec.Struct, frozen=True):
    """Another leader, or none (None), as of a term. `at_ms` is a time by this node's wall clock, since 1970."""

    at_ms: int
    term: int
    leader: str | None
    reason: str


class LeaderHistory:
    """Recorder of changes of the leader. `node_id` is the node of this replica."""

    def __init__(self, node_id: str, environment: Environment) -> None:
        self._node_id = node_id
        self._environment = environment
        self._changes: deque[LeaderChange] = deque(maxlen=MAX_CHANGES)
        self._role = Role.FOLLOWER
        self._term = -1
        self._campaign_reason = ""
        self._handover = ""

    def changes(self) -> list[LeaderChange]:
        """Return the changes, the oldest first."""
        return list(self._changes)

    def note_handover(self, to: ReplicaId | None, why: str) -> None:
        """Note that this leader begins to hand over to a voter, and why."""
        self._handover = f"handed over to {'the voter with the longest log' if to is None else to.node_id}: {why}"

    def note_role(self, role: Role, term: int, leader: ReplicaId | None, *, asked: bool) -> None:
        """Note the role, term and leader since now. `asked` says that the leader asked this replica to campaign."""
        before, self._role = self._role, role
        earlier_term, self._term = self._term, term
        if role in _CAMPAIGNS:
            if before not in _CAMPAIGNS:
                self._campaign_reason = self._why_campaign(asked=asked and role is Role.CANDIDATE)
                self._add(term, None, f"{self._node_id} stands for election: {self._campaign_reason}")
        elif role is Role.LEADER:
            self._handover = ""
            self._add(term, self._node_id, f"elected by a majority: {self._campaign_reason}")
        elif before is Role.LEADER:
            self._add(term, None if leader is None else leader.node_id, self._why_not_leading(earlier_term, term))
        elif leader is not None:
            self._add(term, leader.node_id, f"{self._node_id} follows it")

    def _why_campaign(self, *, asked: bool) -> str:
        leader = next((change.leader for change in reversed(self._changes)), None)
        if asked:
            return f"{leader or 'the leader'} handed over to it"
        if leader is None:
            return "it has heard from no leader"
        return f"it has not heard from {leader} for an election timeout"

    def _why_not_leading(self, earlier_term: int, term: int) -> str:
        """Return why this replica does not lead any more."""
        if self._handover:
            return f"{self._node_id} {self._handover}"
        if term > earlier_term:
            return f"{self._node_id} was deposed: others began term {term}"
        return f"{self._node_id} gave up: a majority did not answer it, or it could not write"

    def _add(self, term: int, leader: str | None, reason: str) -> None:
        last = self._changes[-1] if self._changes else None
        if last is None or (last.term, last.leader) != (term, leader):
            self._changes.append(LeaderChange(self._environment.wall_ms(), term, leader, reason))

"""Faults of memberships and installs: changes in sequence or at once, and snapshots that no node needs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import Literal, NamedTuple

from dledger.replica.upkeep.members import promote, without
from dledger.types import Membership, ReplicaId
from dledger_sim.log.cores import core_of
from dledger_sim.log.faults.operations import call_on
from dledger_sim.log.group import Life, SimGroup


class Change(NamedTuple):
    """Change of the membership that is requested `at_s` seconds after the fault begins."""

    at_s: float
    node: str
    action: Literal["remove", "demote", "promote"]


@dataclass(frozen=True, slots=True)
class Reshape:
    """Changes requested from every node that believes it leads, even if the previous change is not committed.

    With `cut_off` that node receives no messages in this time. If it leads, another node soon believes that it leads as
    well.
    """

    changes: tuple[Change, ...]
    cut_off: str | None
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        if group.leader is None:
            return False
        for link in self._links(group):
            group.network.block(*link)
        for change in self.changes:
            group.scheduler.after(change.at_s, lambda change=change: _ask(group, change))  # type: ignore[misc]
        return True

    def heal(self, group: SimGroup) -> None:
        for link in self._links(group):
            group.network.unblock(*link)

    def _links(self, group: SimGroup) -> list[tuple[str, str]]:
        return [link for link in permutations(group.settings.names, 2) if self.cut_off in link]


def _ask(group: SimGroup, change: Change) -> None:
    for node in group.running:
        life = node.life
        if life is not None and life.replica.engine.is_leader:
            call_on(node, lambda life=life: _change(group, life, change))  # type: ignore[misc]


def _change(group: SimGroup, life: Life, change: Change) -> None:
    """Make a change, but only while all voters run.

    A group that has lost a voter could be left unable to decide anything.
    """
    replica = life.replica
    membership = replica.engine.membership
    member = membership.find(change.node)
    alive = {node.life.replica_id for node in group.running if node.life is not None}
    if member is None or group.damaged or not alive.issuperset(membership.voters):
        return
    progress = replica.engine.progress.get(member)
    lags = progress is None or progress.match_index < replica.engine.commit_index
    if change.action == "promote" and (lags or change.node in group.settings.learner_names):
        return  # no operator promotes a member that lags: it has no log to vote by
    changed = _changed(membership, member, change.action)
    if changed is not None and changed.voters:
        group.witness.happened["membership change asked for"] += 1
        replica.change_membership(changed)


def _changed(membership: Membership, member: ReplicaId, action: str) -> Membership | None:
    if action == "remove":
        return without(membership, member)
    if action == "demote" and member in membership.voters:
        rest = without(membership, member)
        return Membership(rest.voters, (*rest.learners, member))
    if action == "promote" and member in membership.learners:
        return promote(membership, member)
    return None


@dataclass(frozen=True, slots=True)
class Reinstall:
    """Needless snapshot: the leader's stale progress makes it send one to a member that has the entries behind it."""

    node: str
    duration_s: float = 0.0

    def inject(self, group: SimGroup) -> bool:
        leader = group.leader
        if leader is None or leader.life is None:
            return False
        core = core_of(leader.life.replica)
        member = core.membership.find(self.node)
        progress = None if member is None else core.progress.get(member)
        if progress is None or core.table.first_index == 0:
            return False
        group.witness.happened["snapshot for nothing"] += 1
        progress.restart(core.table.first_index - 1)
        return True

    def heal(self, group: SimGroup) -> None:
        """Do nothing: the leader learns the member's progress from the answers."""

"""What operators do, right or wrong: members, leadership, retention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dledger.errors import LogError
from dledger.replica.joining import without
from dledger.sim.group import SimGroup, SimNode


@dataclass(frozen=True, slots=True)
class Trim:
    """The leader has everybody drop what lies before one of its snapshots."""

    which: float
    duration_s: float = 0.0

    def inject(self, group: SimGroup) -> bool:
        leader = group.leader
        if leader is None or leader.life is None:
            return False
        life, store = leader.life, leader.life.replica.store
        positions = [meta.position for meta in store.snapshots.list() if meta.position > store.first_position]
        if not positions:
            return False
        position = positions[int(self.which * len(positions))]
        call_on(leader, lambda: life.service.trim(position))
        return True

    def heal(self, group: SimGroup) -> None:
        """What is gone is gone."""


@dataclass(frozen=True, slots=True)
class Remove:
    """The leader removes a member, perhaps itself; the group takes it back by itself.

    Only while every voter is there: who removes a live member of three when another one is gone for good has nothing
    left to decide with.
    """

    node: str
    duration_s: float = 0.0

    def inject(self, group: SimGroup) -> bool:
        leader = group.leader
        if leader is None or leader.life is None:
            return False
        replica = leader.life.replica
        membership = replica.engine.table.membership
        member = membership.find(self.node)
        alive = {node.life.replica_id for node in group.running if node.life is not None}
        if (
            member is None
            or not alive.issuperset(membership.voters)
            or group.damaged
            or len(membership.voters) < 3
            or not replica.engine.can_change_membership
        ):
            return False
        call_on(leader, lambda: replica.change_membership(without(membership, member)))
        return True

    def heal(self, group: SimGroup) -> None:
        """The leader adds whoever is configured and connected."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """The leader hands over."""

    node: str
    duration_s: float = 0.0

    def inject(self, group: SimGroup) -> bool:
        leader = group.leader
        if leader is None or leader.life is None:
            return False
        replica = leader.life.replica
        member = replica.engine.table.membership.find(self.node)
        if member is None:
            return False
        call_on(leader, lambda: replica.transfer(None if member == replica.me else member))
        return True

    def heal(self, group: SimGroup) -> None:
        """The old leader leads on if the new one does not take over."""


def call_on(node: SimNode, work: Callable[[], object]) -> None:
    """Do something on a running node's event loop; that it refuses is no fault of anybody's."""

    def attempt() -> None:
        try:
            work()
        except LogError:
            pass

    assert node.life is not None
    node.life.environment.call_soon(attempt)

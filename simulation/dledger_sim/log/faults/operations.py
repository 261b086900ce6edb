"""Actions of operators, right and wrong: members, leadership, restarts, retention."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from dledger.errors import LogError
from dledger.replica.upkeep.members import without
from dledger_sim.log.group import SimGroup, SimNode

HAND_OVER_S = 1.0
"""Time limit in seconds after which a node stops although it still leads."""
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Trim:
    """Trim: the leader makes all replicas drop everything before one of its snapshots."""

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
        """Do nothing: trimmed entries do not come back."""


@dataclass(frozen=True, slots=True)
class Remove:
    """Removal of a member, perhaps of the leader itself. The group takes the member back by itself.

    It is injected only while all voters run. If a live member of three is removed while another is permanently gone,
    the group can decide nothing any more.
    """

    node: str
    duration_s: float = 0.0

    def inject(self, group: SimGroup) -> bool:
        leader = group.leader
        if leader is None or leader.life is None:
            return False
        replica = leader.life.replica
        membership = replica.engine.membership
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
        """Do nothing: the leader adds every node that is configured and connected."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Transfer of the leadership."""

    node: str
    duration_s: float = 0.0

    def inject(self, group: SimGroup) -> bool:
        leader = group.leader
        if leader is None or leader.life is None:
            return False
        replica = leader.life.replica
        member = replica.engine.membership.find(self.node)
        if member is None:
            return False
        call_on(leader, lambda: replica.transfer(None if member == replica.me else member))
        return True

    def heal(self, group: SimGroup) -> None:
        """Do nothing: the old leader remains leader if its successor does not take over."""


@dataclass(frozen=True, slots=True)
class AcceptLoss:
    """Accepted loss: a node whose host went down may vote, although a leader might still make the loss good."""

    node: str
    duration_s: float = 0.0

    def inject(self, group: SimGroup) -> bool:
        node = group.nodes[self.node]
        if node.disk.faults or node.life is None or node.life.replica.engine.may_vote:
            return False
        group.accept_loss(self.node)
        return True

    def heal(self, group: SimGroup) -> None:
        """Do nothing: an accepted loss is final."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Drain of a node so that clients notice nothing. It hands over, clients leave, and it stops after a while.

    It starts again at the end.
    """

    node: str
    drain_s: float
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        node = group.nodes[self.node]
        life = node.life
        if life is None or life.stopping or self.node in group.leaving:
            return False
        group.leaving[self.node] = life
        if _is_leading(node):
            call_on(node, lambda: life.replica.transfer(None))
        call_on(node, life.service.leave)

        def stop() -> None:
            if node.life is life:
                group.stop(self.node)

        group.scheduler.after(self.drain_s, stop)
        return True

    def heal(self, group: SimGroup) -> None:
        life = group.leaving.pop(self.node, None)
        if life is not None and group.nodes[self.node].life is life:
            group.stop(self.node)
        group.start(self.node)


@dataclass(frozen=True, slots=True)
class RollingRestart:
    """Rolling restart: each node hands over, stops, starts, and catches up before the next node stops.

    Only one rolling restart is under way at a time. It ends at any point when its time is up.
    """

    nodes: tuple[str, ...]
    down_s: float
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        if group.restart is not None:
            return False
        group.restart = restart = _Restart(group, self.nodes, self.down_s)
        restart.next()
        return True

    def heal(self, group: SimGroup) -> None:
        group.restart = None
        for name in self.nodes:
            group.start(name)


class _Restart:
    """Rolling restart that continues while it is the group's present restart."""

    def __init__(self, group: SimGroup, names: Sequence[str], down_s: float) -> None:
        self._group = group
        self._nodes_left = deque(names)
        self._down_s = down_s

    def next(self) -> None:
        """Let the next node hand over, stop and start."""
        if not self._nodes_left:
            self._group.witness.happened["rolling restart finished"] += 1
            return
        node = self._group.nodes[self._nodes_left.popleft()]
        if _is_leading(node) and node.life is not None:
            replica = node.life.replica
            call_on(node, lambda: replica.transfer(None))
        deadline = self._group.scheduler.now + HAND_OVER_S
        self._continue_when(
            lambda: not _is_leading(node) or self._group.scheduler.now >= deadline, lambda: self._stop_node(node)
        )

    def _stop_node(self, node: SimNode) -> None:
        life = node.life
        self._group.stop(node.name)
        back = partial(self._group.scheduler.after, self._down_s, lambda: self._start_node(node))
        self._continue_when(lambda: node.life is None or node.life is not life, back)

    def _start_node(self, node: SimNode) -> None:
        leader = self._group.leader
        committed = -1 if leader is None or leader.replica is None else leader.replica.engine.commit_index

        def caught_up() -> bool:
            replica = node.replica if self._group.start(node.name) else None
            return (
                replica is not None
                and replica.me in replica.engine.membership.voters
                and replica.applied_index >= committed
            )

        self._continue_when(caught_up, self.next)

    def _continue_when(self, holds: Callable[[], bool], callback: Callable[[], object]) -> None:
        """Continue as soon as a condition holds."""
        if self._group.restart is not self:
            return
        if holds():
            callback()
        else:
            self._group.scheduler.after(POLL_S, lambda: self._continue_when(holds, callback))


def _is_leading(node: SimNode) -> bool:
    return node.life is not None and node.life.replica.is_ready


def call_on(node: SimNode, work: Callable[[], object]) -> None:
    """Do work on a running node's event loop. A refusal is not an error."""

    def attempt() -> None:
        try:
            work()
        except LogError:
            pass

    assert node.life is not None
    node.life.environment.call_soon(attempt)

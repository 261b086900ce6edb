"""Simulated operator of a group that elects no leader because too many of its hosts went down at once."""

from __future__ import annotations

from dledger_sim.log.group import SimGroup, SimNode

ACCEPT_AFTER_S = 5.0
"""Time without a leader after which the losses of nodes in doubt are accepted, in seconds."""


class Operator:
    """Operator who checks a group now and then."""

    def __init__(self, group: SimGroup) -> None:
        self._group = group
        self._last_leader_at = 0.0

    def look(self) -> None:
        """Accept the losses of all nodes in doubt if there has been no leader for too long."""
        group = self._group
        now = group.scheduler.now
        if group.leader is not None:
            self._last_leader_at = now
            if group.healthy() and not any(map(_is_in_doubt, group.running)):
                group.witness.losses.settled()
        elif now - self._last_leader_at >= ACCEPT_AFTER_S:
            self._last_leader_at = now
            for node in group.running:
                if _is_in_doubt(node) and not node.disk.faults:
                    group.accept_loss(node.name)


def _is_in_doubt(node: SimNode) -> bool:
    return node.life is not None and not node.life.replica.engine.may_vote

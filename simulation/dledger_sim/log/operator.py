"""An operator, whose group elects no leader because too many of its hosts went down at once."""

from __future__ import annotations

from dledger_sim.log.group import SimGroup, SimNode

ACCEPT_AFTER_S = 5.0
"""Without a leader for so long, and with nodes in doubt, a loss is accepted."""


class Operator:
    """Looks at a group now and then."""

    def __init__(self, group: SimGroup) -> None:
        self._group = group
        self._led_at = 0.0

    def look(self) -> None:
        """Accept what the nodes in doubt have lost, if nobody leads and will."""
        group = self._group
        now = group.scheduler.now
        if group.leader is not None:
            self._led_at = now
            if group.healthy() and not any(map(_in_doubt, group.running)):
                group.witness.losses.settled()
        elif now - self._led_at >= ACCEPT_AFTER_S:
            self._led_at = now
            for node in group.running:
                if _in_doubt(node) and not node.disk.faults:
                    group.accept_loss(node.name)


def _in_doubt(node: SimNode) -> bool:
    return node.life is not None and not node.life.replica.engine.may_vote

"""Activation of features: the leader records it, and every node checks it before it uses a feature."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dledger.environment import Environment
from dledger.errors import LogError, NotLeaderError
from dledger_broker.kernel.activation import ActivateFeatures
from dledger_broker.kernel.events import EventListener
from dledger_broker.kernel.leadership import Replica
from dledger_broker.kernel.overlay import Overlay
from dledger_broker.kernel.trying_again import RETRY_S, RetryTimer
from dledger_remoting.errors import SystemBusy

_logger = logging.getLogger(__name__)


class Activation(EventListener):
    """The activation of features in this node's version. The state of `replica` says which are active.

    `check` is called whenever members change, and when this node becomes ready as the leader.
    """

    def __init__(self, overlay: Overlay, replica: Replica, env: Environment) -> None:
        self._overlay = overlay
        self._replica = replica
        self._in_flight: set[str] = set()
        self._retry_timer = RetryTimer(env, self.check)

    def members_changed(self) -> None:
        self.check()

    def check(self) -> None:
        """Record, as the leader, every feature that all voters understand by now."""
        if not self._replica.log.is_ready:
            return
        table = self._replica.state.activation
        waiting = [name for name in table.kinds if name not in table.since]
        ready = [name for name in waiting if name not in self._in_flight and not self._voters_without(name)]
        if ready:
            self._propose(ready)
        if waiting:
            self._retry_timer.schedule()

    def _propose(self, names: Sequence[str]) -> None:
        self._in_flight.update(names)

        def settled(error: LogError | None) -> None:
            self._in_flight.difference_update(names)
            if error is None:
                _logger.info("event=features_activated features=%r", ", ".join(names))
            elif not isinstance(error, NotLeaderError):
                _logger.info("event=activation_refused error=%r again_s=%.0f", str(error), RETRY_S)

        # The command is small and rare, so it may use the reserve of a full disk.
        self._overlay.stage_command(ActivateFeatures(tuple(names)), settled, privileged=True)

    def _voters_without(self, name: str) -> list[str]:
        """Return the voters that have not reported that they understand a feature and the command that activates it."""
        members = self._replica.state.members
        kinds = (*self._replica.state.activation.kinds[name], self._overlay.kind_of(ActivateFeatures))
        voters = [voter.node_id for voter in self._replica.log.membership.voters]
        return [voter for voter in voters if not all(members.understood_by_all(kind, [voter]) for kind in kinds)]

    # ---------------------------------------------------------------- for requests

    def is_active(self, name: str) -> bool:
        """Return whether the group uses a feature, as far as this node has applied."""
        return name in self._replica.state.activation.since

    def require(self, name: str) -> None:
        """Raise `SystemBusy` while the group does not use a feature. Nothing of the request was done."""
        if self.is_active(name):
            return
        lacking = self._voters_without(name)
        reason = f"not known to understand it: {', '.join(lacking)}; upgrade them" if lacking else "it is about to be"
        raise SystemBusy(
            f"feature '{name}' is not active in this group yet ({reason}): nothing was done, try again later"
        )

    def require_at(self, node_id: str, name: str) -> None:
        """Raise `SystemBusy` before a request is forwarded to a node that may not know its feature, unless the feature
        is active.
        """
        if node_id in self._voters_without(name):
            self.require(name)

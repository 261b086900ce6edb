"""Activation of features: the leader records it, and every node asks whether a feature may be used."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dledger.environment import Environment
from dledger.errors import LogError, NotLeaderError
from dledger_broker.kernel.activation import ActivateFeatures
from dledger_broker.kernel.overlay import Overlay
from dledger_broker.kernel.replica import Replica
from dledger_broker.kernel.trying_again import RETRY_S, TryingAgain
from dledger_remoting.errors import SystemBusy

_logger = logging.getLogger(__name__)


class Activation:
    """The activated features of a node's version; `state` of `replica` says which are active.

    `check` is called whenever a member has told what it understands, and when this node is ready as the leader.
    """

    def __init__(self, overlay: Overlay, replica: Replica, env: Environment) -> None:
        self._overlay = overlay
        self._replica = replica
        self._on_their_way: set[str] = set()
        self._again = TryingAgain(env, self.check)

    def check(self) -> None:
        """Leader: record every feature that all voters understand by now."""
        if not self._replica.log.is_ready:
            return
        table = self._replica.state.activation
        waiting = [name for name in table.kinds if name not in table.since]
        ready = [name for name in waiting if name not in self._on_their_way and not self._lacking(name)]
        if ready:
            self._propose(ready)
        if waiting:
            self._again.want()

    def _propose(self, names: Sequence[str]) -> None:
        self._on_their_way.update(names)

        def settled(error: LogError | None) -> None:
            self._on_their_way.difference_update(names)
            if error is None:
                _logger.info("event=features_activated features=%r", ", ".join(names))
            elif not isinstance(error, NotLeaderError):
                _logger.info("event=activation_refused error=%r again_s=%.0f", str(error), RETRY_S)

        # Small and rare: a full disk is no reason to do without.
        self._overlay.stage_command(ActivateFeatures(tuple(names)), settled, privileged=True)

    def _lacking(self, name: str) -> list[str]:
        """The voters that are not known to understand a feature, and so the record that activates it."""
        members = self._replica.state.members
        kinds = (*self._replica.state.activation.kinds[name], self._overlay.kind_of(ActivateFeatures))
        voters = [voter.node_id for voter in self._replica.log.membership.voters]
        return [voter for voter in voters if not all(members.understood_by_all(kind, [voter]) for kind in kinds)]

    # ---------------------------------------------------------------- for requests

    def is_active(self, name: str) -> bool:
        """Whether the group uses a feature, as far as this node has applied."""
        return name in self._replica.state.activation.since

    def require(self, name: str) -> None:
        """Raise `SystemBusy` while the group does not use a feature: nothing of the request was done."""
        if self.is_active(name):
            return
        lacking = self._lacking(name)
        why = f"not known to understand it: {', '.join(lacking)}; upgrade them" if lacking else "it is about to be"
        raise SystemBusy(f"feature '{name}' is not active in this group yet ({why}): nothing was done, try again later")

    def require_at(self, node_id: str, name: str) -> None:
        """As `require`, before a request is handed on to another node: not while that one may not know of it."""
        if node_id in self._lacking(name):
            self.require(name)

"""Adoption of the broker group's identity: a leader records it, and every node shows and keeps it."""

from __future__ import annotations

import logging

from dledger.environment import Environment
from dledger.errors import LogError, NotLeaderError
from dledger.statemachine import Leadership
from dledger_base.group_identity import GroupIdentity, tell_apart
from dledger_broker.features.group_identity.table import GROUP_IDENTITY, NAME, SetGroupIdentity
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Part
from dledger_broker.kernel.trying_again import RETRY_S, RetryTimer

_logger = logging.getLogger(__name__)


class Adoption(Part):
    """Part that records and adopts the identity whenever leadership, members or groups change."""

    def __init__(self, machine: BrokerMachine, env: Environment) -> None:
        self._machine = machine
        self._is_proposing = False
        self._retry_timer = RetryTimer(env, self._check)

    @property
    def identity(self) -> str:
        """Return the identity that the log records, empty before the first record."""
        return self._machine.state.table(GROUP_IDENTITY).identity

    def new_leadership(self, leadership: Leadership) -> None:
        _ = leadership
        self._check()

    def members_changed(self) -> None:
        self._check()

    def groups_changed(self) -> None:
        self._adopt()  # also called after a snapshot from the leader has replaced the whole state

    def _adopt(self) -> None:
        if identity := self.identity:
            self._machine.log.adopt(identity)

    def _check(self) -> None:
        self._adopt()
        machine = self._machine
        if not machine.leadership.ready or self._is_proposing or not machine.is_active(NAME):
            return
        if self.identity:
            if self.identity != machine.log.group_identity:
                _logger.error("event=identity_differs reason=%r", tell_apart(self.identity, machine.log.group_identity))
            return
        self._is_proposing = True
        identity = machine.log.group_identity or str(GroupIdentity.founded_by(machine.log.status().incarnation))
        # The command is small and rare, so it may use space that is kept back on a full disk.
        machine.stage_command(SetGroupIdentity(identity), self._settled, privileged=True)

    def _settled(self, error: LogError | None) -> None:
        self._is_proposing = False
        if error is not None and not isinstance(error, NotLeaderError):
            _logger.info("event=identity_refused error=%r again_s=%.0f", str(error), RETRY_S)
            self._retry_timer.schedule()

"""What a leader records in its group's state once every member understands it: the group's ordinal."""

from __future__ import annotations

import logging

from dledger.errors import LogError
from dledger_broker.machine import BrokerMachine
from dledger_broker.state.commands import SetOrdinal

_logger = logging.getLogger(__name__)


class Founding:
    """Watches a machine. `ordinal` is what the configuration gives; what the group has recorded stays."""

    def __init__(self, machine: BrokerMachine, ordinal: int) -> None:
        self._machine = machine
        self._ordinal = ordinal
        self._on_its_way = False
        machine.on_leadership_changed.append(lambda _leadership: self._check())
        machine.on_features_changed.append(self._check)

    def _check(self) -> None:
        recorded = self._machine.state.ordinal
        if not self._machine.leadership.ready or self._on_its_way:
            return
        if recorded is not None:
            if recorded != self._ordinal:
                _logger.warning(
                    "event=ordinal_kept recorded=%d configured=%d: a group's ordinal never changes",
                    recorded,
                    self._ordinal,
                )
        elif self._machine.understood_by_all(SetOrdinal):
            self._on_its_way = True
            self._machine.stage_command(SetOrdinal(self._ordinal), self._recorded)

    def _recorded(self, _error: LogError | None) -> None:
        """Recorded, or to be tried by the next leader."""
        self._on_its_way = False

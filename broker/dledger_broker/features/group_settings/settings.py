"""Records that a leader makes in its group's state once every member understands them: the group's ordinal, which never
changes, the limits of remembered sends, which follow the leader's configuration, and the topics that are always there.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from dledger.environment import Environment
from dledger.errors import LogError, NotLeaderError
from dledger_broker.config import BrokerConfig
from dledger_broker.features.sending.dedup.remembered import REMEMBERED, LimitSends
from dledger_broker.features.topics.system_topics import system_topics
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.members import SetOrdinal
from dledger_broker.kernel.parts import Part

RETRY_S: Final = 5.0
"""How long after a refusal, as by a full disk, a leader tries again."""

_logger = logging.getLogger(__name__)


class Founding(Part):
    """Watches a machine, from when it is made."""

    def __init__(self, machine: BrokerMachine, env: Environment, config: BrokerConfig) -> None:
        self._machine = machine
        self._env = env
        self._topics = system_topics(config)
        self._ordinal = config.group_ordinal
        self._limits = LimitSends(config.idempotent_window_ms, config.max_idempotent_keys)
        self._on_their_way: set[type[Command]] = set()
        self._tries_again = False
        machine.on_leadership_changed.append(lambda _leadership: self._check())
        machine.on_members_changed.append(self._check)
        self._check()

    def _check(self) -> None:
        if not self._machine.leadership.ready:
            return
        state = self._machine.state
        if state.members.ordinal is None:
            self._record(SetOrdinal(self._ordinal))
        elif state.members.ordinal != self._ordinal:
            _logger.warning(
                'event=ordinal_kept recorded=%d configured=%d reason="a group\'s ordinal never changes"',
                state.members.ordinal,
                self._ordinal,
            )
        remembered = state.table(REMEMBERED)
        if (remembered.window_ms, remembered.max_rows) != (self._limits.window_ms, self._limits.max_rows) and (
            self._limits.window_ms or remembered.window_ms
        ):
            self._record(self._limits)
        for topic in self._topics:
            self._machine.proposals.ensure_topic(topic, partial(self._settled, f"topic {topic.topic_name}"))

    def _record(self, command: Command) -> None:
        """Propose what every member understands, unless it is on its way."""
        kind = type(command)
        if kind in self._on_their_way or not self._machine.understood_by_all(kind):
            return
        self._on_their_way.add(kind)

        def settled(error: LogError | None) -> None:
            self._on_their_way.discard(kind)
            self._settled(kind.__name__, error)

        self._machine.stage_command(command, settled)

    def _settled(self, what: str, error: LogError | None) -> None:
        """What a leader was refused it tries again; otherwise that is up to the next leader."""
        if error is not None and not isinstance(error, NotLeaderError) and not self._tries_again:
            _logger.info("event=founding_refused what=%r error=%r again_s=%.0f", what, str(error), RETRY_S)
            self._tries_again = True
            self._env.call_later(RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._tries_again = False
        self._check()

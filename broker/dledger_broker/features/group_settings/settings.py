"""Settings that a leader records in its group's state once every member understands them: the group's ordinal, which
never changes, the limits of remembered sends, which follow the leader's configuration, and the topics that are always
there.

They are recorded in this order and have one timer for what is refused. Each belongs to whoever uses it; here is only
when they are recorded.
"""

from __future__ import annotations

import logging
from functools import partial

from dledger.environment import Environment
from dledger.errors import LogError, NotLeaderError
from dledger.statemachine import Leadership
from dledger_broker.config import BrokerConfig
from dledger_broker.features.sending.dedup.limits import are_to_be_recorded, configured_limits
from dledger_broker.features.topics.system_topics import system_topics
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.members import SetOrdinal
from dledger_broker.kernel.parts import Part
from dledger_broker.kernel.trying_again import RETRY_S, TryingAgain

_logger = logging.getLogger(__name__)


class GroupSettings(Part):
    """Watches a machine, from when it is made."""

    def __init__(self, machine: BrokerMachine, env: Environment, config: BrokerConfig) -> None:
        self._machine = machine
        self._topics = system_topics(config)
        self._ordinal = config.group_ordinal
        self._limits = configured_limits(config)
        self._on_their_way: set[type[Command]] = set()
        self._again = TryingAgain(env, self._check)
        machine.on_leadership_changed.append(self._on_leadership)
        machine.on_members_changed.append(self._check)
        self._check()

    def _on_leadership(self, _leadership: Leadership) -> None:
        self._check()

    def _check(self) -> None:
        if not self._machine.leadership.ready:
            return
        self._check_ordinal()
        if are_to_be_recorded(self._limits, self._machine.state):
            self._record(self._limits)
        for topic in self._topics:
            self._machine.proposals.ensure_topic(topic, partial(self._settled, f"topic {topic.topic_name}"))

    def _check_ordinal(self) -> None:
        recorded = self._machine.state.members.ordinal
        if recorded is None:
            self._record(SetOrdinal(self._ordinal))
        elif recorded != self._ordinal:
            _logger.warning(
                'event=ordinal_kept recorded=%d configured=%d reason="a group\'s ordinal never changes"',
                recorded,
                self._ordinal,
            )

    def _record(self, command: Command) -> None:
        """Propose what every member understands, unless it is on its way; look again later while one does not.

        Who does not may leave the group, of which nothing else tells.
        """
        kind = type(command)
        if kind in self._on_their_way:
            return
        if not self._machine.understood_by_all(kind):
            self._again.want()
            return
        self._on_their_way.add(kind)

        def settled(error: LogError | None) -> None:
            self._on_their_way.discard(kind)
            self._settled(kind.__name__, error)

        self._machine.stage_command(command, settled)

    def _settled(self, what: str, error: LogError | None) -> None:
        """What a leader was refused it tries again; otherwise that is up to the next leader."""
        if error is not None and not isinstance(error, NotLeaderError) and not self._again.is_wanted:
            _logger.info("event=group_setting_refused what=%r error=%r again_s=%.0f", what, str(error), RETRY_S)
            self._again.want()

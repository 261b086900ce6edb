"""Recording of the broker group's settings by its leader, once every member understands their commands.

The settings are recorded in this order, and share one timer for retries:

- the ordinal, which never changes
- the limits of remembered sends, which follow the leader's configuration
- the topics that always exist

Each setting belongs to the feature that uses it. This module decides only when it is recorded.
"""

from __future__ import annotations

import logging
from functools import partial

from dledger.environment import Environment
from dledger.errors import LogError, NotLeaderError
from dledger.statemachine import Leadership
from dledger_broker.config import BrokerConfig
from dledger_broker.features.sending.dedup.remembered import REMEMBERED, LimitSends
from dledger_broker.features.topics.system_topics import system_topics
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.members import SetOrdinal
from dledger_broker.kernel.parts import Part
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.trying_again import RETRY_S, RetryTimer


def configured_limits(config: BrokerConfig) -> LimitSends:
    """Return the limits that a leader with this configuration sets for its group."""
    return LimitSends(config.idempotent_window_ms, config.max_idempotent_keys)


def are_to_be_recorded(limits: LimitSends, state: BrokerState) -> bool:
    """Return whether the group has other limits.

    While nothing is remembered, and nothing is to be, a difference does not matter.
    """
    recorded = state.table(REMEMBERED)
    differ = (recorded.window_ms, recorded.max_rows) != (limits.window_ms, limits.max_rows)
    return differ and bool(limits.window_ms or recorded.window_ms)


_logger = logging.getLogger(__name__)


class GroupSettings(Part):
    """Part that records missing settings whenever leadership or members change."""

    def __init__(self, machine: BrokerMachine, env: Environment, config: BrokerConfig) -> None:
        self._machine = machine
        self._topics = system_topics(config)
        self._ordinal = config.group_ordinal
        self._limits = configured_limits(config)
        self._in_flight: set[type[Command]] = set()
        self._retry_timer = RetryTimer(env, self._check)
        self._check()

    def new_leadership(self, leadership: Leadership) -> None:
        _ = leadership
        self._check()

    def members_changed(self) -> None:
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
        """Propose a command, unless it is in flight. Try again later while a member does not understand it.

        A timer is needed: that member may leave the membership, and no callback reports that.
        """
        kind = type(command)
        if kind in self._in_flight:
            return
        if not self._machine.understood_by_all(kind):
            self._retry_timer.schedule()
            return
        self._in_flight.add(kind)

        def settled(error: LogError | None) -> None:
            self._in_flight.discard(kind)
            self._settled(kind.__name__, error)

        self._machine.stage_command(command, settled)

    def _settled(self, what: str, error: LogError | None) -> None:
        """Try again later after a refusal. After a loss of the leadership the next leader records the setting."""
        if error is not None and not isinstance(error, NotLeaderError) and not self._retry_timer.is_scheduled:
            _logger.info("event=group_setting_refused what=%r error=%r again_s=%.0f", what, str(error), RETRY_S)
            self._retry_timer.schedule()

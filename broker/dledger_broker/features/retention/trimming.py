"""Trims: every queue is told its first kept offset, and then the log itself goes, on all replicas alike.

So that all replicas keep the same range and no queue offset is issued twice, the leader finds the first offset that
every queue keeps, has that applied (`TrimQueues`), and only then proposes the trim.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from dledger.environment import COLD, Environment
from dledger.errors import LogError, NotLeaderError
from dledger.log import Log
from dledger_broker.kernel.commands import MAX_OFFSETS_PER_COMMAND
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.trims import TrimQueues

_logger = logging.getLogger(__name__)


class Trimming:
    """One trim at a time, of a node that leads."""

    def __init__(self, machine: BrokerMachine, log: Log, env: Environment) -> None:
        self._machine = machine
        self._log = log
        self._env = env
        self._busy = False

    @property
    def is_busy(self) -> bool:
        """A trim is under way."""
        return self._busy

    def trim(self, position: int) -> None:
        """Leader: have the log below `position`, one of its trim candidates, dropped by every replica."""
        self._busy = True
        self._machine.trim_under_way = position
        searches: list[tuple[str, int, int, Callable[[], int]]] = [
            (name, topic.created_position, queue.queue_id, self._machine.queues.first_kept(queue.view, position))
            for name, topic in self._machine.state.topics.items()
            for queue in topic.queues.values()
            if queue.min_offset < queue.max_offset
        ]

        def work() -> tuple[tuple[str, int, int, int], ...]:
            return tuple((name, created, queue_id, search()) for name, created, queue_id, search in searches)

        self._env.run_blocking(COLD, work, partial(self._found, position, self._machine.leadership.term))

    def _found(self, position: int, term: int, rows: tuple[tuple[str, int, int, int], ...] | BaseException) -> None:
        leadership = self._machine.leadership
        if not isinstance(rows, BaseException) and leadership.term != term:
            # A leader of the terms between may have taken pins that the position lies above.
            rows = NotLeaderError(leadership.leader_id, leadership.term)
        if isinstance(rows, BaseException):
            self._machine.trim_under_way = 0
            self._finish(position, rows)
            return
        starts = range(0, max(len(rows), 1), MAX_OFFSETS_PER_COMMAND)
        for start in starts[:-1]:
            outcomes: list[LogError | None] = []
            command = TrimQueues(position, rows[start : start + MAX_OFFSETS_PER_COMMAND])
            self._machine.stage_command(command, outcomes.append, privileged=True)
            if outcomes and outcomes[0] is not None:  # refused, though a smaller one behind it might be taken
                self._finish(position, outcomes[0])
                return
        last = TrimQueues(position, rows[starts[-1] :])
        self._machine.stage_command(last, partial(self._decided, position), privileged=True)

    def _decided(self, position: int, error: LogError | None) -> None:
        if error is None:
            self._machine.trim_under_way = 0  # it is in the state
            try:
                self._log.trim(position)
            except LogError as refused:
                error = refused
        self._finish(position, error)

    def _finish(self, position: int, error: BaseException | None) -> None:
        self._busy = False
        if error is None:
            _logger.info("event=trim position=%d", position)
        else:
            _logger.warning("event=trim_failed position=%d error=%r", position, str(error))

"""Trims: every queue is told its first kept offset, and then the log itself goes, on all replicas alike.

So that all replicas keep the same range and no queue offset is issued twice, the leader finds the first offset that
every queue keeps, has that applied (`TrimQueues`), and only then proposes the trim.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from dledger.environment import BACKGROUND
from dledger.errors import LogError
from dledger_broker.kernel.commands import MAX_OFFSETS_PER_COMMAND
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.trims import TrimQueues

_logger = logging.getLogger(__name__)

FirstOffset: TypeAlias = tuple[str, int, int, int]
"""A row of `TrimQueues`."""


class Trimming:
    """One trim at a time, in a run of a leader's job. What ends with its run is begun anew by the next one, or not."""

    def __init__(self, machine: BrokerMachine) -> None:
        self._machine = machine

    @property
    def is_busy(self) -> bool:
        """A trim is under way."""
        return self._machine.trims_under_way.position > 0

    def trim(self, handle: JobHandle, position: int) -> None:
        """Have the log below `position`, one of its trim candidates, dropped by every replica."""
        self._machine.trims_under_way.search(handle, position)
        searches: list[tuple[str, int, int, Callable[[], int]]] = [
            (name, topic.created_position, queue.queue_id, self._machine.queues.first_kept(queue.view, position))
            for name, topic in self._machine.state.topics.items()
            for queue in topic.queues.values()
            if queue.min_offset < queue.max_offset
        ]

        # Not beside readers of old data: with enough of them a full disk could not be trimmed.
        def work() -> tuple[FirstOffset, ...]:
            return tuple((name, created, queue_id, search()) for name, created, queue_id, search in searches)

        handle.run_blocking(BACKGROUND, work, partial(self._found, handle, position))

    def _found(self, handle: JobHandle, position: int, rows: tuple[FirstOffset, ...] | BaseException) -> None:
        under_way = self._machine.trims_under_way
        under_way.end_search()
        if isinstance(rows, BaseException):
            _finish(position, rows)
            return
        starts = range(0, max(len(rows), 1), MAX_OFFSETS_PER_COMMAND)
        for start in starts[:-1]:
            outcomes: list[LogError | None] = []
            command = TrimQueues(position, rows[start : start + MAX_OFFSETS_PER_COMMAND])
            under_way.propose(handle, command, outcomes.append)
            if outcomes and outcomes[0] is not None:  # refused, though a smaller one behind it might be taken
                _finish(position, outcomes[0])
                return
        last = TrimQueues(position, rows[starts[-1] :])
        under_way.propose(handle, last, handle.guarded(partial(self._decided, handle, position)))

    def _decided(self, handle: JobHandle, position: int, error: LogError | None) -> None:
        if error is None:
            try:
                handle.trim(position)
            except LogError as refused:
                error = refused
        _finish(position, error)


def _finish(position: int, error: BaseException | None) -> None:
    if error is None:
        _logger.info("event=trim position=%d", position)
    else:
        _logger.warning("event=trim_failed position=%d error=%r", position, str(error))

"""Trims: every queue gets its first kept offset, and then the log itself is trimmed, on all replicas alike.

All replicas must keep the same range, and no queue offset may be issued twice. So the leader finds the first offset
that every queue keeps and has these offsets applied (`TrimQueues`). Only then it proposes the trim of the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from dledger.environment import BACKGROUND
from dledger.errors import LogError
from dledger_broker.features.retention.policy import TrimPart
from dledger_broker.features.retention.taken import Taken
from dledger_broker.kernel.commands import MAX_OFFSETS_PER_COMMAND
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.queues import QueueState
from dledger_broker.kernel.trims import TrimQueues
from dledger_broker.views.consumequeue import DamagedViewError
from dledger_broker.views.logreader import UnreadableRecordError

_logger = logging.getLogger(__name__)

FirstOffset: TypeAlias = tuple[str, int, int, int]
"""Row of `TrimQueues`."""


class Trimming:
    """Trimmer of the log, one trim at a time, in a run of a leader job.

    A trim that ends with its run is begun anew by the next run, or not at all.
    """

    def __init__(self, machine: BrokerMachine, counters: BrokerCounters | None = None) -> None:
        self._machine = machine
        self._counters = counters or BrokerCounters()

    @property
    def is_busy(self) -> bool:
        """True if a trim is under way."""
        return self._machine.trims_under_way.position > 0

    def trim(self, handle: JobHandle, position: int, parts: Sequence[TrimPart] = ()) -> None:
        """Drop the log below `position`, which is one of its trim candidates, on every replica.

        `parts` have the reasons. A trim that an earlier leader has begun has no parts.
        """
        taken = Taken(self._machine, position, parts)
        self._machine.trims_under_way.search(handle, position)
        searches: list[tuple[str, int, int, Callable[[], int]]] = [
            (name, topic.created_position, queue.queue_id, self._search(queue, position))
            for name, topic in self._machine.state.topics.items()
            for queue in topic.queues.values()
            if queue.min_offset < queue.max_offset
        ]

        # This is not on the lane of readers of old data. Behind many of them, a full disk could not be trimmed.
        def work() -> tuple[FirstOffset, ...]:
            taken.look()
            return tuple((name, created, queue_id, search()) for name, created, queue_id, search in searches)

        handle.run_blocking(BACKGROUND, work, partial(self._propose, handle, position, taken))

    def _search(self, queue: QueueState, position: int) -> Callable[[], int]:
        machine = self._machine
        return machine.queues.first_kept(queue.view, queue.min_offset, position, machine.log.read_blocking)

    def _propose(
        self, handle: JobHandle, position: int, taken: Taken, rows: tuple[FirstOffset, ...] | BaseException
    ) -> None:
        under_way = self._machine.trims_under_way
        under_way.end_search()
        if isinstance(rows, BaseException):
            if isinstance(rows, DamagedViewError):
                self._machine.queues.found_damage(rows.view, rows.offset, rows)
            elif isinstance(rows, UnreadableRecordError):
                self._machine.log.read_failed(rows.position)
            _failed(position, rows)
            return
        taken.end_at(rows)
        starts = range(0, max(len(rows), 1), MAX_OFFSETS_PER_COMMAND)
        for start in starts[:-1]:
            outcomes: list[LogError | None] = []
            command = TrimQueues(position, rows[start : start + MAX_OFFSETS_PER_COMMAND])
            under_way.propose(handle, command, outcomes.append)
            # A smaller last command might be taken although this command was refused, so stop here.
            if outcomes and outcomes[0] is not None:
                _failed(position, outcomes[0])
                return
        last = TrimQueues(position, rows[starts[-1] :])
        under_way.propose(handle, last, handle.guarded(partial(self._decided, handle, position, taken)))

    def _decided(self, handle: JobHandle, position: int, taken: Taken, error: LogError | None) -> None:
        if error is None:
            taken.tell(self._counters)  # The queues have lost these messages, even if the trim of the log fails.
            try:
                handle.trim(position)
            except LogError as refused:
                error = refused
        if error is not None:
            _failed(position, error)


def _failed(position: int, error: BaseException) -> None:
    _logger.warning("event=trim_failed position=%d error=%r", position, str(error))

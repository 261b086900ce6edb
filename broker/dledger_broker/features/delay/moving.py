"""Job that makes room for trims: messages that wait below a position that is to be trimmed are written again at the
log's end, with rows of their own.

If that gets nowhere while a disk is too full, or the log takes no records any more, the messages below the position are
given up (`EndTimers`): as messages are that nobody has read when a full disk trims them.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from dledger.environment import Environment
from dledger.errors import LogError
from dledger_broker.features.delay.commands import EndTimers
from dledger_broker.features.delay.in_flight import RowsInFlight
from dledger_broker.features.delay.progress import Progress
from dledger_broker.features.delay.reading import RecordReads
from dledger_broker.features.delay.share import LogShare
from dledger_broker.features.delay.sweep import Sweep
from dledger_broker.features.delay.table import TIMERS
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.state import BrokerState
from dledger_broker.views.timeindex import TimeIndex

LOOK_S: Final = 1.0
NEXT_SWEEP_S: Final = 10.0
"""What a sweep could not move is looked for again after so long: that goes through the whole index."""
LOG_PART: Final = 4
"""While others wait for the log, one byte in so many is of messages that are moved."""
FULL_DISK_PART: Final = 2
"""The same while a disk is too full: as many bytes as of all others."""

_logger = logging.getLogger(__name__)


class MoveTimersOutOfTheWay:
    """A leader's job; implements `dledger_broker.kernel.jobs.Job`.

    `moved` counts messages that were written again by this node, `lost` those that could not be read for too long.
    """

    name: Final = "timer_moves"

    def __init__(
        self,
        machine: BrokerMachine,
        env: Environment,
        index: TimeIndex,
        in_flight: RowsInFlight,
        reads: RecordReads,
        share: LogShare,
    ) -> None:
        self.moved = self.lost = 0
        self._machine = machine
        self._env = env
        self._index = index
        self._in_flight = in_flight
        self._reads = reads
        self._share = share
        self._wanted = 0
        self._disk_full = False
        machine.on_state(self._keep_table)

    def _keep_table(self, state: BrokerState) -> None:
        self._table = state.table(TIMERS)

    def is_free_below(self, position: int) -> bool:
        """Whether nothing is pending below a position, so that the log may be trimmed there."""
        return not self._table.below(position).rows

    def want(self, position: int, *, disk_full: bool) -> None:
        """Leader: the log is to be trimmed below a position; `disk_full`: at any price."""
        self._wanted = position
        self._disk_full = disk_full

    def run(self, handle: JobHandle) -> None:
        """See `Job.run`: the position that an earlier run was told is told again."""
        self._wanted, self._disk_full = 0, False
        self._share.begin()
        self._look(handle, Progress(self._env.now()), None)

    def _look(self, handle: JobHandle, progress: Progress, sweep: Sweep | None) -> None:
        """Give up, or have a sweep begin if none is under way."""
        now, left = self._env.now(), self._table.below(self._wanted).rows
        progress.note(self._lowest_segment(), now, must_go=self._disk_full and left > 0)
        if not left:
            progress.round_is_over()
        elif progress.is_stuck(now):
            self._end(handle, progress, sweep, left)
            return
        elif (sweep is None or sweep.is_over) and not self._in_flight.moves and now >= progress.sweep_at:
            progress.sweep_at = now + NEXT_SWEEP_S
            part = FULL_DISK_PART if self._disk_full else LOG_PART
            sweep = Sweep(
                handle,
                self._machine,
                self._env,
                self._index,
                self._in_flight,
                self._reads,
                self._share,
                progress,
                self._settled,
                self._wanted,
                part,
            )
            sweep.begin()
        handle.call_later(LOOK_S, partial(self._look, handle, progress, sweep))

    def _lowest_segment(self) -> tuple[int, int]:
        """Where the lowest segment with pending rows begins, and how many it has."""
        lowest, segment_bytes = self._table.lowest, self._machine.log.segment_bytes
        start = 0 if lowest is None else lowest - lowest % segment_bytes
        return start, self._table.below(start + segment_bytes).rows

    def _settled(self, progress: Progress, moved: int, lost: int) -> None:
        """A unit of a sweep is applied: the next sweep need not wait."""
        self.moved += moved
        self.lost += lost
        progress.sweep_at = 0.0

    def _end(self, handle: JobHandle, progress: Progress, sweep: Sweep | None, left: int) -> None:
        """Give up what waits below the position: a command alone, which may use what is kept back of the disk."""
        position = self._wanted
        _logger.warning("event=timers_ended below=%d messages=%d reason='no room to move them'", position, left)
        look = partial(self._look, handle, progress, sweep)

        def ended(error: LogError | None) -> None:
            if error is not None:
                _logger.warning("event=timers_not_ended error=%r", str(error))
            look_later()

        look_later = handle.guarded(partial(handle.call_later, LOOK_S, look))
        progress.log_full, progress.sweep_at = False, 0.0
        handle.stage_command(EndTimers(position), ended, privileged=True)

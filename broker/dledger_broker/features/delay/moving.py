"""Leader job that makes room for trims: it writes pending messages below a position again at the log's end.

The copies have rows of their own. With `when_full = "refuse"` no message is given up; messages are moved once the log
has space for them. With "delete-oldest" a full disk makes the log lose its oldest messages. Then pending messages below
the position are given up (`EndTimers`) if moves make no progress or the log takes no records. Messages below the
beginning of every node's log are given up in any case: nobody can read them any more.
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
from dledger_broker.features.delay.table import STRETCH_BYTES, TIMERS
from dledger_broker.kernel.earlier_logs import nobody_has_more
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.state import BrokerState
from dledger_broker.views.timeindex import TimeIndex

LOOK_S: Final = 1.0
NEXT_SWEEP_S: Final = 10.0
"""Interval in seconds between sweeps that move nothing. Each sweep reads the whole index."""
LOG_PART: Final = 4
"""Share of the log while sends wait for it: moved messages get one byte in this many."""
FULL_DISK_PART: Final = 2
"""The same share while a disk is too full: moved messages get as many bytes as all other writes."""

_logger = logging.getLogger(__name__)


class TimerMover:
    """Leader job that moves pending messages; implements `dledger_broker.kernel.jobs.Job`.

    `moved` counts messages that this node has written again. `lost` counts messages whose record no node has any more.
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
        self._target_position = 0
        self._disk_full = self._give_up = False
        machine.on_state(self._keep_table)

    def _keep_table(self, state: BrokerState) -> None:
        self._table = state.table(TIMERS)

    def is_free_below(self, position: int) -> bool:
        """Return whether nothing is pending below a position, so that the log may be trimmed there."""
        return not self._table.below(position).rows

    def room_needed(self) -> int:
        """Return how many bytes must be written before the lowest segment with pending messages can be trimmed."""
        lowest, segment_bytes = self._table.lowest, self._machine.log.segment_bytes
        if lowest is None:
            return 0
        return min(self._table.below(lowest - lowest % segment_bytes + segment_bytes).bytes, segment_bytes)

    def request(self, position: int, *, disk_full: bool, give_up: bool = False) -> None:
        """Ask to move the pending messages below a position, since the log is to be trimmed there. Only for a leader.

        `disk_full` makes the moves faster. `give_up` allows giving messages up.
        """
        self._target_position = position
        self._disk_full, self._give_up = disk_full, give_up

    def run(self, handle: JobHandle) -> None:
        """Begin without a position to free; retention calls `request` again."""
        self._target_position, self._disk_full, self._give_up = 0, False, False
        self._share.begin()
        self._sweep_if_needed(handle, Progress(self._env.now()), None)

    def _sweep_if_needed(self, handle: JobHandle, progress: Progress, sweep: Sweep | None) -> None:
        """Give up messages if moves are stuck; otherwise begin a sweep unless a sweep is under way. Repeat after
        `LOOK_S`.
        """
        now, pending_count = self._env.now(), self._table.below(self._target_position).rows
        progress.note(self._lowest_segment(), now, may_give_up=self._give_up and pending_count > 0)
        if not pending_count:
            progress.reset_round()
        elif gone_below := self._gone_below():
            reason = "no node has this part of the log any more"
            self._give_up_messages(handle, progress, sweep, gone_below, reason)
            return
        elif self._give_up and progress.is_stuck(now):
            self._give_up_messages(handle, progress, sweep, self._target_position, "no room to move them")
            return
        elif (sweep is None or sweep.is_over) and not self._in_flight.moves and now >= progress.sweep_at:
            # the last sweep moved nothing although rows are left: the index may lack them
            if sweep is not None and progress.sweep_at:
                self._index.follower.doubt()
            progress.sweep_at, progress.log_full = now + NEXT_SWEEP_S, False
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
                self._on_unit_applied,
                self._target_position,
                part,
            )
            sweep.begin()
        handle.call_later(LOOK_S, partial(self._sweep_if_needed, handle, progress, sweep))

    def _gone_below(self) -> int:
        """Return where this log begins, if messages are pending below that and no node has more; else 0."""
        log = self._machine.log
        below = log.first_position - log.first_position % STRETCH_BYTES
        return below if self._table.below(below).rows and nobody_has_more(log) else 0

    def _lowest_segment(self) -> tuple[int, int]:
        """Return where the lowest segment with pending rows begins, and how many it has."""
        lowest, segment_bytes = self._table.lowest, self._machine.log.segment_bytes
        start = 0 if lowest is None else lowest - lowest % segment_bytes
        return start, self._table.below(start + segment_bytes).rows

    def _on_unit_applied(self, progress: Progress, moved: int, lost: int) -> None:
        """Count a unit of a sweep that was applied. The next sweep need not wait."""
        self.moved += moved
        self.lost += lost
        progress.sweep_at = 0.0

    def _give_up_messages(
        self, handle: JobHandle, progress: Progress, sweep: Sweep | None, position: int, reason: str
    ) -> None:
        """Give up the messages below a position. The command may use space that is kept back on a full disk."""
        pending_count = self._table.below(position).rows
        _logger.warning("event=timers_ended below=%d messages=%d reason=%r", position, pending_count, reason)
        sweep_again = partial(self._sweep_if_needed, handle, progress, sweep)

        def on_ended(error: LogError | None) -> None:
            if error is not None:
                _logger.warning("event=timers_not_ended error=%r", str(error))
            schedule_sweep()

        schedule_sweep = handle.guarded(partial(handle.call_later, LOOK_S, sweep_again))
        progress.log_full, progress.sweep_at = False, 0.0
        handle.stage_command(EndTimers(position), on_ended, privileged=True)

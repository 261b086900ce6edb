"""Clock of a leader: group time for whoever fires what is due, and for requests that say "in so many seconds"."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from dledger.environment import Cancellable, Environment
from dledger.errors import LogError, NotLeaderError
from dledger_broker.kernel.clock import BelievedTime, reached_by_majority
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.group_time import GroupTime
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.requests import Request, Requests
from dledger_remoting.errors import ServiceNotAvailable

LOOK_PERIOD_S: Final = 1.0
TELL_PERIOD_S: Final = 20.0
"""How old the group time in the log may become while something depends on it: a leader that begins tells from it
whether clocks have jumped.
"""
HOLD_PERIOD_S: Final = 0.05
MAX_HELD: Final = 10_000
"""Requests that wait until group time is known."""

Known: TypeAlias = Callable[[int | None], None]
"""Told the time to reckon from, or None: it did not become known in time, or this node does not lead any more."""


class GroupClock:
    """Group time while this node leads; implements `dledger_broker.kernel.jobs.Job`.

    It is not known to a leader that does not hear the clocks of a majority. `hold_s` is how long a request waits for
    it.
    """

    name: Final = "group_time"

    def __init__(self, machine: BrokerMachine, env: Environment, counters: BrokerCounters, hold_s: float) -> None:
        self._machine = machine
        self._env = env
        self._counters = counters
        self._hold_s = hold_s
        self._believed = BelievedTime(None)
        self._term = 0
        self._needs: list[Callable[[], bool]] = []
        self._telling = False
        self._handle: JobHandle | None = None
        self._held: list[tuple[float, Known]] = []
        self._next_look: Cancellable | None = None
        machine.on_unready.append(self._unready)

    def needed_by(self, need: Callable[[], bool]) -> None:
        """Have group time told in the log while `need()`: while anything is due some day, open or in flight."""
        self._needs.append(need)

    def now_ms(self) -> int | None:
        """Group time, ms since 1970: what is due by then may happen. None if it is not known, or not to this node."""
        times = self._look()
        return None if times is None else times[0]

    def reckoned_from_ms(self) -> int | None:
        """The time that "in so many seconds" is reckoned from: what a majority's clocks show at most, or group time if
        that is later.

        What is reckoned from a time that is behind happens too early:

        1. A follower's answer was under way for half a second: group time is behind by that, until the next answer.
        2. A message is sent that is due in a second. 3. The next answer comes: half of the second is over.

        So it is with clocks that have jumped ahead and are to be believed in a minute:

        1. All nodes were down for ten hours; group time is that of ten hours ago, for a minute.
        2. A message is sent that is due in five hours. 3. The clocks are believed: it was due five hours ago.

        Who asks is about to propose what depends on group time, so that is told in the log now, before it:

        1. Nothing has depended on it for minutes, and every node has been started anew meanwhile: what was told last
        seems to be of just now. 2. A message is sent that is due in a second, and the leader dies before it looks.
        3. What clocks show is a jump for the next leader: nothing fires for a minute. If that one dies sooner, nothing
        fires for another minute.
        """
        times = self._look()
        if times is None:
            return None
        if self._handle is not None and not self._handle.is_stopped:
            self._tell(self._handle, times[0])
        return max(times)

    def when_known(self, told: Known) -> None:
        """Have `told` called with `reckoned_from_ms`: at once if it is known, else when it is; see `Known`."""
        known_ms = self.reckoned_from_ms()
        if known_ms is not None or not self._machine.leadership.ready:
            told(known_ms)
            return
        if len(self._held) >= MAX_HELD:
            self._counters.group_time_waits_refused += 1
            told(None)
            return
        self._held.append((self._env.now() + self._hold_s, told))
        self._look_later()

    def hold(self, request: Request, requests: Requests) -> None:
        """Have a request, for which nothing was proposed, handled again once the time to reckon from is known.

        It is refused if that takes longer than `hold_s`, and passed on if this node leads no more.
        """
        self.when_known(partial(self._time_known, request, requests))

    def _time_known(self, request: Request, requests: Requests, known_ms: int | None) -> None:
        if known_ms is not None:
            requests.run(request)
        elif self._machine.leadership.ready:
            missing = "the clocks of a majority of the nodes are not known, nothing was stored: try again later"
            requests.fail(request, ServiceNotAvailable(missing))
        else:
            requests.pass_on(request)

    def release(self) -> None:
        """Tell all that are held that group time is not known."""
        self._tell_held(None)

    # ---------------------------------------------------------------- the job

    def run(self, handle: JobHandle) -> None:
        """See `Job.run`."""
        self._handle = handle
        handle.call_later(LOOK_PERIOD_S, partial(self.run, handle))
        now_ms = self.now_ms()
        if now_ms is not None and self._is_needed:
            self._tell(handle, now_ms)

    def _tell(self, handle: JobHandle, now_ms: int) -> None:
        """Propose group time, unless that is under way or was done of late."""
        if self._telling or self._was_told_of_late(now_ms) or not self._machine.understood_by_all(GroupTime):
            return
        self._telling = True
        handle.stage_command(GroupTime(now_ms), self._told)

    def _was_told_of_late(self, now_ms: int) -> bool:
        """Whether the log has group time as it was a moment ago, by this replica's clock and by group time itself.

        A replica that has just started has applied what was told long ago just now:

        1. Leaders die one after the other, none of them older than the period. 2. Each node has been started anew since
        group time was told last. 3. What their clocks show is a jump for the next leader: nothing fires for a minute.
        """
        carried = self._machine.state.group_time.carried
        if carried is None or self._env.now() - carried.at >= TELL_PERIOD_S:
            return False
        return abs(now_ms - carried.ms) < TELL_PERIOD_S * 1000

    def _told(self, _error: LogError | None) -> None:
        """A later look tells again what was lost."""
        self._telling = False

    # ---------------------------------------------------------------- inside

    @property
    def _is_needed(self) -> bool:
        return any(need() for need in self._needs)

    def _look(self) -> tuple[int, int] | None:
        """Group time, and what a majority's clocks have reached at most."""
        leadership = self._machine.leadership
        if not leadership.ready:
            return None
        if leadership.term != self._term:
            self._term = leadership.term
            # While nothing depends on it nothing can happen too early; and then nobody has told it of late.
            self._believed = BelievedTime(self._machine.state.group_time.carried if self._is_needed else None)
        clocks = self._machine.log.voter_clocks()
        least_ms = reached_by_majority([None if clock is None else clock.least_ms for clock in clocks])
        most_ms = reached_by_majority([None if clock is None else clock.most_ms for clock in clocks])
        if least_ms is None or most_ms is None:
            return None
        return self._believed.look(least_ms, self._env.now()), most_ms

    def _look_later(self) -> None:
        if self._held and self._next_look is None:
            self._next_look = self._env.call_later(HOLD_PERIOD_S, self._look_for_held)

    def _look_for_held(self) -> None:
        self._next_look = None
        known_ms = self.reckoned_from_ms()
        if known_ms is not None:
            self._tell_held(known_ms)
            return
        now = self._env.now()
        late = [told for until, told in self._held if until <= now]
        self._held = [waits for waits in self._held if waits[0] > now]
        self._look_later()
        for told in late:
            told(None)

    def _unready(self, _error: NotLeaderError) -> None:
        self._tell_held(None)

    def _tell_held(self, known_ms: int | None) -> None:
        held, self._held = self._held, []
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
        for _, told in held:
            told(known_ms)

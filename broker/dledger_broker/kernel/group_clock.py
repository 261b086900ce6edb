"""Clock of a leader: group time for jobs that fire what is due, and for requests with a delay "in so many seconds"."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from dledger.environment import Cancellable, Environment
from dledger.errors import LogError, NotLeaderError
from dledger_broker.kernel.clock import BelievedTime, reached_by_majority
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.events import EventListener
from dledger_broker.kernel.group_time import GroupTime
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.requests import Request, Requests
from dledger_remoting.errors import ServiceNotAvailable

LOOK_PERIOD_S: Final = 1.0
PROPOSE_PERIOD_S: Final = 20.0
"""Maximum age in seconds of the group time in the log while something depends on it. A new leader detects with it
whether clocks have jumped.
"""
HOLD_PERIOD_S: Final = 0.05
MAX_HELD: Final = 10_000
"""Maximum number of requests that wait for group time."""

TimeCallback: TypeAlias = Callable[[int | None], None]
"""Receives the time that delays are counted from, or None: it did not become known in time, or this node no longer
leads.
"""


class GroupClock(EventListener):
    """Group time while this node leads. Implements `dledger_broker.kernel.jobs.Job`.

    A leader without recent clocks of a majority does not know group time. A request waits `hold_s` for it.
    """

    name: Final = "group_time"

    def __init__(self, machine: BrokerMachine, env: Environment, counters: BrokerCounters, hold_s: float) -> None:
        self._machine = machine
        self._env = env
        self._counters = counters
        self._hold_s = hold_s
        self._believed = BelievedTime(None)
        self._term = 0
        self._dependents: list[Callable[[], bool]] = []
        self._is_proposing = False
        self._handle: JobHandle | None = None
        self._waiters: list[tuple[float, TimeCallback]] = []
        self._check_timer: Cancellable | None = None

    def add_dependent(self, need: Callable[[], bool]) -> None:
        """Have group time written to the log while `need()` is true: while something is due at some time, open or in
        flight.
        """
        self._dependents.append(need)

    def now_ms(self) -> int | None:
        """Return group time, ms since 1970: everything due by then may happen. None if this node does not know it."""
        times = self._read_times()
        return None if times is None else times[0]

    def delay_base_ms(self) -> int | None:
        """Return the time that "in so many seconds" is counted from: the highest that a majority's clocks may show, or
        a later group time.

        A delay ends too early if it is counted from a time that is behind:

        1. A follower's answer was under way for half a second. Group time is behind by that, until the next answer.
        2. A client sends a message that is due in a second.
        3. The next answer arrives, and half of the second has passed.

        The same happens with clocks that have jumped ahead and will be believed in a minute:

        1. All nodes were down for ten hours. For a minute, group time is that of ten hours ago.
        2. A client sends a message that is due in five hours.
        3. The clocks are believed. The message was due five hours ago.

        The caller is about to propose something that depends on group time. This method therefore writes group time to
        the log first:

        1. Nothing has depended on group time for minutes, and every node has been restarted meanwhile. The last group
           time in the log seems to be of just now.
        2. A client sends a message that is due in a second, and the leader dies before it reads the clocks.
        3. For the next leader the clocks show a jump, so nothing fires for a minute. If this leader dies sooner,
           nothing fires for another minute.
        """
        times = self._read_times()
        if times is None:
            return None
        if self._handle is not None and not self._handle.is_stopped:
            self._propose(self._handle, times[0])
        return max(times)

    def call_when_known(self, callback: TimeCallback) -> None:
        """Call `callback` with `delay_base_ms`, at once or when it becomes known; see `TimeCallback`."""
        known_ms = self.delay_base_ms()
        if known_ms is not None or not self._machine.leadership.ready:
            callback(known_ms)
            return
        if len(self._waiters) >= MAX_HELD:
            self._counters.group_time_waits_refused += 1
            callback(None)
            return
        self._waiters.append((self._env.now() + self._hold_s, callback))
        self._schedule_check()

    def hold(self, request: Request, requests: Requests) -> None:
        """Have a request handled again once the time is known from which its delay is counted. Nothing of the request
        was proposed.

        The request is refused if that takes longer than `hold_s`, and forwarded if this node no longer leads.
        """
        self.call_when_known(partial(self._on_time_known, request, requests))

    def _on_time_known(self, request: Request, requests: Requests, known_ms: int | None) -> None:
        if known_ms is not None:
            requests.run(request)
        elif self._machine.leadership.ready:
            missing = "the clocks of a majority of the nodes are not known, nothing was stored: try again later"
            requests.fail(request, ServiceNotAvailable(missing))
        else:
            requests.pass_on(request)

    def release(self) -> None:
        """End all waits without a time: held requests are refused or forwarded."""
        self._release_waiters(None)

    # ---------------------------------------------------------------- the job

    def run(self, handle: JobHandle) -> None:
        """Write group time to the log while something needs it. Check once a second."""
        self._handle = handle
        handle.call_later(LOOK_PERIOD_S, partial(self.run, handle))
        now_ms = self.now_ms()
        if now_ms is not None and self._is_needed:
            self._propose(handle, now_ms)

    def _propose(self, handle: JobHandle, now_ms: int) -> None:
        """Propose group time, unless that is under way or was done recently."""
        if self._is_proposing or self._is_logged_recently(now_ms) or not self._machine.understood_by_all(GroupTime):
            return
        self._is_proposing = True
        handle.stage_command(GroupTime(now_ms), self._on_proposed)

    def _is_logged_recently(self, now_ms: int) -> bool:
        """Return whether the log has a recent group time, by this replica's clock and by group time itself.

        A replica that has just started has applied old commands just now, so its own clock alone is not enough:

        1. Leaders die one after another, each before `PROPOSE_PERIOD_S` has passed. Each node has been restarted since
           group time was last written.
        2. No leader writes group time again, because each has applied the last command within this period.
        3. For the next leader the clocks show a jump, so nothing fires for a minute.
        """
        carried = self._machine.state.group_time.carried
        if carried is None or self._env.now() - carried.at >= PROPOSE_PERIOD_S:
            return False
        return abs(now_ms - carried.ms) < PROPOSE_PERIOD_S * 1000

    def _on_proposed(self, _error: LogError | None) -> None:
        """Note that the proposal has ended. If it was lost, a later check writes group time again."""
        self._is_proposing = False

    # ---------------------------------------------------------------- inside

    @property
    def _is_needed(self) -> bool:
        return any(need() for need in self._dependents)

    def _read_times(self) -> tuple[int, int] | None:
        """Return group time, and the highest time that a majority's clocks may have reached; None if it is unknown."""
        leadership = self._machine.leadership
        if not leadership.ready:
            return None
        if leadership.term != self._term:
            self._term = leadership.term
            # While nothing depends on group time, nothing can happen too early. Then no leader has written it recently,
            # either.
            self._believed = BelievedTime(self._machine.state.group_time.carried if self._is_needed else None)
        clocks = self._machine.log.voter_clocks()
        least_ms = reached_by_majority([None if clock is None else clock.least_ms for clock in clocks])
        most_ms = reached_by_majority([None if clock is None else clock.most_ms for clock in clocks])
        if least_ms is None or most_ms is None:
            return None
        return self._believed.look(least_ms, self._env.now()), most_ms

    def _schedule_check(self) -> None:
        if self._waiters and self._check_timer is None:
            self._check_timer = self._env.call_later(HOLD_PERIOD_S, self._check_waiters)

    def _check_waiters(self) -> None:
        self._check_timer = None
        known_ms = self.delay_base_ms()
        if known_ms is not None:
            self._release_waiters(known_ms)
            return
        now = self._env.now()
        expired = [callback for deadline, callback in self._waiters if deadline <= now]
        self._waiters = [waiter for waiter in self._waiters if waiter[0] > now]
        self._schedule_check()
        for callback in expired:
            callback(None)

    def unready(self, _error: NotLeaderError) -> None:
        self._release_waiters(None)

    def _release_waiters(self, known_ms: int | None) -> None:
        waiters, self._waiters = self._waiters, []
        if self._check_timer is not None:
            self._check_timer.cancel()
            self._check_timer = None
        for _, callback in waiters:
            callback(known_ms)

"""Judge of group time and of the time from which delays are computed.

Group time is never ahead of what a majority's clocks have shown, and does not leap because of a moment's reading. The
base of delays is never behind. The judge sees each clock at each moment at which its node reads it, and each check by a
leader.

- A leader's group time was recently shown by a majority of all voters, or follows from an earlier group time.
- It leaps by more than a step only if the clocks of a majority have stood there for a minute. This holds within a
  leadership, and from the log's time to the next leadership.
- The base of delays is not behind the slowest of all voters' clocks. Otherwise a delay would end too early.
"""

# ruff: noqa: SLF001 - watches private names

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Final

from dledger_broker.kernel.clock import JUMP_BELIEVED_S, MAX_STEP_MS, ClockReading
from dledger_broker.kernel.group_clock import GroupClock
from dledger_broker.kernel.machine import BrokerMachine
from dledger_sim.log.environment import MOST_AHEAD_S, WALL_EPOCH_MS
from dledger_sim.log.group import Life
from dledger_sim.log.invariants import require
from dledger_sim.log.scheduler import Scheduler

RECENT_S: Final = 30.0
"""Maximum time that an answer may have been under way, in seconds."""
RATE: Final = 0.06
"""Maximum error of the rate of monotonic clocks."""
LATELY_S: Final = 2.0
"""Maximum age of a leader's knowledge of a clock, in seconds, by any monotonic clock."""
BUSY_S: Final = MOST_AHEAD_S
"""Maximum lead of a busy node's monotonic clock over its wall clock, in seconds, where calls take time.

No real machine has this.
"""
SLACK_MS: Final = 300
"""Tolerance in milliseconds for one second of extrapolation.

In that second a wall clock may lose a fifth, and a monotonic clock may gain a little.
"""


class TimeJudge:
    """Judge of a group across all lives of its nodes."""

    def __init__(self, scheduler: Scheduler, *, calls_take_time: bool) -> None:
        self._scheduler = scheduler
        self._tolerance_ms = SLACK_MS + int(BUSY_S * 1000 * calls_take_time)
        self._calls_take_time = calls_take_time
        self._recent_errors: defaultdict[str, deque[tuple[float, int]]] = defaultdict(deque)
        """Errors of each node's clock at recent readings, without those that a later, higher error covers."""
        self._last_errors: defaultdict[str, deque[tuple[float, int]]] = defaultdict(deque)
        """Errors of each node's clock at all readings of the last moments."""
        self._clock_errors: dict[str, Callable[[], int]] = {}
        self._majority_errors: deque[tuple[float, int]] = deque()
        """Error of a majority's clocks at each check of a leader, over the time after which a jump is accepted."""
        self._log_time: ClockReading | None = None
        """Newest time in the log, with the moment at which it was first applied."""
        self._leader_time: ClockReading | None = None
        self._reign: tuple[str, int, int] | None = None

    def watch(self, life: Life, machine: BrokerMachine, clock: GroupClock) -> None:
        """Start to judge one life of a node."""
        name = life.node.name
        self._clock_errors[name] = wrong = life.environment.wall_offset_ms

        def read() -> int:
            self._record_error(name, by_ms := wrong())
            return by_ms

        life.environment.wall_offset_ms = read
        read_times = clock._read_times

        def judged() -> tuple[int, int] | None:
            times = read_times()
            if times is not None:
                self._judge_group_time(life, machine, times[0])
                self._judge_delay_base(life, max(times))
            return times

        clock._read_times = judged  # type: ignore[method-assign]

    def told(self, machine: BrokerMachine) -> None:
        """Note that a node has applied entries."""
        now_ms = machine.state.group_time.now_ms
        if now_ms is not None and (self._log_time is None or now_ms != self._log_time.ms):
            carried = self._extrapolate(self._log_time)
            if carried is None or now_ms > carried - MAX_STEP_MS:
                self._log_time = ClockReading(now_ms, self._scheduler.now)

    def _record_error(self, name: str, by_ms: int) -> None:
        shown, now = self._recent_errors[name], self._scheduler.now
        while shown and shown[-1][1] <= by_ms:
            shown.pop()
        shown.append((now, by_ms))
        while shown[0][0] < now - RECENT_S:
            shown.popleft()
        lately = self._last_errors[name]
        lately.append((now, by_ms))
        while lately[0][0] < now - LATELY_S:
            lately.popleft()

    def _judge_delay_base(self, life: Life, from_ms: int) -> None:
        """Check the time from which a leader computes delays.

        Where calls take time a node's clock may be seconds ahead. The clock then stops for that long while its process
        is paused. Its earlier knowledge of the others then seems recent to it.
        """
        if self._calls_take_time and life.environment.paused_until > self._scheduler.now - LATELY_S:
            return
        now, voters = self._scheduler.now, [str(one.node_id) for one in life.replica.engine.membership.voters]
        lowest = [
            min([wrong(), *(by_ms for at, by_ms in self._last_errors[voter] if at >= now - LATELY_S)])
            for voter in voters
            if (wrong := self._clock_errors.get(voter)) is not None
        ]
        require(
            from_ms >= WALL_EPOCH_MS + int(now * 1000) + min(lowest) - self._tolerance_ms,
            "no delay is computed from a time that is behind all clocks",
            node=life.node.name,
            from_ms=from_ms,
            lowest=lowest,
            now=now,
        )

    def _judge_group_time(self, life: Life, machine: BrokerMachine, time_ms: int) -> None:
        """Check the group time of a leader.

        The leader carries each voter's clock on by its own monotonic clock, from the moment at which it was told:

        1. A leader has been told the clocks of a majority.
        2. Its calls take time, so its monotonic clock runs ahead of the wall clocks, by `BUSY_S` at most.
        3. Until the next answers, it takes the others' clocks to be ahead by as much.
        """
        membership, now = life.replica.engine.membership, self._scheduler.now
        voters = [str(voter.node_id) for voter in membership.voters]
        right_ms = WALL_EPOCH_MS + int(now * 1000)
        stand = [self._clock_errors[voter]() for voter in voters if voter in self._clock_errors]
        recent = [max([by_ms for _, by_ms in self._recent_errors[voter]], default=0) for voter in voters]
        shown_ms = right_ms + self._tolerance_ms + sorted(map(max, zip(stand, recent, strict=True)))[-membership.quorum]
        self._majority_errors.append((now, sorted(stand)[-membership.quorum]))
        while len(self._majority_errors) > 1 and self._majority_errors[1][0] <= now - JUMP_BELIEVED_S * (1 - RATE):
            self._majority_errors.popleft()
        reign = (life.node.name, life.node.lives, machine.leadership.term)
        before = self._leader_time if reign == self._reign else None
        bases = [self._extrapolate(base) for base in (self._leader_time, self._log_time)]
        carried_ms = max((base for base in bases if base is not None), default=shown_ms)
        facts = {"node": life.node.name, "time_ms": time_ms, "right_ms": right_ms, "stand": stand, "now": now}
        require(
            time_ms <= max(shown_ms, carried_ms),
            "group time is not ahead of the clocks of a majority",
            recent=recent,
            carried_ms=carried_ms,
            **facts,
        )
        from_ms = self._extrapolate(before) if before is not None else self._extrapolate(self._log_time)
        if from_ms is not None and time_ms > from_ms + MAX_STEP_MS:
            since, _ = self._majority_errors[0]
            stood = now - since >= JUMP_BELIEVED_S * (1 - RATE) and all(
                at_ms >= time_ms - right_ms - MAX_STEP_MS - SLACK_MS for _, at_ms in self._majority_errors
            )
            require(
                stood,
                "group time jumps only to a time at which a majority's clocks have been steady",
                from_ms=from_ms,
                **facts,
            )
        self._reign, self._leader_time = reign, ClockReading(time_ms, now)

    def _extrapolate(self, base: ClockReading | None) -> int | None:
        """Return the latest time that a base can have become by now."""
        if base is None:
            return None
        elapsed_ms = (self._scheduler.now - base.at) * 1000
        return base.ms + int(elapsed_ms * (1 + RATE)) + SLACK_MS

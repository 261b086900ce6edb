"""Judge of group time: never ahead of what a majority's clocks have shown, and no leap on a moment's word; and of the
time that delays are reckoned from, which is never behind.

It sees each clock at each moment at which its node reads it, and each time that a leader looks.

- What a leader believes a majority of all voters has shown of late, or it follows from what was believed before.
- It goes ahead by more than a step only if the clocks of a majority have stood there for a minute: within a leadership,
  and from what the log tells to the next one.
- What delays are reckoned from is not behind the slowest of all voters' clocks: a delay would be over early by that.
"""

# ruff: noqa: SLF001 - what is watched is what is private

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Final

from dledger_broker.kernel.clock import MAX_STEP_MS, STANDS_S, Carried
from dledger_broker.kernel.group_clock import GroupClock
from dledger_broker.kernel.machine import BrokerMachine
from dledger_sim.log.environment import MOST_AHEAD_S, WALL_EPOCH_MS
from dledger_sim.log.group import Life
from dledger_sim.log.invariants import require
from dledger_sim.log.scheduler import Scheduler

RECENT_S: Final = 30.0
"""An answer may have been under way for so long."""
RATE: Final = 0.06
"""Monotonic clocks are at most so wrong."""
LATELY_S: Final = 2.0
"""What a leader knows of a clock is younger, by whatever monotonic clock."""
BUSY_S: Final = MOST_AHEAD_S
"""Where calls take time a busy node's monotonic clock runs ahead of its wall clock, as on no machine."""
SLACK_MS: Final = 300
"""A wall clock may lose a fifth of the second for which it is reckoned on, and a monotonic one gains some."""


class TimeJudge:
    """One for a group, whatever its nodes live through."""

    def __init__(self, scheduler: Scheduler, *, calls_take_time: bool) -> None:
        self._scheduler = scheduler
        self._behind_ms = SLACK_MS + int(BUSY_S * 1000 * calls_take_time)
        self._calls_take_time = calls_take_time
        self._shown: defaultdict[str, deque[tuple[float, int]]] = defaultdict(deque)
        """By how much each node's clock was wrong when it was read of late, without what a later, higher one covers."""
        self._lately: defaultdict[str, deque[tuple[float, int]]] = defaultdict(deque)
        """The same of the last moments, all of it."""
        self._wrong: dict[str, Callable[[], int]] = {}
        self._majority: deque[tuple[float, int]] = deque()
        """By how much the clocks of a majority were wrong, whenever a leader looked, for as long as a jump stands."""
        self._told: Carried | None = None
        """What the log told last, from when it was applied first."""
        self._believed: Carried | None = None
        self._reign: tuple[str, int, int] | None = None

    def watch(self, life: Life, machine: BrokerMachine, clock: GroupClock) -> None:
        """Have one life of a node judged."""
        name = life.node.name
        self._wrong[name] = wrong = life.environment.wall_offset_ms

        def read() -> int:
            self._show(name, by_ms := wrong())
            return by_ms

        life.environment.wall_offset_ms = read
        look = clock._look

        def judged() -> tuple[int, int] | None:
            times = look()
            if times is not None:
                self._judge(life, machine, times[0])
                self._judge_reckoning(life, max(times))
            return times

        clock._look = judged  # type: ignore[method-assign]

    def told(self, machine: BrokerMachine) -> None:
        """Entries were applied somewhere."""
        now_ms = machine.state.group_time.now_ms
        if now_ms is not None and (self._told is None or now_ms != self._told.ms):
            carried = self._carried_on(self._told)
            if carried is None or now_ms > carried - MAX_STEP_MS:
                self._told = Carried(now_ms, self._scheduler.now)

    def _show(self, name: str, by_ms: int) -> None:
        shown, now = self._shown[name], self._scheduler.now
        while shown and shown[-1][1] <= by_ms:
            shown.pop()
        shown.append((now, by_ms))
        while shown[0][0] < now - RECENT_S:
            shown.popleft()
        lately = self._lately[name]
        lately.append((now, by_ms))
        while lately[0][0] < now - LATELY_S:
            lately.popleft()

    def _judge_reckoning(self, life: Life, from_ms: int) -> None:
        """A leader reckons delays from this.

        Where calls take time a node's clock may be seconds ahead, and stands still for as long while its process does:
        then what it knew of the others before is young to it.
        """
        if self._calls_take_time and life.environment.paused_until > self._scheduler.now - LATELY_S:
            return
        now, voters = self._scheduler.now, [str(one.node_id) for one in life.replica.engine.membership.voters]
        lowest = [
            min([wrong(), *(by_ms for at, by_ms in self._lately[voter] if at >= now - LATELY_S)])
            for voter in voters
            if (wrong := self._wrong.get(voter)) is not None
        ]
        require(
            from_ms >= WALL_EPOCH_MS + int(now * 1000) + min(lowest) - self._behind_ms,
            "no delay is reckoned from a time that is behind all clocks",
            node=life.node.name,
            from_ms=from_ms,
            lowest=lowest,
            now=now,
        )

    def _judge(self, life: Life, machine: BrokerMachine, time_ms: int) -> None:
        """A leader takes this for group time."""
        membership, now = life.replica.engine.membership, self._scheduler.now
        voters = [str(voter.node_id) for voter in membership.voters]
        right_ms = WALL_EPOCH_MS + int(now * 1000)
        stand = [self._wrong[voter]() for voter in voters if voter in self._wrong]
        recent = [max([by_ms for _, by_ms in self._shown[voter]], default=0) for voter in voters]
        shown_ms = right_ms + SLACK_MS + sorted(map(max, zip(stand, recent, strict=True)))[-membership.quorum]
        self._majority.append((now, sorted(stand)[-membership.quorum]))
        while len(self._majority) > 1 and self._majority[1][0] <= now - STANDS_S * (1 - RATE):
            self._majority.popleft()
        reign = (life.node.name, life.node.lives, machine.leadership.term)
        before = self._believed if reign == self._reign else None
        bases = [self._carried_on(base) for base in (self._believed, self._told)]
        carried_ms = max((base for base in bases if base is not None), default=shown_ms)
        facts = {"node": life.node.name, "time_ms": time_ms, "right_ms": right_ms, "stand": stand, "now": now}
        require(
            time_ms <= max(shown_ms, carried_ms),
            "group time is not ahead of what a majority's clocks have shown",
            recent=recent,
            carried_ms=carried_ms,
            **facts,
        )
        from_ms = self._carried_on(before) if before is not None else self._carried_on(self._told)
        if from_ms is not None and time_ms > from_ms + MAX_STEP_MS:
            since, _ = self._majority[0]
            stood = now - since >= STANDS_S * (1 - RATE) and all(
                at_ms >= time_ms - right_ms - MAX_STEP_MS - SLACK_MS for _, at_ms in self._majority
            )
            require(stood, "group time leaps only to where a majority's clocks have stood", from_ms=from_ms, **facts)
        self._reign, self._believed = reign, Carried(time_ms, now)

    def _carried_on(self, base: Carried | None) -> int | None:
        """The latest that a time can have become by now."""
        if base is None:
            return None
        elapsed_ms = (self._scheduler.now - base.at) * 1000
        return base.ms + int(elapsed_ms * (1 + RATE)) + SLACK_MS

"""Schedules of group time: clocks that jump, are unknown, and are finally believed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from dledger_broker.kernel.clock import JUMP_BELIEVED_S
from dledger_sim.brokers.schedules.brokers import Brokers
from dledger_sim.brokers.service import SimBroker
from dledger_sim.log.environment import WALL_EPOCH_MS
from dledger_sim.log.registers import leading

DAY_MS: Final = 86_400_000
TOLD_S: Final = 25.0
"""Time in seconds after which a leader has certainly put group time into the log."""
LATE_MS: Final = 200
"""Maximum error of a group time that is carried over from the previous leader, in milliseconds.

It is late by the delay until a follower hears of the commit.
"""
HEARD_LATE_MS: Final = 20
"""Maximum error of group time while its clocks are heard, in milliseconds. A node stamps the time when it answers."""


class Clocks:
    """Group whose clocks a schedule sets wrong. The judge of the simulator checks each group time that is read."""

    def __init__(self) -> None:
        self.brokers = Brokers()
        self.brokers.run(TOLD_S)
        self.leader = self.brokers.leader
        self.others = [name for name in self.brokers.group.nodes if name != self.leader]

    def set_wrong(self, by_ms: int, *names: str) -> None:
        """Set the error of clocks."""
        for name in names:
            self.brokers.group.nodes[name].wall_offset_ms = by_ms

    def run(self, seconds: float) -> None:
        """Let time pass, and check group time ten times a second."""
        for _ in range(round(seconds * 10)):
            self.brokers.run(0.1)
            self.time_ms()

    def time_ms(self) -> int | None:
        """Return the leader's group time, or None without a leader that knows it."""
        lives = [node.life for node in self.brokers.group.nodes.values()]
        clocks = [cast(SimBroker, life.service).service.clock for life in lives if life is not None]
        return next((now_ms for clock in clocks if (now_ms := clock.now_ms()) is not None), None)

    def expect(self, wrong_by_ms: int = 0, late_ms: int = LATE_MS) -> None:
        """Check that group time is available and has this error, within `late_ms`."""
        time_ms = self.time_ms()
        right_ms = WALL_EPOCH_MS + int(self.brokers.scheduler.now * 1000)
        assert time_ms is not None
        assert -late_ms <= time_ms - right_ms - wrong_by_ms <= late_ms, (time_ms, right_ms)


def one_clock_jumps() -> None:
    """Check that one clock of three that is a day ahead or behind changes nothing, under any leader."""
    clocks = Clocks()
    for wrong in (clocks.leader, *clocks.others):
        for by_ms in (DAY_MS, -DAY_MS):
            clocks.set_wrong(by_ms, wrong)
            clocks.run(2.0)
            clocks.expect()
            clocks.brokers.group.kill(old := leading(clocks.brokers.group).node.name)
            clocks.run(5.0)
            clocks.expect()
            clocks.brokers.group.start(old)
            clocks.run(5.0)
            clocks.set_wrong(0, wrong)
            clocks.run(TOLD_S)  # from then on a restarted node knows the time again


def two_clocks_jump_for_a_moment() -> None:
    """Check that nothing happens early, although leaders have clocks that have jumped.

    1. The clocks of the leader and of a follower jump a day ahead, for 40 s.
    2. The leader hands over to that follower. The new leader knows both clocks from its first look on, and nothing
      else.
    3. The new leader dies. The next leader knows the clock of the other node, and its own.

    Seeds rarely meet this. A fault sets one clock wrong, for 4.5 s at most, and a day ahead in one case of six. Two of
    three clocks would have to be wrong like that at once.
    """
    clocks = Clocks()
    clocks.set_wrong(DAY_MS, clocks.leader, clocks.others[0])
    clocks.run(10.0)
    clocks.brokers.hand_over(clocks.others[0])
    clocks.run(10.0)
    clocks.expect()
    clocks.brokers.group.kill(clocks.others[0])
    clocks.run(5.0)
    clocks.brokers.group.start(clocks.others[0])
    clocks.run(15.0)
    clocks.expect()
    clocks.set_wrong(0, *clocks.brokers.group.nodes)
    clocks.run(5.0)
    clocks.expect()


def a_clock_that_nobody_hears() -> None:
    """Check that the clock of an unreachable node does not count as having reached a time.

    1. The leader's clock is half a minute ahead, a step that does not count as a jump.
    2. One of the two followers dies.

    Seeds rarely meet this. For some seconds a follower must not be heard. In these the leader's clock must be ahead by
    more than the 0.3 s that the judge tolerates, and by less than a minute. One jump in six has that size.
    """
    clocks = Clocks()
    clocks.set_wrong(30_000, clocks.leader)
    clocks.run(1.0)
    clocks.expect(late_ms=HEARD_LATE_MS)
    clocks.brokers.group.kill(clocks.others[0])
    clocks.run(3.0)
    clocks.expect(late_ms=HEARD_LATE_MS)


def all_clocks_jump_for_good() -> None:
    """Check that clocks that keep their new time are believed after a minute, in both directions.

    No seed meets this: no fault sets a clock wrong for longer than 4.5 s.
    """
    clocks = Clocks()
    for by_ms in (DAY_MS, -DAY_MS):
        clocks.set_wrong(by_ms, *clocks.brokers.group.nodes)
        clocks.run(JUMP_BELIEVED_S + 5.0)
        clocks.expect(by_ms)


def leader_stands_still_with_answers_unread() -> None:
    """Check that a leader does not extrapolate clock readings from before its own pause.

    1. Followers answer heartbeats. Their leader is paused before it reads the answers, too shortly to be deposed.
    2. The leader continues, reads the waiting answers, and is asked for the time at once.

    Seeds hardly meet this: a pause must begin in the one or two milliseconds for which the answer is on its way. And
    the leader must look at group time, once a second, before it reads the next answer.
    """
    clocks = Clocks()
    for pause_s in (0.4, 2.5, 2.5):
        life = leading(clocks.brokers.group)
        life.environment.pause(clocks.brokers.scheduler.now + pause_s)
        clocks.brokers.run(pause_s)
        for _ in range(100):
            clocks.brokers.run(0.002)
            clocks.time_ms()
        clocks.run(5.0)


CLOCK_SCHEDULES: Final[tuple[Callable[[], None], ...]] = (
    one_clock_jumps,
    two_clocks_jump_for_a_moment,
    a_clock_that_nobody_hears,
    all_clocks_jump_for_good,
    leader_stands_still_with_answers_unread,
)

"""Clocks that jump, are unknown, and are believed in the end: what time it is for the group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from dledger_broker.kernel.clock import STANDS_S
from dledger_sim.brokers.schedules.brokers import Brokers
from dledger_sim.brokers.service import SimBroker
from dledger_sim.log.environment import WALL_EPOCH_MS
from dledger_sim.log.registers import leading

DAY_MS: Final = 86_400_000
TOLD_S: Final = 25.0
"""By then a leader has told group time in the log."""
LATE_MS: Final = 200
"""What is carried on from the leader before is late by what a follower took to hear of the commit."""
HEARD_LATE_MS: Final = 20
"""A clock that is heard is known to be so far at least: its node stamps it when it answers."""


class Clocks:
    """A group whose clocks are set wrong by the schedule; the judge sees every look at group time."""

    def __init__(self) -> None:
        self.brokers = Brokers()
        self.brokers.run(TOLD_S)
        self.leader = self.brokers.leader
        self.others = [name for name in self.brokers.group.nodes if name != self.leader]

    def set_wrong(self, by_ms: int, *names: str) -> None:
        """Set clocks, by how much they are wrong."""
        for name in names:
            self.brokers.group.nodes[name].wall_offset_ms = by_ms

    def run(self, seconds: float) -> None:
        """Let time pass; it is looked at ten times a second wherever a leader is."""
        for _ in range(round(seconds * 10)):
            self.brokers.run(0.1)
            self.time_ms()

    def time_ms(self) -> int | None:
        """Group time as the leader has it, if there is a leader that knows it."""
        lives = [node.life for node in self.brokers.group.nodes.values()]
        clocks = [cast(SimBroker, life.service).service.clock for life in lives if life is not None]
        return next((now_ms for clock in clocks if (now_ms := clock.now_ms()) is not None), None)

    def expect(self, wrong_by_ms: int = 0, late_ms: int = LATE_MS) -> None:
        """Group time is known, and so wrong; a little late."""
        time_ms = self.time_ms()
        right_ms = WALL_EPOCH_MS + int(self.brokers.scheduler.now * 1000)
        assert time_ms is not None
        assert -late_ms <= time_ms - right_ms - wrong_by_ms <= late_ms, (time_ms, right_ms)


def one_clock_jumps() -> None:
    """One clock of three, a day ahead or behind, changes nothing, whoever leads."""
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
            clocks.run(TOLD_S)  # a node that came back knows from then on what time it was


def two_clocks_jump_for_a_moment() -> None:
    """Nothing happens early, though those lead that have jumped.

    1. The clocks of the leader and of a follower jump a day ahead, for 40 s.
    2. The leader hands over to that follower. It knows both clocks from the first look on, and nothing else.
    3. It dies. Whoever leads then knows the other one's clock, and its own again when it is back.

    Seeds seldom have it: a fault sets one clock wrong, for 4.5 s at most, and a day ahead in one case of six. Two of
    three clocks would have to be so at once.
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
    """Of a node that is away nobody knows that its clock has reached anything.

    1. The leader's clock is half a minute ahead, a step that is no jump. 2. One of the two followers dies.

    Seeds seldom have it: the leader's clock must be ahead by more than the 0.3 s that their judge lets pass and by less
    than a minute, as it is after one jump in six, in the seconds for which a follower is not heard.
    """
    clocks = Clocks()
    clocks.set_wrong(30_000, clocks.leader)
    clocks.run(1.0)
    clocks.expect(late_ms=HEARD_LATE_MS)
    clocks.brokers.group.kill(clocks.others[0])
    clocks.run(3.0)
    clocks.expect(late_ms=HEARD_LATE_MS)


def all_clocks_jump_for_good() -> None:
    """Clocks that keep to what they show are believed after a minute, either way.

    Seeds cannot: no fault of theirs sets a clock wrong for longer than 4.5 s.
    """
    clocks = Clocks()
    for by_ms in (DAY_MS, -DAY_MS):
        clocks.set_wrong(by_ms, *clocks.brokers.group.nodes)
        clocks.run(STANDS_S + 5.0)
        clocks.expect(by_ms)


def leader_stands_still_with_answers_unread() -> None:
    """Nobody reckons from clocks as they were before a leader stood still.

    1. Followers answer beats, and their leader stands still before it reads that, for less than it takes to depose it.
    2. It goes on, reads what waited, and is asked for the time at once.

    Seeds hardly meet it: a pause must begin in the millisecond or two for which the answer to a beat is on its way, and
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

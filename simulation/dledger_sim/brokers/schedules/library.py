"""Schedules of our client library for situations that last longer than a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final, Self

from dledger_remoting.codes import RequestCode
from dledger_remoting.resets import AT_END
from dledger_sim.brokers.library.judge import Deliveries
from dledger_sim.brokers.library.members import Habits, Handling, Member, Ordered
from dledger_sim.brokers.library.process import Process, World
from dledger_sim.brokers.schedules.brokers import TOPIC, Brokers
from dledger_sim.brokers.service import BrokerSettings

ORDERED: Final = "ordered"
HANDLING: Final = "handling"
CUT_OFF_S: Final = 75.0
"""Time for which a member is cut off, in seconds.

Its silent lock ends within 60 s; the member stops relying on it after 30 s.
"""
WORK_S: Final = 6.0
"""Maximum duration of the work on a message, in seconds.

A member that is cut off has enough messages to work until it is mended.
"""
MESSAGES: Final = 60
BUSY_S: Final = 15.0
"""Time in seconds that exceeds the attempts of a commit, including work.

It is shorter than a member believes in an unanswered lock.
"""
LOCK_ENDS_S: Final = 75.0


class Story:
    """Group with messages in one queue, and members of a consumer group that come when the schedule says."""

    def __init__(self, group: str, habits: Habits) -> None:
        self.brokers = Brokers(BrokerSettings(retention_ms=1 << 40))
        self._group = group
        self._habits = habits
        groups: dict[str, tuple[str, ...]] = {group: (TOPIC,)}
        truth = self.brokers.workload.truth
        self._world = World(self.brokers.group, truth, Random(3), groups)
        self.deliveries = Deliveries(self._world, frozenset({ORDERED}), Counter())
        truth.seeking.add(group)
        truth.restless.add(group)
        self.connection = self.brokers.connect(self.brokers.leader)
        for _ in range(MESSAGES):
            self.brokers.send(self.connection, TOPIC)

    def member(self, kind: type[Member], name: str) -> Member:
        """Start a member. A single queue belongs to the member whose name comes first."""
        process, topics = Process(self._world, name), self._world.groups[self._group]
        member = kind(process, self._group, topics, self.deliveries, Random(name), self._habits, lambda: False)
        member.start()
        return member

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.brokers.run(seconds)
        self._world.raise_broken()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for tidy in self.brokers.group.on_over:
            tidy()


def member_that_is_cut_off_for_longer_than_its_lock() -> None:
    """Check a member that is cut off while it has messages left: another gets the queue when the lock has ended."""
    with Story(ORDERED, Habits(slow_share=1.0, slow_s=WORK_S, fail_share=0.0)) as story:
        cut_off = story.member(Ordered, "second")
        story.run(WORK_S)
        story.member(Ordered, "first")
        cut_off.process.cut_off(story.brokers.scheduler.now + CUT_OFF_S)
        story.run(CUT_OFF_S + 2 * WORK_S)
        assert story.deliveries.owners == {"first", "second"}, story.deliveries.owners


def lock_of_a_queue_whose_offset_could_not_be_committed() -> None:
    """Check a member that gives up a queue while it cannot commit: the lock ends by itself, and is not renewed."""
    with Story(ORDERED, Habits(slow_share=0.0, usual_s=1.0, fail_share=0.0)) as story:
        story.member(Ordered, "second")
        story.run(WORK_S)
        story.member(Ordered, "first")
        story.brokers.busy_for(BUSY_S)
        story.run(LOCK_ENDS_S)
        assert story.deliveries.owners == {"first", "second"}, story.deliveries.owners


def commit_of_a_released_queue_behind_a_question() -> None:
    """Check that work from before a reset is not committed after a question that returned the reset's offset.

    A group is reset while a member gives up a queue with messages in work. The next member is told, and dies. The first
    member has the queue again and asks for its offset. It must not commit its earlier work any more.
    """
    with Story(HANDLING, Habits(slow_share=0.0, usual_s=0.5, fail_share=0.0)) as story:
        member = story.member(Handling, "second1")
        story.run(4.0)
        other = story.member(Handling, "first")
        while member.reads(TOPIC):
            story.run(0.002)
        reset = {"group": HANDLING, "topic": TOPIC, "isForce": "true", "timestamp": str(AT_END)}
        ext = reset | {"queueId": "0", "offset": "0"}
        story.brokers.ask(story.connection, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)
        story.run(0.3)
        other.kill()
        story.run(8.0)


LIBRARY_SCHEDULES: Final[tuple[Callable[[], None], ...]] = (
    member_that_is_cut_off_for_longer_than_its_lock,
    lock_of_a_queue_whose_offset_could_not_be_committed,
    commit_of_a_released_queue_behind_a_question,
)

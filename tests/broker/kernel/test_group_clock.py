"""The clock of a leader: when group time is told in the log, known to requests, and carried on by the next leader."""

from __future__ import annotations

from dledger.errors import LogFullError
from dledger.statemachine import Leadership
from dledger.types import WallClock
from dledger_broker.kernel.clock import STANDS_S
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.group_clock import HOLD_PERIOD_S, MAX_HELD, TELL_PERIOD_S, GroupClock
from dledger_broker.kernel.group_time import GroupTime
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.kernel.state import BrokerState
from dledger_broker.testing import BrokerInMemory
from dledger_broker.testing.node import NODE_ID
from tests.broker.kernel.applied_commands import apply

HOLD_S = 2.0
DAY_MS = 86_400_000


class Clocked:
    """A broker whose voters' clocks a test sets, and its group clock; `needs` says whether something depends on it."""

    def __init__(self, broker: BrokerInMemory | None = None, *, needs: bool = True) -> None:
        self.broker = broker or BrokerInMemory()
        self.env, self.node = self.broker.env, self.broker.node
        self.broker.machine.learn_kinds(NODE_ID, self.broker.machine.commands.kinds)
        self.env.run_ready()
        self.needs = needs
        self.counters = BrokerCounters()
        self.clock = GroupClock(self.broker.machine, self.env, self.counters, HOLD_S)
        self.clock.needed_by(lambda: self.needs)
        self.broker.machine.jobs.open([self.clock], self.node, self.broker.writer)
        self.env.run_ready()

    @property
    def told_ms(self) -> int | None:
        """Group time as the log has it."""
        return self.broker.machine.state.group_time.now_ms

    def set_wrong(self, *by_ms: int | None) -> None:
        """By how much the voters' clocks are wrong from now on, None: not known; they stand still."""
        self.set_between(*(None if by is None else (by, by) for by in by_ms))

    def set_between(self, *by_ms: tuple[int, int] | None) -> None:
        """The same, where each clock is known to be wrong by something between two numbers."""
        now_ms = self.env.wall_ms()
        self.node.clocks = [None if by is None else WallClock(now_ms + by[0], now_ms + by[1]) for by in by_ms]

    def advance(self, seconds: float, *by_ms: int | None) -> None:
        """Let time pass, with clocks that are wrong."""
        for _ in range(round(seconds * 10)):
            self.env.advance(0.1)
            self.set_wrong(*by_ms)

    def known(self) -> list[int | None]:
        """Ask for the time; what is told stands in the list."""
        told: list[int | None] = []
        self.clock.when_known(told.append)
        return told


def test_it_is_told_every_20_seconds_while_something_depends_on_it() -> None:
    clocked = Clocked(needs=False)
    clocked.env.advance(100.0)
    assert clocked.told_ms is None
    clocked.needs = True
    told = set()
    for _ in range(100):
        clocked.env.advance(1.0)
        told.add(clocked.told_ms)
    assert len(told) == 100 / TELL_PERIOD_S
    assert clocked.told_ms is not None
    assert 0 <= clocked.env.wall_ms() - clocked.told_ms <= TELL_PERIOD_S * 1000
    clocked.needs = False
    clocked.env.advance(100.0)
    assert clocked.told_ms == max(told)  # type: ignore[type-var]


def test_leaders_that_live_for_a_few_seconds_each_tell_it_as_often_as_one_that_lives_long() -> None:
    """Each has just started, and applied just then what was told long ago."""
    clocked = Clocked()
    clocked.advance(2.0, 0)
    for number in range(1, 21):
        broker = clocked.broker.restart()
        broker.node.clocks = [None]
        clocked = Clocked(broker)
        clocked.advance(2.0, number * 6_000)
    assert clocked.clock.now_ms() == clocked.env.wall_ms() + 120_000


def test_it_is_told_before_the_first_thing_that_depends_on_it() -> None:
    """Five minutes after it was told last: a leader that has just started dies before it looks what depends on it."""
    clocked = Clocked()
    clocked.advance(2.0, 0)
    for needs in (False, True):
        broker = clocked.broker.restart()
        broker.node.clocks = [None]
        clocked = Clocked(broker, needs=needs)
        clocked.set_wrong(300_000)
        assert clocked.clock.now_ms() == clocked.env.wall_ms() + 300_000
        clocked.clock.reckoned_from_ms()
        clocked.env.run_ready()


def test_it_is_told_only_to_members_that_understand_it() -> None:
    clocked = Clocked(needs=False)
    clocked.broker.machine.learn_kinds(NODE_ID, (16, 17))
    clocked.env.run_ready()
    clocked.needs = True
    clocked.env.advance(TELL_PERIOD_S * 2)
    assert clocked.told_ms is None


def test_a_leader_whose_log_refuses_tells_it_as_soon_as_it_may() -> None:
    clocked = Clocked()
    clocked.env.advance(1.0)
    before = clocked.told_ms
    clocked.node.stage_error = LogFullError("the disk is full")
    clocked.env.advance(TELL_PERIOD_S * 2)
    assert clocked.told_ms == before
    clocked.node.stage_error = None
    clocked.env.advance(1.0)
    assert clocked.told_ms == clocked.env.wall_ms()


def test_it_is_not_known_without_a_majority_of_clocks() -> None:
    clocked = Clocked()
    clocked.set_wrong(0, None, None)
    assert clocked.clock.now_ms() is None
    clocked.set_wrong(9, 7, None)
    assert clocked.clock.now_ms() == clocked.env.wall_ms() + 7
    clocked.node.step_down()
    assert clocked.clock.now_ms() is None


def test_who_asks_while_it_is_not_known_is_told_as_soon_as_it_is() -> None:
    clocked = Clocked()
    clocked.set_wrong(0, None, None)
    told = clocked.known()
    clocked.env.advance(HOLD_S / 2)
    assert told == []
    clocked.set_wrong(0, 0, None)
    now_ms = clocked.env.wall_ms()
    clocked.env.advance(HOLD_PERIOD_S)
    assert told == [now_ms]
    assert clocked.known() == [now_ms]


def test_who_asks_is_told_that_it_does_not_become_known() -> None:
    clocked = Clocked()
    clocked.set_wrong(0, None, None)
    first = clocked.known()
    clocked.env.advance(HOLD_S / 2)
    second = clocked.known()
    clocked.env.advance(HOLD_S / 2 + HOLD_PERIOD_S)
    assert (first, second) == ([None], [])
    clocked.node.step_down()
    assert second == [None]
    assert clocked.known() == [None]


def test_no_more_than_so_many_wait_and_those_that_may_not_are_counted() -> None:
    clocked = Clocked()
    clocked.set_wrong(0, None, None)
    waiting = [clocked.known() for _ in range(MAX_HELD)]
    assert clocked.counters.group_time_waits_refused == 0
    assert [clocked.known() for _ in range(2)] == [[None], [None]]
    assert clocked.counters.group_time_waits_refused == 2
    clocked.clock.release()
    assert all(told == [None] for told in waiting)


def test_the_next_leader_carries_on_what_was_told_and_does_not_believe_clocks_that_have_jumped() -> None:
    clocked = Clocked()
    clocked.advance(TELL_PERIOD_S * 1.5, 0, 0, 0)
    clocked.advance(1.0, DAY_MS, DAY_MS, 0)
    clocked.node.step_down()
    clocked.node.lead()
    clocked.advance(STANDS_S - 1, DAY_MS, DAY_MS, 0)
    now_ms = clocked.clock.now_ms()
    assert now_ms is not None
    assert abs(now_ms - clocked.env.wall_ms()) < 1000
    clocked.advance(2.0, DAY_MS, DAY_MS, 0)
    now_ms = clocked.clock.now_ms()
    assert now_ms is not None
    assert now_ms >= clocked.env.wall_ms() + DAY_MS - 1000


def test_what_is_due_in_so_many_seconds_is_reckoned_from_clocks_that_are_not_believed_yet() -> None:
    """All nodes were down for a day: what is asked for in an hour happens in an hour."""
    clocked = Clocked()
    clocked.advance(TELL_PERIOD_S, 0, 0, 0)
    clocked.node.step_down()
    clocked.node.lead()
    clocked.set_wrong(DAY_MS, DAY_MS, DAY_MS)
    assert clocked.known() == [clocked.env.wall_ms() + DAY_MS]
    now_ms = clocked.clock.now_ms()
    assert now_ms is not None
    assert now_ms < clocked.env.wall_ms() + 1000


def test_what_is_due_counts_clocks_at_least_and_what_is_to_be_due_at_most() -> None:
    """A second that is reckoned from where a clock stands at least would be over early, by as much as it is ahead."""
    clocked = Clocked()
    clocked.set_between((300, 800), (500, 1300), (400, 600))
    assert clocked.clock.now_ms() == clocked.env.wall_ms() + 400
    assert clocked.clock.reckoned_from_ms() == clocked.env.wall_ms() + 800
    clocked.set_between((900, 900), (700, 1700), None)
    assert clocked.clock.now_ms() == clocked.env.wall_ms() + 700
    assert clocked.clock.reckoned_from_ms() == clocked.env.wall_ms() + 900


def test_a_leader_believes_at_once_what_it_sees_while_nothing_depends_on_it() -> None:
    clocked = Clocked()
    clocked.advance(TELL_PERIOD_S, 0, 0, 0)
    clocked.node.step_down()
    clocked.needs = False
    clocked.set_wrong(DAY_MS, DAY_MS, 0)
    clocked.node.lead()
    assert clocked.clock.now_ms() == clocked.env.wall_ms() + DAY_MS


def test_a_handover_that_fails_changes_no_belief() -> None:
    clocked = Clocked(needs=False)
    clocked.advance(5.0, 0, 0, 0)
    machine, node = clocked.broker.machine, clocked.node
    machine.on_leadership(Leadership(node.term, NODE_ID, is_leader=True, ready=False))
    assert clocked.clock.now_ms() is None
    machine.on_leadership(Leadership(node.term, NODE_ID, is_leader=True, ready=True))
    clocked.set_wrong(DAY_MS, DAY_MS, 0)
    now_ms = clocked.clock.now_ms()
    assert now_ms is not None
    assert now_ms < clocked.env.wall_ms() + 1000


def test_what_was_told_is_in_the_digest_and_in_snapshots() -> None:
    broker = BrokerInMemory()
    state, empty = BrokerState(()), BrokerState(())
    apply(state, GroupTime(7), registry=broker.machine.commands)
    apply(state, GroupTime(5), registry=broker.machine.commands)
    assert state.digest() != empty.digest()
    restored = decode_state(encode_state(state, 0.0), 3.0, ())
    assert restored.digest() == state.digest()
    assert restored.group_time.carried == (5, 3.0)
    assert b"group-time" not in b"".join(encode_state(empty, 0.0))

"""Clock of a leader: when it tells group time in the log, when requests know it, and how the next leader goes on."""

from __future__ import annotations

import pytest

from dledger.errors import LogFullError
from dledger.statemachine import Leadership
from dledger.types import WallClock
from dledger_broker.kernel.clock import JUMP_BELIEVED_S
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.group_clock import HOLD_PERIOD_S, MAX_HELD, PROPOSE_PERIOD_S, GroupClock
from dledger_broker.kernel.group_time import GroupTime
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.kernel.state import BrokerState
from dledger_broker.testing import BrokerInMemory
from dledger_broker.testing.node import NODE_ID
from tests.broker.kernel.applied_commands import apply

HOLD_S = 2.0
DAY_MS = 86_400_000


class Clocked:
    """Broker whose voters' clocks a test sets, and its group clock. `needs` says whether something depends on it."""

    def __init__(self, broker: BrokerInMemory | None = None, *, needs: bool = True) -> None:
        self.broker = broker or BrokerInMemory()
        self.env, self.node = self.broker.env, self.broker.node
        self.broker.machine.learn_kinds(NODE_ID, self.broker.machine.commands.kinds)
        self.env.run_ready()
        self.needs = needs
        self.counters = BrokerCounters()
        self.clock = GroupClock(self.broker.machine, self.env, self.counters, HOLD_S)
        self.broker.machine.events.add(self.clock)
        self.clock.add_dependent(lambda: self.needs)
        self.broker.machine.jobs.open([self.clock], self.node, self.broker.writer)
        self.env.run_ready()

    @property
    def told_ms(self) -> int | None:
        """Group time as the log has it."""
        return self.broker.machine.state.group_time.now_ms

    def set_wrong(self, *by_ms: int | None) -> None:
        """Set the voters' clocks, which then stand still, by their errors. None: the clock is not known."""
        self.set_between(*(None if by is None else (by, by) for by in by_ms))

    def set_between(self, *by_ms: tuple[int, int] | None) -> None:
        """Set the voters' clocks, each known only to be wrong by something between two numbers."""
        now_ms = self.env.wall_ms()
        self.node.clocks = [None if by is None else WallClock(now_ms + by[0], now_ms + by[1]) for by in by_ms]

    def advance(self, seconds: float, *by_ms: int | None) -> None:
        """Let time pass, with clocks that have these errors."""
        for _ in range(round(seconds * 10)):
            self.env.advance(0.1)
            self.set_wrong(*by_ms)

    def known(self) -> list[int | None]:
        """Ask for group time, and return the list that receives it."""
        told: list[int | None] = []
        self.clock.call_when_known(told.append)
        return told

    def ahead_ms(self) -> int:
        """Return by how much group time is ahead of the right time."""
        now_ms = self.clock.now_ms()
        assert now_ms is not None
        return now_ms - self.env.wall_ms()


@pytest.fixture
def clocked() -> Clocked:
    return Clocked()


def test_group_time_is_recorded_every_20_seconds_while_needed() -> None:
    clocked = Clocked(needs=False)
    clocked.env.advance(100.0)
    assert clocked.told_ms is None
    clocked.needs = True
    told = set()
    for _ in range(100):
        clocked.env.advance(1.0)
        told.add(clocked.told_ms)
    assert len(told) == 100 / PROPOSE_PERIOD_S
    assert clocked.told_ms is not None
    assert 0 <= clocked.env.wall_ms() - clocked.told_ms <= PROPOSE_PERIOD_S * 1000
    clocked.needs = False
    clocked.env.advance(100.0)
    assert clocked.told_ms == max(told)  # type: ignore[type-var]


def test_short_lived_leaders_record_group_time_as_often_as_a_long_lived_leader(clocked: Clocked) -> None:
    """Each leader has just started, and has just applied the time that was told long ago."""
    clocked.advance(2.0, 0)
    for number in range(1, 21):
        broker = clocked.broker.restart()
        broker.node.clocks = [None]
        clocked = Clocked(broker)
        clocked.advance(2.0, number * 6_000)
    assert clocked.clock.now_ms() == clocked.env.wall_ms() + 120_000


def test_group_time_is_recorded_before_its_first_use(clocked: Clocked) -> None:
    """Five minutes have passed since it was told last. A leader that waited for its regular look could die before."""
    clocked.advance(2.0, 0)
    for needs in (False, True):
        broker = clocked.broker.restart()
        broker.node.clocks = [None]
        clocked = Clocked(broker, needs=needs)
        clocked.set_wrong(300_000)
        assert clocked.clock.now_ms() == clocked.env.wall_ms() + 300_000
        clocked.clock.delay_base_ms()
        clocked.env.run_ready()


def test_group_time_is_recorded_only_if_all_members_understand_the_command() -> None:
    clocked = Clocked(needs=False)
    clocked.broker.machine.learn_kinds(NODE_ID, (16, 17))
    clocked.env.run_ready()
    clocked.needs = True
    clocked.env.advance(PROPOSE_PERIOD_S * 2)
    assert clocked.told_ms is None


def test_group_time_that_a_full_log_refused_is_recorded_once_there_is_room(clocked: Clocked) -> None:
    clocked.env.advance(1.0)
    before = clocked.told_ms
    clocked.node.stage_error = LogFullError("the disk is full")
    clocked.env.advance(PROPOSE_PERIOD_S * 2)
    assert clocked.told_ms == before
    clocked.node.stage_error = None
    clocked.env.advance(1.0)
    assert clocked.told_ms == clocked.env.wall_ms()


def test_group_time_is_unknown_without_a_majority_of_clocks(clocked: Clocked) -> None:
    clocked.set_wrong(0, None, None)
    assert clocked.clock.now_ms() is None
    clocked.set_wrong(9, 7, None)
    assert clocked.clock.now_ms() == clocked.env.wall_ms() + 7
    clocked.node.step_down()
    assert clocked.clock.now_ms() is None


def test_a_waiting_caller_gets_group_time_as_soon_as_a_majority_of_clocks_is_known(clocked: Clocked) -> None:
    clocked.set_wrong(0, None, None)
    told = clocked.known()
    clocked.env.advance(HOLD_S / 2)
    assert told == []
    clocked.set_wrong(0, 0, None)
    now_ms = clocked.env.wall_ms()
    clocked.env.advance(HOLD_PERIOD_S)
    assert told == [now_ms]
    assert clocked.known() == [now_ms]


def test_a_waiting_caller_is_answered_when_group_time_stays_unknown(clocked: Clocked) -> None:
    clocked.set_wrong(0, None, None)
    first = clocked.known()
    clocked.env.advance(HOLD_S / 2)
    second, *others = [clocked.known() for _ in range(MAX_HELD - 1)]
    assert clocked.counters.group_time_waits_refused == 0
    assert [clocked.known() for _ in range(2)] == [[None], [None]], "there are too many"
    assert clocked.counters.group_time_waits_refused == 2
    clocked.env.advance(HOLD_S / 2 + HOLD_PERIOD_S)
    assert (first, second) == ([None], [])
    clocked.node.step_down()
    assert second == [None]
    assert all(told == [None] for told in others)
    assert clocked.known() == [None]


def test_the_next_leader_carries_on_group_time_and_distrusts_clocks_that_jumped(clocked: Clocked) -> None:
    clocked.advance(PROPOSE_PERIOD_S * 1.5, 0, 0, 0)
    clocked.advance(1.0, DAY_MS, DAY_MS, 0)
    clocked.node.step_down()
    clocked.node.lead()
    clocked.advance(JUMP_BELIEVED_S - 1, DAY_MS, DAY_MS, 0)
    assert abs(clocked.ahead_ms()) < 1000
    clocked.advance(2.0, DAY_MS, DAY_MS, 0)
    assert clocked.ahead_ms() >= DAY_MS - 1000


def test_delays_count_from_clocks_that_are_not_yet_believed(clocked: Clocked) -> None:
    """After all nodes were down for a day, a message that is asked for in an hour comes in an hour."""
    clocked.advance(PROPOSE_PERIOD_S, 0, 0, 0)
    clocked.node.step_down()
    clocked.node.lead()
    clocked.set_wrong(DAY_MS, DAY_MS, DAY_MS)
    assert clocked.known() == [clocked.env.wall_ms() + DAY_MS]
    assert clocked.ahead_ms() < 1000


def test_group_time_uses_the_earliest_and_delays_the_latest_clock(clocked: Clocked) -> None:
    """A delay that counts from the earliest time would end early, by as much as the clock is ahead of it."""
    for between, earliest, latest in (
        (((300, 800), (500, 1300), (400, 600)), 400, 800),
        (((900, 900), (700, 1700), None), 700, 900),
    ):
        clocked.set_between(*between)
        assert clocked.ahead_ms() == earliest
        assert clocked.clock.delay_base_ms() == clocked.env.wall_ms() + latest


def test_a_leader_believes_clocks_at_once_while_nothing_depends_on_group_time(clocked: Clocked) -> None:
    clocked.advance(PROPOSE_PERIOD_S, 0, 0, 0)
    clocked.node.step_down()
    clocked.needs = False
    clocked.set_wrong(DAY_MS, DAY_MS, 0)
    clocked.node.lead()
    assert clocked.ahead_ms() == DAY_MS


def test_a_handover_that_fails_changes_no_belief() -> None:
    clocked = Clocked(needs=False)
    clocked.advance(5.0, 0, 0, 0)
    for ready in (False, True):
        leading = Leadership(clocked.node.term, NODE_ID, is_leader=True, ready=ready)
        clocked.broker.machine.on_leadership(leading)
        assert (clocked.clock.now_ms() is None) is not ready
    clocked.set_wrong(DAY_MS, DAY_MS, 0)
    assert clocked.ahead_ms() < 1000


def test_group_time_is_in_digest_and_snapshot() -> None:
    broker = BrokerInMemory()
    state, empty = BrokerState(()), BrokerState(())
    apply(state, GroupTime(7), registry=broker.machine.commands)
    apply(state, GroupTime(5), registry=broker.machine.commands)
    assert state.digest() != empty.digest()
    restored = decode_state(encode_state(state, 0.0), 3.0, ())
    assert restored.digest() == state.digest()
    assert restored.group_time.carried == (5, 3.0)
    assert b"group-time" not in b"".join(encode_state(empty, 0.0))

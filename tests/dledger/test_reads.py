"""A read waits for a heartbeat round that began after it, and for all entries that were committed by then."""

from collections.abc import Callable
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from dledger.consensus.effects import ReadsReady
from dledger.consensus.engine import RaftSettings
from dledger.core.log_table import LogTable
from dledger.core.messages import AppendReply, HeartbeatReply, VoteReply
from dledger.core.raft import Raft
from dledger.errors import NotLeaderError
from dledger.replica.applying.reads import ReadWaiters
from dledger.types import EntryKind, EntryMeta, HardState, Membership, ReplicaId
from tests.dledger.fake_driver import FakeDriver


class Turns:
    """Environment whose clock does not advance. `turn` ends a turn of the event loop."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []

    def now(self) -> float:
        return 0.0

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def turn(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


class Leading(FakeDriver):
    """Engine, standing and driver of a leader. `begin` returns the number of each round, or None if none can begin."""

    is_leader, leader, term, transfer_to, is_stopped = True, None, 3, None, False

    def __init__(self, begin: Callable[[], int | None]) -> None:
        super().__init__()
        self._begin = begin

    def read_index(self, _now: float) -> int | None:
        return self._begin()


def waiters_of(turns: "Turns", leading: Leading) -> ReadWaiters:
    return ReadWaiters(turns, leading, leading, leading)  # type: ignore[arg-type]


@pytest.fixture
def turns() -> Turns:
    return Turns()


@pytest.fixture
def answers() -> list[Exception | None]:
    return []


def test_reads_of_one_turn_share_a_round(turns: Turns, answers):
    rounds: list[int] = []

    def begin() -> int:
        rounds.append(len(rounds) + 1)
        return rounds[-1]

    waiters = waiters_of(turns, Leading(begin))
    waiters.add(answers.append)
    waiters.add(answers.append)
    assert rounds == []
    turns.turn()
    assert rounds == [1]
    waiters.add(answers.append)
    turns.turn()
    assert rounds == [1, 2], "a read that came later needs a later round"
    waiters.confirmed(1, 10)
    waiters.applied(9)
    assert answers == []
    waiters.applied(10)
    assert answers == [None, None]
    waiters.confirmed(2, 10)
    waiters.applied(10)
    assert answers == [None] * 3


def test_a_round_that_cannot_begin_fails_its_reads(turns: Turns, answers):
    waiters = waiters_of(turns, Leading(lambda: None))
    waiters.add(answers.append)
    waiters.add(answers.append)
    assert answers == []
    turns.turn()
    assert [type(answer) for answer in answers] == [NotLeaderError] * 2


@pytest.mark.parametrize("attribute", [{"is_leader": False}, {"is_stopped": True}])
def test_a_follower_or_stopped_node_begins_no_read_round(turns: Turns, answers, attribute: dict[str, bool]):
    leading = Leading(lambda: pytest.fail("a round begins"))
    vars(leading).update(attribute)
    waiters_of(turns, leading).add(answers.append)
    assert [type(answer) for answer in answers] == [NotLeaderError]
    turns.turn()
    assert len(answers) == 1


def test_unconfirmed_reads_fail_in_every_stage_and_are_answered_once(turns: Turns, answers):
    rounds = iter(range(1, 10))
    waiters = waiters_of(turns, Leading(lambda: next(rounds)))
    waiters.add(answers.append)
    turns.turn()
    waiters.confirmed(1, 10)
    waiters.add(answers.append)
    turns.turn()  # in a round that is not confirmed
    waiters.add(answers.append)  # a read whose round has not begun
    error = NotLeaderError(None, 3)
    waiters.fail(error)
    assert answers == [error] * 3
    turns.turn()
    assert answers == [error] * 3, "each is answered once"


def test_a_group_of_a_single_voter_confirms_a_read_at_once(turns: Turns, answers):

    class Alone(Leading):
        def pump(self) -> None:
            waiters.confirmed(1, 5)
            waiters.applied(5)

    waiters = waiters_of(turns, Alone(lambda: 1))
    waiters.add(answers.append)
    turns.turn()
    assert answers == [None]


def test_a_read_is_not_answered_by_an_earlier_confirmed_round(turns: Turns, answers):
    """One of two needed voters has answered a round. Then a voter is removed, and another round begins."""
    me, b, c, _ = voters = [ReplicaId(name, name) for name in "abcd"]
    core = lone_leader(voters)
    first = core.read_index(0.0)
    assert first is not None
    core.step(b, HeartbeatReply(core.term, first, core.commit_index), 0.0)
    without_d = EntryMeta(2, core.term, 200, 100, EntryKind.MEMBERSHIP, membership=Membership((me, b, c)))
    core.propose((without_d,), b"", 0.0)
    core.take()

    class Driver(FakeDriver):
        def pump(self) -> None:
            for effect in core.take().effects:
                if isinstance(effect, ReadsReady):
                    waiters.confirmed(effect.round, effect.index)
            waiters.applied(10)

    driver = Driver()
    waiters = ReadWaiters(turns, SimpleNamespace(is_stopped=False), core, driver)  # type: ignore[arg-type]
    waiters.add(answers.append)
    turns.turn()
    assert answers == []
    core.step(c, HeartbeatReply(core.term, first + 1, core.commit_index), 0.0)
    driver.pump()
    assert answers == [None]


def lone_leader(voters: list[ReplicaId]) -> Raft:
    """Return a core that leads the voters and has committed its own first entry."""
    me = voters[0]
    table = LogTable(0, 1, (), 0, Membership(tuple(voters)), 0)
    settings = RaftSettings()
    core = Raft(
        me, table, HardState(1, None), durable_index=0, commit_index=0, settings=settings, random=Random(1), now=0.0
    )
    core._campaign(0.0, pre=False)
    core.hard_state_saved(HardState(2, me), 0.0)
    for voter in voters[1:]:
        core.step(voter, VoteReply(2, granted=True), 0.0)
    core.propose((EntryMeta(1, 2, 100, 100, EntryKind.NO_OP),), b"", 0.0)
    core.synced(0, 1, 0.0)
    for voter in voters[1:]:
        core.step(voter, AppendReply(2, 1, 1), 0.0)
    assert core.own_term_committed
    core.take()
    return core


class Histories(RuleBasedStateMachine):
    """Random histories: no read is answered early, twice, or never."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = Turns()
        self.rounds = 0
        self.commit = 0
        self.applied_index = 0
        self.confirmed_round = 0
        self.required: dict[int, int] = {}
        self.round_of: dict[int, int] = {}
        self.asked: list[int] = []
        self.round_commit: dict[int, int] = {}
        self.answered: dict[int, Exception | None] = {}
        self.reads = 0
        self.waiters = waiters_of(self.turns, Leading(self.begin))

    def begin(self) -> int:
        self.rounds += 1
        self.round_commit[self.rounds] = self.commit
        for read in self.asked:
            self.round_of[read] = self.rounds
        self.asked = []
        return self.rounds

    @rule()
    def read(self) -> None:
        number = self.reads
        self.reads += 1
        self.required[number] = self.commit
        self.asked.append(number)

        def answer(error: Exception | None) -> None:
            assert number not in self.answered
            self.answered[number] = error
            if error is None:
                assert self.applied_index >= self.required[number]
                assert self.confirmed_round >= self.round_of[number]

        self.waiters.add(answer)

    @rule()
    def turn(self) -> None:
        self.turns.turn()

    @rule(more=st.integers(1, 3))
    def commit_more(self, more: int) -> None:
        self.commit += more

    @precondition(lambda self: self.confirmed_round < self.rounds)
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        self.confirmed_round = data.draw(st.integers(self.confirmed_round + 1, self.rounds))
        self.waiters.confirmed(self.confirmed_round, self.round_commit[self.confirmed_round])
        self.waiters.applied(self.applied_index)

    @precondition(lambda self: self.applied_index < self.commit)
    @rule(data=st.data())
    def apply(self, data: st.DataObject) -> None:
        self.applied_index = data.draw(st.integers(self.applied_index + 1, self.commit))
        self.waiters.applied(self.applied_index)

    @rule()
    def lose_leadership(self) -> None:
        waiting = set(self.round_of) - set(self.answered)
        self.waiters.fail(NotLeaderError(None, 1))
        assert all(isinstance(self.answered[read], NotLeaderError) for read in waiting)

    def teardown(self) -> None:
        self.turns.turn()
        if self.rounds:
            self.confirmed_round = self.rounds
            self.waiters.confirmed(self.rounds, self.round_commit[self.rounds])
            self.applied_index = self.commit
            self.waiters.applied(self.commit)
        assert set(self.answered) == set(range(self.reads))


TestHistories = Histories.TestCase

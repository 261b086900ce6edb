"""A read waits for a round of heartbeats that began after it, and for what was committed then."""

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from dledger.errors import NotLeaderError
from dledger.replica.reads import ReadWaiters


class Turns:
    """An environment of which only `call_soon` is used; `turn` ends a turn of the event loop."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def turn(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


@pytest.fixture
def turns() -> Turns:
    return Turns()


def test_reads_of_one_turn_share_a_round(turns: Turns):
    rounds: list[int] = []
    answers: list[Exception | None] = []

    def begin() -> int:
        rounds.append(len(rounds) + 1)
        return rounds[-1]

    waiters = ReadWaiters(turns, begin)  # type: ignore[arg-type]
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


def test_a_round_that_cannot_begin_fails_its_reads(turns: Turns):
    error = NotLeaderError(None, 3)
    answers: list[Exception | None] = []
    waiters = ReadWaiters(turns, lambda: error)  # type: ignore[arg-type]
    waiters.add(answers.append)
    turns.turn()
    assert answers == [error]


def test_a_group_of_one_confirms_before_the_round_has_a_number(turns: Turns):
    answers: list[Exception | None] = []

    def begin() -> int:
        waiters.confirmed(1, 5)
        waiters.applied(5)
        return 1

    waiters = ReadWaiters(turns, begin)  # type: ignore[arg-type]
    waiters.add(answers.append)
    turns.turn()
    assert answers == [None]


class Histories(RuleBasedStateMachine):
    """No read is answered early, twice, or never."""

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
        self.waiters = ReadWaiters(self.turns, self.begin)  # type: ignore[arg-type]

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

"""The core's table of the log equals the log after any appends, truncations, trims and resets."""

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dledger.core.log_table import LogTable
from dledger.types import EntryKind, EntryMeta, Membership, ReplicaId
from dledger_base.invariants import InvariantError

WINDOW = 8
INITIAL = Membership((ReplicaId("a", "1"),))


def members(*names: str) -> Membership:
    return Membership(tuple(ReplicaId(name, "1") for name in names))


def entry(index: int, term: int, position: int, size: int = 100, membership: Membership | None = None) -> EntryMeta:
    kind = EntryKind.GROUP if membership is None else EntryKind.MEMBERSHIP
    return EntryMeta(index, term, position, size, kind, membership=membership)


@dataclass
class Model:
    """Model that keeps all entries."""

    base_index: int = -1
    base_term: int = 0
    base_membership: tuple[int, Membership] = (-1, INITIAL)
    metas: list[EntryMeta] = field(default_factory=list)

    @property
    def last_index(self) -> int:
        return self.base_index + len(self.metas)

    def term_at(self, index: int) -> int | None:
        if index == self.base_index:
            return self.base_term
        at = index - self.base_index - 1
        return self.metas[at].term if 0 <= at < len(self.metas) else None

    def membership_at(self, index: int) -> tuple[int, Membership]:
        found = self.base_membership
        for meta in self.metas:
            if meta.index <= index and meta.membership is not None:
                found = (meta.index, meta.membership)
        return found


class Tables(RuleBasedStateMachine):
    """Random histories of one table beside the model."""

    def __init__(self) -> None:
        super().__init__()
        self.table = LogTable(base_membership=INITIAL, window=WINDOW)
        self.model = Model()
        self.committed = -1
        self.end = 0

    @rule(
        count=st.integers(1, 6),
        newer=st.integers(0, 2),
        gap=st.booleans(),
        changes=st.none() | st.sampled_from([members("a", "b"), members("c")]),
    )
    def append(self, count: int, newer: int, gap: bool, changes: Membership | None) -> None:
        term = max(1, self.table.last_term + newer)
        self.end += 1000 if gap else 0
        metas = []
        for number in range(count):
            metas.append(
                entry(self.model.last_index + 1 + number, term, self.end, membership=None if number else changes)
            )
            self.end = metas[-1].end
        self.table.append(metas, self.committed)
        self.model.metas += metas

    @precondition(lambda self: self.model.last_index > self.committed)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self.committed = data.draw(st.integers(self.committed + 1, self.model.last_index))

    @precondition(lambda self: self.model.last_index > self.committed)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(self.committed + 1, self.model.last_index))
        self.table.truncate(first)
        del self.model.metas[first - self.model.base_index - 1 :]
        self.end = self.model.metas[-1].end if self.model.metas else self.end

    @precondition(lambda self: self.committed > self.model.base_index)
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        base = data.draw(st.integers(self.model.base_index + 1, self.committed))
        term = self.model.term_at(base)
        assert term is not None
        self.table.trim(base, term)
        model = self.model
        model.base_membership = model.membership_at(base)
        del model.metas[: base - model.base_index]
        model.base_index, model.base_term = base, term

    @rule(ahead=st.integers(1, 5), term=st.integers(0, 3))
    def reset(self, ahead: int, term: int) -> None:
        base, term = self.model.last_index + ahead, self.table.last_term + term
        self.table.reset(base, term, members("z"), base - 1)
        self.model = Model(base, term, (base - 1, members("z")))
        self.committed = base

    @invariant()
    def ends_and_terms_agree(self) -> None:
        table, model = self.table, self.model
        assert (table.base_index, table.first_index) == (model.base_index, model.base_index + 1)
        assert table.last_index == model.last_index
        assert table.last_term == model.term_at(model.last_index)
        for index in range(model.base_index - 1, model.last_index + 2):
            assert table.term_at(index) == model.term_at(index)

    @invariant()
    def memberships_agree(self) -> None:
        model = self.model
        assert (self.table.membership_index, self.table.membership) == model.membership_at(model.last_index)
        for index in range(model.base_index, model.last_index + 1):
            assert self.table.membership_at(index) == model.membership_at(index)

    @invariant()
    def the_conflict_search_agrees(self) -> None:
        model = self.model
        for index in range(model.base_index, model.last_index + 3):
            for term in range(model.base_term, self.table.last_term + 2):
                candidates = [
                    at
                    for at in range(model.base_index, min(index, model.last_index) + 1)
                    if (model.term_at(at) or 0) <= term
                ]
                expected = max(candidates, default=model.base_index)
                assert self.table.last_at_or_below_term(index, term) == expected

    @invariant()
    def the_window_holds_what_is_not_committed(self) -> None:
        table, model = self.table, self.model
        assert table.window_first <= max(self.committed + 1, model.base_index + 1) or not model.metas
        if table.window_first <= model.last_index:
            run_is_contiguous_and_bounded(table, model, table.window_first)


def run_is_contiguous_and_bounded(table: LogTable, model: Model, first: int) -> None:
    for limit in (1, 250, 10_000):
        count, size = table.run_from(first, limit)
        run = model.metas[first - model.base_index - 1 :][:count]
        assert count >= 1
        assert size == sum(meta.size for meta in run)
        assert count == 1 or size <= limit
        assert all(later.position == earlier.end for earlier, later in pairwise(run))
        following = model.metas[first - model.base_index - 1 + count :][:1]
        assert all(size + meta.size > limit or meta.position != run[-1].end for meta in following)


TestTables = Tables.TestCase


def test_a_gap_is_a_programming_error():
    table = LogTable()
    with pytest.raises(InvariantError):
        table.append([entry(1, 1, 0)], -1)
    table.append([entry(0, 2, 0)], -1)
    with pytest.raises(InvariantError):
        table.append([entry(1, 1, 100)], -1)
    with pytest.raises(InvariantError):
        table.truncate(-1)


def test_a_recovered_log_is_known_by_its_runs():
    change = entry(6, 2, 600, membership=members("a", "b"))
    table = LogTable(3, 1, [(4, 1), (6, 2), (9, 5)], 10, INITIAL, 2, [change])
    assert [table.term_at(index) for index in range(2, 12)] == [None, 1, 1, 1, 2, 2, 2, 5, 5, None]
    assert (table.membership_index, table.membership) == (6, members("a", "b"))
    assert table.membership_at(5) == (2, INITIAL)
    assert table.window_first == 11, "sizes of recovered entries are not known"


@pytest.mark.parametrize(
    ("guessed", "first", "behind", "found"),
    [
        ([(0, 1), (3, 5)], 3, 10, [(3, 1), (4, 2), (7, 3), (8, 5)]),
        ([(0, 1), (8, 5)], 3, 8, [(3, 1), (4, 2), (7, 3)]),
        ([(0, 1), (3, 2), (7, 3), (8, 5)], 3, 6, [(3, 1), (4, 2)]),
        ([(0, 5)], 0, 20, [(0, 1), (4, 2), (7, 3), (8, 5)]),
        ([(0, 1), (4, 2), (7, 3), (8, 5)], 12, 14, [(12, 6)]),
    ],
)
def test_terms_that_were_guessed_are_learned_with_the_bytes(guessed, first, behind, found):
    """For a range that does not verify, recovery knows the terms at both ends only."""
    table = LogTable(-1, 0, guessed, 9, INITIAL)
    table.learn(first, behind, [], found)
    assert [table.term_at(index) for index in range(10)] == [1, 1, 1, 1, 2, 2, 2, 3, 5, 5]
    table.trim(4, 2)
    table.learn(first, behind, [], found)
    assert [table.term_at(index) for index in range(4, 10)] == [2, 2, 2, 3, 5, 5]
    table.append([entry(10, 5, 1000), entry(11, 6, 1100)], 9)
    assert [table.term_at(index) for index in range(9, 12)] == [5, 5, 6]


def test_a_membership_that_could_not_be_read_is_learned_later():
    table = LogTable(-1, 0, [(0, 1)], 9, INITIAL, -1, [entry(8, 1, 800, membership=members("a", "b"))])
    table.learn(4, 6, [entry(4, 1, 400, membership=members("c")), entry(5, 1, 500)], [(4, 1)])
    assert table.membership_at(7) == (4, members("c"))
    assert table.membership == members("a", "b")
    table.learn(20, 21, [entry(20, 1, 2000, membership=members("d"))], [(20, 1)])
    assert table.membership == members("a", "b"), "an entry beyond the end was truncated meanwhile"


def test_a_membership_is_known_once_all_that_may_hold_another_was_read_or_truncated():
    table = LogTable(-1, 0, [(0, 1)], 19, INITIAL, unread=[(2, 8), (12, 15)])
    for first, behind in ((4, 6), (1, 4), (6, 9)):
        assert not table.membership_is_known
        table.learn(first, behind, [], [(first, 1)])
    assert not table.membership_is_known
    table.truncate(13)
    assert not table.membership_is_known
    table.truncate(12)
    assert table.membership_is_known

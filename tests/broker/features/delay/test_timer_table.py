"""Counters of due messages: every row counts once, by the place of its record, and a snapshot restores the counters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.errors import CorruptionError
from dledger_broker.features import FEATURES
from dledger_broker.features.delay.commands import AddTimers, CancelTimers, EndTimers, FireTimers, MoveTimers, TimerRows
from dledger_broker.features.delay.table import NOTHING, STRETCH_BYTES, TIMERS, Pending, TimerTable
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.kernel.state import BrokerState
from tests.broker.kernel.applied_commands import apply

Row = tuple[int, int, int]
DUE = 1_700_000_000_000
REMOVALS: tuple[type[TimerRows], ...] = (FireTimers, CancelTimers, MoveTimers)


def state_with(*commands: Command) -> BrokerState:
    state = BrokerState(FEATURES)
    apply(state, *commands)
    return state


def restarted(state: BrokerState) -> BrokerState:
    """Return the state that a snapshot holds, and check its digest."""
    restored = decode_state([b"".join(encode_state(state, 0.0))], 0.0, FEATURES)
    assert restored.digest() == state.digest()
    return restored


def table_with(*commands: Command) -> TimerTable:
    return state_with(*commands).table(TIMERS)


def test_a_row_counts_in_the_stretch_of_its_record_and_not_without_a_written_record() -> None:
    rows = [(DUE, 10, 300), (DUE, STRETCH_BYTES - 1, 50), (DUE, STRETCH_BYTES, 400), (DUE, 0, 0)]
    table = table_with(AddTimers.of(rows))
    assert table.stretches() == {0: Pending(2, 350), STRETCH_BYTES: Pending(1, 400)}
    assert table.total == Pending(3, 750)
    assert (table.below(0), table.below(1), table.below(STRETCH_BYTES)) == (NOTHING, Pending(2, 350), Pending(2, 350))
    assert table.below(STRETCH_BYTES + 1) == table.total
    assert table.lowest == 0


def test_ended_stretches_are_dropped_and_late_removals_of_their_rows_count_nothing() -> None:
    low, high = (DUE, 10, 300), (DUE, 5 * STRETCH_BYTES, 400)
    state = state_with(AddTimers.of([low, high]), EndTimers(STRETCH_BYTES))
    table = state.table(TIMERS)
    assert table.total == Pending(1, 400)
    apply(state, FireTimers.of([low]))
    assert table.total == Pending(1, 400), "its stretch was dropped: it is not taken off twice"
    assert table.lowest == 5 * STRETCH_BYTES


def test_a_stretch_partly_below_an_end_position_ends_as_a_whole() -> None:
    """The position alone tells what counts as ended: no row of a dropped stretch is subtracted later."""
    state = state_with(AddTimers.of([(DUE, 100, 300), (DUE, 200, 300)]), EndTimers(150))
    apply(state, FireTimers.of([(DUE, 200, 300)]))
    assert state.table(TIMERS).total == NOTHING
    assert state.table(TIMERS).ended_below == STRETCH_BYTES


def test_the_highest_end_position_is_in_digest_and_snapshot() -> None:
    state = state_with(EndTimers(5 * STRETCH_BYTES))
    before = state.digest()
    assert before != BrokerState(FEATURES).digest()
    apply(state, EndTimers(STRETCH_BYTES))
    assert state.digest() == before
    assert restarted(state).table(TIMERS).ended_below == 5 * STRETCH_BYTES


def test_the_listener_is_told_once_per_batch_of_added_and_removed_rows() -> None:
    state = state_with()
    told: list[tuple[list[Row], list[tuple[int, int]], int]] = []
    table = state.table(TIMERS)
    table.listener = lambda added, removed, end: told.append((list(added), list(removed), end))
    row = (DUE, 10, 300)
    apply(state, AddTimers.of([row, (DUE, 0, 0)]), FireTimers.of([row]))
    assert not told
    table.batch_applied(lambda: 0.0)
    table.batch_applied(lambda: 0.0)
    ((added, gone, end),) = told
    assert (added, gone) == ([row], [(DUE, 10)])
    assert end > 0


ROWS = st.tuples(st.integers(0, 1 << 50), st.integers(0, 20 * STRETCH_BYTES), st.integers(1, 1000))


@given(
    rows=st.lists(ROWS, max_size=30, unique_by=lambda row: row[1]), removed=st.sets(st.integers(0, 29)), data=st.data()
)
def test_the_order_of_commands_does_not_matter_and_snapshots_keep_all(
    rows: list[Row], removed: set[int], data: st.DataObject
) -> None:
    gone = [row for number, row in enumerate(rows) if number in removed]
    kept = [row for number, row in enumerate(rows) if number not in removed]
    state = state_with(AddTimers.of(rows), *(data.draw(st.sampled_from(REMOVALS)).of([row]) for row in gone))
    other = state_with(*(AddTimers.of([row]) for row in reversed(kept)))
    assert state.digest() == other.digest()
    for table in (state.table(TIMERS), restarted(state).table(TIMERS)):
        assert table.stretches() == other.table(TIMERS).stretches()
        assert table.total == Pending(len(kept), sum(row[2] for row in kept))


@pytest.mark.parametrize("command", [AddTimers, *REMOVALS])
def test_an_invalid_payload_of_timer_rows_or_an_end_without_a_position_is_corrupt(command: type[TimerRows]) -> None:
    with pytest.raises(CorruptionError, match="are no rows"):
        command.from_payload(b"x")
    with pytest.raises(CorruptionError, match="no position"):
        EndTimers.from_payload(b"1234567")

"""Counters of due messages: every row counts once, by where its record stands, and they come back from a snapshot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.errors import CorruptionError
from dledger.statemachine import CommittedEntry
from dledger_broker.features import COMMANDS, FEATURES
from dledger_broker.features.delay.commands import (
    ROW,
    AddTimers,
    CancelTimers,
    EndTimers,
    FireTimers,
    MoveTimers,
    TimerRow,
    TimerRows,
)
from dledger_broker.features.delay.table import NOTHING, STRETCH_BYTES, TIMERS, Pending, TimerTable
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.tables import Changes

DUE = 1_700_000_000_000
REMOVALS: tuple[type[TimerRows], ...] = (FireTimers, CancelTimers, MoveTimers)


def state_with(*commands: Command) -> BrokerState:
    state = BrokerState(FEATURES)
    apply_to(state, *commands)
    return state


def apply_to(state: BrokerState, *commands: Command) -> None:
    section = b"".join(map(COMMANDS.encode, commands))
    state.apply(CommittedEntry(0, 1, 0, b"", section), Changes(state.tables), COMMANDS)


def table_with(*commands: Command) -> TimerTable:
    return state_with(*commands).table(TIMERS)


def test_a_row_counts_in_the_stretch_of_its_record() -> None:
    table = table_with(AddTimers.of([(DUE, 10, 300), (DUE, STRETCH_BYTES - 1, 50), (DUE, STRETCH_BYTES, 400)]))
    assert table.stretches() == {0: Pending(2, 350), STRETCH_BYTES: Pending(1, 400)}
    assert table.total == Pending(3, 750)
    assert (table.below(0), table.below(1), table.below(STRETCH_BYTES)) == (NOTHING, Pending(2, 350), Pending(2, 350))
    assert table.below(STRETCH_BYTES + 1) == table.total
    assert table.lowest == 0


@pytest.mark.parametrize("removal", REMOVALS)
def test_what_is_fired_cancelled_or_moved_counts_no_more(removal: type[TimerRows]) -> None:
    row = (DUE, 3 * STRETCH_BYTES, 300)
    table = table_with(AddTimers.of([row]), removal.of([row]))
    assert (table.total, table.lowest, dict(table.stretches())) == (NOTHING, None, {})
    assert table.digest == TimerTable().digest
    assert not table.capture_frames(0.0)


def test_a_row_whose_record_was_not_written_says_nothing() -> None:
    assert table_with(AddTimers.of([(DUE, 0, 0)])).total == NOTHING


def test_ended_stretches_are_dropped_and_what_was_on_its_way_counts_nothing() -> None:
    low, high = (DUE, 10, 300), (DUE, 5 * STRETCH_BYTES, 400)
    state = state_with(AddTimers.of([low, high]), EndTimers(STRETCH_BYTES))
    table = state.table(TIMERS)
    assert table.total == Pending(1, 400)
    apply_to(state, FireTimers.of([low]))
    assert table.total == Pending(1, 400), "its stretch was dropped: it is not taken off twice"
    assert table.lowest == 5 * STRETCH_BYTES


def test_a_stretch_that_is_half_below_ends_as_a_whole() -> None:
    """What counts as ended is told by the position alone: no row of a dropped stretch is taken off later."""
    state = state_with(AddTimers.of([(DUE, 100, 300), (DUE, 200, 300)]), EndTimers(150))
    apply_to(state, FireTimers.of([(DUE, 200, 300)]))
    assert state.table(TIMERS).total == NOTHING
    assert state.table(TIMERS).ended_below == STRETCH_BYTES


def test_an_end_below_an_earlier_one_changes_nothing() -> None:
    state = state_with(EndTimers(5 * STRETCH_BYTES))
    before = state.digest()
    apply_to(state, EndTimers(STRETCH_BYTES))
    assert state.digest() == before


def test_the_node_is_told_once_of_what_was_applied_together() -> None:
    state = state_with()
    told: list[tuple[list[TimerRow], list[tuple[int, int]], int]] = []
    table = state.table(TIMERS)
    table.listener = lambda added, gone, end: told.append((list(added), list(gone), end))
    row = (DUE, 10, 300)
    apply_to(state, AddTimers.of([row, (DUE, 0, 0)]), FireTimers.of([row]))
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
    rows: list[TimerRow], removed: set[int], data: st.DataObject
) -> None:
    gone = [row for number, row in enumerate(rows) if number in removed]
    kept = [row for number, row in enumerate(rows) if number not in removed]
    state = state_with(AddTimers.of(rows), *(data.draw(st.sampled_from(REMOVALS)).of([row]) for row in gone))
    other = state_with(*(AddTimers.of([row]) for row in reversed(kept)))
    assert state.table(TIMERS).stretches() == other.table(TIMERS).stretches()
    assert state.table(TIMERS).total == Pending(len(kept), sum(row[2] for row in kept))
    assert state.digest() == other.digest()
    restored = decode_state([b"".join(encode_state(state, 0.0))], 0.0, FEATURES)
    assert restored.digest() == state.digest()
    assert restored.table(TIMERS).stretches() == other.table(TIMERS).stretches()
    assert restored.table(TIMERS).total == other.table(TIMERS).total


def test_where_messages_were_ended_is_state() -> None:
    state = state_with(EndTimers(STRETCH_BYTES))
    assert state.digest() != BrokerState(FEATURES).digest()
    restored = decode_state([b"".join(encode_state(state, 0.0))], 0.0, FEATURES)
    assert restored.table(TIMERS).ended_below == STRETCH_BYTES


@pytest.mark.parametrize("command", [AddTimers, *REMOVALS])
def test_a_payload_that_is_no_rows_is_corrupt(command: type[TimerRows]) -> None:
    with pytest.raises(CorruptionError, match="are no rows"):
        command.from_payload(b"x" * (ROW.size - 1))


def test_an_end_without_a_position_is_corrupt() -> None:
    with pytest.raises(CorruptionError, match="no position"):
        EndTimers.from_payload(b"1234567")

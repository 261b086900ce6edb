"""The native choice of a pull's records and its twin in Python choose the same for any units."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_base import native_part
from dledger_broker.views import reading
from dledger_broker.views.reading import MAX_SCANNED_UNITS, ReadStatus, choose_units, select
from dledger_broker.views.units import UNIT
from dledger_remoting.filters.tags import TagFilter

native = pytest.importorskip("dledger_native", reason="the native part is not built (make native)")

CODES = st.sampled_from([0, 1, 2, -1, 2**63 - 1])
LONG = st.sampled_from([-(2**63), -1, 0, 1, 2**31, 2**63 - 1])
FILTERS = st.none() | st.frozensets(CODES, max_size=3)


@st.composite
def rows(draw: st.DrawFn) -> bytes:
    """Draw units of records that are mostly contiguous, some with gaps, few anywhere."""
    position, units = draw(st.integers(0, 50)), bytearray()
    for _ in range(draw(st.integers(0, 10))):
        size = draw(st.integers(0, 100) | st.sampled_from([0, 1, -1, -(2**31), 2**31 - 1]))
        at = draw(st.just(position) | st.just(position) | st.just(position) | st.integers(0, 500) | LONG)
        units += UNIT.pack(at, size, draw(CODES))
        position = min(max(at + size, 0), 2**62)
    return bytes(units)


EDGES = st.sampled_from([0, 1, -1, 100, 2**31, 2**62, 2**63 - 1, 2**63 - 2, -(2**63), -(2**63) + 1])


@st.composite
def damaged_rows(draw: st.DrawFn) -> bytes:
    """Draw units that point anywhere: outside the log, backwards, or so far that additions overflow."""
    position, units = draw(EDGES), bytearray()
    for _ in range(draw(st.integers(1, 6))):
        size = draw(st.sampled_from([0, 1, 5, 100, -1, -5, 2**31 - 1, -(2**31)]))
        if draw(st.integers(0, 2)) == 0:
            position = draw(EDGES) + draw(st.sampled_from([0, size, -size]))
        position = max(-(2**63), min(2**63 - 1, position))
        units += UNIT.pack(position, size, draw(CODES))
        position += size
    return bytes(units)


@given(
    rows() | damaged_rows() | st.binary(max_size=60),
    st.integers(1, 12),
    st.integers(0, 400) | LONG,
    FILTERS,
    st.integers(0, 60) | LONG,
    st.booleans(),
)
def test_a_pull_gets_the_same(
    units: bytes, max_messages: int, max_bytes: int, codes: frozenset[int] | None, first_position: int, whole: bool
) -> None:
    chosen = native.select_units(units, max_messages, max_bytes, codes, first_position, whole)
    if chosen is not None:
        assert chosen == choose_units(units, max_messages, max_bytes, codes, first_position, whole=whole)


@pytest.mark.parametrize(
    "places",
    [
        [(2**63 - 2, -1), (2**63 - 3, 5)],
        [(2**63 - 1, -5), (-1, 0), (2**63 - 1, 5), (2**63 - 2, -1)],
        [(10, 10), (2**63 - 1, 100), (0, 30)],
        [(-(2**63), 1), (2**63 - 1, 1)],
        [(100, 50), (100, 50), (50, 50)],
    ],
)
@pytest.mark.parametrize("first_position", [0, 100, 2**63 - 2, -(2**63)])
def test_units_that_point_elsewhere_are_answered_with_the_same(
    places: list[tuple[int, int]], first_position: int
) -> None:
    units = b"".join(UNIT.pack(position, size, 1) for position, size in places)
    for codes, whole in ((None, True), (None, False), (frozenset((1,)), False)):
        chosen = native.select_units(units, 32, 2**40, codes, first_position, whole)
        if chosen is not None:
            assert chosen == choose_units(units, 32, 2**40, codes, first_position, whole=whole)


def row(count: int, size: int = 100) -> bytes:
    return b"".join(UNIT.pack(1000 + number * size, size, number % 2) for number in range(count))


@pytest.mark.parametrize("expression", [None, "*", "a"])
def test_usual_selections_use_the_native_part(monkeypatch: pytest.MonkeyPatch, expression: str | None) -> None:
    asked = row(40), 7, 0, 90, 32, 2_500, None if expression is None else TagFilter.parse(expression), 1000
    expected = select(*asked)
    monkeypatch.setattr(native_part, "PART", native)
    monkeypatch.setattr(reading, "choose_units", lambda *_, **__: pytest.fail("it is not asked"))
    assert select(*asked) == expected


def test_removed_records_are_reported_before_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_part, "PART", native)
    result = select(row(4), 7, 0, 90, 32, 2_500, None, 1200)
    assert (result.status, result.next_begin, result.runs) == (ReadStatus.MESSAGE_WAS_REMOVING, 9, [])


@pytest.mark.parametrize("length", [1, 19, 21])
def test_units_that_are_cut_off_are_left_to_the_twin(length: int) -> None:
    assert native.select_units(row(2)[:length], 32, 1000, None, 0, True) is None


def test_a_filter_of_many_tags_is_left_to_the_twin() -> None:
    assert native.select_units(row(2), 32, 1000, frozenset(range(65)), 0, False) is None
    assert native.select_units(row(2), 32, 1000, frozenset(range(64)), 0, False) is not None


def test_as_many_units_as_a_read_looks_at_are_chosen_from() -> None:
    order = random.Random(3)
    units = b"".join(UNIT.pack(order.randrange(2**40), 2**31 - 1, order.randrange(3)) for _ in range(MAX_SCANNED_UNITS))
    for codes in (None, frozenset((1,)), frozenset((9,))):
        asked = units, MAX_SCANNED_UNITS, 2**62, codes, 0
        assert native.select_units(*asked, False) == choose_units(*asked, whole=False)

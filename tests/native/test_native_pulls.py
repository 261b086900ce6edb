"""The native read of a turn's pulls and its twin in Python return the same for any units and any file of the log."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_base.native_part import Ask, Found
from dledger_broker.views.reading import choose_units
from dledger_broker.views.stamps import stamp_in_python
from dledger_broker.views.units import UNIT, UNIT_BYTES

native = pytest.importorskip("dledger_native", reason="the native part is not built (make native)")

START, END = 1_000, 1_400
"""Positions at which the open file of the log begins and ends."""
LOG = bytes(number % 251 for number in range(END - START))
CODES = st.sampled_from([0, 1, 2])


@st.composite
def rows(draw: st.DrawFn) -> bytes:
    """Draw units of records in and around the file, mostly contiguous."""
    position, units = draw(st.integers(START - 60, END)), bytearray()
    for _ in range(draw(st.integers(0, 8))):
        at = draw(st.just(position) | st.just(position + 3) | st.integers(0, END + 100))
        size = draw(st.integers(0, 60))
        units += UNIT.pack(at, size, draw(CODES))
        position = at + size
    return bytes(units)


@pytest.fixture(scope="module")
def descriptor() -> Iterator[int]:
    with tempfile.TemporaryFile(buffering=0) as file:  # an in-memory file does not support reads of the page cache only
        file.write(LOG)
        yield file.fileno()


def twin(units: bytes, ask: Ask, first_position: int) -> Found | None:
    """Return what a single pull gets: chosen from its units, and read piece by piece."""
    *_, max_messages, max_bytes, codes = ask
    passed, count, size, _, runs = choose_units(
        units, max_messages, max_bytes, codes, first_position, whole=codes is None
    )
    if not count:
        return None
    if any(at < START or at + size > END for at, size in runs):
        return passed, count, size, runs[0][0], None
    return passed, count, size, runs[0][0], b"".join(LOG[at - START : at - START + size] for at, size in runs)


@given(
    st.lists(
        st.tuples(rows(), st.booleans(), st.integers(1, 9), st.integers(0, 300), st.none() | st.frozensets(CODES)),
        max_size=4,
    ),
    st.sampled_from([0, START, START + 100]),
)
def test_pulls_get_the_same(
    descriptor: int,
    pulls: list[tuple[bytes, bool, int, int, frozenset[int] | None]],
    first_position: int,
) -> None:
    with tempfile.TemporaryFile(buffering=0) as queues:
        asks: list[Ask] = []
        for units, in_memory, max_messages, max_bytes, codes in pulls:
            at, count = queues.tell(), len(units) // UNIT_BYTES
            queues.write(stamp_in_python([(units, at)])[0])
            place = (units, -1, 0, 0, 0, 0) if in_memory else (None, queues.fileno(), at, count, at, at + count)
            asks.append((*place, max_messages, max_bytes, codes))
        found = native.read_pulls(asks, (descriptor, START, END), first_position)
    assert found == [twin(units, ask, first_position) for (units, *_), ask in zip(pulls, asks, strict=True)]


def ask(units: bytes, codes: frozenset[int] | None = None) -> Ask:
    return units, -1, 0, 0, 0, 0, 32, 9_999, codes


UNITS = UNIT.pack(START, 10, 0) + UNIT.pack(START + 20, 10, 0)


def test_an_unreadable_pull_does_not_affect_the_others(descriptor: int) -> None:
    unreadable: list[Ask] = [
        ask(UNITS[:-1]),
        ask(UNITS, frozenset(range(65))),
        (None, -1, 0, 2, 0, 0, 32, 9_999, None),
        (None, descriptor, len(LOG) - 20, 2, 0, 0, 32, 9_999, None),
        ask(UNIT.pack(START, -5, 0)),
        ask(UNIT.pack(2**63 - 1, 5, 0) * 2),
    ]
    found = native.read_pulls([*unreadable, ask(UNITS)], (descriptor, START, END), 0)
    assert found[:4] == [None] * 4
    assert all(one is None or one[4] is None for one in found[4:6])
    assert found[6] == (2, 2, 20, START, LOG[:10] + LOG[20:30])


def test_units_with_wrong_stamps_are_left_to_the_twin(descriptor: int) -> None:
    (units,) = stamp_in_python([(UNITS, 5)])
    with tempfile.TemporaryFile(buffering=0) as queues:
        for bit in range(8 * len(units)):
            rotten = bytearray(units)
            rotten[bit // 8] ^= 1 << bit % 8
            queues.write(rotten)
        queues.write(units)
        asks: list[Ask] = [
            (None, queues.fileno(), at, 2, 5, 7, 32, 9_999, None) for at in range(0, queues.tell(), len(units))
        ]
        *rotten_ones, whole = native.read_pulls(asks, (descriptor, START, END), 0)
        (shifted,) = native.read_pulls([(None, *asks[-1][1:4], 6, 8, *asks[-1][6:])], (descriptor, START, END), 0)
    assert rotten_ones == [None] * (8 * len(units))
    assert shifted is None
    assert whole == (2, 2, 20, START, LOG[:10] + LOG[20:30])


def test_records_are_all_there_or_not_at_all(descriptor: int) -> None:
    longer = descriptor, START, END + 500  # longer than the file
    units = UNIT.pack(END - 10, 10, 0) + UNIT.pack(END - 5, 10, 0)
    assert native.read_pulls([ask(units), ask(units[:UNIT_BYTES])], longer, 0) == [
        None,
        (1, 1, 10, END - 10, LOG[-10:]),
    ]


def test_without_a_log_file_pulls_return_the_positions_of_records() -> None:
    assert native.read_pulls([ask(UNITS), ask(b""), ask(UNIT.pack(0, 0, 0))], (-1, 0, -1), 0) == [
        (2, 2, 20, START, None),
        None,
        (1, 1, 0, 0, None),
    ]


def test_a_filter_skips_units_that_do_not_match(descriptor: int) -> None:
    units = b"".join(UNIT.pack(START + 10 * number, 10, number % 2) for number in range(6))
    found = native.read_pulls([ask(units, frozenset((1,)))], (descriptor, START, END), 0)
    assert found == [(6, 3, 30, START + 10, LOG[10:20] + LOG[30:40] + LOG[50:60])]

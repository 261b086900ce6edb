"""The table of remembered sends beside a model of it, its snapshot, and what it costs in memory."""

import random
import sys

from hypothesis import given
from hypothesis import strategies as st

from dledger_broker.state.remembered import MARKS_PER_WINDOW, ROW, RUNS, SWEPT_RUNS, RememberedSends

WINDOW_MS = 12_800
SLACK_MS = WINDOW_MS // MARKS_PER_WINDOW

IDENTITIES = st.sampled_from([1, 2, 3, 1 << 48, (1 << 48) + 1, (1 << 64) - 1])
STEPS = st.lists(st.tuples(st.integers(0, WINDOW_MS), st.lists(IDENTITIES, min_size=1, max_size=4)), max_size=40)


def packed(identities: list[int], position: int) -> bytes:
    return b"".join(ROW.pack(identity, position + place) for place, identity in enumerate(identities))


@given(STEPS)
def test_a_row_is_kept_for_the_window_and_not_much_longer(steps):
    table = RememberedSends()
    table.limit(WINDOW_MS, 1000)
    now = position = 0
    rows = []
    for pause, identities in steps:
        now += pause
        table.remember(packed(identities, position), 1_000_000 + now)
        rows += [(identity, position + place, now) for place, identity in enumerate(identities)]
        position += 100
        for identity in {identity for identity, _, _ in rows}:
            found = table.find(identity)
            must = [at for known, at, added in rows if known == identity and added > now - WINDOW_MS]
            may = [at for known, at, added in rows if known == identity and added > now - WINDOW_MS - 2 * SLACK_MS]
            assert found[len(found) - len(must) :] == must
            assert set(found) <= set(may)
        assert len(table) == sum(len(table.find(identity)) for identity in {row[0] for row in rows})


def test_a_clock_that_jumps_far_ahead_and_back_stops_nothing():
    table = RememberedSends()
    table.limit(WINDOW_MS, 1000)
    year = 365 * 86_400_000
    for position, now in enumerate((1000, year, year + 5, 2000, 2000 + WINDOW_MS // 2)):
        table.remember(ROW.pack(position + 1, position * 100), now)
    assert [table.find(n) != [] for n in range(1, 6)] == [False, True, True, True, True]
    table.remember(ROW.pack(6, 900), 2000 + 2 * WINDOW_MS)
    assert [table.find(n) != [] for n in range(1, 7)] == [False] * 5 + [True]


def test_a_clock_that_is_a_little_behind_forgets_nothing_early():
    table = RememberedSends()
    table.limit(WINDOW_MS, 1000)
    table.remember(ROW.pack(1, 0), 100_000)
    for step in range(20):
        behind = (step % 2) * WINDOW_MS // 2
        table.remember(ROW.pack(100 + step, 100 + step), 100_000 + step * 100 - behind)
    assert table.find(1) == [0]


def test_a_snapshot_has_the_table_as_it_was_when_it_was_taken():
    table = RememberedSends()
    table.limit(WINDOW_MS, 1000)
    rng = random.Random(5)
    position = 0

    def add(now: int) -> None:
        nonlocal position
        for _ in range(300):
            table.remember(ROW.pack(rng.getrandbits(64), position), now)
            position += 10

    add(1000)
    add(1000 + WINDOW_MS // 2)
    summary, runs = table.capture()
    digest, count = table.digest, len(table)
    add(1000 + 3 * WINDOW_MS)
    again = RememberedSends.restored(summary, runs)
    assert (again.digest, len(again)) == (digest, count)
    assert sum(len(rows) for _, rows in again.capture()[1]) == count * (ROW.size - 2)


def test_a_row_costs_at_most_32_bytes_of_memory_and_expired_ones_are_let_go():
    table = RememberedSends()
    table.limit(WINDOW_MS, 1 << 30)
    rng = random.Random(6)
    count = 1 << 20
    for position in range(0, count, 1024):
        table.remember(packed([rng.getrandbits(64) for _ in range(1024)], position), 1000)
    held = sum(sys.getsizeof(run) for run in table._runs if run is not None) + sys.getsizeof(table._runs)
    assert held <= 32 * count
    later = 1000 + 3 * WINDOW_MS
    for position in range(count, count + RUNS // SWEPT_RUNS):
        table.remember(ROW.pack(1, position), later)
    assert len(table) == RUNS // SWEPT_RUNS
    assert sum(sys.getsizeof(run) for run in table._runs if run is not None) < held / 10

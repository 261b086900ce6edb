"""The table of remembered sends beside a model of it, its snapshot, and what it costs in memory."""

import random
import sys
from struct import pack

from hypothesis import given
from hypothesis import strategies as st

from dledger_broker.state.remembered import (
    ERA_ROWS,
    FIRST_ERA_ROWS,
    MARKS_PER_WINDOW,
    MAX_STEPS,
    RUN_ROWS,
    RememberedSends,
)

WINDOW_MS = 12_800
SLACK_MS = WINDOW_MS // MARKS_PER_WINDOW

IDENTITIES = st.sampled_from([1, 2, 3, 1 << 20, (1 << 20) + 1, (1 << 32) - 1])
STEPS = st.lists(st.tuples(st.integers(0, WINDOW_MS), st.lists(IDENTITIES, min_size=1, max_size=4)), max_size=40)


def table_of(max_rows: int = 1000) -> RememberedSends:
    table = RememberedSends()
    table.limit(WINDOW_MS, max_rows)
    return table


def remember(table: RememberedSends, identities: list[int], position: int, now: int) -> None:
    """Rows at a position and the ones behind it."""
    count = len(identities)
    table.remember(pack(f">{count}I", *identities), pack(f">{count}Q", *range(position, position + count)), now)


def found(table: RememberedSends, identity: int) -> list[int]:
    assert table.index(1 << 30)
    positions = table.find(identity)
    assert not (positions and table.knows_none([identity]))
    return positions


@given(STEPS)
def test_a_row_is_kept_for_the_window_and_not_much_longer(steps):
    table = table_of()
    now = position = 0
    rows = []
    for pause, identities in steps:
        now += pause
        remember(table, identities, position, 1_000_000 + now)
        rows += [(identity, position + place, now) for place, identity in enumerate(identities)]
        position += 100
        for identity in {identity for identity, _, _ in rows}:
            positions = found(table, identity)
            must = [at for known, at, added in reversed(rows) if known == identity and added > now - WINDOW_MS]
            may = [at for known, at, added in rows if known == identity and added > now - WINDOW_MS - 2 * SLACK_MS]
            assert positions[: len(must)] == must
            assert set(positions) <= set(may)
        assert len(table) == sum(len(found(table, identity)) for identity in {row[0] for row in rows})


def test_what_was_never_added_is_known_not_to_be_there():
    table = table_of()
    identities = random.Random(4).sample(range(1 << 32), 20_000)
    remember(table, identities[::2], 0, 1000)
    assert table.index(1 << 30)
    for begin in range(1, 20_000, 500):
        assert table.knows_none(identities[begin : begin + 500 : 2])
    assert not table.knows_none([*identities[1:100:2], identities[-2]])


def test_rows_are_found_in_all_eras_once_they_are_indexed_whatever_the_slices():
    rng = random.Random(3)
    table = table_of()
    rows = [rng.getrandbits(32) for _ in range(FIRST_ERA_ROWS + 3000)]
    for begin in range(0, len(rows), 1000):
        remember(table, rows[begin : begin + 1000], begin, 1000)
    slices = 1
    while not table.index(50_000):
        slices += 1
    assert slices == len(rows) // 50_000 + 1
    for place in (0, 1, FIRST_ERA_ROWS - 1, FIRST_ERA_ROWS + 1500, len(rows) - 1):
        assert place in table.find(rows[place])
        assert not table.knows_none([rows[place]])


def test_rows_that_collide_on_purpose_do_not_hold_up_others():
    table = table_of()
    remember(table, [7] * 2 * MAX_STEPS + [8], 0, 1000)
    assert table.index(1 << 30)
    assert table.find(7) == list(range(2 * MAX_STEPS - 1, MAX_STEPS, -1))
    assert table.find(8) == [2 * MAX_STEPS]
    assert not table.knows_none([9]), "too many steps: not known"
    assert table.find(9) == []


def test_a_clock_that_jumps_far_ahead_and_back_stops_nothing():
    table = table_of()
    year = 365 * 86_400_000
    for position, now in enumerate((1000, year, year + 5, 2000, 2000 + WINDOW_MS // 2)):
        remember(table, [position + 1], position * 100, now)
    assert [found(table, n) != [] for n in range(1, 6)] == [False, True, True, True, True]
    remember(table, [6], 900, 2000 + 2 * WINDOW_MS)
    assert [found(table, n) != [] for n in range(1, 7)] == [False] * 5 + [True]


def test_a_clock_that_is_a_little_behind_forgets_nothing_early():
    table = table_of()
    remember(table, [1], 0, 100_000)
    for step in range(20):
        behind = (step % 2) * WINDOW_MS // 2
        remember(table, [100 + step], 100 + step, 100_000 + step * 100 - behind)
    assert found(table, 1) == [0]


def test_a_snapshot_has_the_table_as_it_was_when_it_was_taken():
    table = table_of()
    rng = random.Random(5)
    position = 0

    def add(now: int) -> None:
        nonlocal position
        for _ in range(RUN_ROWS // 100 + 3):
            remember(table, [rng.getrandbits(32) for _ in range(100)], position, now)
            position += 1000

    add(1000)
    add(1000 + WINDOW_MS // 2)
    summary, runs = table.capture()
    digest, count = table.digest, len(table)
    add(1000 + 3 * WINDOW_MS)
    again = RememberedSends.restored(summary, runs)
    assert (again.digest, len(again)) == (digest, count)
    kept = list(again.capture()[1])
    assert sum(len(run.positions) for run in kept) == count * 8
    assert max(len(run.positions) for run in kept) == RUN_ROWS * 8
    assert again.find(1) == [], "nothing is indexed before somebody asks for it"
    remember(again, [77], position, 1001 + WINDOW_MS // 2)
    assert found(again, 77) == [position]


def held_bytes(table: RememberedSends) -> int:
    numbers = [numbers for era in table._eras for numbers in (era.identities, era.positions, era.heads, era.chain)]
    return sum(map(sys.getsizeof, numbers))


def test_a_row_costs_at_most_32_bytes_of_memory_and_expired_ones_are_let_go():
    table = table_of(1 << 30)
    rng = random.Random(6)
    count = FIRST_ERA_ROWS + ERA_ROWS
    for position in range(0, count, 4096):
        remember(table, [rng.getrandbits(32) for _ in range(4096)], position, 1000)
    assert held_bytes(table) <= 14 * count, "on a follower"
    assert table.index(count) is False
    assert table.index(1)
    assert held_bytes(table) <= 26 * count, "on the leader, to which at most the oldest era comes"
    remember(table, [1], count, 1000 + 3 * WINDOW_MS)
    assert len(table) == 1
    assert held_bytes(table) < 1000

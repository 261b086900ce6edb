"""Table of remembered sends, compared with a model, its snapshot, its cost in memory, and the rows of sends in it."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Sequence
from itertools import accumulate
from struct import pack

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dledger.errors import CorruptionError
from dledger_broker.features.sending.dedup.identities import (
    MAX_ROW_BYTES,
    MEMBER_BITS,
    MEMBERS,
    UnitRows,
    identities_of,
    identity_of_batch,
    identity_seed,
    rows_of,
    rows_of_runs,
)
from dledger_broker.features.sending.dedup.remembered import MARKS_PER_WINDOW, Mark, RememberedSends, Summary
from dledger_broker.features.sending.dedup.rows import (
    ERA_ROWS,
    FIRST_PLACES,
    GROWTH,
    MAX_STEPS,
    MIN_COLUMN,
    RUN_ROWS,
    Run,
)

WINDOW_MS = 12_800
SLACK_MS = WINDOW_MS // MARKS_PER_WINDOW

FAMILIES = st.sampled_from([1, 2, 3, 1 << 20, (1 << 20) + 1, (1 << 32) - 1])
STEPS = st.lists(st.tuples(st.integers(0, WINDOW_MS), st.lists(FAMILIES, min_size=1, max_size=4)), max_size=40)
ONE = 1


def restored(summary: Summary, runs: Iterable[Run]) -> RememberedSends:
    """Return a table from what `capture` gave."""
    table = RememberedSends()
    table.restore(summary)
    for run in runs:
        table.restore_run(run)
    table.finish_restore()
    return table


def table_of(max_rows: int = 1000) -> RememberedSends:
    table = RememberedSends()
    table.limit(WINDOW_MS, max_rows)
    return table


def remember(table: RememberedSends, families: list[int], position: int, now: int) -> None:
    """Remember rows of one member each, at a position and the positions behind it."""
    count = len(families)
    table.remember(
        pack(f">{count}I{count}H{count}Q", *families, *[ONE] * count, *range(position, position + count)), now
    )


def positions_of(table: RememberedSends, family: int) -> list[int]:
    rows = table.find(family)
    assert all(row.members == ONE for row in rows)
    return [row.position for row in rows]


def found(table: RememberedSends, family: int) -> list[int]:
    assert table.index(1 << 30)
    positions = positions_of(table, family)
    for others in ([], [family ^ 5] * MIN_COLUMN):
        assert (family in table.known([*others, family])) == (positions != [])
    assert table.members(family) == (ONE if positions else 0)
    return positions


@given(STEPS)
def test_a_row_is_kept_for_the_window_and_not_much_longer(steps):
    table = table_of()
    now = position = 0
    rows = []
    for pause, families in steps:
        now += pause
        remember(table, families, position, 1_000_000 + now)
        rows += [(family, position + place, now) for place, family in enumerate(families)]
        position += 100
        for family in {family for family, _, _ in rows}:
            positions = found(table, family)
            must = [at for known, at, added in reversed(rows) if known == family and added > now - WINDOW_MS]
            may = [at for known, at, added in rows if known == family and added > now - WINDOW_MS - 2 * SLACK_MS]
            assert positions[: len(must)] == must
            assert set(positions) <= set(may)
        assert len(table) == sum(len(found(table, family)) for family in {row[0] for row in rows})


def test_families_that_were_never_added_are_not_found():
    table = table_of()
    families = random.Random(4).sample(range(1 << 32), 20_000)
    remember(table, families[::2], 0, 1000)
    assert table.index(1 << 30)
    for begin in range(1, 20_000, 500):
        assert table.known(families[begin : begin + 500 : 2]) == []
    assert table.known([*families[1:100:2], families[-2]]) == [families[-2]]


@pytest.mark.parametrize("added_before", [0, (1 << 32) - ERA_ROWS - 1500])
def test_rows_are_found_in_all_eras_and_hash_tables_for_any_slice_size(added_before: int):
    rng = random.Random(3)
    summary, _ = table_of(1 << 20).capture()
    summary = msgspec.structs.replace(summary, added=added_before + 1, marks=[Mark(0, 0, added_before)])
    table = restored(summary, [Run(bytes(4), bytes(2), bytes(8))])
    rows = [rng.getrandbits(32) for _ in range(ERA_ROWS + 3000)]
    done = 0
    moving = 0
    for slice_rows, end in ((1000, 5000), (20_000, FIRST_PLACES // GROWTH), (5000, len(rows))):
        for begin in range(done, end, 500):
            remember(table, rows[begin : min(begin + 500, end)], begin + 1, 1000)
        while not table.index(slice_rows):
            moving += table._rows._next_heads is not None
            for begin in range(0, done, 977):
                assert set(rows[begin : begin + 20]) <= set(table.known(rows[begin : begin + 20]))
        done = end
    assert moving > 2, "lookups while a larger table is being made"
    assert len(table._rows._heads.numbers) > FIRST_PLACES
    assert table._rows._next_heads is None
    for place in (0, 4999, 5000, FIRST_PLACES // GROWTH, ERA_ROWS - 2, ERA_ROWS - 1, ERA_ROWS + 1500, len(rows) - 1):
        assert place + 1 in positions_of(table, rows[place])
    for begin in range(0, len(rows), 64):
        assert set(table.known(rows[begin : begin + 64])) == set(rows[begin : begin + 64])
        assert len(table.known([rng.getrandbits(32) for _ in range(64)])) < 3


def test_rows_of_the_same_place_are_found_in_order_for_any_slice_size():
    rng = random.Random(8)
    for slice_rows in (1, 7, 1000):
        table = table_of()
        rows = [rng.choice([5, 6, 5 + FIRST_PLACES, 5 + 2 * FIRST_PLACES, 6 + (1 << 31)]) for _ in range(100)]
        remember(table, rows, 0, 1000)
        while not table.index(slice_rows):
            pass
        for family in set(rows):
            assert positions_of(table, family) == [place for place in reversed(range(100)) if rows[place] == family]


def test_the_search_among_colliding_rows_is_bounded():
    table = table_of()
    same, unknown = 7 + FIRST_PLACES, 7 + 2 * FIRST_PLACES
    remember(table, [7] * 2 * MAX_STEPS + [same], 0, 1000)
    assert table.index(1 << 30)
    assert positions_of(table, 7) == list(range(2 * MAX_STEPS - 1, MAX_STEPS, -1))
    assert positions_of(table, same) == [2 * MAX_STEPS]
    assert table.known([unknown, 8]) == [unknown], "too many steps to tell"
    assert table.find(unknown) == []


def test_the_members_of_a_family_are_found_in_all_its_rows():
    table = table_of()
    table.remember(pack(">4I4H4Q", 7, 8, 7, 7 + FIRST_PLACES, 0b0110, 0b1, 0b1000, 0xFFFF, 10, 20, 30, 40), 1000)
    assert table.members(7) == 0, "nothing is indexed yet"
    assert table.index(10)
    assert [tuple(row) for row in table.find(7)] == [(0b1000, 30), (0b0110, 10)]
    assert (table.members(7), table.members(8), table.members(9)) == (0b1110, 0b1, 0)


def test_a_clock_that_jumps_far_ahead_and_back_stops_nothing():
    table = table_of()
    year = 365 * 86_400_000
    for position, now in enumerate((1000, year, year + 5, 2000, 2000 + WINDOW_MS // 2)):
        remember(table, [position + 1], position * 100, now)
    assert [found(table, n) != [] for n in range(1, 6)] == [False, True, True, True, True]
    remember(table, [6], 900, 2000 + 2 * WINDOW_MS)
    assert [found(table, n) != [] for n in range(1, 7)] == [False] * 5 + [True]


def test_a_clock_slightly_behind_forgets_no_send_early():
    table = table_of()
    remember(table, [1], 0, 100_000)
    for step in range(20):
        behind = (step % 2) * WINDOW_MS // 2
        remember(table, [100 + step], 100 + step, 100_000 + step * 100 - behind)
    assert found(table, 1) == [0]


def test_a_snapshot_has_the_table_of_the_moment_of_its_capture():
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
    again = restored(summary, runs)
    assert (again.digest, len(again)) == (digest, count)
    kept = list(again.capture()[1])
    assert sum(len(run.positions) for run in kept) == count * 8
    assert max(len(run.positions) for run in kept) == RUN_ROWS * 8
    assert again.find(1) == [], "nothing is indexed before somebody asks for it"
    remember(again, [77], position, 1001 + WINDOW_MS // 2)
    assert found(again, 77) == [position]


def test_a_snapshot_that_lacks_rows_is_refused():
    table = table_of()
    remember(table, [1, 2], 0, 1000)
    summary, runs = table.capture()
    (run,) = runs
    with pytest.raises(CorruptionError, match="1 rows of remembered sends, expected 2"):
        restored(summary, [Run(run.families[:4], run.members[:2], run.positions[:8])])


def held_bytes(table: RememberedSends) -> int:
    rows = table._rows
    numbers = [
        numbers
        for era in rows._eras
        for numbers in (era.families, era.members, era.positions, era.before, era.before_in_next)
    ]
    heads = [heads.numbers.nbytes for heads in (rows._heads, rows._next_heads) if heads is not None]
    return sum(map(sys.getsizeof, numbers)) + sum(heads)


def test_a_row_takes_at_most_28_bytes_of_memory_and_expired_rows_are_freed():
    count = 4 * ERA_ROWS  # with a power of 2 as the limit, there are the most places for each row
    table = table_of(count)
    rng = random.Random(6)
    for position in range(0, count, 4096):
        remember(table, [rng.getrandbits(32) for _ in range(4096)], position, 1000)
    assert held_bytes(table) <= 16 * count, "on a follower"
    assert table.index(count - 1) is False
    assert table.index(1)
    assert held_bytes(table) <= 28 * count, "on the leader, to which at most the oldest era comes"
    remember(table, [1], count, 1000 + 3 * WINDOW_MS)
    assert len(table) == 1
    assert held_bytes(table) < 1000
    assert found(table, 1) == [count]


# ---- rows: every send is in exactly one row, which shows its member


STEM = b"7F0000010BB818B4AAC20000000"
SEED = identity_seed("G", "T")

LAST_CHARACTERS = st.sampled_from([bytes([byte]) for byte in b"./0189:;@ABEFGZ`abfgz\x7f\xc3"])
COUNTED = st.builds(
    lambda first, count, step: [STEM + b"%05X" % (first + step * n) for n in range(count)],
    st.integers(0, 1 << 19),
    st.integers(1, 70),
    st.sampled_from([1, 1, 1, 2, 5]),
)
STRANGE = st.lists(st.builds(lambda stem, last: stem + last, st.sampled_from([b"", b"K", STEM]), LAST_CHARACTERS))
OF_ONE_LENGTH = st.lists(st.builds(lambda stem, last: stem + last, st.sampled_from([b"K", b"L"]), LAST_CHARACTERS))
KEYS = st.one_of(
    COUNTED,
    OF_ONE_LENGTH.map(sorted),
    OF_ONE_LENGTH.map(lambda keys: sorted(set(keys))),
    st.lists(COUNTED, max_size=4).map(lambda parts: [key for part in parts for key in part]),
    st.lists(st.one_of(COUNTED, STRANGE), max_size=4).map(lambda parts: [key for part in parts for key in part]),
)
SIZES = st.sampled_from([100, 1200, 5000, 40_000, MAX_ROW_BYTES + 1])


def offsets_of(sizes: Sequence[int]) -> list[int]:
    return list(accumulate(sizes, initial=0))


def assert_each_send_is_in_one_row(rows: UnitRows, keys: Sequence[bytes], seeds: Sequence[int], offsets: Sequence[int]):
    identities = identities_of(keys, seeds)
    remembered: list[int] = []
    for family, members, offset in zip(*rows, strict=True):
        first = offsets.index(offset)
        after = first + members.bit_count()
        assert 1 <= members <= MEMBERS
        assert len(set(keys[first:after])) == after - first
        assert after == first + 1 or offsets[after] - offset <= MAX_ROW_BYTES
        for send in range(first, after):
            assert identities[send] >> MEMBER_BITS == family
            assert identities[send] & MEMBERS & members
        remembered += range(first, after)
    assert remembered == [send for send, identity in enumerate(identities) if identity]


@given(KEYS.filter(bool), st.data())
@example([STEM + last for last in (b"9", b":", b"B")], None)
@example([STEM + last for last in (b"3", b"3", b"5")], None)
@example([STEM + last for last in (b"9", b"F", b"b")], None)
@example([STEM + last for last in (b"0", b"0A", b"1")], None)
def test_each_send_is_in_exactly_one_row_that_has_its_member(keys: list[bytes], data: st.DataObject | None):
    sizes = [data.draw(SIZES) if data else 100 for _ in keys]
    offsets, seeds = offsets_of(sizes), [SEED] * len(keys)
    assert_each_send_is_in_one_row(rows_of(identities_of(keys, seeds), offsets), keys, seeds, offsets)
    rows = rows_of_runs(keys, SEED, offsets)
    if rows is not None:
        assert_each_send_is_in_one_row(rows, keys, seeds, offsets)


@given(
    st.lists(st.tuples(st.sampled_from([b"K0", b"K1", b"K2", b"L0", b""]), st.sampled_from([0, SEED, 9])), min_size=1)
)
def test_sends_that_are_not_remembered_are_in_no_row(sends: list[tuple[bytes, int]]):
    keys, seeds = [key for key, _ in sends], [seed if key else 0 for key, seed in sends]
    identities, offsets = identities_of(keys, seeds), offsets_of([100] * len(keys))
    assert [identity != 0 for identity in identities] == [seed != 0 for seed in seeds]
    assert_each_send_is_in_one_row(rows_of(identities, offsets), keys, seeds, offsets)


@given(COUNTED)
def test_counting_keys_take_one_row_for_each_family(keys: list[bytes]):
    offsets = offsets_of([1000] * len(keys))
    identities = identities_of(keys, [SEED] * len(keys))
    rows = rows_of(identities, offsets)
    assert len(rows.families) == len(set(rows.families)) == len({key[:-1] for key in keys})
    assert rows_of_runs(keys, SEED, offsets) == rows


def test_unordered_keys_form_no_runs():
    keys = [STEM + b"%05X" % (n * 7919 % 1024) for n in range(64)]
    assert rows_of_runs(keys, SEED, offsets_of([100] * 64)) is None


def test_runs_of_several_producers_are_taken_run_by_run():
    keys = [stem + b"%05X" % n for stem in (STEM, b"9" + STEM[1:], b"8" + STEM[1:]) for n in range(20, 40)]
    offsets = offsets_of([100] * 60)
    rows = rows_of_runs(keys, SEED, offsets)
    assert rows == rows_of(identities_of(keys, [SEED] * 60), offsets)
    assert len(rows.families) == 6


def test_large_sends_are_remembered_one_by_one():
    keys = [STEM + b"%05X" % n for n in range(16)]
    offsets = offsets_of([MAX_ROW_BYTES // 8] * 16)
    rows = rows_of_runs(keys, SEED, offsets)
    assert rows == rows_of(identities_of(keys, [SEED] * 16), offsets)
    assert [members.bit_count() for members in rows.members] == [1] * 16


def test_a_batch_has_a_family_and_a_row_of_its_own():
    identities = [identity_of_batch(STEM, SEED), identity_of_batch(STEM, SEED)]
    rows = rows_of([*identities, *identities_of([STEM], [SEED])], offsets_of([100] * 3))
    assert [members.bit_count() for members in rows.members] == [1, 1, 1]
    assert rows.families[0] == rows.families[1] >= 1 << 31 > rows.families[2]
    assert identity_of_batch(STEM, SEED) != identity_of_batch(STEM, identity_seed("G", "T", 2))
    assert identities_of([b"", b""], [identities[0], 0]) == [identities[0], 0]


def test_groups_and_topics_have_families_of_their_own():
    seeds = [identity_seed("G", "T"), identity_seed("H", "T"), identity_seed("G", "U"), identity_seed("G", "T", 2)]
    assert len({identity >> MEMBER_BITS for identity in identities_of([STEM] * 4, seeds)}) == 4


def test_hexadecimal_digits_are_sixteen_members():
    for digits in (b"0123456789ABCDEF", b"0123456789abcdef"):
        identities = identities_of([STEM + digits[n : n + 1] for n in range(16)], [SEED] * 16)
        assert [identity & MEMBERS for identity in identities] == [1 << n for n in range(16)]
        assert len({identity >> MEMBER_BITS for identity in identities}) == 1

"""Rows of sends that are remembered together: every send is in exactly one row, which shows its member."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from hypothesis import example, given
from hypothesis import strategies as st

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
def test_each_send_is_in_one_row_that_shows_its_member(keys: list[bytes], data: st.DataObject | None):
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
def test_keys_that_count_up_take_one_row_for_each_family(keys: list[bytes]):
    offsets = offsets_of([1000] * len(keys))
    identities = identities_of(keys, [SEED] * len(keys))
    rows = rows_of(identities, offsets)
    assert len(rows.families) == len(set(rows.families)) == len({key[:-1] for key in keys})
    assert rows_of_runs(keys, SEED, offsets) == rows


def test_keys_in_no_order_are_left_to_the_general_way():
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


def test_a_batch_is_of_no_family_of_messages_and_remembered_alone():
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

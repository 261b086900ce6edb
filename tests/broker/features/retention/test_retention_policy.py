"""Choice of what goes: by age, size and disk, never what is written, and what is pinned for a full disk only."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from msgspec.structs import replace

from dledger.replica.status import PeerStatus
from dledger_broker.features.retention.policy import (
    MAX_SEGMENTS_PER_ROUND,
    RetentionPolicy,
    choose_trim,
    clocks_agree,
    fullest_disk_ratio,
)
from dledger_broker.kernel.segment_ages import SegmentTimes, find_expired
from dledger_broker.testing import BrokerInMemory

NOW = 1_000_000


class Aged(NamedTuple):
    start_position: int
    end_position: int
    age_ms: int


def segments(*ages: int, size: int = 100) -> list[Aged]:
    return [Aged(size * n, size * (n + 1), age) for n, age in enumerate(ages)]


def choose(found, candidates, policy, *, ratio: float = 0.1, pinned: int | None = None):
    """With messages as old as their files."""
    times = {segment.start_position: SegmentTimes(NOW - segment.age_ms, NOW - segment.age_ms) for segment in found}
    before = find_expired(found[:-1], times, NOW, policy.max_age_ms).before
    return choose_trim(found, candidates, policy, expired_before=before, disk_ratio=ratio, pinned=pinned)


BY_AGE = RetentionPolicy(max_age_ms=50)
EVERYWHERE = [100 * number for number in range(1, 40)]


@pytest.mark.parametrize(
    ("ages", "expected"),
    [((), None), ((60,), None), ((40, 30, 0), None), ((60, 40, 0), 100), ((90, 60, 0), 200), ((90, 60, 55), 200)],
)
def test_expired_segments_go_but_never_the_one_being_written(ages, expected):
    assert choose(segments(*ages), EVERYWHERE, BY_AGE) == expected


def test_a_segment_goes_only_if_all_before_it_go():
    assert choose(segments(60, 40, 90, 0), EVERYWHERE, BY_AGE) == 100


def test_a_trim_ends_at_a_snapshot():
    found = segments(90, 80, 70, 0)
    assert choose(found, [200], BY_AGE) == 200
    assert choose(found, [400], BY_AGE) is None


def test_snapshots_further_apart_than_a_round_drops_do_not_keep_the_log_for_ever():
    found = segments(*range(90, 60, -1), 0)
    behind = 100 * (MAX_SEGMENTS_PER_ROUND + 5)
    assert choose(found, [behind, behind + 100], BY_AGE) == behind
    assert choose(found, [500, behind], BY_AGE) == 500
    assert choose(found, [behind], RetentionPolicy(max_log_bytes=500)) == behind
    assert choose(found, [behind], RetentionPolicy(max_log_bytes=2500)) is None, "more than need be goes"
    assert choose(found, [behind], RetentionPolicy(), ratio=0.76) == behind


def test_the_oldest_go_beyond_the_largest_size():
    policy = RetentionPolicy(max_log_bytes=250)
    assert choose(segments(3, 2, 1, 0), EVERYWHERE, policy) == 200
    assert choose(segments(1, 0), EVERYWHERE, policy) is None


def test_what_is_about_to_go_is_known_a_twentieth_ahead():
    found, policy = segments(3, 2, 1, 0), RetentionPolicy(max_log_bytes=420)
    assert choose(found, EVERYWHERE, policy) is None
    assert choose(found, EVERYWHERE, policy.ahead()) == 100
    policy = RetentionPolicy(disk_max_used_ratio=0.75)
    assert [choose(found, EVERYWHERE, policy.ahead(), ratio=ratio) for ratio in (0.69, 0.71)] == [None, 200]
    assert RetentionPolicy().ahead().max_log_bytes == 0, "no limit is no limit ahead"


def test_a_full_disk_takes_the_oldest_of_any_age_a_few_at_a_time():
    assert choose(segments(3, 2, 1, 0), EVERYWHERE, RetentionPolicy(), ratio=0.76) == 200
    assert choose(segments(1, 0), EVERYWHERE, RetentionPolicy(), ratio=0.76) == 100
    assert choose(segments(0), EVERYWHERE, RetentionPolicy(), ratio=0.99) is None


def test_a_round_is_bounded():
    assert choose(segments(*range(130, 100, -1)), EVERYWHERE, BY_AGE) == 100 * MAX_SEGMENTS_PER_ROUND


def test_the_fullest_voters_disk_and_a_majority_of_clocks_count():
    status = BrokerInMemory().node.status()

    def peer(disk_used: int, ahead: int, voter: bool = True) -> PeerStatus:
        return PeerStatus("p", voter, 0, 0, 20, "replicate", disk_used, ahead)

    group = replace(status, disk_used=300, peers=[peer(700, 100_000), peer(400, 0), peer(900, 0, voter=False)])
    assert fullest_disk_ratio(group) == 0.7
    assert clocks_agree(group)
    assert not clocks_agree(replace(status, peers=[peer(0, 100_000), peer(0, -90_000)]))
    assert clocks_agree(replace(status, peers=[]))


def test_what_is_pinned_goes_for_a_full_disk_only():
    found = segments(90, 80, 70, 0)

    def pinned(position, ratio=0.1):
        return choose(found, EVERYWHERE, BY_AGE, ratio=ratio, pinned=position)

    assert [pinned(position) for position in (0, 99, 100, 150, 299, 300, 10_000)] == [
        None,
        None,
        100,
        100,
        200,
        300,
        300,
    ]
    assert pinned(0, ratio=0.9) == 200


def test_a_member_that_is_gone_has_no_say():
    """What it told last would have every segment trimmed; what it never told is no agreement."""
    status = BrokerInMemory().node.status()

    def peer(contact_ms: int, ahead: int | None) -> PeerStatus:
        return PeerStatus("p", True, 0, 0, contact_ms, "probe", 1000, ahead)

    assert fullest_disk_ratio(replace(status, disk_used=300, peers=[peer(20, 0)])) == 1.0
    assert fullest_disk_ratio(replace(status, disk_used=300, peers=[peer(60_000, 0)])) == 0.3
    assert not clocks_agree(replace(status, peers=[peer(60_000, None), peer(20, 86_400_000)]))
    assert clocks_agree(replace(status, peers=[peer(60_000, None), peer(20, 100)]))

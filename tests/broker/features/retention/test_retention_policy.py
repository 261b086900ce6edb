"""Choice of what to trim: what has expired by age or size, never what is written, and other segments only if asked."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from msgspec.structs import replace

from dledger.replica.status import NodeStatus, PeerStatus
from dledger_broker.features.retention.policy import (
    BY_AGE,
    BY_SIZE,
    DELETE_OLDEST,
    MAX_SEGMENTS_PER_ROUND,
    RetentionPolicy,
    choose_trim,
    clocks_agree,
    fullest_disk_ratio,
    parts_of_trim,
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


def choose(found, candidates, policy, *, ratio: float = 0.1, pinned: int | None = None, needed: int | None = None):
    """Choose a trim, with messages as old as their files."""
    times = {segment.start_position: SegmentTimes(NOW - segment.age_ms, NOW - segment.age_ms) for segment in found}
    before = find_expired(found[:-1], times, NOW, policy.max_age_ms).before
    return choose_trim(found, candidates, policy, expired_before=before, disk_ratio=ratio, pinned=pinned, needed=needed)


OLD_GO = RetentionPolicy(max_age_ms=50)
DELETES = RetentionPolicy(when_full=DELETE_OLDEST)
EVERYWHERE = [100 * number for number in range(1, 40)]


@pytest.mark.parametrize(
    ("ages", "snapshots", "expected"),
    [
        ((), EVERYWHERE, None),
        ((60,), EVERYWHERE, None),
        ((40, 30, 0), EVERYWHERE, None),
        ((60, 40, 0), EVERYWHERE, 100),
        ((90, 60, 0), EVERYWHERE, 200),
        ((90, 60, 55), EVERYWHERE, 200),
        ((60, 40, 90, 0), EVERYWHERE, 100),
        ((90, 80, 70, 0), [200], 200),
        ((90, 80, 70, 0), [400], None),
    ],
)
def test_expired_segments_go_up_to_a_snapshot_but_none_behind_a_young_one_or_being_written(ages, snapshots, expected):
    assert choose(segments(*ages), snapshots, OLD_GO) == expected


def test_distant_snapshots_do_not_keep_the_log_forever():
    found = segments(*range(90, 60, -1), 0)
    behind = 100 * (MAX_SEGMENTS_PER_ROUND + 5)
    assert choose(found, [behind, behind + 100], OLD_GO) == behind
    assert choose(found, [500, behind], OLD_GO) == 500
    assert choose(found, [behind], RetentionPolicy(max_log_bytes=500)) == behind
    assert choose(found, [behind], RetentionPolicy(max_log_bytes=2500)) is None, "more than need be goes"
    assert choose(found, [behind], DELETES, ratio=0.86) == behind


def test_the_policy_ahead_finds_the_next_trim_a_twentieth_below_the_limits():
    found, policy = segments(3, 2, 1, 0), RetentionPolicy(max_log_bytes=420)
    assert choose(found, EVERYWHERE, policy) is None
    assert choose(found, EVERYWHERE, policy.ahead()) == 100
    assert [choose(found, EVERYWHERE, DELETES.ahead(), ratio=ratio) for ratio in (0.79, 0.81)] == [None, 200]
    assert RetentionPolicy().ahead().max_log_bytes == 0, "no limit is no limit ahead"


def test_a_full_disk_trims_a_few_oldest_segments_only_with_delete_oldest():
    assert choose(segments(3, 2, 1, 0), EVERYWHERE, DELETES, ratio=0.86) == 200
    assert choose(segments(1, 0), EVERYWHERE, DELETES, ratio=0.86) == 100
    assert choose(segments(0), EVERYWHERE, DELETES, ratio=1.0) is None
    assert choose(segments(3, 2, 1, 0), EVERYWHERE, DELETES, ratio=0.84) is None, "it has a threshold of its own"
    assert choose(segments(3, 2, 1, 0), EVERYWHERE, RetentionPolicy(), ratio=1.0) is None


@pytest.mark.parametrize("ratio", [0.1, 0.76, 1.0])
@pytest.mark.parametrize("old", range(6))
@pytest.mark.parametrize("limit", [0, 100, 350, 700, 10_000])
def test_no_trim_takes_young_segments_within_the_kept_size(ratio, old, limit):
    """The size counts only what is kept, without what goes by age."""
    found = segments(*[60] * old, *[10] * (8 - old))
    policy = RetentionPolicy(max_age_ms=50, max_log_bytes=limit)
    position = choose(found, EVERYWHERE, policy, ratio=ratio) or 0
    by_age = 100 * old
    by_size = 100 * -(-(800 - by_age - limit) // 100) if 0 < limit < 800 - by_age else 0
    assert position == min(by_age + by_size, 700)
    parts = parts_of_trim(found, policy, expired_before=by_age, position=position) if position else ()
    assert list(parts) == [(BY_AGE, by_age)] * (by_age > 0) + [(BY_SIZE, position)] * (position > by_age)


def test_above_the_watermark_all_expired_segments_are_trimmed_at_once():
    found = segments(*range(90, 60, -1), 0)
    assert choose(found, EVERYWHERE, OLD_GO) == 100 * MAX_SEGMENTS_PER_ROUND
    assert choose(found, EVERYWHERE, OLD_GO, ratio=0.76) == 3000


def test_open_transactions_hold_expired_segments_unless_the_policy_deletes_the_oldest():
    found = segments(90, 80, 70, 0)
    assert [choose(found, EVERYWHERE, OLD_GO, ratio=ratio, needed=150) for ratio in (0.1, 0.9, 1.0)] == [100, 100, 100]
    assert choose(found, EVERYWHERE, DELETES, ratio=0.86, needed=150) == 200


def peer(disk_used: int, ahead_ms: int | None, *, voter: bool = True, contact_ms: int = 20) -> PeerStatus:
    return PeerStatus("p", voter, 0, 0, contact_ms, "replicate", disk_used, ahead_ms)


def group_of(*peers: PeerStatus) -> NodeStatus:
    return replace(BrokerInMemory().node.status(), disk_used=300, peers=list(peers))


def test_retention_uses_the_fullest_disk_of_the_voters_and_a_majority_of_clocks():
    group = group_of(peer(700, 100_000), peer(400, 0), peer(900, 0, voter=False))
    assert (fullest_disk_ratio(group), clocks_agree(group)) == (0.7, True)
    assert not clocks_agree(group_of(peer(0, 100_000), peer(0, -90_000)))
    assert clocks_agree(group_of())


def test_pinned_messages_are_trimmed_only_if_expired_and_above_the_watermark():
    found, young = segments(90, 80, 70, 0), segments(10, 10, 0)
    for pinned, end in ((0, None), (99, None), (100, 100), (150, 100), (299, 200), (300, 300), (10_000, 300)):
        assert choose(found, EVERYWHERE, OLD_GO, pinned=pinned) == end
    assert choose(found, EVERYWHERE, OLD_GO, ratio=0.9, pinned=0) == 300
    for policy in (OLD_GO, DELETES):
        assert choose(young, EVERYWHERE, policy, ratio=1.0, pinned=0) is None
    assert choose(young, EVERYWHERE, DELETES, ratio=1.0, pinned=100) == 100


def test_retention_ignores_old_reports_of_unreachable_members():
    """Its last report would have every segment trimmed, and a report that it never made is no agreement."""
    assert fullest_disk_ratio(group_of(peer(1000, 0))) == 1.0
    assert fullest_disk_ratio(group_of(peer(1000, 0, contact_ms=60_000))) == 0.3
    assert not clocks_agree(group_of(peer(1000, None, contact_ms=60_000), peer(1000, 86_400_000)))
    assert clocks_agree(group_of(peer(1000, None, contact_ms=60_000), peer(1000, 100)))

"""Known bugs are caught: by a schedule made for them, or by seeds of the simulator."""

from collections.abc import Callable

import disk_schedules
import group_schedules
import pytest
import schedules

from dledger.invariants import InvariantError
from dledger.sim.campaign import judge
from dledger.sim.invariants import Violation
from dledger.sim.mutants import MUTANTS

SECONDS = 10.0
SEEDS_TRIED = 60

# A seed that catches it; if the code has changed since, others are tried.
SEEDS = {
    "answer-before-apply": 1,
    "ack-before-sync": 1,
    "commit-without-quorum": 1,
    "directory-not-synced": 2,
    "leader-counts-unsynced": 1,
    "learners-count": 2,
    "mark-before-sync": 1,
    "message-before-save": 1,
    "old-segment-not-synced": 2,
}
SCHEDULES: dict[str, Callable[[], None]] = {
    "commit-older-term": schedules.figure_8,
    "conflict-at-base": schedules.conflict_at_the_compacted_base,
    "follower-commits-last-index": schedules.overtaking_heartbeat,
    "lost-files-forgiven": group_schedules.lost_files,
    "member-only-votes": schedules.void_removal,
    "mark-not-lowered": disk_schedules.mark_below_a_truncation,
    "membership-before-own-commit": schedules.membership_change_before_own_commit,
    "read-before-apply": schedules.read_waits_for_apply,
    "read-without-round": schedules.read_of_an_isolated_leader,
    "recovery-trusts-the-cache": disk_schedules.cache_after_a_failed_sync,
    "snapshot-sent-once": schedules.snapshot_without_effect,
    "stale-acknowledgement": schedules.stale_acknowledgement,
    "sync-generation-ignored": schedules.sync_of_replaced_entries,
    "truncate-matching": schedules.duplicate_append,
    "vote-for-short-log": schedules.vote_of_a_longer_log,
    "vote-forgotten": disk_schedules.vote_after_power_loss,
    "vote-not-synced": disk_schedules.vote_after_power_loss,
    "vote-twice": schedules.vote_of_a_longer_log,
}


def test_every_mutant_has_a_seed_or_a_schedule() -> None:
    assert SEEDS.keys() | SCHEDULES.keys() == MUTANTS.keys()


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_schedules_catch(name: str) -> None:
    with MUTANTS[name].applied(), pytest.raises((AssertionError, InvariantError, Violation)):
        SCHEDULES[name]()


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_seeds_catch(name: str) -> None:
    tried = (SEEDS[name], *range(1, SEEDS_TRIED))
    outcome = next((found for seed in tried if (found := judge(seed, SECONDS, name)).violation is not None), None)
    assert outcome is not None, f"{name} got away with {SEEDS_TRIED} seeds"
    print(f"{name}: seed {outcome.seed} after {outcome.seconds:.2f} s: {outcome.violation}")


@pytest.mark.parametrize("seed", sorted(set(SEEDS.values())))
def test_the_same_seeds_pass_without_a_mutant(seed: int) -> None:
    assert judge(seed, SECONDS).violation is None


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_mutant_leaves_nothing_behind(name: str) -> None:
    before = [vars(owner)[attribute] for owner, attribute, _ in MUTANTS[name].patches]
    with MUTANTS[name].applied():
        assert [vars(owner)[attribute] for owner, attribute, _ in MUTANTS[name].patches] != before
    assert [vars(owner)[attribute] for owner, attribute, _ in MUTANTS[name].patches] == before

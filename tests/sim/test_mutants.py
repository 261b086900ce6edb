"""Known bugs are caught: by seeds of the simulator, or by a schedule made for them (`make mutants` tries all seeds)."""

from collections.abc import Generator

import pytest

from dledger import loop_guard
from dledger.invariants import InvariantError
from dledger_sim.brokers.lab import MUTANTS
from dledger_sim.log.campaign import judge
from dledger_sim.log.cases import Case
from dledger_sim.log.invariants import Violation

LAB = "dledger_sim.brokers.lab"
SECONDS = 20.0
SEEDS_TRIED = 60
# Seeds that catch what the first ones do not; if the code has changed since, others are tried.
KNOWN_SEEDS = {
    "batch-torn": 4,
    "boot-record-not-scrubbed": 4,
    "busy-commit-not-proposed-again": 2,
    "busy-for-ever": 6,
    "busy-not-refused": 7,
    "busy-trim-goes-on": 6,
    "checkpoint-before-sync": 3,
    "checks-not-noted": 3,
    "commit-behind-a-group-deletion": 2,
    "commit-of-nobody-known-undoes-a-reset": 22,
    "commits-admitted-while-reset": 12,
    "dead-followers-are-homes": 3,
    "delayed-repetition-not-known": 18,
    "deleted-group-keeps-offsets": 2,
    "discarded-commits-never-answered": 8,
    "every-topic-is-young": 2,
    "expired-sends-indexed-first": 5,
    "file-kept-open-under-its-name": 6,
    "filling-not-waited-for": 3,
    "first-poll-of-a-queue-woken": 4,
    "first-queue-of-a-batch-woken": 3,
    "follower-denies": 2,
    "follower-moves-consumer": 3,
    "forward-sent-again": 6,
    "full-follower-waits-for-ever": 6,
    "group-deletion-not-waited-for": 2,
    "half-is-a-majority": 3,
    "hard-state-not-rewritten": 2,
    "held-reads-forgotten-at-step-down": 3,
    "host-loss-ignored": 4,
    "identity-not-checked": 18,
    "in-doubt-votes": 2,
    "index-read-without-lock": 52,
    "install-keeps-membership": 2,
    "last-pieces-forgotten": 3,
    "leader-counts-unsynced": 3,
    "leader-lets-itself-be-deposed": 52,
    "learners-count": 3,
    "lone-leader-steps-down": 4,
    "lone-voter-commits-unsynced": 8,
    "lone-voter-waits-for-others": 2,
    "lost-connection-taken-for-an-answer": 9,
    "lost-send-refused": 8,
    "made-good-too-early": 10,
    "mark-before-sync": 3,
    "mark-set-unsynced": 2,
    "membership-kept-by-truncation": 42,
    "message-of-a-deleted-topic-found": 2,
    "messages-beside-a-rewriting": 29,
    "moved-and-kept": 2,
    "new-leader-takes-its-readers-for-its-own": 5,
    "old-install-replaces": 34,
    "old-segment-not-synced": 3,
    "pins-ignored": 9,
    "polls-kept-at-step-down": 3,
    "polls-kept-when-leaving": 13,
    "question-passes-a-commit": 8,
    "read-before-own-commit": 41,
    "read-one-entry-early": 41,
    "refused-after-staging": 7,
    "refused-change-done-later": 3,
    "removed-leader-leads-on": 8,
    "repetition-in-flight-stored": 18,
    "request-fails": 4,
    "reset-announced-unsynced": 2,
    "reset-forgotten-too-early": 2,
    "reset-not-announced": 2,
    "rollback-answered-when-staged": 3,
    "second-membership-change": 2,
    "segment-ends-without-blank": 2,
    "sends-forgotten-at-failover": 2,
    "sends-forgotten-early": 53,
    "sent-file-closed-by-the-loop": 10,
    "slot-unchecked": 8,
    "slots-not-checked": 7,
    "snapshot-name-not-synced": 2,
    "snapshot-named-first": 5,
    "snapshot-not-synced": 2,
    "snapshot-with-newest-membership": 4,
    "spare-replaced-while-filled": 3,
    "staged-kept-at-step-down": 22,
    "start-forgets-changes": 2,
    "start-rewrites-one-copy": 39,
    "timers-forgotten-at-restart": 2,
    "trim-before-mark-synced": 2,
    "two-voters-at-once": 8,
    "views-rebuilt-across-a-deletion": 2,
    "votes-while-leader-heard": 18,
    "waiting-entries-forgotten": 34,
    "waiting-entries-overtaken": 3,
    "written-pieces-not-told": 2,
}


@pytest.fixture(autouse=True)
def refusals_are_caught_bugs() -> Generator[None]:
    """A bug may have an event loop work on a disk: that convicts it, and is no fault of the test."""
    yield
    loop_guard.violations.clear()


WITHOUT_SCHEDULE = [name for name, mutant in MUTANTS.items() if mutant.schedule is None]
WITH_SCHEDULE = [name for name, mutant in MUTANTS.items() if mutant.schedule is not None]


def test_there_are_many() -> None:
    assert len(MUTANTS) >= 95


@pytest.mark.parametrize("name", WITH_SCHEDULE)
def test_schedules_catch(name: str) -> None:
    mutant = MUTANTS[name]
    assert mutant.schedule is not None
    with mutant.applied(), pytest.raises((AssertionError, InvariantError, Violation)):
        mutant.schedule()


@pytest.mark.parametrize("name", WITHOUT_SCHEDULE)
def test_seeds_catch(name: str) -> None:
    scenario = MUTANTS[name].scenario
    tried = (KNOWN_SEEDS.get(name, 1), *range(1, SEEDS_TRIED))
    outcomes = (judge(Case(scenario, seed, SECONDS), LAB, name) for seed in tried)
    caught = next((outcome for outcome in outcomes if outcome.violation is not None), None)
    assert caught is not None, f"{name} got away with {SEEDS_TRIED} seeds"


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_mutant_leaves_nothing_behind(name: str) -> None:
    before = [vars(owner)[attribute] for owner, attribute, _ in MUTANTS[name].patches]
    with MUTANTS[name].applied():
        assert [vars(owner)[attribute] for owner, attribute, _ in MUTANTS[name].patches] != before
    assert [vars(owner)[attribute] for owner, attribute, _ in MUTANTS[name].patches] == before

"""Workers remove trimmed files after the mark is synced, and scrub the mark, between two syncs."""

from types import SimpleNamespace
from typing import Any, cast

from dledger.environment import BACKGROUND, FLUSH, HARD_STATE
from dledger.replica.driver import Completions
from dledger.replica.snapshots.taking import Remover
from dledger.replica.storing.flusher import Flusher
from dledger.replica.upkeep.scrub import PromiseScrub
from dledger_broker.testing.environment import FakeEnvironment
from tests.dledger.fake_driver import FakeDriver, HeldWork


class Workers(HeldWork, FakeEnvironment):
    """Environment with a clock."""


class Log:
    """Log as the flusher and the remover use it. `calls` lists the calls."""

    end_position = 0
    generation, last_index, durable = 0, 5, 5

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.leftovers = SimpleNamespace(due=True)
        self.ticket = SimpleNamespace(
            run=lambda: self.calls.append("sync"), token=(0, 5), target=SimpleNamespace(position=0)
        )
        self.unsynced = True

    def begin_sync(self) -> object:
        unsynced, self.unsynced = self.unsynced, False
        return self.ticket if unsynced else None

    def finish_sync(self, _ticket: object) -> None:
        self.calls.append("mark written")

    def sync_mark(self) -> None:
        self.calls.append("mark synced")

    def remove_trimmed(self) -> None:
        self.calls.append("removed")
        self.leftovers.due = False


class Parts:
    def __init__(self) -> None:
        self.log, self.workers, driver = Log(), Workers(), FakeDriver()
        self.failures = driver.failures
        engine: Any = SimpleNamespace(synced=lambda *_: None)
        self.flusher = Flusher(self.workers, cast(Any, self.log), Completions(driver.fail), engine, driver, sync=True)
        self.remover = Remover(self.workers, cast(Any, self.log), self.flusher, driver)


def test_a_removal_waits_for_the_sync_under_way_and_syncs_the_mark_first() -> None:
    parts = Parts()
    parts.flusher.note_written()
    parts.remover.tick()
    parts.remover.tick()
    assert len(parts.workers.given) == 1, "only the sync"
    assert [parts.workers.work_once(), parts.workers.work_once()] == [FLUSH, FLUSH]
    assert parts.log.calls == ["sync", "mark written", "mark synced"]
    assert parts.workers.work_once() == BACKGROUND
    assert parts.log.calls[-1] == "removed"
    assert not parts.workers.given
    assert not parts.failures


def test_no_sync_begins_before_the_work_between_syncs_has_ended() -> None:
    parts = Parts()
    results: list[object] = []
    parts.flusher.run_between_syncs(lambda: "done", results.append)
    parts.flusher.note_written()
    assert len(parts.workers.given) == 1
    parts.workers.advance(5.0)
    assert parts.flusher.outstanding_s == 5.0, "a leader hands over for it: the syncs behind it wait as long"
    parts.workers.work_once()
    assert results == ["done"]
    assert parts.workers.work_once() == FLUSH
    assert parts.log.calls == ["sync", "mark written"], "and what was written meanwhile is synced then"


def test_a_mark_that_cannot_be_synced_ends_the_replica_and_removes_nothing() -> None:
    parts = Parts()
    error = OSError("gone")

    def fail() -> None:
        raise error

    parts.log.unsynced = False
    parts.log.sync_mark = fail  # type: ignore[method-assign]
    parts.remover.tick()
    parts.workers.work_once()
    assert parts.failures == [error]
    assert not parts.workers.given


def test_a_stopped_replica_hears_of_nothing() -> None:
    parts = Parts()
    results: list[object] = []
    parts.flusher.run_between_syncs(lambda: "done", results.append)
    parts.flusher.stop()
    parts.workers.work_once()
    assert results == []


def test_the_mark_is_scrubbed_only_between_syncs() -> None:
    """The end of a sync writes the mark on the event loop, which would wait for a scrub that holds the mark's lock."""
    parts = Parts()
    log, workers = parts.log, parts.workers

    def look() -> int:
        log.calls.append("mark looked at")
        return 1

    log.scrub_mark = look  # type: ignore[attr-defined]
    hard_state: Any = SimpleNamespace(scrub=lambda: 0)
    scrub = PromiseScrub(
        "n0", workers, cast(Any, log), hard_state, hard_state, hard_state, parts.flusher, cast(Any, parts), rest_s=0.0
    )
    parts.flusher.note_written()
    scrub.tick()
    scrub.tick()
    assert [lane for lane, _, _ in workers.given] == [FLUSH, HARD_STATE], "a sync, and the first file of one round"
    _, work, done = workers.given.pop()
    done(work())
    assert len(workers.given) == 1, "the mark waits for the sync"
    assert [workers.work_once(), workers.work_once()] == [FLUSH, FLUSH]
    assert log.calls == ["sync", "mark written", "mark looked at"]
    assert scrub.rewritten == 1
    assert [workers.work_once(), workers.work_once()] == [BACKGROUND, BACKGROUND]

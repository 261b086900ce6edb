"""Files of what was trimmed go on workers, after the durable mark, and between two syncs."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from dledger.environment import BACKGROUND, FLUSH
from dledger.replica.completions import Completions
from dledger.replica.flusher import Flusher
from dledger.replica.removal import Remover
from dledger_broker.testing.environment import FakeEnvironment
from tests.dledger.fake_driver import FakeDriver

Done = Callable[[object], None]


class Workers(FakeEnvironment):
    """Threads that do their work when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[str, Callable[[], object], Done]] = []

    def run_blocking(self, lane: str, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.given.append((lane, work, done))

    def finish(self) -> str:  # type: ignore[override]
        """Let the work that waits longest run; returns its lane."""
        lane, work, done = self.given.pop(0)
        try:
            result: object = work()
        except Exception as error:
            result = error
        done(result)
        return lane


class Log:
    """What flusher and remover see of a log; `calls` is what was done."""

    end_position = 0
    generation, last_index = 0, 5

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.leftovers = SimpleNamespace(due=True)
        self.ticket = SimpleNamespace(run=lambda: self.calls.append("sync"), token=(0, 5))
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
    parts.flusher.written()
    parts.remover.tick()
    parts.remover.tick()
    assert len(parts.workers.given) == 1, "only the sync"
    assert [parts.workers.finish(), parts.workers.finish()] == [FLUSH, FLUSH]
    assert parts.log.calls == ["sync", "mark written", "mark synced"]
    assert parts.workers.finish() == BACKGROUND
    assert parts.log.calls[-1] == "removed"
    assert not parts.workers.given
    assert not parts.failures


def test_no_sync_begins_before_what_goes_between_has_ended() -> None:
    parts = Parts()
    results: list[object] = []
    parts.flusher.between(lambda: "done", results.append)
    parts.flusher.written()
    assert len(parts.workers.given) == 1
    parts.workers.advance(5.0)
    assert parts.flusher.outstanding_s == 0.0, "a leader does not hand over for it"
    parts.workers.finish()
    assert results == ["done"]
    assert parts.workers.finish() == FLUSH
    assert parts.log.calls == ["sync", "mark written"], "and what was written meanwhile is synced then"


def test_a_mark_that_cannot_be_synced_ends_the_replica_and_removes_nothing() -> None:
    parts = Parts()
    error = OSError("gone")

    def fail() -> None:
        raise error

    parts.log.unsynced = False
    parts.log.sync_mark = fail  # type: ignore[method-assign]
    parts.remover.tick()
    parts.workers.finish()
    assert parts.failures == [error]
    assert not parts.workers.given


def test_a_stopped_replica_hears_of_nothing() -> None:
    parts = Parts()
    results: list[object] = []
    parts.flusher.between(lambda: "done", results.append)
    parts.flusher.stop()
    parts.workers.finish()
    assert results == []

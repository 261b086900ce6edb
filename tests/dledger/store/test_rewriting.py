"""Workers do truncations and replacements. Later work waits until the log has taken the change."""

import asyncio
from errno import EMFILE
from types import SimpleNamespace
from typing import Any, cast

import pytest
from store_model import SEGMENT_BYTES, synced_log

from dledger.consensus.effects import Output
from dledger.core.messages import TimeoutNow
from dledger.environment import FLUSH
from dledger.errors import ContradictionError, CorruptionError, TrimmedError
from dledger.replica.driver import Completions
from dledger.replica.peers.inbox import MAX_HELD, Inbox
from dledger.replica.storing.flusher import BUSY_PAUSE_S, Flusher
from dledger.replica.storing.recent import RecentEntries
from dledger.replica.storing.rewriting import Rewriter
from dledger.types import ReplicaId
from dledger_base import loop_guard
from dledger_base.invariants import InvariantError
from dledger_broker.testing.environment import FakeEnvironment
from tests.dledger.fake_driver import FakeDriver, HeldWork

PEER = ReplicaId("n1", "bb")


class FlushThread(HeldWork, FakeEnvironment):
    """Environment whose flush thread works when the test says so."""

    def run(self) -> None:
        assert self.work_once() == FLUSH


class Parts(FakeDriver):
    """Driver of a rewriter on a log of 40 entries. `told` lists all events in order."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[object] = []
        self.model = synced_log(count=40)
        self.thread = FlushThread()
        part: Any = SimpleNamespace(on_snapshot_taken=None)
        self.engine: Any = SimpleNamespace(
            generation=1, step=lambda _sender, message, *_: self.told.append(message), synced=lambda *_: None
        )
        syncing = FakeDriver()
        self.flusher = Flusher(self.thread, self.model.log, Completions(self.fail), self.engine, syncing, sync=True)
        self.inbox = Inbox(self.thread, part, self.model.log, part, part, part, self.engine, self)
        self.rewriter = Rewriter(self.model.log, RecentEntries(1 << 20), self.flusher, self.inbox, self.engine, self)

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        self.flusher.stop()

    def pump(self) -> None:
        self.told.append("resumed")

    def execute(self, output: Output) -> None:
        for done, effect in enumerate(output.effects, 1):
            if callable(effect):
                effect()
            else:
                self.told.append(effect)
            if self.rewriter.hold_rest(output, done):
                return


def output(*effects: object) -> Output:
    return Output(cast(Any, list(effects)), [])


@pytest.fixture
def parts() -> Parts:
    return Parts()


def test_effects_and_messages_behind_a_truncation_wait_in_order(parts: Parts) -> None:
    parts.rewriter.truncate(20)
    assert parts.rewriter.hold(output("later"))
    assert parts.rewriter.hold_rest(output("before", "rest"), 1)
    parts.inbox.on_message(PEER, TimeoutNow(7), b"")
    assert (parts.told, parts.model.log.last_index) == ([], 39)
    parts.thread.run()
    assert parts.told == ["rest", "later", TimeoutNow(7), "resumed"]
    assert (parts.model.log.last_index, parts.model.log.durable, parts.model.log.generation) == (19, 19, 1)
    assert not parts.failures


def test_effects_behind_two_truncations_wait_for_both(parts: Parts) -> None:
    parts.rewriter.truncate(20)

    def again() -> None:
        parts.engine.generation = 2
        parts.rewriter.truncate(10)

    parts.rewriter.hold(output(again, "rest"))
    parts.rewriter.hold(output("later"))
    parts.inbox.on_message(PEER, TimeoutNow(7), b"")
    parts.thread.run()
    assert (parts.told, parts.rewriter.is_active) == ([], True)
    parts.thread.run()
    assert parts.told == ["rest", "later", TimeoutNow(7), "resumed"]
    assert parts.model.log.last_index == 9


def test_a_held_message_that_truncates_holds_the_messages_behind_it(parts: Parts) -> None:
    parts.inbox.hold()
    for term in range(3):
        parts.inbox.on_message(PEER, TimeoutNow(term), b"")
    parts.run = lambda work: (work(), parts.inbox.hold())  # type: ignore[assignment, func-returns-value]
    parts.inbox.release()
    assert parts.told == [TimeoutNow(0)]
    parts.inbox.release()
    assert parts.told == [TimeoutNow(0), TimeoutNow(1)]


def test_held_messages_above_a_limit_are_dropped(parts: Parts) -> None:
    parts.inbox.hold()
    for term in range(MAX_HELD + 5):
        parts.inbox.on_message(PEER, TimeoutNow(term), b"")
    parts.inbox.release()
    assert parts.told == [TimeoutNow(term) for term in range(MAX_HELD)]


def test_no_sync_runs_beside_a_cut(parts: Parts) -> None:
    parts.model.append()
    parts.flusher.note_written()
    parts.rewriter.truncate(20)
    assert len(parts.thread.given) == 1, "the sync has begun, the cut has not"
    parts.thread.run()
    assert parts.model.log.durable == 40
    parts.model.append()
    parts.flusher.note_written()
    assert len(parts.thread.given) == 1, "the cut has begun"
    parts.thread.run()
    assert parts.model.log.durable == 19


def test_a_truncation_at_a_corrupt_entry_contradicts_the_replica(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise CorruptionError("rotten")

    monkeypatch.setattr(parts.model.log, "meta", fail)
    parts.rewriter.truncate(20)
    parts.thread.run()
    assert isinstance(parts.failures[0], ContradictionError)
    assert parts.told == []


REWRITINGS = {
    "cut": lambda parts, _: parts.rewriter.truncate(20),
    "replaced": lambda parts, base: parts.rewriter.replace(base, lambda: None),
}


@pytest.mark.parametrize("what", REWRITINGS)
def test_a_rewriting_that_can_open_no_file_waits_and_begins_again(what: str) -> None:
    """A rewriting is repeated whole at whichever file or directory the process is at its limit."""
    interrupted, opened = True, -1
    while interrupted:
        opened += 1
        parts = Parts()
        base, log, calls = parts.model.snapshot(3 * SEGMENT_BYTES), parts.model.log, iter(range(100))
        log._index.close()
        log.open_files.close_all()
        parts.model.sim.fail(
            lambda operation, _, n=opened, calls=calls: operation in {"open", "sync_dir"} and next(calls) == n, EMFILE
        )
        REWRITINGS[what](parts, base)
        parts.thread.run()
        interrupted = parts.rewriter.is_active
        if interrupted:
            parts.flusher.note_written()
            assert not parts.thread.given
            parts.thread.advance(BUSY_PAUSE_S)
            parts.thread.run()
        assert (parts.failures, parts.rewriter.is_active) == ([], False)
        assert log.generation == log._mark.value.generation == 1
        assert parts.model.crash(opened, keep="none").last_index == (19 if what == "cut" else base.last_index)
    assert opened > 3


def test_reads_of_a_log_under_replacement_raise_trimmed_error(parts: Parts) -> None:
    base, log = parts.model.snapshot(3 * SEGMENT_BYTES), parts.model.log
    parts.rewriter.replace(base, lambda: parts.told.append("replaced"))
    parts.rewriter.hold(output("rest"))
    for read in (log.read, log.read_nowait):
        with pytest.raises(TrimmedError):
            read(0, 10)
    with pytest.raises(InvariantError):
        log.begin_sync()
    log.trim(base.position)
    assert log.first_position == 0, "there is nothing to be trimmed"
    parts.thread.run()
    assert parts.told == ["replaced", "rest", "resumed"]
    assert (log.first_position, log.first_index) == (base.position, base.last_index + 1)
    assert (log.last_index, log.generation) == (base.last_index, 1)


@pytest.mark.parametrize("what", REWRITINGS)
def test_the_event_loops_part_of_a_rewriting_does_no_disk_work(
    parts: Parts, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = parts.model.snapshot(3 * SEGMENT_BYTES)
    monkeypatch.setattr(loop_guard, "_is_tolerated", None)

    async def on_loop() -> None:
        REWRITINGS[what](parts, base)
        parts.thread.run()

    asyncio.run(on_loop())
    assert not parts.failures
    assert not loop_guard.violations
    assert parts.model.log.generation == 1


@pytest.mark.parametrize("what", REWRITINGS)
def test_a_log_closed_during_a_rewriting_opens_rewritten(parts: Parts, what: str) -> None:
    base = parts.model.snapshot(3 * SEGMENT_BYTES)
    REWRITINGS[what](parts, base)
    parts.flusher.stop()
    parts.thread.run()
    recovery = parts.model.reopen()
    assert not recovery.corrupt_ranges
    assert not recovery.clean, "it was not told to be whole"
    assert recovery.last_index == (19 if what == "cut" else base.last_index)

"""Truncations and replacements are a worker's; whatever follows one waits until the log has taken it."""

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from store_model import SEGMENT_BYTES, LoggedModel

from dledger import loop_guard
from dledger.consensus.effects import Output
from dledger.core.messages import TimeoutNow
from dledger.environment import FLUSH
from dledger.errors import ContradictionError, CorruptionError, TrimmedError
from dledger.invariants import InvariantError
from dledger.loop_guard import as_worker
from dledger.replica.completions import Completions
from dledger.replica.flusher import Flusher
from dledger.replica.inbox import MAX_HELD, Inbox
from dledger.replica.recent import RecentEntries
from dledger.replica.rewriting import Rewriter
from dledger.testing.disk import SimDisk
from dledger.types import ReplicaId
from dledger_broker.testing.environment import FakeEnvironment
from tests.dledger.fake_driver import FakeDriver

PEER = ReplicaId("n1", "bb")


class FlushThread(FakeEnvironment):
    """Its work is done when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def run_blocking(self, lane: str, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        assert lane == FLUSH
        self.given.append((work, done))

    def run(self) -> None:
        work, done = self.given.pop(0)
        try:
            with as_worker():
                result = work()
        except Exception as error:
            result = error
        done(result)


class Parts(FakeDriver):
    """The driver of a rewriter on a log of 40 entries; `told` is what happened, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[object] = []
        self.model = LoggedModel(SimDisk())
        self.model.fill(random.Random(3), 40)
        self.model.sync()
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


def message(term: int) -> TimeoutNow:
    return TimeoutNow(term)


def test_effects_and_messages_that_follow_a_truncation_wait_for_it_in_their_order() -> None:
    parts = Parts()
    parts.rewriter.truncate(20)
    assert parts.rewriter.hold(output("later"))
    assert parts.rewriter.hold_rest(output("before", "rest"), 1)
    parts.inbox.on_message(PEER, message(7), b"")
    assert (parts.told, parts.model.log.last_index) == ([], 39)
    parts.thread.run()
    assert parts.told == ["rest", "later", message(7), "resumed"]
    assert (parts.model.log.last_index, parts.model.log.durable, parts.model.log.generation) == (19, 19, 1)
    assert not parts.failures


def test_a_truncation_that_follows_a_truncation_holds_what_is_behind_both() -> None:
    parts = Parts()
    parts.rewriter.truncate(20)

    def again() -> None:
        parts.engine.generation = 2
        parts.rewriter.truncate(10)

    parts.rewriter.hold(output(again, "rest"))
    parts.rewriter.hold(output("later"))
    parts.inbox.on_message(PEER, message(7), b"")
    parts.thread.run()
    assert (parts.told, parts.rewriter.active) == ([], True)
    parts.thread.run()
    assert parts.told == ["rest", "later", message(7), "resumed"]
    assert parts.model.log.last_index == 9


def test_what_a_held_message_cuts_off_holds_the_messages_behind_it() -> None:
    parts = Parts()
    parts.inbox.hold()
    for term in range(3):
        parts.inbox.on_message(PEER, message(term), b"")
    parts.run = lambda work: (work(), parts.inbox.hold())  # type: ignore[assignment, func-returns-value]
    parts.inbox.release()
    assert parts.told == [message(0)]
    parts.inbox.release()
    assert parts.told == [message(0), message(1)]


def test_messages_beyond_a_limit_are_lost_as_a_network_loses_them() -> None:
    parts = Parts()
    parts.inbox.hold()
    for term in range(MAX_HELD + 5):
        parts.inbox.on_message(PEER, message(term), b"")
    parts.inbox.release()
    assert parts.told == [message(term) for term in range(MAX_HELD)]


def test_no_sync_runs_beside_a_cut() -> None:
    parts = Parts()
    parts.model.append()
    parts.flusher.written()
    parts.rewriter.truncate(20)
    assert len(parts.thread.given) == 1, "the sync has begun, the cut has not"
    parts.thread.run()
    assert parts.model.log.durable == 40
    parts.model.append()
    parts.flusher.written()
    assert len(parts.thread.given) == 1, "the cut has begun"
    parts.thread.run()
    assert parts.model.log.durable == 19


def test_a_truncation_whose_beginning_is_corrupt_contradicts_this_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts()

    def fail(_: int) -> None:
        raise CorruptionError("rotten")

    monkeypatch.setattr(parts.model.log, "meta", fail)
    parts.rewriter.truncate(20)
    parts.thread.run()
    assert isinstance(parts.failures[0], ContradictionError)
    assert parts.told == []


def replaceable() -> tuple[Parts, Any]:
    parts = Parts()
    base = parts.model.snapshot(3 * SEGMENT_BYTES)
    return parts, base


def test_a_log_that_is_being_replaced_answers_that_it_is_trimmed() -> None:
    parts, base = replaceable()
    log = parts.model.log
    parts.rewriter.replace(base, lambda: parts.told.append("replaced"))
    parts.rewriter.hold(output("rest"))
    with pytest.raises(TrimmedError):
        log.read(0, 10)
    with pytest.raises(TrimmedError):
        log.read_nowait(0, 10)
    with pytest.raises(InvariantError):
        log.begin_sync()
    log.trim(base.position)
    assert log.first_position == 0, "there is nothing to be trimmed"
    parts.thread.run()
    assert parts.told == ["replaced", "rest", "resumed"]
    assert (log.first_position, log.first_index, log.last_index) == (
        base.position,
        base.last_index + 1,
        base.last_index,
    )
    assert log.generation == 1


@pytest.mark.parametrize("what", ["cut", "replaced"])
def test_the_event_loops_part_of_a_rewriting_does_no_disk_work(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, base = replaceable()
    monkeypatch.setattr(loop_guard, "_tolerated", None)

    async def on_loop() -> None:
        if what == "cut":
            parts.rewriter.truncate(20)
        else:
            parts.rewriter.replace(base, lambda: None)
        parts.thread.run()

    asyncio.run(on_loop())
    assert not parts.failures
    assert not loop_guard.violations
    assert parts.model.log.generation == 1


@pytest.mark.parametrize("what", ["cut", "replaced"])
def test_a_log_that_is_closed_before_it_took_a_rewriting_opens_rewritten(what: str) -> None:
    parts, base = replaceable()
    if what == "cut":
        parts.rewriter.truncate(20)
    else:
        parts.rewriter.replace(base, lambda: None)
    parts.flusher.stop()
    parts.thread.run()
    parts.model.log.close()
    recovery = parts.model.open()
    assert not recovery.corrupt_ranges
    assert not recovery.clean, "it was not told to be whole"
    assert recovery.last_index == (19 if what == "cut" else base.last_index)

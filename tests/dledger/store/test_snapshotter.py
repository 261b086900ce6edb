"""The taker decides what may be trimmed, and when."""

import errno
import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from store_model import MEMBERS, SEGMENT_BYTES, LoggedModel, synced_log

from dledger.errors import LogError
from dledger.replica.snapshots.taking import SLICE_S, SnapshotTaker
from dledger.store.disk import OsDisk, OsFile
from dledger.types import SnapshotMeta
from dledger_base.loop_holds import LoopHolds
from tests.dledger.fake_driver import Unfailing


class Works:
    """`Environment` whose timers, work and results run when a test says so.

    With `slices`, every look at the clock ends a slice of encoding.
    """

    def __init__(self, *, slices: bool = False) -> None:
        self.holds = LoopHolds()
        self.due: deque[Callable[[], None]] = deque()
        self._slices = slices
        self._now = 0.0

    def now(self) -> float:
        self._now += SLICE_S if self._slices else 0.0
        return self._now

    def call_later(self, _delay_s: float, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def run_blocking(self, _lane: str, work: Callable[[], object], done: Callable[[object], None]) -> None:
        def act() -> None:
            try:
                result = work()
            except LogError as error:
                result = error
            self.due.appendleft(lambda: done(result))

        self.due.append(act)

    def step(self) -> None:
        if self.due:
            self.due.popleft()()

    def fire(self) -> None:
        for _ in range(2 * len(self.due)):
            self.step()

    def run_out(self) -> None:
        while self.due:
            self.step()


def positions(model: LoggedModel) -> list[int]:
    return [meta.position for meta in model.snapshots.list()]


def test_a_trim_waits_until_the_log_is_durable_up_to_its_snapshot() -> None:
    """A leader's snapshot lies above the durable log. Until the log has caught up, the older snapshot is its base."""
    model = synced_log(count=20)
    model.trim_to(SEGMENT_BYTES)
    model.fill(random.Random(7), 60)
    model.snapshot(4 * SEGMENT_BYTES)
    assert model.log.durable_position < 4 * SEGMENT_BYTES
    timers, trimmed = Works(), []
    taker_of(model, timers, trimmed).trim(4 * SEGMENT_BYTES)
    timers.fire()
    assert positions(model) == [SEGMENT_BYTES, 4 * SEGMENT_BYTES]
    assert (model.log.first_position, trimmed) == (SEGMENT_BYTES, [])
    model.sync()
    timers.run_out()
    assert positions(model) == [4 * SEGMENT_BYTES]
    assert model.log.first_position == trimmed[0] == 4 * SEGMENT_BYTES


def test_a_trim_to_a_skipped_snapshot_goes_to_the_previous_snapshot(synced_sim: LoggedModel) -> None:
    """A node that was still writing a snapshot when the next was due keeps one segment more, never the whole log."""
    synced_sim.snapshot(SEGMENT_BYTES)
    synced_sim.snapshot(3 * SEGMENT_BYTES)
    timers, trimmed = Works(), []
    taker_of(synced_sim, timers, trimmed).trim(2 * SEGMENT_BYTES)
    timers.fire()
    assert synced_sim.log.first_position == trimmed[0] == SEGMENT_BYTES
    assert positions(synced_sim) == [SEGMENT_BYTES, 3 * SEGMENT_BYTES]


def begin(taker: SnapshotTaker, model: LoggedModel, segment: int, *pieces: bytes) -> None:
    """Begin a snapshot at the start of a segment."""
    last = model.entries[0][0]
    meta = SnapshotMeta(segment * SEGMENT_BYTES, last.index, last.term, last.chain_crc, MEMBERS)
    taker.begin(meta, iter(pieces or (b"state",)))


def test_a_snapshot_after_an_abandoned_one_is_committed(synced_sim: LoggedModel) -> None:
    timers = Works()
    taker = taker_of(synced_sim, timers, [])
    for segment in (1, 2):
        taker.abandon()
        begin(taker, synced_sim, segment)
    timers.run_out()
    assert positions(synced_sim) == [2 * SEGMENT_BYTES]


@pytest.mark.parametrize("steps", range(13))
def test_a_snapshot_that_is_given_up_at_any_moment_leaves_no_file_behind(synced_sim: LoggedModel, steps: int) -> None:
    """The moments are before the first bytes, between two slices, and while a worker writes or commits.

    No abandoned file may be found at the next opening.
    """
    timers = Works(slices=True)
    taker = taker_of(synced_sim, timers, [])
    begin(taker, synced_sim, 1, b"some", b"of", b"the", b"state")
    for _ in range(steps):
        timers.step()
    taker.abandon()
    timers.run_out()
    committed = [f"{position:020d}" for position in positions(synced_sim)]
    assert synced_sim.disk.listdir("snapshots") == committed
    assert bool(committed) == (steps == 12)
    begin(taker, synced_sim, 2)
    timers.run_out()
    assert positions(synced_sim)[-1:] == [2 * SEGMENT_BYTES]


@pytest.mark.parametrize("refused", ["open", "pwrite", "rename"])
def test_a_snapshot_without_space_is_abandoned_and_the_next_is_written(synced_sim: LoggedModel, refused: str) -> None:
    timers, disk = Works(), synced_sim.sim
    taker = taker_of(synced_sim, timers, [])
    disk.fail(lambda operation, path: operation == refused and path.startswith("snapshots/"), errno.ENOSPC)
    begin(taker, synced_sim, 1)
    timers.run_out()
    assert (taker.busy, disk.listdir("snapshots")) == (False, [])
    begin(taker, synced_sim, 2)
    timers.run_out()
    assert positions(synced_sim) == [2 * SEGMENT_BYTES]


def test_a_snapshot_without_space_does_not_block_a_trim_to_an_earlier_snapshot(synced_sim: LoggedModel) -> None:
    """Only a trim makes room."""
    synced_sim.snapshot(SEGMENT_BYTES)
    timers, trimmed = Works(), []
    taker = taker_of(synced_sim, timers, trimmed)
    synced_sim.sim.fail(lambda name, path: name == "pwrite" and path.startswith("snapshots/"), errno.ENOSPC)
    begin(taker, synced_sim, 2)
    taker.trim(SEGMENT_BYTES)
    timers.run_out()
    assert synced_sim.log.first_position == trimmed[0] == SEGMENT_BYTES


def test_a_snapshot_abandoned_during_its_commit_keeps_its_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is writing the end of the snapshot file when the snapshot is given up.

    If the file were closed, another file could get its descriptor, and the worker would write into that file.
    """
    disk = OsDisk(str(tmp_path))
    model = synced_log(disk)
    timers, others = Works(), []
    taker = taker_of(model, timers, [])
    begin(taker, model, 1)
    write = OsFile.pwrite

    def write_slowly(self: OsFile, data: bytes, offset: int) -> None:
        if data[:4] == bytes(4) and not others:
            taker.abandon()
            others.append(disk.open("another", create=True))
        write(self, data, offset)

    monkeypatch.setattr(OsFile, "pwrite", write_slowly)
    timers.run_out()
    assert [other.size() for other in others] == [0]
    assert not [name for name in disk.listdir("snapshots") if name.endswith(".tmp")]


def taker_of(model: LoggedModel, timers: Any, trimmed: list[int]) -> SnapshotTaker:
    remover: Any = SimpleNamespace(tick=lambda: None)
    engine: Any = SimpleNamespace(trimmed=lambda _index, _term: None)
    taker = SnapshotTaker(timers, model.log, model.snapshots, remover, engine, Unfailing())
    taker.on_trimmed.append(trimmed.append)
    return taker

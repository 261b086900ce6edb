"""Snapshotter: what may be trimmed, and when."""

import errno
import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from store_model import MEMBERS, SEGMENT_BYTES, LoggedModel, make_identity

from dledger.environment import Environment
from dledger.errors import LogError
from dledger.loop_holds import LoopHolds
from dledger.replica.snapshotter import SLICE_S, Snapshotter
from dledger.store.disk import Disk, OsDisk, OsFile
from dledger.testing.disk import SimDisk
from dledger.types import SnapshotMeta
from tests.dledger.fake_driver import Unfailing


class Works:
    """An `Environment` in which timers fire, and work is done and then told of, when a test says so.

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


def test_a_trim_waits_until_the_log_is_durable_up_to_its_snapshot() -> None:
    """A snapshot that a leader sent stands above the durable log: until that has caught up the older is its base."""
    disk = SimDisk(random.Random(7))
    make_identity(disk)
    model = LoggedModel(disk)
    model.fill(random.Random(6), 20)
    model.sync()
    model.snapshot(SEGMENT_BYTES)
    model.trim(SEGMENT_BYTES)
    model.fill(random.Random(7), 60)
    model.snapshot(4 * SEGMENT_BYTES)
    assert model.log.durable_position < 4 * SEGMENT_BYTES
    timers, trimmed = Works(), []
    snapshotter = snapshotter_of(model, timers, trimmed)
    snapshotter.trim(4 * SEGMENT_BYTES)
    timers.fire()
    assert [meta.position for meta in model.snapshots.list()] == [SEGMENT_BYTES, 4 * SEGMENT_BYTES]
    assert (model.log.first_position, trimmed) == (SEGMENT_BYTES, [])
    model.sync()
    timers.run_out()
    assert [meta.position for meta in model.snapshots.list()] == [4 * SEGMENT_BYTES]
    assert model.log.first_position == trimmed[0] == 4 * SEGMENT_BYTES


def test_a_trim_to_a_snapshot_that_was_passed_over_goes_to_the_one_before() -> None:
    """Who was still writing one snapshot when the next was due keeps one segment more, never the whole log."""
    disk = SimDisk(random.Random(7))
    make_identity(disk)
    model = LoggedModel(disk)
    model.fill(random.Random(6), 60)
    model.sync()
    model.snapshot(SEGMENT_BYTES)
    model.snapshot(3 * SEGMENT_BYTES)
    timers, trimmed = Works(), []
    snapshotter_of(model, timers, trimmed).trim(2 * SEGMENT_BYTES)
    timers.fire()
    assert model.log.first_position == trimmed[0] == SEGMENT_BYTES
    assert [meta.position for meta in model.snapshots.list()] == [SEGMENT_BYTES, 3 * SEGMENT_BYTES]


def simple_snapshot(model: LoggedModel, position: int) -> SnapshotMeta:
    last = model.entries[0][0]
    return SnapshotMeta(position, last.index, last.term, last.chain_crc, MEMBERS)


def test_a_snapshot_that_follows_one_that_was_given_up_is_committed_once() -> None:
    model = synced_model(SimDisk(random.Random(7)))
    timers = Works()
    snapshotter = snapshotter_of(model, timers, [])
    for position in (SEGMENT_BYTES, 2 * SEGMENT_BYTES):
        snapshotter.abandon()
        snapshotter.begin(simple_snapshot(model, position), iter([b"state"]))
    timers.run_out()
    assert [meta.position for meta in model.snapshots.list()] == [2 * SEGMENT_BYTES]


@pytest.mark.parametrize("steps", range(13))
def test_a_snapshot_that_is_given_up_at_any_moment_leaves_no_file_behind(steps: int) -> None:
    """Before its first bytes, between two slices, while a worker writes or commits: nobody can open it again."""
    disk = SimDisk(random.Random(7))
    model = synced_model(disk)
    timers = Works(slices=True)
    snapshotter = snapshotter_of(model, timers, [])
    snapshotter.begin(simple_snapshot(model, SEGMENT_BYTES), iter([b"some", b"of", b"the", b"state"]))
    for _ in range(steps):
        timers.step()
    snapshotter.abandon()
    timers.run_out()
    committed = [f"{meta.position:020d}" for meta in model.snapshots.list()]
    assert disk.listdir("snapshots") == committed
    assert bool(committed) == (steps == 12)
    snapshotter.begin(simple_snapshot(model, 2 * SEGMENT_BYTES), iter([b"state"]))
    timers.run_out()
    assert [meta.position for meta in model.snapshots.list()][-1:] == [2 * SEGMENT_BYTES]


@pytest.mark.parametrize("refused", ["open", "pwrite", "rename"])
def test_a_snapshot_for_which_there_is_no_space_is_given_up_and_the_next_one_is_written(refused: str) -> None:
    disk = SimDisk(random.Random(7))
    model = synced_model(disk)
    timers = Works()
    snapshotter = snapshotter_of(model, timers, [])
    disk.fail(lambda operation, path: operation == refused and path.startswith("snapshots/"), errno.ENOSPC)
    snapshotter.begin(simple_snapshot(model, SEGMENT_BYTES), iter([b"state"]))
    timers.run_out()
    assert (snapshotter.busy, disk.listdir("snapshots")) == (False, [])
    snapshotter.begin(simple_snapshot(model, 2 * SEGMENT_BYTES), iter([b"state"]))
    timers.run_out()
    assert [meta.position for meta in model.snapshots.list()] == [2 * SEGMENT_BYTES]


def test_a_snapshot_without_space_does_not_keep_the_log_from_being_trimmed_to_an_earlier_one() -> None:
    """A trim is what makes room."""
    disk = SimDisk(random.Random(7))
    model = synced_model(disk)
    model.snapshot(SEGMENT_BYTES)
    timers, trimmed = Works(), []
    snapshotter = snapshotter_of(model, timers, trimmed)
    disk.fail(lambda operation, path: operation == "pwrite" and path.startswith("snapshots/"), errno.ENOSPC)
    snapshotter.begin(simple_snapshot(model, 2 * SEGMENT_BYTES), iter([b"state"]))
    snapshotter.trim(SEGMENT_BYTES)
    timers.run_out()
    assert model.log.first_position == trimmed[0] == SEGMENT_BYTES


def test_a_snapshot_that_is_given_up_while_it_is_committed_keeps_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker writes the end of it: a file that is opened meanwhile must not get its number, and what it writes."""
    disk = OsDisk(str(tmp_path))
    model = synced_model(disk)
    timers, others = Works(), []
    snapshotter = snapshotter_of(model, timers, [])
    snapshotter.begin(simple_snapshot(model, SEGMENT_BYTES), iter([b"state"]))
    write = OsFile.pwrite

    def write_slowly(self: OsFile, data: bytes, offset: int) -> None:
        if data[:4] == bytes(4) and not others:
            snapshotter.abandon()
            others.append(disk.open("another", create=True))
        write(self, data, offset)

    monkeypatch.setattr(OsFile, "pwrite", write_slowly)
    timers.run_out()
    assert [other.size() for other in others] == [0]
    assert not [name for name in disk.listdir("snapshots") if name.endswith(".tmp")]


def synced_model(disk: Disk) -> LoggedModel:
    make_identity(disk)
    model = LoggedModel(disk)
    model.fill(random.Random(6), 60)
    model.sync()
    return model


def snapshotter_of(model: LoggedModel, timers: Works, trimmed: list[int]) -> Snapshotter:
    remover: Any = SimpleNamespace(tick=lambda: None)
    engine: Any = SimpleNamespace(trimmed=lambda _index, _term: None)
    snapshotter = Snapshotter(
        as_environment(timers),
        model.log,
        model.snapshots,
        remover,
        engine,
        Unfailing(),
    )
    snapshotter.on_trimmed.append(trimmed.append)
    return snapshotter


def as_environment(timers: object) -> Environment:
    return timers  # type: ignore[return-value]

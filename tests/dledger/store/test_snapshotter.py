"""Snapshotter: what may be trimmed, and when."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from store_model import MEMBERS, SEGMENT_BYTES, LoggedModel, make_identity

from dledger.environment import Environment
from dledger.replica.snapshotter import Snapshotter
from dledger.sim.disk import SimDisk
from dledger.store.disk import OsDisk, OsFile
from dledger.types import SnapshotMeta


class Timers:
    """The part of an `Environment` that matters here."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_later(self, _delay_s: float, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def fire(self) -> None:
        due, self.due = self.due, []
        for callback in due:
            callback()


class Works(Timers):
    """An `Environment` in which work is done when it is due."""

    def __init__(self) -> None:
        super().__init__()
        self.works = 0

    def now(self) -> float:
        return 0.0

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def run_blocking(self, _lane: str, work: Callable[[], object], done: Callable[[object], None]) -> None:
        self.works += 1
        self.due.append(lambda: done(work()))


def test_a_trim_waits_until_the_log_is_durable_up_to_its_snapshot() -> None:
    """A snapshot that a leader sent stands above the durable log: until that has caught up the older is its base."""
    disk = SimDisk(random.Random(7))
    make_identity(disk)
    model = LoggedModel(disk)
    model.fill(random.Random(6), 20)
    model.sync()
    model.snapshot(SEGMENT_BYTES)
    model.log.trim(SEGMENT_BYTES)
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
    while timers.due:
        timers.fire()
    assert [meta.position for meta in model.snapshots.list()] == [4 * SEGMENT_BYTES]
    assert model.log.first_position == trimmed[0].position == 4 * SEGMENT_BYTES


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
    assert model.log.first_position == trimmed[0].position == SEGMENT_BYTES
    assert [meta.position for meta in model.snapshots.list()] == [SEGMENT_BYTES, 3 * SEGMENT_BYTES]


def simple_snapshot(model: LoggedModel, position: int) -> SnapshotMeta:
    last = model.entries[0][0]
    return SnapshotMeta(position, last.index, last.term, last.chain_crc, MEMBERS)


def test_a_snapshot_that_follows_one_that_was_given_up_is_committed_once() -> None:
    disk = SimDisk(random.Random(7))
    make_identity(disk)
    model = LoggedModel(disk)
    model.fill(random.Random(6), 60)
    model.sync()
    timers = Works()
    snapshotter = snapshotter_of(model, timers, [])
    for position in (SEGMENT_BYTES, 2 * SEGMENT_BYTES):
        snapshotter.abandon()
        snapshotter.begin(simple_snapshot(model, position), iter([b"state"]))
    while timers.due:
        timers.fire()
    assert (timers.works, [meta.position for meta in model.snapshots.list()]) == (1, [2 * SEGMENT_BYTES])


def test_a_snapshot_that_is_given_up_while_it_is_committed_keeps_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker writes the end of it: a file that is opened meanwhile must not get its number, and what it writes."""
    disk = OsDisk(str(tmp_path))
    make_identity(disk)
    model = LoggedModel(disk)
    model.fill(random.Random(6), 60)
    model.sync()
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
    while timers.due:
        timers.fire()
    assert [other.size() for other in others] == [0]
    assert not [name for name in disk.listdir("snapshots") if name.endswith(".tmp")]


def snapshotter_of(model: LoggedModel, timers: Timers, trimmed: list[SnapshotMeta]) -> Snapshotter:
    return Snapshotter(
        as_environment(timers),
        model.log,
        model.snapshots,
        durable_position=lambda: model.log.durable_position,
        trimmed=trimmed.append,
        failed=pytest.fail,
    )


def as_environment(timers: object) -> Environment:
    return timers  # type: ignore[return-value]

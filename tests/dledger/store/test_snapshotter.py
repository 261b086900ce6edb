"""What may be trimmed, and when."""

import random
from collections.abc import Callable

import pytest
from store_model import SEGMENT_BYTES, LoggedModel, make_identity

from dledger.environment import Environment
from dledger.replica.snapshotter import Snapshotter
from dledger.sim.disk import SimDisk
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
    timers, trimmed = Timers(), []
    snapshotter = snapshotter_of(model, timers, trimmed)
    snapshotter.trim(4 * SEGMENT_BYTES)
    timers.fire()
    assert [meta.position for meta in model.snapshots.list()] == [SEGMENT_BYTES, 4 * SEGMENT_BYTES]
    assert (model.log.first_position, trimmed) == (SEGMENT_BYTES, [])
    model.sync()
    timers.fire()
    assert [meta.position for meta in model.snapshots.list()] == [4 * SEGMENT_BYTES]
    assert model.log.first_position == trimmed[0].position == 4 * SEGMENT_BYTES
    assert timers.due == []


def test_a_trim_to_a_snapshot_that_was_passed_over_goes_to_the_one_before() -> None:
    """Who was still writing one snapshot when the next was due keeps one segment more, never the whole log."""
    disk = SimDisk(random.Random(7))
    make_identity(disk)
    model = LoggedModel(disk)
    model.fill(random.Random(6), 60)
    model.sync()
    model.snapshot(SEGMENT_BYTES)
    model.snapshot(3 * SEGMENT_BYTES)
    timers, trimmed = Timers(), []
    snapshotter_of(model, timers, trimmed).trim(2 * SEGMENT_BYTES)
    assert model.log.first_position == trimmed[0].position == SEGMENT_BYTES
    assert [meta.position for meta in model.snapshots.list()] == [SEGMENT_BYTES, 3 * SEGMENT_BYTES]


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

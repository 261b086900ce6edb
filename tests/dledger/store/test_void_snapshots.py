"""Snapshots of entries that are lost, as an operator has accepted, are gone with them."""

import random

import pytest
from store_model import MEMBERS, SEGMENT_BYTES, LoggedModel, left_in_segment

from dledger.store.void import drop_void_snapshots
from dledger.testing.disk import SimDisk
from dledger.types import EntryMeta, SnapshotMeta


def with_a_snapshot(model: LoggedModel, entries_behind: int = 3) -> SnapshotMeta:
    """A log with a snapshot at its second segment's start, and entries from there on."""
    while left_in_segment(model.log) > 400:
        last = model.append(bytes(200))
    for _ in range(entries_behind):
        model.append(bytes(1000))
    model.sync()
    model.log.sync_mark()
    snapshot = SnapshotMeta(SEGMENT_BYTES, last.index, last.term, last.chain_crc, MEMBERS)
    assert model.log.meta(last.index + 1).position == SEGMENT_BYTES
    model.snapshots.begin(snapshot).commit()
    return snapshot


def test_what_replaces_the_entry_behind_a_snapshot_goes_where_that_did_not_fit(model: LoggedModel):
    snapshot = with_a_snapshot(model)
    model.truncate(snapshot.last_index + 1)
    assert model.snapshots.list() == []
    entries = model.replacements(snapshot.last_index + 1, [bytes(40)], term=2)
    model.replace(entries)
    model.sync()
    assert entries[0][0].position < SEGMENT_BYTES
    model.check()


def test_a_trim_while_they_are_looked_for_keeps_the_base(model: LoggedModel, monkeypatch: pytest.MonkeyPatch):
    snapshot = with_a_snapshot(model)
    model.append(bytes(1000))
    model.sync()
    read = model.log.meta

    def trimmed_meanwhile(index: int) -> EntryMeta:
        model.log.trim(SEGMENT_BYTES)
        return read(index)

    monkeypatch.setattr(model.log, "meta", trimmed_meanwhile)
    drop_void_snapshots(model.disk, model.snapshots, model.log, model.log.last_index)
    assert model.snapshots.list() == [snapshot]
    assert model.log.first_position == SEGMENT_BYTES


def test_a_snapshot_of_a_dropped_entry_goes(model: LoggedModel):
    snapshot = with_a_snapshot(model)
    model.truncate(snapshot.last_index)
    assert model.snapshots.list() == []


def test_it_does_not_come_back_after_a_power_loss(sim_disk: SimDisk):
    model = LoggedModel(sim_disk)
    snapshot = with_a_snapshot(model)
    model.truncate(snapshot.last_index + 1)
    sim_disk.crash(random.Random(1), "none")
    model.open()
    assert model.snapshots.list() == []


@pytest.mark.parametrize("behind", [1, 2])
def test_one_whose_next_entry_stays_is_kept(model: LoggedModel, behind: int):
    snapshot = with_a_snapshot(model)
    model.truncate(snapshot.last_index + 1 + behind)
    assert model.snapshots.list() == [snapshot]


def test_one_of_another_log_is_kept(model: LoggedModel):
    """It was received, and the log is about to be replaced by it."""
    snapshot = with_a_snapshot(model)
    model.snapshots.delete(snapshot.position)
    other = SnapshotMeta(SEGMENT_BYTES, snapshot.last_index, 7, snapshot.chain_crc ^ 1, MEMBERS)
    model.snapshots.begin(other).commit()
    model.truncate(snapshot.last_index)
    assert model.snapshots.list() == [other]

"""If an operator accepts the loss of entries, snapshots that contain these entries are removed with them."""

import pytest
from store_model import MEMBERS, SEGMENT_BYTES, LoggedModel, left_in_segment

from dledger.format import blank
from dledger.store.void import drop_void_snapshots
from dledger.testing.disk import SimDisk
from dledger.types import EntryMeta, SnapshotMeta


def with_a_snapshot(model: LoggedModel) -> SnapshotMeta:
    """Store a snapshot at the second segment's start, with entries from there on, and return the snapshot."""
    while left_in_segment(model.log) > 400:
        last = model.append(bytes(200))
    for _ in range(3):
        model.append(bytes(1000))
    model.sync()
    model.log.sync_mark()
    assert model.log.meta(last.index + 1).position == SEGMENT_BYTES
    return model.receive(SnapshotMeta(SEGMENT_BYTES, last.index, last.term, last.chain_crc, MEMBERS))


def test_a_smaller_entry_behind_a_snapshot_goes_into_the_earlier_segment(model: LoggedModel):
    snapshot = with_a_snapshot(model)
    model.truncate(snapshot.last_index + 1)
    assert model.snapshots.list() == []
    entries = model.replacements(snapshot.last_index + 1, [bytes(40)], term=2)
    model.replace(entries)
    model.sync()
    assert entries[0][0].position < SEGMENT_BYTES
    model.check()


def test_a_trim_during_the_search_for_void_snapshots_keeps_the_base(
    model: LoggedModel, monkeypatch: pytest.MonkeyPatch
):
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


@pytest.mark.parametrize(("first", "kept"), [(0, False), (1, False), (2, True), (3, True)])
def test_a_snapshot_goes_for_good_with_a_dropped_entry_of_its_own_or_the_next(
    sim_disk: SimDisk, first: int, kept: bool
):
    """The entries from `first` on are dropped, counted from the last entry in the snapshot."""
    model = LoggedModel(sim_disk)
    snapshot = with_a_snapshot(model)
    model.truncate(snapshot.last_index + first)
    assert model.snapshots.list() == [snapshot] * kept
    model.crash(keep="none")
    assert model.snapshots.list() == [snapshot] * kept


def test_a_snapshot_of_another_log_is_kept(model: LoggedModel):
    """The snapshot was received, and the log is about to be replaced by it."""
    snapshot = with_a_snapshot(model)
    model.snapshots.delete(snapshot.position)
    other = model.receive(SnapshotMeta(SEGMENT_BYTES, snapshot.last_index, 7, snapshot.chain_crc ^ 1, MEMBERS))
    model.truncate(snapshot.last_index)
    assert model.snapshots.list() == [other]


# A received snapshot ends with an entry of this log, but at the start of the next segment. In the leader's log, the
# next entry did not fit. This node has other entries there, which fit. They are void, as they were never committed.


def with_a_void_tail(model: LoggedModel, voids: int = 1) -> EntryMeta:
    """Build a log that ends with durable void entries, and a snapshot at the start of the next segment.

    Return the last entry before the void entries.
    """
    while left_in_segment(model.log) > 400:
        common = model.append(bytes(200))
    for _ in range(voids):
        model.append(bytes(100))
    model.sync()
    model.log.sync_mark()
    model.receive(SnapshotMeta(SEGMENT_BYTES, common.index, common.term, common.chain_crc, MEMBERS))
    return common


def replace_tail(model: LoggedModel, common: EntryMeta) -> EntryMeta:
    """Replace the tail by the leader's next entry, which starts the next segment behind a blank, as a follower does."""
    entries = model.replacements(common.index + 1, [bytes(1000)], term=2)
    model.truncate(common.index + 1)
    model.replace(entries)
    model.sync()
    ((meta, _),) = entries
    assert (meta.position, model.log.durable) == (SEGMENT_BYTES, meta.index)
    left = SEGMENT_BYTES - common.end
    assert model.log.read(common.end, left) == blank(left)
    return meta


def test_an_acknowledged_entry_in_place_of_a_void_one_survives_a_power_loss(sim_disk: SimDisk):
    model = LoggedModel(sim_disk)
    acknowledged = replace_tail(model, with_a_void_tail(model))
    recovery = model.crash(keep="none")
    assert (recovery.last_index, recovery.last_term) == (acknowledged.index, acknowledged.term)
    model.check()


@pytest.mark.parametrize("voids", [1, 12])
def test_a_void_tail_is_cut_off_across_a_segment_end(model: LoggedModel, voids: int):
    common = with_a_void_tail(model, voids)
    assert (model.log.end_position > SEGMENT_BYTES) == (voids > 1)
    model.truncate(common.index + 1)
    assert (model.log.last_index, model.log.end_position) == (common.index, common.end)
    replace_tail(model, common)
    model.check()

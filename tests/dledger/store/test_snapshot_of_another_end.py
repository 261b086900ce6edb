"""A received snapshot has the last entry that is right here, and stands elsewhere: at the start of the next segment,
since the leader's next entry did not fit; here one that nobody else has did."""

import random

import pytest
from store_model import MEMBERS, SEGMENT_BYTES, LoggedModel, left_in_segment

from dledger.format import blank
from dledger.testing.disk import SimDisk
from dledger.types import EntryMeta, SnapshotMeta


def with_a_void_tail(model: LoggedModel, voids: int = 1) -> EntryMeta:
    """A log that ends with durable entries that are void, and a snapshot at the next segment's start.

    Returns the last entry before these.
    """
    while left_in_segment(model.log) > 400:
        common = model.append(bytes(200))
    for _ in range(voids):
        model.append(bytes(100))
    model.sync()
    model.log.sync_mark()
    model.snapshots.begin(SnapshotMeta(SEGMENT_BYTES, common.index, common.term, common.chain_crc, MEMBERS)).commit()
    return common


def replace_tail(model: LoggedModel, common: EntryMeta) -> EntryMeta:
    """What a follower does with the leader's next entry, which starts the next segment."""
    entries = model.replacements(common.index + 1, [bytes(1000)], term=2)
    model.truncate(common.index + 1)
    model.replace(entries)
    model.sync()
    ((meta, _),) = entries
    assert (meta.position, model.log.durable) == (SEGMENT_BYTES, meta.index)
    return meta


def test_an_acknowledged_entry_that_replaced_a_void_one_survives_a_power_loss(sim_disk: SimDisk):
    model = LoggedModel(sim_disk)
    acknowledged = replace_tail(model, with_a_void_tail(model))
    sim_disk.crash(random.Random(1), "none")
    recovery = model.open()
    assert (recovery.last_index, recovery.last_term) == (acknowledged.index, acknowledged.term)
    model.check()


def test_before_the_entry_is_a_blank_as_in_the_leaders_log(model: LoggedModel):
    common = with_a_void_tail(model)
    replace_tail(model, common)
    left = SEGMENT_BYTES - common.end
    assert model.log.read(common.end, left) == blank(left)


@pytest.mark.parametrize("voids", [1, 12])
def test_a_void_tail_is_cut_off_also_if_it_reaches_into_the_next_segment(model: LoggedModel, voids: int):
    common = with_a_void_tail(model, voids)
    assert (model.log.end_position > SEGMENT_BYTES) == (voids > 1)
    model.truncate(common.index + 1)
    assert (model.log.last_index, model.log.end_position) == (common.index, common.end)
    replace_tail(model, common)
    model.check()

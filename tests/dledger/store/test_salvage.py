"""Salvage finds every entry that verifies, also behind damaged parts of the log."""

import pytest
from store_model import LoggedModel, synced_log

from dledger.store.salvage import Gap, SalvagedEntry, salvage_entries
from dledger.testing.disk import SimDisk


@pytest.fixture
def log_of_like_entries(sim_disk: SimDisk) -> LoggedModel:
    model = synced_log(sim_disk, 0)
    for number in range(60):
        model.append(b"entry %02d" % number * 20)
    model.sync()
    return model


def indexes(found: list[SalvagedEntry | Gap]) -> list[int]:
    return [entry.meta.index for entry in found if isinstance(entry, SalvagedEntry)]


@pytest.mark.parametrize("hit", [0, 5, 44, 60])
def test_a_salvage_misses_only_the_rotten_entry(log_of_like_entries: LoggedModel, hit: int):
    model = log_of_like_entries
    model.log.close()
    metas = [meta for meta, _ in model.entries]
    assert indexes([*salvage_entries(model.disk, model.segment_bytes)]) == [meta.index for meta in metas]
    victim = metas[25]
    model.flip(victim.position + hit, bit=4)
    found = list(salvage_entries(model.disk, model.segment_bytes))
    assert indexes(found) == [meta.index for meta in metas if meta is not victim]
    assert [gap for gap in found if isinstance(gap, Gap)] == [Gap(victim.position, victim.end)]


def test_a_salvage_goes_on_behind_segments_that_are_trimmed_meanwhile(log_of_like_entries: LoggedModel):
    model = log_of_like_entries
    found = salvage_entries(model.disk, model.segment_bytes)
    next(found)
    model.trim_to(2 * model.segment_bytes)
    kept = [meta.index for meta, _ in model.entries if meta.position >= model.log.first_position]
    assert indexes([*found])[-len(kept) :] == kept

"""A worker receives and decodes a snapshot while the event loop continues. A trim may remove the snapshot meanwhile."""

import pytest
from sim_groups import run_until, trimmed_beyond_a_node

from dledger.errors import TrimmedError
from dledger.replica.feed import MachineFeed
from dledger.types import SnapshotMeta


def test_a_snapshot_trimmed_during_its_decoding_ends_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    group, late, workload = trimmed_beyond_a_node()
    decode, times = MachineFeed.decode, iter((True, False))

    def trimmed_once(self: MachineFeed, base: SnapshotMeta) -> object:
        if next(times, False):
            raise TrimmedError("the snapshot was deleted")
        return decode(self, base)

    monkeypatch.setattr(MachineFeed, "decode", trimmed_once)
    group.start(late.name)
    life = late.life
    workload.stop()
    run_until(group, group.healthy)
    assert late.life is life
    assert next(times, None) is None

"""A snapshot is received and decoded by a worker, while the event loop goes on: a trim may take it meanwhile."""

from random import Random

import pytest

from dledger.errors import TrimmedError
from dledger.replica.feed import MachineFeed
from dledger.types import SnapshotMeta
from dledger_sim.log.faults import Trim
from dledger_sim.log.group import GroupSettings, SimGroup
from dledger_sim.log.registers import serve_registers
from dledger_sim.log.scheduler import Scheduler
from dledger_sim.log.workload import Workload, WorkloadSettings


def test_a_snapshot_that_a_trim_takes_while_it_is_decoded_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    group = SimGroup(Scheduler(), Random(3), GroupSettings(snapshot_interval_ms=0), serve_registers)
    for name in group.nodes:
        group.start(name)
    group.scheduler.run_until(3.0)
    workload = Workload(group, Random(4), WorkloadSettings(padding_bytes=4000))
    workload.start()
    leader = group.leader
    assert leader is not None
    assert leader.replica is not None
    late = next(node for node in group.nodes.values() if node is not leader)
    assert late.replica is not None
    last = late.replica.store.last_index
    group.kill(late.name)
    while leader.replica.store.first_index <= last:
        group.scheduler.run_until(group.scheduler.now + 0.5)
        Trim(0.99).inject(group)
        assert group.scheduler.now < 60.0

    decode, times = MachineFeed.decode, iter((True, False))

    def trimmed_once(self: MachineFeed, base: SnapshotMeta) -> object:
        if next(times, False):
            raise TrimmedError("the snapshot was deleted")
        return decode(self, base)

    monkeypatch.setattr(MachineFeed, "decode", trimmed_once)
    group.start(late.name)
    life = late.life
    workload.stop()
    while not group.healthy():
        group.scheduler.run_until(group.scheduler.now + 0.5)
        assert group.scheduler.now < 120.0
    assert late.life is life
    assert next(times, None) is None

"""Nodes whose event loops are slow: their timers give silent peers more time, but not for ever."""

import pytest

from dledger.consensus.settings import RaftSettings
from dledger.testing.cores import CoreGroup


@pytest.mark.parametrize("turn_s", [0.13, 0.4, 2.0])
def test_a_group_of_slow_nodes_replaces_a_leader_that_is_cut_off(turn_s: float) -> None:
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.propose("a", 3)
    group.settle()
    group.isolate("a")
    for _ in range(200):
        group.now += turn_s
        for name in ("a", "b", "c"):
            group.tick(name)
        group.settle()
    assert not group["a"].is_leader
    assert group["b"].is_leader or group["c"].is_leader


def test_a_pause_counts_as_one_heartbeat_interval() -> None:
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.settle()
    group.tick("b", 0.0)
    group.tick("b", 60.0)
    assert group["b"].leader is not None
    assert not group.wire
    assert RaftSettings().heartbeat_s < RaftSettings().election_min_s

"""Cores whose members lost their memberships, or are slow."""

import pytest

from dledger.core.log_table import LogTable
from dledger.core.messages import Heartbeat, TimeoutNow, VoteRequest
from dledger.types import EntryKind, EntryMeta, Membership, Role
from dledger_sim.cores import CoreGroup
from dledger_sim.engine_group import replica


def founder_that_cannot_read() -> CoreGroup:
    """Return a group that `a` founded alone. Entry 1, which made `b` and `c` voters, does not verify.

    So `a` does not know the voters.
    """
    group = CoreGroup("a", "b", "c")
    alone = Membership((replica("a"),))
    group["a"].table = LogTable(-1, 0, [(0, 1)], 2, alone, unread=[(0, 2)])
    return group


def test_a_founder_that_forgot_the_others_does_not_elect_itself() -> None:
    group = founder_that_cannot_read()
    group.isolate("a")
    group.pass_time(5.0, "a")
    assert (group["a"].role, group["a"].term) == (Role.FOLLOWER, 0)
    group.heal()
    group.send("b", "a", Heartbeat(2, -1))
    group.send("b", "a", TimeoutNow(2))
    assert group["a"].role is Role.FOLLOWER


def test_a_founder_without_its_membership_votes_for_a_peer_with_a_later_log() -> None:
    group = founder_that_cannot_read()
    group.send("b", "a", VoteRequest(2, 2, 1, pre=False))
    assert group["a"].vote == replica("b")


def test_a_founder_campaigns_once_its_entries_were_repaired() -> None:
    group = founder_that_cannot_read()
    three = Membership(tuple(replica(name) for name in "abc"))
    meta = EntryMeta(1, 1, 48, 48, EntryKind.MEMBERSHIP, 0, 0, three)
    group["a"].repaired(0, 2, [meta], [(0, 1)])
    assert group["a"].table.membership == three
    group.isolate("a")
    group.pass_time(5.0, "a")
    assert group["a"].role is Role.PRE_CANDIDATE, "one vote of three is no majority"


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

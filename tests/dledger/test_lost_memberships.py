"""A node whose log cannot be read where it may hold a membership entry: it does not know whose votes count."""

from dledger.core.log_table import LogTable
from dledger.core.messages import Heartbeat, TimeoutNow, VoteRequest
from dledger.testing.cores import CoreGroup
from dledger.testing.engine_group import replica
from dledger.types import EntryKind, EntryMeta, Membership, Role


def founder_that_cannot_read() -> CoreGroup:
    """`a` founded the group alone; entry 1, which made `b` and `c` voters, does not verify."""
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


def test_it_votes_for_who_knows_better() -> None:
    group = founder_that_cannot_read()
    group.send("b", "a", VoteRequest(2, 2, 1, pre=False))
    assert group["a"].vote == replica("b")


def test_it_campaigns_once_its_entries_were_repaired() -> None:
    group = founder_that_cannot_read()
    three = Membership(tuple(replica(name) for name in "abc"))
    meta = EntryMeta(1, 1, 48, 48, EntryKind.MEMBERSHIP, 0, 0, three)
    group["a"].repaired(0, 2, [meta], [(0, 1)])
    assert group["a"].table.membership == three
    group.isolate("a")
    group.pass_time(5.0, "a")
    assert group["a"].role is Role.PRE_CANDIDATE, "one vote of three is no majority"

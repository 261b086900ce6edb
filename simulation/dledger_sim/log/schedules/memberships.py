"""Schedules of cores whose group changes: which members count during the change, and which may still lead."""

from dledger.core.messages import Append
from dledger.types import Membership, Role
from dledger_sim.cores import CoreGroup
from dledger_sim.engine_group import replica


def membership_change_before_own_commit() -> None:
    """Check the bug of single-server changes (Ongaro, 2015): changes overlap unless each leader commits in its term
    first.

    1. `a` leads term 1 of {a, b, c, d} and appends "add e", which only `e` receives.
    2. `b` leads term 2 with the votes of `c` and `d`. If it may remove `a` at once, {b, c} commit that.
    3. `a`, `d` and `e` are a majority of {a, b, c, d, e}: `a` leads again and does not know of the removal.
    """
    group = CoreGroup("a", "b", "c", "d", strangers=("e",))
    group.elect("a")
    group.pass_time(0.2)
    group.cut(("a", "b"), ("a", "c"), ("a", "d"))
    group.propose("a", membership=Membership(tuple(map(replica, "abcde"))))
    group.settle()
    group.isolate("a")
    group.isolate("e")
    group.hold(lambda envelope: envelope.sender == "b" and envelope.to == "d" and isinstance(envelope.message, Append))
    group.elect("b")
    group.settle()
    if not group["b"].can_change_membership:
        return
    group.propose("b", membership=Membership(tuple(map(replica, "bcd"))))
    group.settle()
    group.held.clear()
    group.release()
    group.heal()
    group.wire.clear()
    group.isolate("b")
    group.isolate("c")
    for _ in range(5):
        group.campaign("a")
        group.settle()
        if group["a"].is_leader:
            break
    group.propose("a", 2)
    group.settle()
    assert group["a"].table.membership.voters == tuple(map(replica, "bcd"))


def leader_removes_itself() -> None:
    """Check that a leader that removes itself does not count its own vote for that, and steps down after the commit."""
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.settle()
    group.hold(lambda envelope: envelope.to == "c" and bool(envelope.metas))
    index = group.propose("a", membership=Membership((replica("b"), replica("c"))))
    group.settle()
    assert group["a"].commit_index < index, "only b has it: a no longer counts"
    group.release()
    group.settle()
    assert group["a"].commit_index == index
    assert group["a"].role is Role.FOLLOWER
    group.pass_time(5.0)
    assert not group["a"].is_leader
    assert group["b"].is_leader or group["c"].is_leader


def leader_leaves_two() -> None:
    """Check a leader of two that removes itself and stops before the other member has that entry.

    Only the old leader can be elected, to commit the entry. Seeds find this only where nothing else brings that entry
    to the other member.
    """
    group = CoreGroup("a", "b")
    group.elect("a")
    group.pass_time(0.2)
    group.isolate("a")
    group.propose("a", membership=Membership((replica("b"),)))
    group.sync("a")
    group.crash("a")
    group.heal()
    group.pass_time(5.0)
    assert group["b"].is_leader
    assert not group["a"].is_leader


def void_removal() -> None:
    """Check that a leader still votes after it appended its own removal without effect.

    1. `b` leads term 1 of {a, b, c} and appends its own removal, which no node receives.
    2. `a` leads term 2 and removes itself: {b, c} are left, and only `c` has that entry.
    3. `c` needs the vote of `b`, whose own log says that it is no member.
    """
    group = CoreGroup("a", "b", "c")
    group.elect("b")
    group.pass_time(0.2)
    group.isolate("b")
    group.propose("b", membership=Membership((replica("a"), replica("c"))))
    group.elect("a")
    group.settle()
    group.propose("a", membership=Membership((replica("b"), replica("c"))))
    group.settle()
    group.isolate("a")
    group.join(("b", "c"), ("c", "b"))
    group.pass_time(6.0)
    assert group["c"].is_leader
    assert group["b"].table.membership.voters == (replica("b"), replica("c"))


def new_voter_leads() -> None:
    """Check that a new voter that the others do not know of yet can be elected. It may be the only possible leader.

    1. Of the voters `a` and `b`, `a` leads. It appends the promotion of the learner `c`, which only `c` receives.
    2. `a` is gone. The log of `b` is shorter, and in its membership a majority is `a` and `b`.
    3. Unless `c` campaigns, with `b`'s vote, no node leads until `a` is back.

    In a simulated run a stopped node comes back before a leader is missed.
    """
    group = CoreGroup("a", "b", learners=("c",))
    group.elect("a")
    group.pass_time(0.2)
    group.cut(("a", "b"))
    group.propose("a", membership=Membership(tuple(map(replica, "abc"))))
    group.settle()
    group.isolate("a")
    group.pass_time(6.0)
    assert group["c"].is_leader
    assert group["b"].table.membership.voters == tuple(map(replica, "abc"))


def unread_membership() -> None:
    """Check that a founder does not lead alone after its log lost the entries by which others joined.

    1. `a` founds a group alone; `b` and `c` join.
    2. The bytes of `a`'s log rot, and `a` restarts. In the part that it can read, `a` is the only voter.
    3. `b` leads and hands over to `a`. `a` must not take the leadership on the votes that its own log requires.
    """
    group = CoreGroup("a", learners=("b", "c"))
    group.elect("a")
    for voters, learners in (("ab", "c"), ("abc", "")):
        group.propose("a", membership=Membership(tuple(map(replica, voters)), tuple(map(replica, learners))))
        group.settle()
    changes = [meta for meta in group.members["a"].log if meta.membership is not None]
    group.crash("a", unread=True)
    assert group["a"].table.membership.voters == (replica("a"),)
    group.isolate("a")
    group.pass_time(3.0, "a")
    assert not group["a"].is_leader
    group.elect("b")
    group.heal()
    group.pass_time(0.3)
    assert group["b"].transfer(replica("a"), group.now)
    group.run("b")
    group.settle()
    assert not group["a"].is_leader
    group["a"].repaired(0, group["a"].table.last_index + 1, changes, [])
    group.elect("a")
    assert group["a"].table.membership.voters == tuple(map(replica, "abc"))


MEMBERSHIP_SCHEDULES = (
    membership_change_before_own_commit,
    leader_removes_itself,
    leader_leaves_two,
    void_removal,
    new_voter_leads,
    unread_membership,
)

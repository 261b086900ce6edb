"""Promises about changes of a group's members, which only some engines allow."""

from __future__ import annotations

from typing import Final

from dledger.consensus.engine import EngineKind
from dledger.types import Membership
from dledger_base.invariants import invariant
from dledger_sim.engine_group import replica
from dledger_sim.engine_suite.groups import (
    LONG_S,
    Promise,
    ask_for_votes,
    brings_entries,
    group_of,
    led_by_a,
    let_through,
    require_equal_logs,
)


def _members(voters: str, learners: str = "") -> Membership:
    return Membership(tuple(map(replica, voters)), tuple(map(replica, learners)))


def learners_get_the_log_and_do_not_count(kind: EngineKind) -> None:
    """Check that learners get the log, and count neither for a commit nor for an election."""
    group = led_by_a(kind, "a", "b", learners=["l"])
    index = group.propose("a", 3)
    group.settle()
    group.pass_time(0.3)
    require_equal_logs(group)
    group.isolate("b")
    group.propose("a")
    group.settle()
    invariant(group.members["l"].last_index == index + 1, "a learner gets the log")
    invariant(group["a"].commit_index == index, "it commits nothing", commit=group["a"].commit_index)
    group.pass_time(LONG_S)
    invariant(set(group.leaders.values()) == {"a"}, "it elects nobody, and is not elected", leaders=group.leaders)


def appended_membership_is_in_force(kind: EngineKind) -> None:
    """Check that a membership is in force as soon as it is appended, before it is committed.

    A new node is a learner, gets the log, and votes after its promotion.
    """
    group = group_of(kind, "a", "b", strangers=["c"])
    group.elect("a")
    group.pass_time(0.3)
    for members in (_members("ab", "c"), _members("abc")):
        invariant(group["a"].can_change_membership, "no change is pending")
        index = group.propose("a", membership=members)
        invariant(group["a"].membership == members, "it is in force at once", members=group["a"].membership)
        invariant(group["a"].membership_index == index, "its entry is known", index=group["a"].membership_index)
        invariant(group["a"].membership_at(index - 1)[1] != members, "before it, it was not")
        invariant(not group["a"].can_change_membership, "one change at a time")
        group.settle()
        group.pass_time(1.0)
        invariant(group["c"].membership == members, "the newcomer knows", members=group["c"].membership)
    require_equal_logs(group)
    group.isolate("b")
    last = group.propose("a")
    group.settle()
    invariant(group["a"].commit_index == last, "the newcomer counts", commit=group["a"].commit_index)


def membership_survives_a_restart(kind: EngineKind) -> None:
    """Check that a member knows the membership after a restart, and after it has installed a snapshot."""
    group = group_of(kind, "a", "b", "c", strangers=["d"])
    group.elect("a")
    group.isolate("c")
    index = group.propose("a", membership=_members("abc", "d"))
    group.settle()
    group.pass_time(0.3, "a", "b", "d")
    group.crash("b")
    found = group["b"].membership, group["b"].membership_index
    invariant(found == (_members("abc", "d"), index), "who starts again remembers", found=found)
    last = group.propose("a", 3)
    group.settle()
    group.pass_time(0.3, "a", "b", "d")
    group.compact("a", last - 1)
    group.heal()
    group.settle()
    group.install("a", "c")
    group.settle()
    group.pass_time(0.3)
    found = group["c"].membership, group["c"].membership_index
    invariant(found == (_members("abc", "d"), index), "a snapshot tells who they are", found=found)


def replaced_membership_is_not_in_force(kind: EngineKind) -> None:
    """Check that after a membership entry is replaced, the former membership is in force again."""
    group = led_by_a(kind)
    group.isolate("a")
    group.propose("a", membership=_members("ab"))
    group.elect("b")
    group.heal()
    group.pass_time(1.0)
    invariant(group["a"].membership == _members("abc"), "the members are who they were", now=group["a"].membership)


def membership_changes_wait_for_the_committed_no_op(kind: EngineKind) -> None:
    """Check that a new leader takes no membership change before the no-op of its term is committed.

    Otherwise two disjoint majorities could exist (Ongaro's correction of 2015).
    """
    group = group_of(kind)
    group.hold(brings_entries)
    group.elect("a")
    invariant(not group["a"].can_change_membership, "an own entry is committed first")


def leaving_leader_leads_until_the_commit(kind: EngineKind) -> None:
    """Check that a leader that is removed from the group leads until its removal is committed.

    It does not count itself in the majority that commits the removal. Then another voter is elected.
    """
    group = led_by_a(kind)
    group.isolate("b")
    index = group.propose("a", membership=_members("bc"))
    group.settle()
    invariant(group["a"].is_leader and group["a"].commit_index < index, "a and c are no majority of b and c")
    group.heal()
    group.settle()
    group.pass_time(0.3)
    invariant(not group["a"].is_leader and not group["a"].is_voter, "who is out leads no more")
    group.pass_time(LONG_S)
    leads = [name for name in "bc" if group[name].is_leader]
    invariant(len(leads) == 1, "another one leads", leaders=group.leaders)


def candidate_outside_the_membership_does_not_count_its_vote(kind: EngineKind) -> None:
    """Check that a candidate that is no voter does not count its own vote.

    This candidate may be needed: if no other member has the entry that removes it, only its log is complete.
    """
    group = led_by_a(kind, "a", "b", "c", "d")
    group.hold(lambda envelope: envelope.to == "a")
    group.propose("a", membership=_members("bcd"))
    group.settle()
    group["a"].resign(group.now)
    group.run("a")
    ask_for_votes(group, "a", "ab", "ac", "ad")
    let_through(group, "ab")
    let_through(group, "ab")
    invariant(not group["a"].is_leader, "one of three voters elects nobody", role=group["a"].role)


def membership_replaced_at_the_same_index_is_in_force(kind: EngineKind) -> None:
    """Check that a deposed leader takes the new leader's membership in place of its own one at the same index.

    Both the removal of its own entry and the new entry come in one message.
    """
    group = group_of(kind, "a", "b", "c", "d", strangers=["e"])
    group.elect("a")
    group.pass_time(0.3)
    group.isolate("a")
    group.propose("a")
    replaced = group.propose("a", membership=_members("abc"))
    group.elect("b")
    group.pass_time(0.3, "b", "c", "d")
    invariant(group.propose("b", membership=_members("abcde")) == replaced, "both stand at the same index")
    group.settle()
    group.heal()
    group.pass_time(1.0)
    invariant(group["a"].membership == _members("abcde"), "it has the later one", members=group["a"].membership)
    ask_for_votes(group, "a", "ab", "ac", "ad", "ae")
    let_through(group, "ac")
    let_through(group, "ac")
    invariant(not group["a"].is_leader, "two of five voters elect nobody", role=group["a"].role)


PROMISES: Final[tuple[Promise, ...]] = (
    learners_get_the_log_and_do_not_count,
    appended_membership_is_in_force,
    membership_survives_a_restart,
    replaced_membership_is_not_in_force,
    membership_changes_wait_for_the_committed_no_op,
    leaving_leader_leads_until_the_commit,
    candidate_outside_the_membership_does_not_count_its_vote,
    membership_replaced_at_the_same_index_is_in_force,
)

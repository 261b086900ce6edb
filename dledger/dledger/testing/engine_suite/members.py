"""Promises about the members of a group that change, which not every engine allows."""

from __future__ import annotations

from typing import Final

from dledger.consensus.engine import EngineKind
from dledger.invariants import invariant
from dledger.testing.engine_group import replica
from dledger.testing.engine_suite.groups import (
    LONG_S,
    Promise,
    ask_for_votes,
    brings_entries,
    group_of,
    led_by_a,
    let_through,
    require_equal_logs,
)
from dledger.types import Membership


def _members(voters: str, learners: str = "") -> Membership:
    return Membership(tuple(map(replica, voters)), tuple(map(replica, learners)))


def learners_get_the_log_and_count_for_nothing(kind: EngineKind) -> None:
    """Neither for a commit nor for an election."""
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


def a_membership_acts_from_when_it_is_appended(kind: EngineKind) -> None:
    """A newcomer is a learner, gets the log, and votes once it was promoted."""
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


def the_members_are_remembered(kind: EngineKind) -> None:
    """By who starts again, and by whose log begins behind a snapshot."""
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


def a_membership_that_is_replaced_is_not_in_force(kind: EngineKind) -> None:
    """It goes with its entry, and the one before it is in force again."""
    group = led_by_a(kind)
    group.isolate("a")
    group.propose("a", membership=_members("ab"))
    group.elect("b")
    group.heal()
    group.pass_time(1.0)
    invariant(group["a"].membership == _members("abc"), "the members are who they were", now=group["a"].membership)


def nothing_changes_before_the_no_op_is_committed(kind: EngineKind) -> None:
    """Else two majorities could do without each other (Ongaro's correction of 2015)."""
    group = group_of(kind)
    group.hold(brings_entries)
    group.elect("a")
    invariant(not group["a"].can_change_membership, "an own entry is committed first")


def a_leader_that_leaves_leads_until_that_is_committed(kind: EngineKind) -> None:
    """It does not count itself, and the others go on without it."""
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


def who_is_no_voter_is_elected_by_a_majority_of_those_who_are(kind: EngineKind) -> None:
    """It may be, where nobody else has the entry that takes it out: its own vote is none of theirs."""
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


def a_membership_at_the_index_of_another_acts(kind: EngineKind) -> None:
    """A deposed leader's entry is replaced, in one message, by one that stands where it stood."""
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
    learners_get_the_log_and_count_for_nothing,
    a_membership_acts_from_when_it_is_appended,
    the_members_are_remembered,
    a_membership_that_is_replaced_is_not_in_force,
    nothing_changes_before_the_no_op_is_committed,
    a_leader_that_leaves_leads_until_that_is_committed,
    who_is_no_voter_is_elected_by_a_majority_of_those_who_are,
    a_membership_at_the_index_of_another_acts,
)

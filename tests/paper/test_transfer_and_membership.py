"""Leadership transfer, and membership that changes one node at a time.

Each test holds one rule of the docstring of `dledger.core.raft`. The simulator's schedules tell longer stories of the
same rules, with the bugs that they catch.
"""

import pytest
from led_groups import A, B, C, D, carries_entries, led_by_a

from dledger.core.messages import (
    Append,
    TimeoutNow,
)
from dledger.types import Membership, Role
from dledger_base.invariants import InvariantError
from dledger_sim.cores import CoreGroup
from dledger_sim.engine_group import entries, replica

# Leadership transfer


def test_a_successor_is_told_only_once_it_has_everything() -> None:
    """Until then the leader waits, and accepts no proposals, which would prolong the wait."""
    group = led_by_a()
    group.hold(carries_entries)
    group.propose("a", 3)
    assert group["a"].transfer(B, group.now)
    assert not group["a"].accepts_proposals
    assert [sent for sent in group.wire if isinstance(sent.message, TimeoutNow)] == []
    group.release()
    group.settle()
    assert (group["b"].is_leader, group["b"].term) == (True, 2)


def test_a_successor_that_cannot_follow_is_given_up() -> None:
    """After one election time limit the leader goes on as before, in the same term."""
    group = led_by_a()
    group.hold(lambda envelope: envelope.to == "b" and carries_entries(envelope))
    group.propose("a")
    assert group["a"].transfer(B, group.now)
    group.pass_time(group.settings.election_max_s + 2 * group.settings.heartbeat_s)
    assert group["a"].accepts_proposals
    index = group.propose("a")
    group.settle()
    assert (group["a"].commit_index, group["a"].term) == (index, 1)


def test_a_successor_that_gets_no_votes_does_not_stop_the_group() -> None:
    """The successor raised the term in vain. The others elect in a newer term, and the successor follows."""
    group = led_by_a()
    group.cut(("b", "a"), ("b", "c"))
    assert group["a"].transfer(B, group.now)
    group.run("a")
    group.settle()
    assert (group["b"].role, group["b"].term) == (Role.CANDIDATE, 2)
    group.pass_time(1.0)
    group.heal()
    group.pass_time(5.0)
    (leader,) = (name for name in "abc" if group[name].is_leader)
    index = group.propose(leader)
    group.pass_time(0.2)
    assert {group[name].commit_index for name in "abc"} == {index}


@pytest.mark.parametrize("unfit", ["a learner", "a stranger", "an unhealthy voter"])
def test_leadership_goes_only_to_a_healthy_voter(unfit: str) -> None:
    """Any other member would not win, or would fail at once."""
    group = CoreGroup("a", "b", "c", learners=("d",))
    group.elect("a")
    group["c"].healthy = False
    group.pass_time(0.3)
    to = {"a learner": D, "a stranger": replica("x"), "an unhealthy voter": C}[unfit]
    assert not group["a"].transfer(to, group.now)
    assert group["a"].accepts_proposals
    assert group["a"].transfer(B, group.now)


def test_only_the_leader_hands_over() -> None:
    """A request of another core starts no campaign without pre-vote."""
    group = led_by_a()
    group.send("c", "b", TimeoutNow(1))
    assert (group["b"].role, group["b"].term) == (Role.FOLLOWER, 1)
    group.send("a", "b", TimeoutNow(1))
    assert (group["b"].role, group["b"].term) == (Role.CANDIDATE, 2)


# Membership


def test_a_membership_change_of_several_voters_is_refused() -> None:
    """Then any majority of the old voters meets any majority of the new ones."""
    group = led_by_a()
    with pytest.raises(InvariantError, match="one voter changes at a time"):
        group.propose("a", membership=Membership((A, D)))
    with pytest.raises(InvariantError, match="one voter changes at a time"):
        group.propose("a", membership=Membership(()))


def test_a_change_waits_for_the_one_before() -> None:
    """Two changes under way would make a difference of two voters."""
    group = led_by_a()
    group.hold(carries_entries)
    group.propose("a", membership=Membership((A, B, C), (D,)))
    assert not group["a"].can_change_membership
    with pytest.raises(InvariantError, match="waits for the one before"):
        group.propose("a", membership=Membership((A, B, C, D)))
    group.release()
    group.settle()
    assert group["a"].can_change_membership


def test_a_change_waits_for_an_entry_of_the_own_term() -> None:
    """A change of an older leader may still be unknown. The own no-op settles whether it counts."""
    group = CoreGroup("a", "b", "c")
    group.hold(carries_entries)
    group.elect("a")
    with pytest.raises(InvariantError, match="waits for the one before"):
        group.propose("a", membership=Membership((A, B)))


def test_a_membership_change_counts_once_appended() -> None:
    """With a fourth voter, two acknowledgements and the leader's own are needed."""
    group = CoreGroup("a", "b", "c", strangers=("d",))
    group.elect("a")
    group.pass_time(0.2)
    for name in ("c", "d"):
        group.isolate(name)
    index = group.propose("a", membership=Membership((A, B, C, D)))
    group.settle()
    assert group["b"].table.membership.voters == (A, B, C, D)
    assert group["a"].commit_index == index - 1
    group.heal()
    group.pass_time(0.2)
    assert group["a"].commit_index == index


def test_a_truncated_membership_change_is_undone() -> None:
    """The earlier membership is in force again, for leader and follower alike."""
    group = led_by_a()
    before = group["b"].table.membership
    group.isolate("c")
    group.isolate("b")
    group.join(("a", "b"))
    group.propose("a", membership=Membership((A, B, C, D)))
    group.settle()
    assert group["b"].table.membership != before
    group.send("c", "b", Append(5, 0, 1, 0, 1), entries(5, first=1))
    assert group["b"].table.membership == before


def test_a_learner_counts_for_nothing() -> None:
    """A learner receives the log and acknowledges it, but a majority consists of voters."""
    group = CoreGroup("a", "b", "c", learners=("d", "e"))
    group.elect("a")
    group.isolate("b")
    group.isolate("c")
    index = group.propose("a")
    group.settle()
    assert group["a"].progress[D].match_index == index
    assert group["a"].commit_index == index - 1


def test_a_learner_does_not_campaign() -> None:
    """A learner never campaigns, however long it hears no leader."""
    group = CoreGroup("a", "b", learners=("d",))
    group.isolate("d")
    group.pass_time(5.0, "d")
    assert (group["d"].role, group["d"].term) == (Role.FOLLOWER, 0)


def test_a_leader_that_leaves_does_not_count_itself_and_steps_down() -> None:
    """The entry needs a majority of the remaining voters. Once it is committed, the leader steps down."""
    group = led_by_a()
    group.hold(lambda envelope: envelope.to == "c" and carries_entries(envelope))
    index = group.propose("a", membership=Membership((B, C)))
    group.settle()
    assert (group["a"].is_leader, group["a"].commit_index) == (True, index - 1)
    group.release()
    group.settle()
    assert (group["a"].is_leader, group["a"].commit_index) == (False, index)
    group.pass_time(5.0)
    assert group["a"].role is Role.FOLLOWER
    assert group["b"].is_leader != group["c"].is_leader


@pytest.mark.parametrize("stays", ["as nobody", "as a learner"])
def test_a_removed_leader_leads_again_until_its_removal_is_committed(stays: str) -> None:
    """No other member can lead: its log is the longest, and both votes count until the removal is committed."""
    group = CoreGroup("a", "b")
    group.elect("a")
    group.pass_time(0.2)
    group.isolate("a")
    index = group.propose("a", membership=Membership((B,), (A,) if stays == "as a learner" else ()))
    group.sync("a")
    group.crash("a")
    group.heal()
    group.pass_time(5.0)
    assert group["b"].is_leader
    assert group["b"].commit_index > index
    assert group["b"].table.membership.voters == (B,)
    assert not group["a"].is_leader


def test_a_removed_voter_stands_for_no_election() -> None:
    """Once its removal is committed, its silence is expected."""
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.propose("a", membership=Membership((B, C)))
    group.settle()
    group.pass_time(3.0)
    assert group["a"].commit_index >= group["a"].table.membership_index
    group.isolate("a")
    group.pass_time(3.0)
    assert group["a"].role is Role.FOLLOWER

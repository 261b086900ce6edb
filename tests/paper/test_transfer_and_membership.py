"""Leadership transfer, and membership that changes one node at a time.

Each test holds one rule, named in the docstring of `dledger.core.raft`. Longer stories of the same rules, with the bugs
they are made for, are the schedules of the simulator's tests.
"""

import pytest
from led_groups import A, B, C, D, carries_entries, led_by_a

from dledger.core.messages import (
    Append,
    TimeoutNow,
)
from dledger.invariants import InvariantError
from dledger.testing.cores import CoreGroup
from dledger.testing.engine_group import entries, replica
from dledger.types import Membership, Role

# Leadership transfer


def test_a_successor_is_told_only_once_it_has_everything() -> None:
    """Until then the leader waits, and takes no proposals that would keep it waiting."""
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
    """After one election time-out the leader goes on as before, in the same term."""
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
    """It raised the term in vain; the others elect in a newer one, and it follows."""
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
    """Anybody else would win nothing, or fail at once."""
    group = CoreGroup("a", "b", "c", learners=("d",))
    group.elect("a")
    group["c"].healthy = False
    group.pass_time(0.3)
    to = {"a learner": D, "a stranger": replica("x"), "an unhealthy voter": C}[unfit]
    assert not group["a"].transfer(to, group.now)
    assert group["a"].accepts_proposals
    assert group["a"].transfer(B, group.now)


def test_only_the_leader_hands_over() -> None:
    """Another core's word does not start a campaign past the pre-vote."""
    group = led_by_a()
    group.send("c", "b", TimeoutNow(1))
    assert (group["b"].role, group["b"].term) == (Role.FOLLOWER, 1)
    group.send("a", "b", TimeoutNow(1))
    assert (group["b"].role, group["b"].term) == (Role.CANDIDATE, 2)


# Membership


def test_one_voter_changes_at_a_time() -> None:
    """Any majority of the old voters then meets any majority of the new ones."""
    group = led_by_a()
    with pytest.raises(InvariantError, match="one voter changes at a time"):
        group.propose("a", membership=Membership((A, D)))
    with pytest.raises(InvariantError, match="one voter changes at a time"):
        group.propose("a", membership=Membership(()))


def test_a_change_waits_for_the_one_before() -> None:
    """Two changes under way would be two voters' difference."""
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
    """A change of an older leader may still be unheard of; the own no-op settles which one counts."""
    group = CoreGroup("a", "b", "c")
    group.hold(carries_entries)
    group.elect("a")
    with pytest.raises(InvariantError, match="waits for the one before"):
        group.propose("a", membership=Membership((A, B)))


def test_a_change_counts_from_when_it_is_appended() -> None:
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


def test_a_truncated_change_never_was() -> None:
    """The membership before it is in force again, for leader and follower alike."""
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
    """It receives the log and acknowledges it; a majority is of voters."""
    group = CoreGroup("a", "b", "c", learners=("d", "e"))
    group.elect("a")
    group.isolate("b")
    group.isolate("c")
    index = group.propose("a")
    group.settle()
    assert group["a"].progress[D].match_index == index
    assert group["a"].commit_index == index - 1


def test_a_learner_does_not_campaign() -> None:
    """However long it hears nobody."""
    group = CoreGroup("a", "b", learners=("d",))
    group.isolate("d")
    group.pass_time(5.0, "d")
    assert (group["d"].role, group["d"].term) == (Role.FOLLOWER, 0)


def test_a_leader_that_leaves_does_not_count_itself_and_steps_down() -> None:
    """The entry that removes it needs a majority of those who stay; committed, it is the last it leads."""
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
def test_a_leader_that_left_leads_again_until_that_is_committed(stays: str) -> None:
    """Nobody else can: its log is the longest, and it is one of the two whose votes count until then."""
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


def test_who_left_for_good_stands_for_no_election() -> None:
    """Once its removal is committed, its silence is what everybody expects."""
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.propose("a", membership=Membership((B, C)))
    group.settle()
    group.pass_time(3.0)
    assert group["a"].commit_index >= group["a"].table.membership_index
    group.isolate("a")
    group.pass_time(3.0)
    assert group["a"].role is Role.FOLLOWER

"""Elections beyond figure 2: pre-vote, check-quorum, stickiness, and replicas that may have lost something.

Each test holds one rule of the docstring of `dledger.core.raft`. The simulator's schedules tell longer stories of the
same rules, with the bugs that they catch.
"""

from collections.abc import Callable

import pytest
from led_groups import A, led_by_a

from dledger.core.messages import (
    Append,
    Heartbeat,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from dledger.types import Role
from dledger_sim.cores import CoreGroup
from dledger_sim.engine_group import entries

# Pre-vote


def test_a_core_that_is_cut_off_does_not_raise_its_term() -> None:
    """A core that is cut off only repeats pre-votes. When it comes back, it disturbs no election."""
    group = led_by_a()
    group.isolate("b")
    group.pass_time(10.0)
    assert (group["b"].role, group["b"].term) == (Role.PRE_CANDIDATE, 1)
    group.heal()
    group.pass_time(0.5)
    assert [(group[name].term, group[name].leader) for name in "abc"] == [(1, A)] * 3


def test_a_candidate_with_a_shorter_log_gets_no_pre_vote() -> None:
    """A pre-vote asks whether the log is good enough, so a core that would lose starts no election."""
    group = CoreGroup("a", "b", "c")
    group.send("c", "a", Append(1, -1, 0, -1, 2), entries(1, 1))
    group.now += group.settings.election_max_s
    assert group.send("b", "a", VoteRequest(2, 0, 1, pre=True)) == [VoteReply(1, False, pre=True)]
    assert group.send("b", "a", VoteRequest(2, 1, 1, pre=True)) == [VoteReply(2, True, pre=True)]


def test_a_pre_vote_is_granted_only_for_a_later_term() -> None:
    """No pre-vote is promised for the present term or an older one."""
    group = CoreGroup("a", "b", "c")
    group.send("b", "a", VoteRequest(3, -1, 0))
    assert group.send("c", "a", VoteRequest(3, -1, 0, pre=True)) == [VoteReply(3, False, pre=True)]


def test_a_refused_promise_tells_the_higher_term() -> None:
    """A core that asks in an old term learns the newer one, and may ask in that."""
    group = CoreGroup("a", "b", "c")
    group.isolate("a")
    group.campaign("a")
    group.send("b", "a", VoteReply(7, False, pre=True))
    assert (group["a"].term, group["a"].role) == (7, Role.FOLLOWER)


# Check-quorum


def test_a_leader_that_hears_no_majority_steps_down() -> None:
    """A leader without answers from a majority steps down after at most one election time limit."""
    group = led_by_a()
    group.cut(("b", "a"), ("c", "a"))
    group.pass_time(group.settings.election_max_s + 2 * group.settings.heartbeat_s, "a")
    assert (group["a"].role, group["a"].term) == (Role.FOLLOWER, 1)


def test_a_leader_that_hears_a_bare_majority_stays() -> None:
    """The leader and one of two others are enough."""
    group = led_by_a()
    group.isolate("c")
    group.pass_time(5.0, "a", "b")
    assert (group["a"].is_leader, group["a"].term) == (True, 1)


def test_learners_do_not_keep_a_leader() -> None:
    """Only answers of voters count."""
    group = CoreGroup("a", "b", "c", learners=("d", "e"))
    group.elect("a")
    group.cut(("b", "a"), ("c", "a"))
    group.pass_time(group.settings.election_max_s + 2 * group.settings.heartbeat_s, "a", "d", "e")
    assert not group["a"].is_leader


# Stickiness


def test_a_follower_that_hears_its_leader_ignores_campaigns() -> None:
    """The follower neither votes nor adopts the term, and does not answer."""
    group = led_by_a()
    assert group.send("c", "b", VoteRequest(9, 99, 8)) == []
    assert group.send("c", "b", VoteRequest(9, 99, 8, pre=True)) == []
    assert (group["b"].term, group["b"].leader) == (1, A)


def test_a_leader_that_hears_its_followers_ignores_campaigns() -> None:
    """A node that the group does not need cannot depose the leader."""
    group = led_by_a()
    assert group.send("c", "a", VoteRequest(9, 99, 8)) == []
    assert group["a"].is_leader


def test_a_follower_votes_once_its_leader_was_silent_for_the_shortest_time_out() -> None:
    """Before that time no follower can have missed the leader. A later vote would delay elections."""
    group = led_by_a()
    group.now += group.settings.election_min_s
    assert group.send("c", "b", VoteRequest(2, 0, 1)) == [VoteReply(2, True)]


def test_a_campaign_by_the_leaders_wish_is_heard_at_once() -> None:
    """A handover overrides the heartbeats of the leader that asked for it."""
    group = led_by_a()
    assert group.send("c", "b", VoteRequest(2, 0, 1, transfer=True)) == [VoteReply(2, True)]


# Replicas that may have lost what they acknowledged


def forgetful() -> CoreGroup:
    """Return a group in which core `b` has started and may have lost entries."""
    group = CoreGroup("a", "b", "c")
    group["b"].may_vote = False
    return group


@pytest.mark.parametrize("pre", [False, True])
def test_a_forgetful_replica_gives_no_vote(pre: bool) -> None:
    """With such a vote a leader could win that lacks entries that this replica acknowledged."""
    group = forgetful()
    assert group.send("a", "b", VoteRequest(1, 99, 1, pre=pre)) == []
    assert group["b"].vote is None


def test_a_forgetful_replica_does_not_campaign() -> None:
    """The replica campaigns neither by itself nor on a leader's request."""
    group = forgetful()
    group.isolate("b")
    group.pass_time(3.0, "b")
    assert (group["b"].role, group["b"].term) == (Role.FOLLOWER, 0)
    group.send("a", "b", Heartbeat(1, -1))
    group.send("a", "b", TimeoutNow(1))
    assert group["b"].role is Role.FOLLOWER


def test_a_forgetful_replica_votes_once_a_leader_has_made_everything_good() -> None:
    """The replica then has an entry committed in its leader's term, and so all entries ever committed."""
    group = forgetful()
    group.send("a", "b", Append(2, -1, 0, 1, 2), entries(1, 1))
    assert not group["b"].may_vote
    group.send("a", "b", Heartbeat(2, 2))
    assert not group["b"].may_vote
    group.send("a", "b", Append(2, 1, 1, 2, 1), entries(2, first=2))
    assert group["b"].may_vote


def test_a_forgetful_replica_may_vote_only_after_an_append_joined_its_log() -> None:
    """The entries may be of this very term. First the leader must join an append to them."""
    group = led_by_a()
    group.crash("b")
    group["b"].may_vote = False
    group.send("a", "b", Heartbeat(1, 0))
    assert not group["b"].may_vote
    group.send("a", "b", Append(1, 0, 1, 0))
    assert group["b"].may_vote


@pytest.mark.parametrize("start", [lambda group: group.elect("a"), lambda group: group.pass_time(4.0, "a", "c")])
def test_a_group_elects_around_a_forgetful_replica(start: Callable[[CoreGroup], None]) -> None:
    """The other two elect a leader, and its no-op restores the replica's vote."""
    group = forgetful()
    start(group)
    group.pass_time(0.5)
    assert group["b"].may_vote

"""Edges of the rules of figure 2: repeated and late messages, and messages of non-members."""

import pytest

from dledger.core.messages import Append, Heartbeat, VoteReply, VoteRequest
from dledger.errors import ContradictionError
from dledger.types import Role
from dledger_base.invariants import InvariantError
from dledger_sim.cores import CoreGroup
from dledger_sim.engine_group import entries, replica


def candidate(*voters: str, learners: tuple[str, ...] = ()) -> CoreGroup:
    """Return a group in which core `a` asks for votes in term 1. Only the test delivers answers."""
    group = CoreGroup("a", *voters, learners=learners)
    group.cut(*((voter, "a") for voter in (*voters, *learners)))
    group.campaign("a")
    for voter in voters:
        group.send(voter, "a", VoteReply(1, True, pre=True))
    group.wire.clear()
    assert (group["a"].role, group["a"].term) == (Role.CANDIDATE, 1)
    return group


def test_a_vote_counts_for_a_single_term() -> None:
    """A vote is for one term only."""
    group = CoreGroup("a", "b", "c")
    assert group.send("b", "a", VoteRequest(1, -1, 0)) == [VoteReply(1, True)]
    assert group.send("c", "a", VoteRequest(2, -1, 0)) == [VoteReply(2, True)]


def test_adopting_a_term_forgets_the_vote_of_the_previous_term() -> None:
    """A leader's message of a new term leaves the receiver without a vote in that term."""
    group = CoreGroup("a", "b", "c")
    group.send("b", "a", VoteRequest(1, -1, 0))
    group.send("c", "a", Heartbeat(2, -1))
    assert (group["a"].term, group["a"].vote) == (2, None)


def test_a_voter_counts_once() -> None:
    """The same answer counts as one vote if it is delivered twice."""
    group = candidate("b", "c", "d", "e")
    group.send("b", "a", VoteReply(1, True))
    group.send("b", "a", VoteReply(1, True))
    assert group["a"].role is Role.CANDIDATE
    group.send("c", "a", VoteReply(1, True))
    assert group["a"].is_leader


def test_a_learner_does_not_count() -> None:
    """Only voters of the present membership count for a majority."""
    group = candidate("b", "c", learners=("d",))
    group.send("d", "a", VoteReply(1, True))
    assert group["a"].role is Role.CANDIDATE


def test_a_vote_of_an_earlier_campaign_does_not_count() -> None:
    """The answer to a campaign of an older term does not count."""
    group = candidate("b", "c")
    group.campaign("a")
    group.pass_time(group.settings.election_max_s * 1.1, "a")
    group.send("b", "a", VoteReply(2, True, pre=True))
    assert (group["a"].role, group["a"].term) == (Role.CANDIDATE, 2)
    group.send("c", "a", VoteReply(1, True))
    assert group["a"].role is Role.CANDIDATE
    group.send("c", "a", VoteReply(2, True))
    assert group["a"].is_leader


def test_a_promised_vote_is_no_vote() -> None:
    """A late answer to a pre-vote does not count in the election after it."""
    group = candidate("b", "c")
    group.send("c", "a", VoteReply(1, True, pre=True))
    group.send("c", "a", VoteReply(2, True, pre=True))
    assert group["a"].role is Role.CANDIDATE


def test_a_refusal_is_no_vote() -> None:
    """Two refusals make no leader."""
    group = candidate("b", "c")
    group.send("b", "a", VoteReply(1, False))
    group.send("c", "a", VoteReply(1, False))
    assert group["a"].role is Role.CANDIDATE


def test_a_commit_index_never_goes_back() -> None:
    """A delayed heartbeat with an older commit index changes nothing."""
    group = CoreGroup("a", "b", "c")
    group.send("b", "a", Append(1, -1, 0, 1, 2), entries(1, 1))
    group.send("b", "a", Heartbeat(1, 0))
    assert (group["a"].commit_index, group.members["a"].commits) == (1, [1])


def test_a_late_append_does_not_shorten_the_log() -> None:
    """Appends of one leader that arrive in the wrong order leave the longest log."""
    group = CoreGroup("a", "b", "c")
    group.send("b", "a", Append(1, -1, 0, -1, 3), entries(1, 1, 1))
    group.send("b", "a", Append(1, -1, 0, -1, 1), entries(1))
    group.send("b", "a", Append(1, 0, 1, -1, 1), entries(1, first=1))
    assert group.members["a"].terms == [1, 1, 1]


def test_a_leader_of_the_same_term_is_a_broken_promise() -> None:
    """Two leaders in one term are impossible. A core that sees them stops."""
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    with pytest.raises(InvariantError, match="one leader a term"):
        group.send("b", "a", Append(1, -1, 0, -1))


@pytest.mark.parametrize("message", [Append(2, 0, 2, -1), Append(2, -1, 0, -1, 2)])
def test_committed_entries_are_never_replaced(message: Append) -> None:
    """A leader whose log differs below the commit index contradicts a promise. The log is not cut."""
    group = CoreGroup("a", "b", "c")
    group.send("b", "a", Append(1, -1, 0, 1, 2), entries(1, 1))
    with pytest.raises(ContradictionError, match="committed here"):
        group.send("c", "a", message, entries(1, 2) if message.count else ())
    assert group.members["a"].terms == [1, 1]


def test_voting_for_another_ends_the_own_campaign() -> None:
    """A candidate that gets a campaign of a higher term votes for it and follows."""
    group = candidate("b", "c")
    assert group.send("b", "a", VoteRequest(2, -1, 0)) == [VoteReply(2, True)]
    assert (group["a"].role, group["a"].vote) == (Role.FOLLOWER, replica("b"))

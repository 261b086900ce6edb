"""One test per sentence of figure 2 of the Raft paper (Ongaro and Ousterhout, 2014), on the pure core."""

import pytest

from dledger.consensus.peers import Mode
from dledger.core.messages import Append, AppendReply, Heartbeat, HeartbeatReply, VoteReply, VoteRequest
from dledger.types import HardState, Role
from dledger_sim.cores import CoreGroup
from dledger_sim.engine_group import entries, replica


def follower_with(*terms: int, term: int = 0) -> CoreGroup:
    """Return a group in which core `a` follows `b` in `term`, or the last entry's, with entries of these terms."""
    group = CoreGroup("a", "b", "c")
    if terms:
        append = Append(term or terms[-1], -1, 0, -1, len(terms))
        assert isinstance(group.send("b", "a", append, entries(*terms))[-1], AppendReply)
    elif term:
        group.send("b", "a", Heartbeat(term, -1))
    return group


def quiet(group: CoreGroup, name: str = "a") -> None:
    """Let time pass without the leader's heartbeats, so that votes may be given."""
    group.now += group.settings.election_max_s


# State, persistent: "updated on stable storage before responding to RPCs"


def test_term_and_vote_are_on_stable_storage_before_a_vote_leaves() -> None:
    group = CoreGroup("a", "b", "c")
    group.auto_save = False
    assert group.send("b", "a", VoteRequest(1, -1, 0)) == []
    group.save("a")  # the term
    assert group.wire == []
    group.save("a")  # the vote in it
    assert group.wire.pop().message == VoteReply(1, True)
    assert group.members["a"].hard_state == HardState(1, replica("b"))


def test_a_new_term_is_on_stable_storage_before_anything_is_answered_in_it() -> None:
    group = CoreGroup("a", "b", "c")
    group.auto_save = False
    assert group.send("b", "a", Heartbeat(3, -1)) == []
    group.save("a")
    assert isinstance(group.wire.pop().message, HeartbeatReply)


def test_log_entries_are_on_stable_storage_before_they_are_acknowledged() -> None:
    group = CoreGroup("a", "b", "c")
    group.auto_sync = False
    assert group.send("b", "a", Append(1, -1, 0, -1, 2), entries(1, 1)) == []
    assert group.send("b", "a", Heartbeat(1, -1)) == [HeartbeatReply(1, 0, -1)]
    group.sync("a")
    assert group.wire.pop().message.match_index == 1


def test_a_restart_remembers_term_vote_and_log() -> None:
    group = follower_with(1, 1)
    quiet(group)
    group.send("c", "a", VoteRequest(2, 5, 1))
    group.crash("a")
    assert (group["a"].term, group["a"].vote, group.members["a"].terms) == (2, replica("c"), [1, 1])


def test_a_term_known_only_from_the_log_is_saved_before_any_message_in_it() -> None:
    group = CoreGroup("a", "b", "c")
    group.auto_save = False
    group.send("b", "a", Append(4, -1, 0, -1, 1), entries(4))
    group.crash("a")
    assert (group["a"].term, group.members["a"].hard_state) == (4, HardState())
    group.run("a")
    assert group.send("b", "a", Heartbeat(4, -1)) == []
    group.save("a")
    assert group.members["a"].hard_state == HardState(4, None)
    assert isinstance(group.wire.pop().message, HeartbeatReply)


# State, volatile


def test_a_core_starts_as_follower_with_nothing_committed() -> None:
    raft = CoreGroup("a", "b", "c")["a"]
    assert (raft.role, raft.commit_index, raft.leader) == (Role.FOLLOWER, -1, None)


def test_a_new_leader_tries_from_its_last_entry_on_and_knows_no_match() -> None:
    group = follower_with(1, 1, 1)
    group.hold(lambda envelope: isinstance(envelope.message, Append))
    group.elect("a")
    progress = group["a"].progress[replica("b")]
    assert (progress.next_index, progress.match_index) == (3, -1)


# AppendEntries RPC, receiver


def test_1_append_of_an_older_term_is_refused() -> None:
    group = follower_with(term=5)
    (reply,) = group.send("c", "a", Append(4, -1, 0, -1, 1), entries(4))
    assert (reply.term, reply.rejected, group.members["a"].terms) == (5, True, [])


@pytest.mark.parametrize(("prev_index", "prev_term"), [(2, 1), (5, 1), (1, 2)])
def test_2_append_that_does_not_join_the_log_is_refused(prev_index: int, prev_term: int) -> None:
    group = follower_with(1, 1)
    (reply,) = group.send("b", "a", Append(2, prev_index, prev_term, -1, 1), entries(2, first=prev_index + 1))
    assert reply.rejected
    assert reply.rejected_index == prev_index
    assert group.members["a"].terms == [1, 1]


def test_3_a_conflicting_entry_and_all_that_follow_are_deleted() -> None:
    group = follower_with(1, 1, 1, 1)
    group.send("c", "a", Append(2, 0, 1, -1, 1), entries(2, first=1))
    assert group.members["a"].terms == [1, 2]


def test_4_entries_not_in_the_log_are_appended() -> None:
    group = follower_with(1)
    (reply,) = group.send("b", "a", Append(1, 0, 1, -1, 2), entries(1, 1, first=1))
    assert (reply.match_index, group.members["a"].terms) == (2, [1, 1, 1])


def test_4_entries_already_in_the_log_stay_with_their_successors() -> None:
    group = follower_with(1, 1, 1)
    (reply,) = group.send("b", "a", Append(1, -1, 0, -1, 1), entries(1))
    assert group.members["a"].terms == [1, 1, 1]
    assert not reply.rejected


@pytest.mark.parametrize(("leader_commit", "commit"), [(0, 0), (1, 1), (9, 1)])
def test_5_commit_is_the_lesser_of_the_leaders_and_the_last_new_entry(leader_commit: int, commit: int) -> None:
    group = CoreGroup("a", "b", "c")
    group.send("b", "a", Append(1, -1, 0, leader_commit, 2), entries(1, 1))
    assert group["a"].commit_index == commit


def test_5_entries_of_an_older_leader_behind_the_last_new_one_are_not_committed() -> None:
    group = follower_with(1, 1, 1)
    group.send("c", "a", Append(2, 0, 1, 2))
    assert group["a"].commit_index == 0


# RequestVote RPC, receiver


def test_1_a_vote_of_an_older_term_is_refused() -> None:
    group = follower_with(term=5)
    quiet(group)
    (reply,) = group.send("c", "a", VoteRequest(4, 9, 4))
    assert (reply.term, reply.granted) == (5, False)


def test_2_a_vote_goes_to_the_first_candidate_of_a_term() -> None:
    group = CoreGroup("a", "b", "c")
    assert group.send("b", "a", VoteRequest(1, -1, 0)) == [VoteReply(1, True)]
    assert group.send("c", "a", VoteRequest(1, -1, 0)) == [VoteReply(1, False)]


def test_2_the_same_candidate_gets_the_vote_again() -> None:
    group = CoreGroup("a", "b", "c")
    group.send("b", "a", VoteRequest(1, -1, 0))
    assert group.send("b", "a", VoteRequest(1, -1, 0)) == [VoteReply(1, True)]


@pytest.mark.parametrize(
    ("last_index", "last_term", "granted"),
    [(1, 2, True), (2, 2, True), (0, 3, True), (0, 2, False), (9, 1, False)],
)
def test_2_a_vote_needs_a_log_at_least_as_up_to_date(last_index: int, last_term: int, granted: bool) -> None:
    group = follower_with(1, 2)
    quiet(group)
    (reply,) = group.send("c", "a", VoteRequest(4, last_index, last_term))
    assert reply.granted is granted


def test_2_a_pre_vote_binds_no_voter() -> None:
    group = CoreGroup("a", "b", "c")
    assert group.send("b", "a", VoteRequest(1, -1, 0, pre=True)) == [VoteReply(1, True, pre=True)]
    assert (group["a"].term, group["a"].vote) == (0, None)
    assert group.send("c", "a", VoteRequest(1, -1, 0)) == [VoteReply(1, True)]


# Rules for servers: all


def test_committed_entries_are_handed_on_to_be_applied() -> None:
    group = CoreGroup("a", "b", "c")
    group.send("b", "a", Append(1, -1, 0, 1, 2), entries(1, 1))
    assert group.members["a"].commits == [1]


@pytest.mark.parametrize("message", [Heartbeat(9, -1), AppendReply(9, -1, -1), VoteReply(9, False)])
def test_a_leader_that_sees_a_higher_term_adopts_it_and_follows(message: Heartbeat | AppendReply | VoteReply) -> None:
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.send("b", "a", message)
    assert (group["a"].term, group["a"].role) == (9, Role.FOLLOWER)


def test_a_candidate_that_sees_a_higher_term_adopts_it_and_follows() -> None:
    group = CoreGroup("a", "b", "c")
    group.isolate("a")
    group.campaign("a")
    group.send("b", "a", VoteReply(9, False))
    assert (group["a"].term, group["a"].role) == (9, Role.FOLLOWER)


# Rules for servers: followers


def test_a_follower_answers_leaders_and_candidates() -> None:
    group = CoreGroup("a", "b", "c")
    assert group.send("b", "a", VoteRequest(1, -1, 0))
    assert group.send("b", "a", Heartbeat(1, -1))
    assert group.send("b", "a", Append(1, -1, 0, -1))


def test_a_follower_without_a_leader_campaigns_within_its_timeout() -> None:
    group = CoreGroup("a", "b", "c")
    group.isolate("a")
    group.pass_time(group.settings.election_min_s * 0.9, "a")
    assert group["a"].role is Role.FOLLOWER
    group.pass_time(group.settings.election_max_s, "a")
    assert group["a"].role is Role.PRE_CANDIDATE


def test_a_follower_that_hears_its_leader_does_not_campaign() -> None:
    group = CoreGroup("a", "b", "c")
    group.elect("b")
    group.pass_time(5.0)
    assert (group["a"].role, group["a"].term, group["b"].is_leader) == (Role.FOLLOWER, 1, True)


def test_granting_a_vote_delays_the_own_campaign() -> None:
    group = CoreGroup("a", "b", "c")
    group.pass_time(group.settings.election_min_s * 0.9, "a")
    group.send("b", "a", VoteRequest(1, -1, 0))
    group.pass_time(group.settings.election_min_s * 0.9, "a")
    assert group["a"].role is Role.FOLLOWER


# Rules for servers: candidates


def test_a_candidate_raises_the_term_votes_for_itself_and_asks_everybody() -> None:
    group = CoreGroup("a", "b", "c")
    group.cut(("b", "a"), ("c", "a"))
    group.campaign("a")
    group.wire.clear()
    group.send("b", "a", VoteReply(1, True, pre=True))
    assert (group["a"].term, group["a"].vote, group["a"].role) == (1, replica("a"), Role.CANDIDATE)
    asked = {envelope.to for envelope in group.wire if envelope.message == VoteRequest(1, -1, 0)}
    assert asked | {"b"} == {"b", "c"}


def test_a_candidate_with_a_majority_leads() -> None:
    group = CoreGroup("a", "b", "c", "d", "e")
    group.isolate("d")
    group.isolate("e")
    group.elect("a")
    assert group["a"].is_leader


def test_a_candidate_without_a_majority_does_not_lead() -> None:
    group = CoreGroup("a", "b", "c", "d", "e")
    for name in ("c", "d", "e"):
        group.isolate(name)
    group.campaign("a")
    group.pass_time(5.0, "a", "b")
    assert not group["a"].is_leader
    assert not group["b"].is_leader


def test_a_candidate_counts_its_own_vote_only_once_it_is_durable() -> None:
    group = CoreGroup("a")
    group.auto_save = False
    group.campaign("a")
    assert group["a"].role is Role.CANDIDATE
    group.save("a")
    assert group["a"].is_leader


def test_a_candidate_that_hears_the_new_leader_follows_it() -> None:
    group = CoreGroup("a", "b", "c")
    group.cut(("b", "a"), ("c", "a"))
    group.campaign("a")
    group.send("b", "a", VoteReply(1, True, pre=True))
    group.send("b", "a", Append(1, -1, 0, -1))
    assert (group["a"].role, group["a"].leader, group["a"].term) == (Role.FOLLOWER, replica("b"), 1)


def test_a_campaign_without_result_is_followed_by_another() -> None:
    group = CoreGroup("a", "b", "c")
    group.cut(("b", "a"), ("c", "a"))
    group.campaign("a")
    group.wire.clear()
    group.pass_time(group.settings.election_max_s * 1.1, "a")
    group.heal()
    group.pass_time(group.settings.election_max_s * 1.1, "a")
    assert group["a"].is_leader


# Rules for servers: leaders


def test_a_leader_sends_heartbeats_at_once_and_while_idle() -> None:
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    assert group["b"].leader == group["c"].leader == replica("a")
    group.tick("a", group.settings.heartbeat_s)
    beats = {envelope.to for envelope in group.wire if isinstance(envelope.message, Heartbeat)}
    assert beats == {"b", "c"}


def test_a_command_is_appended_and_committed_once_a_majority_has_it() -> None:
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.isolate("c")
    index = group.propose("a")
    assert group.members["a"].terms[index] == 1
    assert group["a"].commit_index == index - 1
    group.settle()
    assert group["a"].commit_index == index


def test_followers_are_sent_entries_from_their_next_index_on() -> None:
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.settle()
    index = group.propose("a", 3)
    sent = [envelope for envelope in group.wire if envelope.to == "b" and isinstance(envelope.message, Append)]
    assert [meta.index for envelope in sent for meta in envelope.metas] == list(range(index - 2, index + 1))


def test_success_moves_next_and_match_index() -> None:
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    index = group.propose("a", 4)
    group.settle()
    progress = group["a"].progress[replica("b")]
    assert (progress.next_index, progress.match_index, progress.mode) == (index + 1, index, Mode.STREAM)


def test_a_refusal_for_inconsistency_moves_next_index_back_until_the_logs_join() -> None:
    group = CoreGroup("a", "b", "c")
    group.send("b", "a", Append(3, -1, 0, -1, 4), entries(1, 1, 3, 3))
    group.send("a", "b", Append(2, -1, 0, -1, 5), entries(1, 1, 2, 2, 2))
    group.elect("a")
    group.settle()
    group.pass_time(0.3)
    assert group.members["b"].terms == group.members["a"].terms == group.members["c"].terms == [1, 1, 3, 3, 4]


def test_entries_of_the_own_term_are_committed_by_counting() -> None:
    group = CoreGroup("a", "b", "c", "d", "e")
    group.elect("a")
    for name in ("d", "e"):
        group.isolate(name)
    index = group.propose("a", 2)
    group.settle()
    assert group["a"].commit_index == index


def test_entries_of_older_terms_are_not_committed_by_counting() -> None:
    group = CoreGroup("a", "b", "c")
    group.send("c", "a", Append(1, -1, 0, -1, 2), entries(1, 1))
    group.send("c", "b", Append(1, -1, 0, -1, 2), entries(1, 1))
    group.hold(lambda envelope: bool(envelope.metas))
    group.elect("a")
    group.settle()
    assert group["a"].progress[replica("b")].match_index == 1
    assert group["a"].commit_index == -1
    group.release()
    group.settle()
    assert group["a"].commit_index == 2

"""What the core adds to figure 2, one rule a test: each is named in the docstring of `dledger.core.raft`.

Longer stories of the same rules, with the bugs they are made for, are the schedules of the simulator's tests.
"""

from collections.abc import Callable

import pytest
from answers import only

from dledger.core.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from dledger.core.progress import Mode
from dledger.invariants import InvariantError
from dledger.testing.cores import CoreGroup, Envelope, entries, replica
from dledger.types import EntryKind, Membership, Role

A, B, C, D = map(replica, "abcd")


def led_by_a(*others: str, one_entry_a_message: bool = False) -> CoreGroup:
    """Core `a` leads term 1, its no-op (index 0) is committed everywhere."""
    group = CoreGroup("a", *(others or ("b", "c")), one_entry_a_message=one_entry_a_message)
    group.elect("a")
    group.pass_time(0.2)
    assert {core.raft.commit_index for core in group.cores.values()} == {0}
    return group


def carries_entries(envelope: Envelope) -> bool:
    """For `CoreGroup.hold`."""
    return bool(envelope.metas)


# Pre-vote


def test_a_core_that_is_cut_off_does_not_raise_its_term() -> None:
    """It asks for pre-votes for as long as it likes; back again, it disturbs nobody."""
    group = led_by_a()
    group.isolate("b")
    group.pass_time(10.0)
    assert (group["b"].role, group["b"].term) == (Role.PRE_CANDIDATE, 1)
    group.heal()
    group.pass_time(0.5)
    assert [(group[name].term, group[name].leader) for name in "abc"] == [(1, A)] * 3


def test_a_core_with_a_shorter_log_is_promised_nothing() -> None:
    """A pre-vote asks whether the log is good enough, so a loser never starts an election."""
    group = CoreGroup("a", "b", "c")
    group.send("c", "a", Append(1, -1, 0, -1, 2), entries(1, 1))
    group.now += group.settings.election_max_s
    assert group.send("b", "a", VoteRequest(2, 0, 1, pre=True)) == [VoteReply(1, False, pre=True)]
    assert group.send("b", "a", VoteRequest(2, 1, 1, pre=True)) == [VoteReply(2, True, pre=True)]


def test_a_promise_is_for_a_term_to_come() -> None:
    """Nothing is promised for the present term or an older one."""
    group = CoreGroup("a", "b", "c")
    group.send("b", "a", VoteRequest(3, -1, 0))
    assert group.send("c", "a", VoteRequest(3, -1, 0, pre=True)) == [VoteReply(3, False, pre=True)]


def test_a_refused_promise_tells_the_higher_term() -> None:
    """Who asks in an old term learns of the newer one and may ask in that."""
    group = CoreGroup("a", "b", "c")
    group.isolate("a")
    group.campaign("a")
    group.send("b", "a", VoteReply(7, False, pre=True))
    assert (group["a"].term, group["a"].role) == (7, Role.FOLLOWER)


# Check-quorum


def test_a_leader_that_hears_no_majority_steps_down() -> None:
    """After one election time-out, at most, without an answer from a majority, it leads no more."""
    group = led_by_a()
    group.cut(("b", "a"), ("c", "a"))
    group.pass_time(group.settings.election_max_s + 2 * group.settings.heartbeat_s, "a")
    assert (group["a"].role, group["a"].term) == (Role.FOLLOWER, 1)


def test_a_leader_that_hears_a_bare_majority_stays() -> None:
    """Itself and one of two others are enough, for as long as it lasts."""
    group = led_by_a()
    group.isolate("c")
    group.pass_time(5.0, "a", "b")
    assert (group["a"].is_leader, group["a"].term) == (True, 1)


def test_learners_do_not_keep_a_leader() -> None:
    """An answer counts only if a voter gives it."""
    group = CoreGroup("a", "b", "c", learners=("d", "e"))
    group.elect("a")
    group.cut(("b", "a"), ("c", "a"))
    group.pass_time(group.settings.election_max_s + 2 * group.settings.heartbeat_s, "a", "d", "e")
    assert not group["a"].is_leader


# Stickiness


def test_a_follower_that_hears_its_leader_ignores_campaigns() -> None:
    """It neither votes nor adopts the term, and says nothing."""
    group = led_by_a()
    assert group.send("c", "b", VoteRequest(9, 99, 8)) == []
    assert group.send("c", "b", VoteRequest(9, 99, 8, pre=True)) == []
    assert (group["b"].term, group["b"].leader) == (1, A)


def test_a_leader_that_hears_its_followers_ignores_campaigns() -> None:
    """A node that nobody needs cannot depose it."""
    group = led_by_a()
    assert group.send("c", "a", VoteRequest(9, 99, 8)) == []
    assert group["a"].is_leader


def test_a_follower_votes_once_its_leader_was_silent_for_the_shortest_time_out() -> None:
    """Sooner nobody can have missed the leader for good reason; later would delay elections."""
    group = led_by_a()
    group.now += group.settings.election_min_s
    assert group.send("c", "b", VoteRequest(2, 0, 1)) == [VoteReply(2, True)]


def test_a_campaign_by_the_leaders_wish_is_heard_at_once() -> None:
    """A handover overrides the voice of the leader that asked for it."""
    group = led_by_a()
    assert group.send("c", "b", VoteRequest(2, 0, 1, transfer=True)) == [VoteReply(2, True)]


# The no-op, and commitment in the own term


def test_a_leader_begins_its_term_with_a_no_op() -> None:
    """It commits what older leaders left, without anybody having to write."""
    group = CoreGroup("a", "b", "c")
    for name in ("a", "b"):
        group.send("c", name, Append(1, -1, 0, -1, 2), entries(1, 1))
    group.elect("a")
    group.pass_time(0.2)
    assert [meta.kind for meta in group.cores["a"].log] == [EntryKind.GROUP, EntryKind.GROUP, EntryKind.NO_OP]
    assert {group[name].commit_index for name in "abc"} == {2}


def test_a_leader_knows_the_groups_commit_index_only_after_its_no_op() -> None:
    """Until then its own commit index may lag behind what was acknowledged before."""
    group = CoreGroup("a", "b", "c")
    group.hold(carries_entries)
    group.elect("a")
    assert not group["a"].own_term_committed
    group.release()
    group.settle()
    assert group["a"].own_term_committed


def test_an_older_entry_is_safe_once_an_own_one_stands_behind_it() -> None:
    """Figure 8, its good end: the old entry is on a majority *with* an entry of the leader's term.

    1. `a` leads term 1 and gives entry 1 to `b` only.
    2. `e` leads term 2 with the votes of `c` and `d`; nobody receives its entry 1.
    3. `a` leads term 3; its entry 1 and its no-op reach `b` and `c`, which commits both.
    4. `e`, whose last entry is of term 2, cannot win against any of them.
    """
    group = led_by_a("b", "c", "d", "e", one_entry_a_message=True)
    group.cut(("a", "c"), ("a", "d"), ("a", "e"))
    group.propose("a")
    group.settle()
    group.isolate("a")
    group.isolate("b")
    group.hold(lambda envelope: envelope.sender == "e" and carries_entries(envelope))
    group.elect("e")
    group.release()
    group.crash("a")
    group.crash("e")
    group.heal()
    group.isolate("e")
    group.isolate("d")
    while not group["a"].is_leader:
        group.campaign("a")
        group.settle()
    group.pass_time(0.2, "a", "b", "c")
    assert group.committed[1][0] == 1
    group.heal()
    group.isolate("a")
    for _ in range(5):
        group.campaign("e")
        group.settle()
        assert not group["e"].is_leader
    group.pass_time(5.0)
    (leader,) = (name for name in "bcde" if group[name].is_leader)
    assert group.cores[leader].terms[:2] == [1, 1]


# Acknowledgements


def test_entries_of_an_older_leader_are_not_acknowledged_to_a_newer_one() -> None:
    """Being durable here says nothing of equality with this leader's log; only its appends do."""
    group = CoreGroup("a", "b", "c")
    group.send("b", "a", Append(1, -1, 0, -1, 4), entries(1, 1, 1, 1))
    beaten = only(HeartbeatReply, group.send("c", "a", Heartbeat(2, -1)))
    assert beaten.match_index == -1
    reply = only(AppendReply, group.send("c", "a", Append(2, 1, 1, -1)))
    assert (reply.match_index, reply.verified_index) == (1, 1)


def test_a_sync_that_ends_in_the_next_term_acknowledges_nothing() -> None:
    """The entries belong to the older leader's log, whoever leads when their sync completes."""
    group = CoreGroup("a", "b", "c")
    group.auto_sync = False
    group.send("b", "a", Append(1, -1, 0, -1, 3), entries(1, 1, 1))
    complete = group.begin_sync("a")
    group.send("c", "a", Heartbeat(2, -1))
    complete()
    assert group["a"].durable_index == 2
    assert [sent.message.match_index for sent in group.wire if isinstance(sent.message, AppendReply)] == [-1]


def test_a_leader_does_not_count_what_was_acknowledged_in_an_older_term() -> None:
    """An answer carries its term, and one of another term is no answer."""
    group = CoreGroup("a", "b", "c", "d", "e")
    group.hold(carries_entries)
    group.send("b", "a", Append(4, -1, 0, -1, 2), entries(4, 4))
    group.elect("a")
    index = group.propose("a", 3)
    for name in "bcde":
        group.send(name, "a", AppendReply(group["a"].term - 1, index, index))
        group.send(name, "a", HeartbeatReply(group["a"].term - 1, 0, index))
    assert group["a"].commit_index == -1


def test_what_is_not_durable_is_not_acknowledged_by_heartbeats_either() -> None:
    """Verified and durable are two things; an acknowledgement names the smaller."""
    group = CoreGroup("a", "b", "c")
    group.auto_sync = False
    group.send("b", "a", Append(1, -1, 0, -1, 2), entries(1, 1))
    group.sync("a")
    group.send("b", "a", Append(1, 1, 1, -1, 2), entries(1, 1, first=2))
    reply = only(HeartbeatReply, group.send("b", "a", Heartbeat(1, -1)))
    assert reply.match_index == 1


def test_a_follower_commits_only_what_its_leader_has_verified_here() -> None:
    """A heartbeat may overtake the appends that it speaks of: entries at those indexes may be another leader's."""
    group = CoreGroup("a", "b", "c")
    group.send("b", "a", Append(1, -1, 0, -1, 3), entries(1, 1, 1))
    group.send("c", "a", Heartbeat(2, 2))
    assert group["a"].commit_index == -1
    group.send("c", "a", Append(2, 0, 1, 2, 2), entries(2, 2, first=1))
    assert (group["a"].commit_index, group.cores["a"].terms) == (2, [1, 2, 2])


# Sync generations


def test_a_sync_vouches_for_the_entries_that_were_there_when_it_began() -> None:
    """Truncated and written again, the same index needs a sync of its own."""
    group = CoreGroup("a", "b", "c")
    group.auto_sync = False
    group.send("b", "a", Append(1, -1, 0, -1, 3), entries(1, 1, 1))
    before = group.begin_sync("a")
    assert group.send("c", "a", Append(2, 0, 1, -1, 2), entries(2, 2, first=1)) == []
    after = group.begin_sync("a")
    before()
    assert (group["a"].durable_index, group.wire) == (-1, [])
    after()
    assert group["a"].durable_index == 2
    assert only(AppendReply, [sent.message for sent in group.wire]).match_index == 2


def test_truncation_lowers_what_is_durable() -> None:
    """What came after the cut was durable once; what takes its place is not yet."""
    group = CoreGroup("a", "b", "c")
    group.send("b", "a", Append(1, -1, 0, -1, 3), entries(1, 1, 1))
    group.auto_sync = False
    group.send("c", "a", Append(2, 0, 1, -1, 2), entries(2, 2, first=1))
    assert (group["a"].durable_index, group["a"].table.last_index) == (0, 2)


# Where logs do not join


def test_a_refusal_hints_at_the_last_entry_that_could_match() -> None:
    """One refusal skips a whole term, so that two logs join after as many as they have terms, not entries."""
    group = CoreGroup("a", "b", "c")
    group.send("b", "a", Append(3, -1, 0, -1, 9), entries(1, 1, 2, 3, 3, 3, 3, 3, 3))
    reply = only(AppendReply, group.send("c", "a", Append(5, 8, 2, -1)))
    assert (reply.rejected_index, reply.hint_index, reply.hint_term) == (8, 2, 2)
    reply = only(AppendReply, group.send("c", "a", Append(5, 40, 5, -1)))
    assert (reply.hint_index, reply.hint_term) == (8, 3)


def test_a_conflict_below_the_first_kept_entry_is_mended_by_a_snapshot() -> None:
    """The leader can neither compare nor send what it no longer has."""
    group = led_by_a()
    group.cut(("a", "b"))
    group.propose("a", 5)
    group.pass_time(0.2)
    group.compact("a", 3)
    group.cores["b"].log.clear()
    rejected = group["a"].progress[B].next_index - 1
    group.send("b", "a", AppendReply(1, -1, -1, rejected, -1, 0))
    group.send("b", "a", AppendReply(1, -1, -1, group["a"].progress[B].next_index - 1, -1, 0))
    assert group.cores["a"].snapshots_asked == [B]
    assert group["a"].progress[B].mode is Mode.SNAPSHOT


def test_after_a_snapshot_the_log_goes_on_behind_it() -> None:
    """The follower starts over at the snapshot's last entry, acknowledges it, and is streamed the rest."""
    group = led_by_a()
    group.isolate("b")
    group.propose("a", 5)
    group.pass_time(0.2, "a", "c")
    group.compact("a", 3)
    group.heal()
    group.pass_time(0.2)
    group.install("a", "b")
    group.pass_time(0.3)
    assert (group.cores["b"].first_index, group["b"].commit_index, group["b"].durable_index) == (4, 5, 5)
    assert group["a"].progress[B].mode is Mode.STREAM


def test_a_snapshot_of_what_is_known_keeps_the_log() -> None:
    """A follower that has the snapshot's last entry verifies with it, and drops nothing."""
    group = CoreGroup("a", "b", "c")
    group.send("b", "a", Append(1, -1, 0, -1, 4), entries(1, 1, 1, 1))
    reply = only(AppendReply, group.send("b", "a", InstallSnapshot(1, 96, 1, 1, 0, group.membership, -1)))
    assert (group.cores["a"].terms, group["a"].commit_index) == ([1, 1, 1, 1], 1)
    assert reply.verified_index >= 1


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


# Read index


def test_a_read_needs_a_round_that_began_after_it() -> None:
    """An answer to an older heartbeat proves nothing of now: it confirms the reads before it, and no others."""
    group = led_by_a()
    first = group["a"].read_index(group.now)
    group.run("a")
    older, group.wire = group.wire, []
    second = group["a"].read_index(group.now)
    group.run("a")
    newer, group.wire = group.wire, older
    group.settle()
    assert group.cores["a"].reads == [first]
    group.wire = newer
    group.settle()
    assert group.cores["a"].reads == [first, second]


def test_reads_wait_for_a_majority() -> None:
    """One of four others is not enough, two are."""
    group = led_by_a("b", "c", "d", "e")
    number = group["a"].read_index(group.now)
    assert number is not None
    group.send("b", "a", HeartbeatReply(1, number, 0))
    assert group.cores["a"].reads == []
    group.send("c", "a", HeartbeatReply(1, number, 0))
    assert group.cores["a"].reads == [number]


def test_a_later_round_confirms_the_reads_before_it() -> None:
    """Whoever answers round two was a follower after round one began."""
    group = led_by_a()
    first, second = (group["a"].read_index(group.now) for _ in range(2))
    assert first is not None
    assert second is not None
    group.send("b", "a", HeartbeatReply(1, second, 0))
    assert group.cores["a"].reads == [second]
    assert first < second


@pytest.mark.parametrize("busy", ["reads", "commits told at once"])
def test_a_busy_leader_still_repeats_a_lost_probe(busy: str) -> None:
    """Rounds of heartbeats that come faster than the heartbeat interval do not keep a member from its entries."""
    group = led_by_a()
    group.cut(("a", "c"))
    group["a"].peer_disconnected(C)
    group["a"].peer_connected(C, group.now)
    group.run("a")
    assert group["a"].progress[C].mode is Mode.PROBE
    group.join(("a", "c"))
    last = group.propose("a")
    for _ in range(30):
        group.tick("a", after_s=0.02)
        if busy == "reads":
            group["a"].read_index(group.now)
        else:
            group["a"].broadcast_commit(group.now)
        group.run("a")
        group.settle()
    assert group["c"].table.last_index == last


def test_no_read_before_the_no_op_is_committed() -> None:
    """A new leader may not know yet what was acknowledged before it."""
    group = CoreGroup("a", "b", "c")
    group.hold(carries_entries)
    group.elect("a")
    assert group["a"].read_index(group.now) is None
    group.release()
    group.settle()
    assert group["a"].read_index(group.now) is not None


def test_a_leader_without_a_majority_confirms_no_read() -> None:
    """It cannot know whether it still leads; its reads fail when it steps down."""
    group = led_by_a()
    group.isolate("a")
    group["a"].read_index(group.now)
    group.run("a")
    group.pass_time(group.settings.election_max_s + 2 * group.settings.heartbeat_s)
    assert (group.cores["a"].reads, group.cores["a"].reads_failed) == ([], 1)


# Replicas that may have lost what they acknowledged


def forgetful() -> CoreGroup:
    """Core `b` starts after a loss that it cannot rule out."""
    group = CoreGroup("a", "b", "c")
    group["b"].may_vote = False
    return group


@pytest.mark.parametrize("pre", [False, True])
def test_a_forgetful_replica_gives_no_vote(pre: bool) -> None:
    """With its vote, a leader could lack what it once acknowledged."""
    group = forgetful()
    assert group.send("a", "b", VoteRequest(1, 99, 1, pre=pre)) == []
    assert group["b"].vote is None


def test_a_forgetful_replica_does_not_campaign() -> None:
    """Neither by itself nor when a leader asks it to."""
    group = forgetful()
    group.isolate("b")
    group.pass_time(3.0, "b")
    assert (group["b"].role, group["b"].term) == (Role.FOLLOWER, 0)
    group.send("a", "b", Heartbeat(1, -1))
    group.send("a", "b", TimeoutNow(1))
    assert group["b"].role is Role.FOLLOWER


def test_a_forgetful_replica_votes_once_a_leader_has_made_everything_good() -> None:
    """That is when it holds an entry that was committed in its leader's term, and with it all that ever was."""
    group = forgetful()
    group.send("a", "b", Append(2, -1, 0, 1, 2), entries(1, 1))
    assert not group["b"].may_vote
    group.send("a", "b", Heartbeat(2, 2))
    assert not group["b"].may_vote
    group.send("a", "b", Append(2, 1, 1, 2, 1), entries(2, first=2))
    assert group["b"].may_vote


def test_entries_that_a_loss_left_over_do_not_give_the_vote_back() -> None:
    """They may be of this very term; the leader has to join an append to them first."""
    group = led_by_a()
    group.crash("b")
    group["b"].may_vote = False
    group.send("a", "b", Heartbeat(1, 0))
    assert not group["b"].may_vote
    group.send("a", "b", Append(1, 0, 1, 0))
    assert group["b"].may_vote


@pytest.mark.parametrize("start", [lambda group: group.elect("a"), lambda group: group.pass_time(4.0, "a", "c")])
def test_a_group_elects_around_a_forgetful_replica(start: Callable[[CoreGroup], None]) -> None:
    """The others suffice, and the no-op gives it its vote back."""
    group = forgetful()
    start(group)
    group.pass_time(0.5)
    assert group["b"].may_vote


# Pipelining


def test_unanswered_bytes_to_one_member_are_bounded() -> None:
    """What is beyond waits for an answer, so a slow member costs a bounded queue."""
    group = led_by_a()
    group.hold(carries_entries)
    share = group.settings.max_in_flight_bytes // group.settings.max_run_bytes
    megabyte = group.settings.max_run_bytes
    for index in range(1, 4 * share):
        meta = entries(1, first=index)[0]
        large = type(meta)(index, 1, index * megabyte, megabyte)
        group["a"].propose((large,), bytes(8), group.now)
        group.run("a")
    to_b = [sent for sent in group.held if sent.to == "b"]
    assert len(to_b) == share
    assert group["a"].progress[B].in_flight_bytes == group.settings.max_in_flight_bytes
    group.release()
    group.settle()
    assert group["a"].commit_index == 4 * share - 1

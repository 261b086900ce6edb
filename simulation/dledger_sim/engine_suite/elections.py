"""Promises about elections and leaders."""

from __future__ import annotations

from random import Random
from typing import Final

from dledger.consensus.engine import EngineKind, EngineStart, KnownLog, RaftSettings
from dledger.types import HardState, Membership, Role
from dledger_base.invariants import invariant
from dledger_sim.engine_group import STEP_S, replica
from dledger_sim.engine_suite.groups import (
    LONG_S,
    Promise,
    ask_for_votes,
    brings_entries,
    engines,
    group_of,
    leaders,
    led_by_a,
    let_through,
)


def group_elects_one_leader_known_to_all_members(kind: EngineKind) -> None:
    """Check that one leader is elected, and that all members know it.

    The leader reports this by `RoleChanged`. Once its no-op is committed it serves reads and takes proposals.
    """
    group = group_of(kind)
    group.pass_time(LONG_S)
    (name,) = leaders(group)
    leader = group[name]
    invariant(group.leaders[leader.term] == name, "the leader has said that it leads", leaders=group.leaders)
    invariant(leader.own_term_committed and leader.accepts_proposals, "the leader is ready", name=name)
    invariant(leader.commit_index >= leader.term_start >= 0, "its no-op is committed", index=leader.commit_index)
    for other, engine in engines(group).items():
        invariant((engine.term, engine.leader) == (leader.term, replica(name)), "all know who leads", other=other)
        invariant(engine.is_voter, "all of them vote", other=other)
        peers = {peer.node_id for peer in engine.progress}
        expected = set(group.members) - {name} if other == name else set()
        invariant(peers == expected, "the leader alone knows the others", other=other, peers=peers)


def lone_voter_elects_itself(kind: EngineKind) -> None:
    """Check that a lone voter elects itself without asking anybody."""
    group = group_of(kind, "a")
    group.pass_time(LONG_S)
    index = group.propose("a")
    invariant(group["a"].commit_index == index, "what one has is committed", index=index)


def votes_count_only_once_durable(kind: EngineKind) -> None:
    """Check that neither a candidate's own vote nor another voter's counts before it is durable.

    A crash could take the vote back, and another could be given in the same term.
    """
    group = group_of(kind)
    group.auto_save = False
    group.pass_time(LONG_S)
    invariant(not group.leaders, "nobody is elected by votes that are on no disk", leaders=group.leaders)
    group.auto_save = True
    for name, member in group.members.items():
        while member.pending_saves:
            group.save(name)
    group.pass_time(LONG_S)
    invariant(len(leaders(group)) == 1, "votes that are on disk count", leaders=group.leaders)


def term_survives_a_crash(kind: EngineKind) -> None:
    """Check that an engine continues in the term that it had made durable."""
    group = led_by_a(kind)
    terms = {name: engine.term for name, engine in engines(group).items()}
    for name in group.members:
        group.crash(name)
        invariant(group[name].term == terms[name], "the term is remembered", name=name, term=group[name].term)


def term_is_at_least_the_last_entrys(kind: EngineKind) -> None:
    """Check that the term is at least that of the last entry, which may have become durable before its term."""
    membership = Membership((replica("a"), replica("b"), replica("c")))
    log = KnownLog(-1, 0, [(0, 2), (4, 7)], 5, membership)
    engine = kind.start(EngineStart(replica("b"), log, HardState(3, None), 5, -1, RaftSettings(), Random(1), 10.0))
    invariant(engine.term >= 7, "no term below that of an entry is gone on with", term=engine.term)


def deaf_member_does_not_depose_the_leader(kind: EngineKind) -> None:
    """Check that a member that does not hear the leader deposes nobody.

    Members that hear the leader do not vote for that member, and it raises no other member's term.
    """
    group = led_by_a(kind)
    term = group["a"].term
    group.cut(("a", "c"))
    group.pass_time(LONG_S)
    invariant(group["a"].is_leader and group["a"].term == term, "the leader stays", term=term, now=group["a"].term)


def leader_with_a_majority_votes_for_no_candidate(kind: EngineKind) -> None:
    """Check that a leader with a majority does not vote for a member that has not heard it for a while.

    With the leader's own vote, that member could be elected once its messages arrive again.
    """
    group = led_by_a(kind)
    term = group["a"].term
    group.cut(("a", "c"))
    while group["c"].role is Role.FOLLOWER:
        group.settle()
        group.now += STEP_S
        for name in group.members:
            group.tick(name)
    group.join(("a", "c"))
    group.settle()
    group.pass_time(0.3)
    invariant(group["a"].is_leader and group["a"].term == term, "the leader stays", term=term, now=group["a"].term)


def returning_member_does_not_depose_the_leader(kind: EngineKind) -> None:
    """Check that a member that was cut off asks first whether it would be elected, so that its term does not rise."""
    group = led_by_a(kind)
    term = group["a"].term
    group.isolate("c")
    group.pass_time(LONG_S)
    group.heal()
    group.pass_time(1.0)
    invariant(group["a"].is_leader and group["c"].term == term, "the leader stays", term=term, now=group["a"].term)


def leader_without_a_majority_resigns(kind: EngineKind) -> None:
    """Check that a leader without a majority resigns.

    Its clients should go to another leader, and its reads would be stale.
    """
    group = led_by_a(kind)
    group.isolate("a")
    group.pass_time(LONG_S, "a")
    invariant(not group["a"].is_leader, "who is alone does not lead", role=group["a"].role)


def late_tick_starts_no_election(kind: EngineKind) -> None:
    """Check that a late tick starts no election.

    A process that was stopped finds its timers expired although no member was silent.
    """
    group = led_by_a(kind)
    term = group["a"].term
    group.now += 30.0
    for name in ("b", "c", "a"):
        group.tick(name)
    roles = {name: engine.role for name, engine in engines(group).items()}
    invariant(
        roles == {"a": Role.LEADER, "b": Role.FOLLOWER, "c": Role.FOLLOWER}, "all stay what they are", roles=roles
    )
    group.pass_time(1.0)
    invariant(group["a"].is_leader and group["a"].term == term, "the leader stays", term=term)


def doubtful_member_neither_votes_nor_leads(kind: EngineKind) -> None:
    """Check that a member that may have lost entries neither votes nor leads until a leader has brought it up to date.

    A leader elected by its vote could lack entries that this member had acknowledged.
    """
    group = group_of(kind)
    for name in ("a", "b"):
        group.crash(name, may_vote=False)
    group.pass_time(LONG_S)
    invariant(not group.leaders, "one vote of three elects nobody", leaders=group.leaders)
    group.crash("b")
    group.pass_time(LONG_S)
    invariant(set(group.leaders.values()) <= {"b", "c"}, "who may vote is elected", leaders=group.leaders)
    invariant(len(leaders(group)) == 1 and group["a"].may_vote, "a leader makes good what is missing")


def hearing_a_leader_does_not_end_doubt(kind: EngineKind) -> None:
    """Check that such a member does not vote just because it hears a leader.

    It votes once an entry of its leader's term is committed and is in its log, with all entries before it.
    """
    group = group_of(kind)
    group.crash("b", may_vote=False)
    group.hold(brings_entries)
    group.elect("a")
    group.pass_time(0.3)
    invariant(group["b"].leader == replica("a") and not group["b"].may_vote, "it hears a leader, and does not vote")
    group.release()
    group.pass_time(0.3)
    invariant(group["b"].may_vote, "it has what is committed, and votes")


def strangers_neither_vote_nor_lead(kind: EngineKind) -> None:
    """Check that a node that runs without being a member of the group has no influence."""
    group = group_of(kind, "a", "b", strangers=["s"])
    group.isolate("b")
    group.pass_time(LONG_S)
    invariant(not group.leaders, "one vote of two elects nobody", leaders=group.leaders)
    invariant(not group["s"].is_voter, "a stranger is no voter")


def member_with_unreadable_memberships_does_not_lead(kind: EngineKind) -> None:
    """Check that a member with unreadable memberships does not lead.

    It could count the votes of nodes that are not voters. It may lead again once its entries are healed.
    """
    group = led_by_a(kind)
    last = group.propose("a", 3)
    group.settle()
    for name in ("b", "c"):
        group.crash(name, unread=True)
        invariant(not group[name].membership_is_known, "what is unread may hold other members", name=name)
    group.isolate("a")
    group.pass_time(LONG_S)
    invariant(set(group.leaders.values()) == {"a"}, "nobody leads a group that it does not know", leaders=group.leaders)
    for name in ("b", "c"):
        group[name].repaired(0, last + 1, [], [(0, 1)])
        group.run(name)
    group.pass_time(LONG_S, "b", "c")
    invariant({"b", "c"} & set(leaders(group)), "who knows the members again leads", leaders=group.leaders)


def vote_repeated_after_a_timeout_counts_once(kind: EngineKind) -> None:
    """Check that a repeated vote counts once, also after the candidate's time is up.

    A network may deliver a message twice, and a candidate that waits too long stays in its term for a while.
    """
    group = group_of(kind, "a", "b", "c", "d", "e")
    ask_for_votes(group, "a", "ab", "ac", "ad", "ae")
    let_through(group, "ab")
    (vote,) = let_through(group, "ab")
    invariant(not group["a"].is_leader, "two of five votes elect nobody")
    while group["a"].role is Role.CANDIDATE:
        group.tick("a", STEP_S)
    group.deliver(vote)
    invariant(not group["a"].is_leader, "the same two do not, either")


def voter_votes_once_a_term(kind: EngineKind) -> None:
    """Check that a voter gives one vote in a term, even if its process restarts in between."""
    group = group_of(kind)
    ask_for_votes(group, "a", "ab")
    of_a = [envelope for envelope in group.held if envelope.to == "b"]
    ask_for_votes(group, "c", "cb")
    of_c = [envelope for envelope in group.held if envelope.to == "b"]
    invariant({asked.message.term for asked in of_a + of_c} == {1}, "both ask in one term")
    for envelope in of_a:
        group.deliver(envelope)
    for _ in range(2):
        for envelope in of_c:
            group.deliver(envelope)
        group.crash("b")
        group.settle()
        let_through(group, "ab", "bc")
    invariant(group.leaders in ({1: "a"}, {}), "who asked first has the vote", leaders=group.leaders)


def repeated_vote_counts_once(kind: EngineKind) -> None:
    """Check that a repeated vote is counted once, and so is the own vote if the disk reports it again."""
    group = group_of(kind, "a", "b", "c", "d", "e")
    ask_for_votes(group, "a", "ab", "ac", "ad", "ae")
    saved = group.members["a"].hard_state
    for _ in range(3):
        group["a"].hard_state_saved(saved, group.now)
        group.run("a")
    let_through(group, "ab")
    votes = let_through(group, "ab")
    for vote in votes * 3:
        group.deliver(vote)
    invariant(group["a"].role is Role.CANDIDATE, "two of five elect nobody", role=group["a"].role)
    group["a"].hard_state_saved(saved, group.now)
    group.run("a")
    invariant(group["a"].role is Role.CANDIDATE, "two of five elect nobody", role=group["a"].role)


def repeated_pre_vote_counts_once(kind: EngineKind) -> None:
    """Check that repeated promises of one voter count once.

    Otherwise a member that cannot be elected raises the term.
    """
    group = group_of(kind, "a", "b", "c", "d", "e")
    group.hold(lambda _: True)
    group.campaign("a")
    let_through(group, "ab")
    for promise in let_through(group, "ab") * 3:
        group.deliver(promise)
    state = group["a"].role, group["a"].term
    invariant(state == (Role.PRE_CANDIDATE, 0), "two of five promise nothing", state=state)


def save_counts_for_its_own_state_only(kind: EngineKind) -> None:
    """Check that a completed save counts for its own state only.

    A save for an earlier term says nothing about a term and vote that are still on their way to the disk.
    """
    group = group_of(kind)
    ask_for_votes(group, "a", "ab")
    earlier = [envelope for envelope in group.held if envelope.to == "b"]
    for _ in range(2):
        ask_for_votes(group, "c", "cb")
    later = [envelope for envelope in group.held if envelope.to == "b"]
    group.held.clear()
    group.auto_save = False
    for envelope in (*earlier, *later):
        group.deliver(envelope)
    member = group.members["b"]
    invariant(member.pending_saves[-1].term == 2 and member.hard_state.term < 2, "the later vote is not saved yet")
    while member.pending_saves:
        for envelope in later:
            group.deliver(envelope)
        terms = {envelope.message.term for envelope in group.held if envelope.sender == "b"}
        invariant(max(terms, default=0) < 2, "it tells nobody of what a crash may take back", terms=terms)
        group.save("b")
    invariant(any(sent.message.term == 2 for sent in group.held if sent.sender == "b"), "now it does")


def own_vote_counts_in_its_saved_term_only(kind: EngineKind) -> None:
    """Check that the own vote counts only in the term that was saved.

    A candidate with a slow disk may already be in another term, with another vote.
    """
    group = group_of(kind, "a")
    group.auto_save = False
    member = group.members["a"]
    while len(member.pending_saves) < 2:
        group.tick("a", STEP_S)
        invariant(group.now < 10 * LONG_S, "who waits for its disk campaigns again")
    group.save("a")
    invariant(not group["a"].is_leader, "the vote of a term that is over elects nobody", term=group["a"].term)
    while member.pending_saves:
        group.save("a")
    invariant(group["a"].is_leader, "the vote of this one does", term=group["a"].term)


PROMISES: Final[tuple[Promise, ...]] = (
    group_elects_one_leader_known_to_all_members,
    lone_voter_elects_itself,
    votes_count_only_once_durable,
    term_survives_a_crash,
    term_is_at_least_the_last_entrys,
    deaf_member_does_not_depose_the_leader,
    leader_with_a_majority_votes_for_no_candidate,
    returning_member_does_not_depose_the_leader,
    leader_without_a_majority_resigns,
    late_tick_starts_no_election,
    doubtful_member_neither_votes_nor_leads,
    hearing_a_leader_does_not_end_doubt,
    strangers_neither_vote_nor_lead,
    member_with_unreadable_memberships_does_not_lead,
    vote_repeated_after_a_timeout_counts_once,
    voter_votes_once_a_term,
    repeated_vote_counts_once,
    repeated_pre_vote_counts_once,
    save_counts_for_its_own_state_only,
    own_vote_counts_in_its_saved_term_only,
)

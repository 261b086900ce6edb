"""Promises about who leads."""

from __future__ import annotations

from random import Random
from typing import Final

from dledger.consensus.engine import EngineKind, EngineStart, KnownLog
from dledger.consensus.settings import RaftSettings
from dledger.invariants import invariant
from dledger.testing.engine_group import STEP_S, replica
from dledger.testing.engine_suite.groups import (
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
from dledger.types import HardState, Membership, Role


def a_group_elects_one_leader_whom_all_know(kind: EngineKind) -> None:
    """It says so by `RoleChanged`, and once its no-op is committed it serves reads and takes proposals."""
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


def a_group_of_one_leads_itself(kind: EngineKind) -> None:
    """Nobody has to be asked."""
    group = group_of(kind, "a")
    group.pass_time(LONG_S)
    index = group.propose("a")
    invariant(group["a"].commit_index == index, "what one has is committed", index=index)


def no_vote_counts_before_it_is_durable(kind: EngineKind) -> None:
    """Neither another one's nor a candidate's own: a crash could take it back, and another be given in its term."""
    group = group_of(kind)
    group.auto_save = False
    group.pass_time(LONG_S)
    invariant(not group.leaders, "nobody is elected by votes that are on no disk", leaders=group.leaders)
    group.auto_save = True
    for name, member in group.members.items():
        while member.saves:
            group.save(name)
    group.pass_time(LONG_S)
    invariant(len(leaders(group)) == 1, "votes that are on disk count", leaders=group.leaders)


def a_term_outlives_a_crash(kind: EngineKind) -> None:
    """An engine goes on in the term that it had made durable."""
    group = led_by_a(kind)
    terms = {name: engine.term for name, engine in engines(group).items()}
    for name in group.members:
        group.crash(name)
        invariant(group[name].term == terms[name], "the term is remembered", name=name, term=group[name].term)


def a_term_is_at_least_that_of_the_log(kind: EngineKind) -> None:
    """An entry may have become durable before the term in which it came."""
    membership = Membership((replica("a"), replica("b"), replica("c")))
    log = KnownLog(-1, 0, [(0, 2), (4, 7)], 5, membership)
    engine = kind.start(EngineStart(replica("b"), log, HardState(3, None), 5, -1, RaftSettings(), Random(1), 10.0))
    invariant(engine.term >= 7, "no term below that of an entry is gone on with", term=engine.term)


def a_leader_that_is_heard_is_left_alone(kind: EngineKind) -> None:
    """Who does not hear it gets no votes of those who do, and raises nobody's term."""
    group = led_by_a(kind)
    term = group["a"].term
    group.cut(("a", "c"))
    group.pass_time(LONG_S)
    invariant(group["a"].is_leader and group["a"].term == term, "the leader stays", term=term, now=group["a"].term)


def a_leader_that_a_majority_hears_gives_its_place_to_nobody(kind: EngineKind) -> None:
    """Its own vote could elect who did not hear it and is heard again."""
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


def who_was_cut_off_deposes_nobody(kind: EngineKind) -> None:
    """It asks first whether it would be elected; while it is alone its term does not rise."""
    group = led_by_a(kind)
    term = group["a"].term
    group.isolate("c")
    group.pass_time(LONG_S)
    group.heal()
    group.pass_time(1.0)
    invariant(group["a"].is_leader and group["c"].term == term, "the leader stays", term=term, now=group["a"].term)


def a_leader_that_hears_no_majority_leads_no_more(kind: EngineKind) -> None:
    """Its clients are to go to another one, and its reads would be old."""
    group = led_by_a(kind)
    group.isolate("a")
    group.pass_time(LONG_S, "a")
    invariant(not group["a"].is_leader, "who is alone does not lead", role=group["a"].role)


def a_late_tick_elects_nobody(kind: EngineKind) -> None:
    """A process that was stopped finds its timers expired although nobody was silent."""
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


def who_may_have_lost_entries_neither_votes_nor_leads(kind: EngineKind) -> None:
    """Until a leader has brought it up to date: what it acknowledged could be missing in whoever it elects."""
    group = group_of(kind)
    for name in ("a", "b"):
        group.crash(name, may_vote=False)
    group.pass_time(LONG_S)
    invariant(not group.leaders, "one vote of three elects nobody", leaders=group.leaders)
    group.crash("b")
    group.pass_time(LONG_S)
    invariant(set(group.leaders.values()) <= {"b", "c"}, "who may vote is elected", leaders=group.leaders)
    invariant(len(leaders(group)) == 1 and group["a"].may_vote, "a leader makes good what is missing")


def to_hear_a_leader_makes_nothing_good(kind: EngineKind) -> None:
    """Who may have lost entries votes once one of its leader's term is committed and here, with all before it."""
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
    """Whoever runs without being a member of the group counts for nothing."""
    group = group_of(kind, "a", "b", strangers=["s"])
    group.isolate("b")
    group.pass_time(LONG_S)
    invariant(not group.leaders, "one vote of two elects nobody", leaders=group.leaders)
    invariant(not group["s"].is_voter, "a stranger is no voter")


def who_cannot_read_the_members_does_not_lead(kind: EngineKind) -> None:
    """It would count the votes of whom it takes for them; it leads again once its entries are healed."""
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


def a_vote_that_comes_again_behind_a_time_out_counts_once(kind: EngineKind) -> None:
    """A network may bring a message twice, and a candidate that waits too long stays in its term for a while."""
    group = group_of(kind, "a", "b", "c", "d", "e")
    ask_for_votes(group, "a", "ab", "ac", "ad", "ae")
    let_through(group, "ab")
    (vote,) = let_through(group, "ab")
    invariant(not group["a"].is_leader, "two of five votes elect nobody")
    while group["a"].role is Role.CANDIDATE:
        group.tick("a", STEP_S)
    group.deliver(vote)
    invariant(not group["a"].is_leader, "the same two do not, either")


def nobody_votes_twice_in_a_term(kind: EngineKind) -> None:
    """Be it that the process has started again in between."""
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


def votes_are_counted_by_voter(kind: EngineKind) -> None:
    """A vote that comes again is the same vote, as is the own one when the disk tells of it again."""
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


def a_promise_to_vote_is_counted_by_voter(kind: EngineKind) -> None:
    """Else one that would be elected by nobody raises the term."""
    group = group_of(kind, "a", "b", "c", "d", "e")
    group.hold(lambda _: True)
    group.campaign("a")
    let_through(group, "ab")
    for promise in let_through(group, "ab") * 3:
        group.deliver(promise)
    state = group["a"].role, group["a"].term
    invariant(state == (Role.PRE_CANDIDATE, 0), "two of five promise nothing", state=state)


def a_save_counts_for_what_it_has_saved(kind: EngineKind) -> None:
    """The one of an earlier term says nothing of the term and vote that are still on their way to the disk."""
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
    invariant(member.saves[-1].term == 2 and member.hard_state.term < 2, "the later vote is not saved yet")
    while member.saves:
        for envelope in later:
            group.deliver(envelope)
        terms = {envelope.message.term for envelope in group.held if envelope.sender == "b"}
        invariant(max(terms, default=0) < 2, "it tells nobody of what a crash may take back", terms=terms)
        group.save("b")
    invariant(any(sent.message.term == 2 for sent in group.held if sent.sender == "b"), "now it does")


def an_own_vote_counts_in_the_term_that_was_saved(kind: EngineKind) -> None:
    """A candidate whose disk is slow may have gone on to another term: the vote there is another one."""
    group = group_of(kind, "a")
    group.auto_save = False
    member = group.members["a"]
    while len(member.saves) < 2:
        group.tick("a", STEP_S)
        invariant(group.now < 10 * LONG_S, "who waits for its disk campaigns again")
    group.save("a")
    invariant(not group["a"].is_leader, "the vote of a term that is over elects nobody", term=group["a"].term)
    while member.saves:
        group.save("a")
    invariant(group["a"].is_leader, "the vote of this one does", term=group["a"].term)


PROMISES: Final[tuple[Promise, ...]] = (
    a_group_elects_one_leader_whom_all_know,
    a_group_of_one_leads_itself,
    no_vote_counts_before_it_is_durable,
    a_term_outlives_a_crash,
    a_term_is_at_least_that_of_the_log,
    a_leader_that_is_heard_is_left_alone,
    a_leader_that_a_majority_hears_gives_its_place_to_nobody,
    who_was_cut_off_deposes_nobody,
    a_leader_that_hears_no_majority_leads_no_more,
    a_late_tick_elects_nobody,
    who_may_have_lost_entries_neither_votes_nor_leads,
    to_hear_a_leader_makes_nothing_good,
    strangers_neither_vote_nor_lead,
    who_cannot_read_the_members_does_not_lead,
    a_vote_that_comes_again_behind_a_time_out_counts_once,
    nobody_votes_twice_in_a_term,
    votes_are_counted_by_voter,
    a_promise_to_vote_is_counted_by_voter,
    a_save_counts_for_what_it_has_saved,
    an_own_vote_counts_in_the_term_that_was_saved,
)

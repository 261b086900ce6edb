"""Promises to a leader's replica: about reads, and about the leader's knowledge of the other members."""

from __future__ import annotations

from typing import Final

from dledger.consensus.engine import EngineKind
from dledger.consensus.peers import DISK_FULL, Mode
from dledger_base.invariants import invariant
from dledger_sim.engine_group import replica
from dledger_sim.engine_suite.groups import (
    LONG_S,
    Promise,
    brings_entries,
    engines,
    group_of,
    leaders,
    led_by_a,
)


def read_is_confirmed_by_answers_to_later_messages_only(kind: EngineKind) -> None:
    """Check that only answers to messages sent after a read began confirm that read.

    Answers to earlier messages prove only that this replica led earlier, not that it still leads.
    """
    group = led_by_a(kind)
    first = group["a"].read_index(group.now)
    group.run("a")
    older, group.wire = group.wire, []
    second = group["a"].read_index(group.now)
    group.run("a")
    newer, group.wire = group.wire, older
    group.settle()
    invariant(group.members["a"].reads == [first], "older answers confirm older reads", reads=group.members["a"].reads)
    group.wire = newer
    group.settle()
    invariant(group.members["a"].reads[-1] == second, "newer answers confirm the read", reads=group.members["a"].reads)


def a_read_waits_for_a_majority(kind: EngineKind) -> None:
    """Check that two of five members do not confirm a read."""
    group = led_by_a(kind, "a", "b", "c", "d", "e")
    for name in ("c", "d", "e"):
        group.isolate(name)
    number = group["a"].read_index(group.now)
    group.run("a")
    group.settle()
    invariant(number is not None and not group.members["a"].reads, "two of five confirm nothing")
    group.heal()
    group.pass_time(0.3)
    invariant(group.members["a"].reads[-1] == number, "five of five do", reads=group.members["a"].reads)


def read_of_a_lone_voter_is_confirmed_at_once(kind: EngineKind) -> None:
    """Check that a read in a group of one is confirmed within the call."""
    group = group_of(kind, "a")
    group.pass_time(LONG_S)
    number = group["a"].read_index(group.now)
    group.run("a")
    invariant(group.members["a"].reads == [number], "it is confirmed", reads=group.members["a"].reads)


def reads_fail_when_leadership_ends(kind: EngineKind) -> None:
    """Check that waiting reads fail, and are told so, when leadership ends."""
    group = led_by_a(kind)
    group.isolate("a")
    number = group["a"].read_index(group.now)
    group.run("a")
    group.pass_time(LONG_S, "a")
    member = group.members["a"]
    invariant(number is not None and not member.reads, "a leader that is alone confirms no read", reads=member.reads)
    invariant(member.reads_failed >= 1, "the read has failed")
    invariant(group["b"].read_index(group.now) is None, "a follower confirms no read")


def reads_wait_for_the_committed_no_op(kind: EngineKind) -> None:
    """Check that a new leader takes no read before its no-op is committed.

    It may not know yet which entries were acknowledged before it led.
    """
    group = group_of(kind)
    group.hold(brings_entries)
    group.elect("a")
    invariant(not group["a"].own_term_committed, "its no-op is on its way")
    invariant(group["a"].read_index(group.now) is None, "no read is taken yet")


def broadcast_commit_reaches_followers_at_once(kind: EngineKind) -> None:
    """Check that followers learn a commit from the messages of `broadcast_commit`, without any time passing."""
    group = led_by_a(kind)
    index = group.propose("a")
    group.settle()
    group["a"].broadcast_commit(group.now)
    group.run("a")
    group.settle()
    commits = {name: engine.commit_index for name, engine in engines(group).items()}
    invariant(set(commits.values()) == {index}, "all know what is committed", commits=commits)


def resigned_leader_is_replaced(kind: EngineKind) -> None:
    """Check that a leader that resigns stops leading, and that the group soon has another leader."""
    group = led_by_a(kind)
    term = group["a"].term
    group["a"].resign(group.now)
    group.run("a")
    invariant(not group["a"].is_leader and not group["a"].accepts_proposals, "who has resigned leads no more")
    group.pass_time(LONG_S)
    (leader,) = leaders(group)
    invariant(group[leader].term > term, "somebody leads another term", leader=leader)


def leader_knows_the_state_that_members_report(kind: EngineKind) -> None:
    """Check that a leader knows what the others tell.

    They report how full their disks are, whether they are healthy, their clocks, and their durable entries.
    """
    group = led_by_a(kind)
    group["b"].disk_used, group["b"].healthy = 700, False
    group["c"].disk_used = DISK_FULL
    group["b"].wall_ms, group["c"].wall_ms = 1_000_000, 2_000_000
    group.unsynced.add("c")
    index = group.propose("a", 3)
    group.pass_time(0.5)
    b, c = (group["a"].progress[replica(name)] for name in "bc")
    invariant((b.disk_used, b.healthy) == (700, False), "what b tells is known", used=b.disk_used, healthy=b.healthy)
    invariant((c.disk_used, c.healthy) == (DISK_FULL, True), "what c tells is known", used=c.disk_used)
    for peer, wall_ms in ((b, 1_000_000), (c, 2_000_000)):
        clock = peer.clock
        assert clock is not None
        invariant(clock.wall_ms == wall_ms, "its clock is known", clock=clock)
        invariant(group.now - 0.5 <= clock.asked_at <= clock.told_at <= group.now, "as of when it is", clock=clock)
        invariant(group.now - peer.contact_at <= 0.5, "it was heard of", at=peer.contact_at, now=group.now)
        invariant(peer.mode is Mode.STREAM, "entries stream to it", mode=peer.mode)
    matches = b.match_index, c.match_index
    invariant(matches == (index, index - 3), "what is durable there is known, and no more", matches=matches)


PROMISES: Final[tuple[Promise, ...]] = (
    read_is_confirmed_by_answers_to_later_messages_only,
    a_read_waits_for_a_majority,
    read_of_a_lone_voter_is_confirmed_at_once,
    reads_fail_when_leadership_ends,
    reads_wait_for_the_committed_no_op,
    broadcast_commit_reaches_followers_at_once,
    resigned_leader_is_replaced,
    leader_knows_the_state_that_members_report,
)

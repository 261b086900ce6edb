"""Replication beyond figure 2: where logs do not join, and how much is under way.

Each test holds one rule of the docstring of `dledger.core.raft`. The simulator's schedules tell longer stories of the
same rules, with the bugs that they catch.
"""

from answers import only
from led_groups import B, carries_entries, led_by_a

from dledger.consensus.peers import Mode
from dledger.core.messages import (
    Append,
    AppendReply,
    InstallSnapshot,
)
from dledger_sim.cores import CoreGroup
from dledger_sim.engine_group import contents, entries

# Where logs do not join


def test_a_refusal_hints_at_the_last_entry_that_could_match() -> None:
    """One refusal skips a whole term, so two logs join after as many refusals as they have terms, not entries."""
    group = CoreGroup("a", "b", "c")
    group.send("b", "a", Append(3, -1, 0, -1, 9), entries(1, 1, 2, 3, 3, 3, 3, 3, 3))
    reply = only(AppendReply, group.send("c", "a", Append(5, 8, 2, -1)))
    assert (reply.rejected_index, reply.hint_index, reply.hint_term) == (8, 2, 2)
    reply = only(AppendReply, group.send("c", "a", Append(5, 40, 5, -1)))
    assert (reply.hint_index, reply.hint_term) == (8, 3)


def test_a_conflict_below_the_first_kept_entry_is_mended_by_a_snapshot() -> None:
    """The leader can neither compare nor send entries that it no longer has."""
    group = led_by_a()
    group.cut(("a", "b"))
    group.propose("a", 5)
    group.pass_time(0.2)
    group.compact("a", 3)
    group.members["b"].log.clear()
    rejected = group["a"].progress[B].next_index - 1
    group.send("b", "a", AppendReply(1, -1, -1, rejected, -1, 0))
    group.send("b", "a", AppendReply(1, -1, -1, group["a"].progress[B].next_index - 1, -1, 0))
    assert group.members["a"].snapshots_requested == [B]
    assert group["a"].progress[B].mode is Mode.SNAPSHOT


def test_after_a_snapshot_the_log_goes_on_behind_it() -> None:
    """The follower starts over at the snapshot's last entry, acknowledges it, and gets the rest as a stream."""
    group = led_by_a()
    group.isolate("b")
    group.propose("a", 5)
    group.pass_time(0.2, "a", "c")
    group.compact("a", 3)
    group.heal()
    group.pass_time(0.2)
    group.install("a", "b")
    group.pass_time(0.3)
    assert (group.members["b"].first_index, group["b"].commit_index, group["b"].durable_index) == (4, 5, 5)
    assert group["a"].progress[B].mode is Mode.STREAM


def test_a_snapshot_within_the_own_log_keeps_the_log() -> None:
    """A follower that has the snapshot's last entry verifies its log with it, and drops nothing."""
    group = CoreGroup("a", "b", "c")
    group.send("b", "a", Append(1, -1, 0, -1, 4), entries(1, 1, 1, 1))
    reply = only(AppendReply, group.send("b", "a", InstallSnapshot(1, 96, 1, 1, 0, group.membership, -1)))
    assert (group.members["a"].terms, group["a"].commit_index) == ([1, 1, 1, 1], 1)
    assert reply.verified_index >= 1


# Pipelining


def test_unanswered_bytes_to_one_member_are_bounded() -> None:
    """Further entries wait for an answer, so a slow member costs a bounded queue."""
    group = led_by_a()
    group.hold(carries_entries)
    share = group.settings.max_in_flight_bytes // group.settings.max_run_bytes
    megabyte = group.settings.max_run_bytes
    for index in range(1, 4 * share):
        meta = entries(1, first=index)[0]
        large = type(meta)(index, 1, index * megabyte, megabyte)
        group["a"].propose((large,), contents((large,)), group.now)
        group.run("a")
    to_b = [sent for sent in group.held if sent.to == "b"]
    assert len(to_b) == share
    assert group["a"].progress[B].in_flight_bytes == group.settings.max_in_flight_bytes
    group.release()
    group.settle()
    assert group["a"].commit_index == 4 * share - 1

"""Reads that a majority has confirmed.

Each test holds one rule of the docstring of `dledger.core.raft`. The simulator's schedules tell longer stories of the
same rules, with the bugs that they catch.
"""

import pytest
from led_groups import C, carries_entries, led_by_a

from dledger.consensus.peers import Mode
from dledger.core.messages import HeartbeatReply
from dledger_sim.cores import CoreGroup


def test_a_read_needs_a_round_that_began_after_it() -> None:
    """An answer to an older heartbeat confirms only the reads before that heartbeat."""
    group = led_by_a()
    first = group["a"].read_index(group.now)
    group.run("a")
    older, group.wire = group.wire, []
    second = group["a"].read_index(group.now)
    group.run("a")
    newer, group.wire = group.wire, older
    group.settle()
    assert group.members["a"].reads == [first]
    group.wire = newer
    group.settle()
    assert group.members["a"].reads == [first, second]


def test_reads_wait_for_a_majority() -> None:
    """One of four others is not enough, and two are."""
    group = led_by_a("b", "c", "d", "e")
    number = group["a"].read_index(group.now)
    assert number is not None
    group.send("b", "a", HeartbeatReply(1, number, 0))
    assert group.members["a"].reads == []
    group.send("c", "a", HeartbeatReply(1, number, 0))
    assert group.members["a"].reads == [number]


def test_a_later_round_confirms_the_reads_before_it() -> None:
    """A member that answers round two was a follower after round one began."""
    group = led_by_a()
    first, second = (group["a"].read_index(group.now) for _ in range(2))
    assert first is not None
    assert second is not None
    group.send("b", "a", HeartbeatReply(1, second, 0))
    assert group.members["a"].reads == [second]
    assert first < second


@pytest.mark.parametrize("busy", ["reads", "commits told at once"])
def test_a_busy_leader_still_repeats_a_lost_probe(busy: str) -> None:
    """A member gets its entries also if heartbeat rounds come faster than the heartbeat interval."""
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
    """A new leader may not know yet what was acknowledged before."""
    group = CoreGroup("a", "b", "c")
    group.hold(carries_entries)
    group.elect("a")
    assert group["a"].read_index(group.now) is None
    group.release()
    group.settle()
    assert group["a"].read_index(group.now) is not None


def test_a_leader_without_a_majority_confirms_no_read() -> None:
    """The leader cannot know whether it still leads. Its reads fail when it steps down."""
    group = led_by_a()
    group.isolate("a")
    group["a"].read_index(group.now)
    group.run("a")
    group.pass_time(group.settings.election_max_s + 2 * group.settings.heartbeat_s)
    assert (group.members["a"].reads, group.members["a"].reads_failed) == ([], 1)

"""Commitment beyond figure 2: the no-op, terms of acknowledgements, sync generations.

Each test holds one rule of the docstring of `dledger.core.raft`. The simulator's schedules tell longer stories of the
same rules, with the bugs that they catch.
"""

from answers import only
from led_groups import carries_entries, led_by_a

from dledger.core.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
)
from dledger.types import EntryKind
from dledger_sim.cores import CoreGroup
from dledger_sim.engine_group import entries

# The no-op, and commitment in the own term


def test_a_leader_begins_its_term_with_a_no_op() -> None:
    """The no-op commits the entries of older leaders without any client's write."""
    group = CoreGroup("a", "b", "c")
    for name in ("a", "b"):
        group.send("c", name, Append(1, -1, 0, -1, 2), entries(1, 1))
    group.elect("a")
    group.pass_time(0.2)
    assert [meta.kind for meta in group.members["a"].log] == [EntryKind.GROUP, EntryKind.GROUP, EntryKind.NO_OP]
    assert {group[name].commit_index for name in "abc"} == {2}


def test_a_leader_knows_the_groups_commit_index_only_after_its_no_op() -> None:
    """Before its no-op is committed, its own commit index may lag behind what was acknowledged earlier."""
    group = CoreGroup("a", "b", "c")
    group.hold(carries_entries)
    group.elect("a")
    assert not group["a"].own_term_committed
    group.release()
    group.settle()
    assert group["a"].own_term_committed


def test_an_older_entry_is_safe_once_followed_by_a_committed_own_entry() -> None:
    """The good end of figure 8: the old entry is on a majority *with* an entry of the leader's term.

    1. `a` leads term 1 and sends entry 1 to `b` only.
    2. `e` leads term 2 with the votes of `c` and `d`. Nobody receives its entry 1.
    3. `a` leads term 3. Its entry 1 and its no-op reach `b` and `c`, which commits both.
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
    assert group.members[leader].terms[:2] == [1, 1]


# Acknowledgements


def test_entries_of_an_older_leader_are_not_acknowledged_to_a_newer_leader() -> None:
    """A durable entry need not equal this leader's entry. Only the leader's appends show that."""
    group = CoreGroup("a", "b", "c")
    group.send("b", "a", Append(1, -1, 0, -1, 4), entries(1, 1, 1, 1))
    beaten = only(HeartbeatReply, group.send("c", "a", Heartbeat(2, -1)))
    assert beaten.match_index == -1
    reply = only(AppendReply, group.send("c", "a", Append(2, 1, 1, -1)))
    assert (reply.match_index, reply.verified_index) == (1, 1)


def test_a_sync_that_ends_in_the_next_term_acknowledges_nothing() -> None:
    """The entries belong to the older leader's log, though another node leads when their sync ends."""
    group = CoreGroup("a", "b", "c")
    group.auto_sync = False
    group.send("b", "a", Append(1, -1, 0, -1, 3), entries(1, 1, 1))
    complete = group.begin_sync("a")
    group.send("c", "a", Heartbeat(2, -1))
    complete()
    assert group["a"].durable_index == 2
    assert [sent.message.match_index for sent in group.wire if isinstance(sent.message, AppendReply)] == [-1]


def test_a_leader_does_not_count_acknowledgements_of_an_older_term() -> None:
    """An answer carries its term, and an answer of another term does not count."""
    group = CoreGroup("a", "b", "c", "d", "e")
    group.hold(carries_entries)
    group.send("b", "a", Append(4, -1, 0, -1, 2), entries(4, 4))
    group.elect("a")
    index = group.propose("a", 3)
    for name in "bcde":
        group.send(name, "a", AppendReply(group["a"].term - 1, index, index))
        group.send(name, "a", HeartbeatReply(group["a"].term - 1, 0, index))
    assert group["a"].commit_index == -1


def test_heartbeat_replies_acknowledge_only_durable_entries() -> None:
    """Verified and durable are different. An acknowledgement names the smaller index."""
    group = CoreGroup("a", "b", "c")
    group.auto_sync = False
    group.send("b", "a", Append(1, -1, 0, -1, 2), entries(1, 1))
    group.sync("a")
    group.send("b", "a", Append(1, 1, 1, -1, 2), entries(1, 1, first=2))
    reply = only(HeartbeatReply, group.send("b", "a", Heartbeat(1, -1)))
    assert reply.match_index == 1


def test_a_follower_commits_only_entries_verified_by_its_leader() -> None:
    """A heartbeat may overtake its appends. Entries at those indexes may then be another leader's."""
    group = CoreGroup("a", "b", "c")
    group.send("b", "a", Append(1, -1, 0, -1, 3), entries(1, 1, 1))
    group.send("c", "a", Heartbeat(2, 2))
    assert group["a"].commit_index == -1
    group.send("c", "a", Append(2, 0, 1, 2, 2), entries(2, 2, first=1))
    assert (group["a"].commit_index, group.members["a"].terms) == (2, [1, 2, 2])


# Sync generations


def test_a_sync_covers_only_entries_present_at_its_begin() -> None:
    """An index that is truncated and written again needs a sync of its own."""
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


def test_a_truncation_lowers_the_durable_index() -> None:
    """The entry after the cut was durable. Its replacement is not durable yet."""
    group = CoreGroup("a", "b", "c")
    group.send("b", "a", Append(1, -1, 0, -1, 3), entries(1, 1, 1))
    group.auto_sync = False
    group.send("c", "a", Append(2, 0, 1, -1, 2), entries(2, 2, first=1))
    assert (group["a"].durable_index, group["a"].table.last_index) == (0, 2)

"""Promises about the log: appending, committing, and catching up."""

from __future__ import annotations

from typing import Final

from dledger.consensus.engine import EngineKind
from dledger.errors import ContradictionError
from dledger.types import EntryMeta
from dledger_base.invariants import invariant
from dledger_sim.engine_group import Envelope, contents, replica
from dledger_sim.engine_suite.groups import (
    LONG_S,
    Group,
    Promise,
    brings_entries,
    engines,
    group_of,
    leaders,
    led_by_a,
    require_equal_logs,
)


def entries_are_committed_unchanged_and_in_order(kind: EngineKind) -> None:
    """Check that entries are committed in order with all fields unchanged, whether proposed together or one by one.

    The fields are index, term, position, size, channel and chain crc.
    """
    group = led_by_a(kind)
    leader, first = group["a"], group.members["a"].last_index + 1
    sizes, position = (100, 48, 1_000, 61, 333), 4_096
    metas: list[EntryMeta] = []
    for place, size in enumerate(sizes):
        metas.append(EntryMeta(first + place, leader.term, position, size, channel=place, chain_crc=900 + place))
        position += size + (10_000 if place == 2 else 0)  # another segment begins
    for run in (metas[:1], metas[1:4], metas[4:]):
        leader.propose(run, contents(run), group.now)
        group.run("a")
        group.settle()
    group.pass_time(0.3)
    require_equal_logs(group)
    for name, member in group.members.items():
        invariant(member.log[first:] == metas, "entries are as they were proposed", name=name, log=member.log[first:])
        invariant(member.engine.commit_index == metas[-1].index, "all is committed", name=name)
        invariant(member.commits == sorted(member.commits), "commits go on", name=name, commits=member.commits)


def entries_durable_on_a_majority_are_committed(kind: EngineKind) -> None:
    """Check that a member counts only for entries that its syncs have covered, whether it leads or follows."""
    for slow in (("b", "c"), ("a", "b"), ("a", "c")):
        group = led_by_a(kind)
        group.unsynced.update(slow)
        index = group.propose("a")
        group.settle()
        group.pass_time(0.3)
        written = {name: member.last_index for name, member in group.members.items()}
        invariant(set(written.values()) == {index}, "all have it", written=written)
        commits = {name: engine.commit_index for name, engine in engines(group).items()}
        invariant(set(commits.values()) == {index - 1}, "one disk of three commits nothing", slow=slow, commits=commits)
        group.sync(slow[0])
        group.settle()
        invariant(group["a"].commit_index == index, "two disks of three commit", slow=slow)
    alone = group_of(kind, "a")
    alone.pass_time(LONG_S)
    alone.unsynced.add("a")
    index = alone.propose("a")
    invariant(alone["a"].commit_index == index - 1, "who is alone commits what is on its disk")


def sync_counts_for_its_generation_only(kind: EngineKind) -> None:
    """Check that a sync vouches only for entries of its generation.

    A replaced entry may have been durable; the entry that replaces it is not.
    """
    group = led_by_a(kind)
    group.isolate("a")
    group.unsynced.add("a")
    group.propose("a", 9)
    old_sync = group.begin_sync("a")
    generation = group["a"].generation
    group.elect("b")
    group.heal()
    group.pass_time(0.3)
    invariant(group["a"].generation > generation, "a truncation begins another generation")
    group.isolate("c")
    index = group.propose("b")
    group.settle()
    invariant(group.members["a"].last_index == index, "it has the new leader's entries", index=index)
    old_sync()
    group.settle()
    invariant(group["b"].commit_index < index, "an old sync commits nothing", commit=group["b"].commit_index)
    group.sync("a")
    group.settle()
    invariant(group["b"].commit_index == index, "a new one does", commit=group["b"].commit_index)


def earlier_terms_are_committed_by_an_own_entry(kind: EngineKind) -> None:
    """Check that only an entry of the leader's own term commits entries of earlier terms.

    A majority that has an older entry may still lose it (figure 8 of the Raft paper).
    """
    group = led_by_a(kind, one_entry_a_message=True)
    group.isolate("a")
    index = group.propose("a")
    group.hold(brings_entries)
    group.elect("b")
    group.isolate("b")
    group.held.clear()
    group.heal()
    group.isolate("b")
    group.hold(lambda envelope: any(meta.index > index for meta in envelope.metas))
    for _ in range(100):
        group.pass_time(0.2, "a", "c")
        if group["a"].is_leader:
            break
    group.pass_time(0.4, "a", "c")
    invariant(group.members["c"].terms == group.members["a"].terms[: index + 1], "a majority has the older entry")
    invariant(group["a"].commit_index < index, "it is not committed by that", commit=group["a"].commit_index)
    group.release()
    group.pass_time(0.3, "a", "c")
    invariant(group["a"].commit_index == index + 1, "the no-op behind commits it", commit=group["a"].commit_index)


def uncommitted_entries_of_another_leader_are_replaced(kind: EngineKind) -> None:
    """Check that uncommitted entries of another leader are replaced, so that every log becomes the leader's."""
    group = led_by_a(kind)
    group.isolate("a")
    group.propose("a", 4)
    group.elect("b")
    last = group.propose("b", 2)
    group.settle()
    group.heal()
    group.pass_time(1.0)
    require_equal_logs(group)
    invariant(group["a"].commit_index == last, "the new leader's log counts", commit=group["a"].commit_index)


def message_can_be_split(kind: EngineKind) -> None:
    """Check that a message can be split for a member without space for all of its entries.

    It takes some of the entries, and the rest as a message of its own.
    """
    group = led_by_a(kind)
    group.cut(("a", "c"))
    last = group.propose("a", 6)
    group.settle()
    group.join(("a", "c"))
    group.hold(lambda envelope: envelope.to == "c" and len(envelope.metas) > 1)
    group["a"].peer_disconnected(replica("c"))
    group["a"].peer_connected(replica("c"), group.now)
    group.run("a")
    group.settle()
    for envelope in group.held:
        whole, metas = envelope.message.entries, envelope.metas
        assert whole is not None
        for count in (1, len(metas) - 1):
            head, rest = whole.up_to(count), whole.behind(count, metas[count - 1])
            for part, some in ((head, metas[:count]), (rest, metas[count:])):
                covered = part.entries
                assert covered is not None
                invariant(
                    (covered.prev_index + 1, covered.count) == (some[0].index, len(some)) and part.term == 1,
                    "each part brings its entries",
                    part=part,
                )
                group.deliver(Envelope("a", "c", part, some))
    group.held.clear()
    group.settle()
    group.release()
    group.pass_time(0.3)
    invariant(group["c"].commit_index == last, "both parts arrived", commit=group["c"].commit_index)
    require_equal_logs(group)


def lagging_member_is_caught_up(kind: EngineKind) -> None:
    """Check that a member that lags is caught up, also by a leader that has just restarted."""
    group = led_by_a(kind)
    group.isolate("c")
    group.propose("a", 7)
    group.settle()
    group.crash("a")
    group.pass_time(LONG_S, "a", "b")
    (leader,) = (name for name in ("a", "b") if group[name].is_leader)
    group.heal()
    group.pass_time(1.0)
    require_equal_logs(group)
    metas, term = group.members[leader].log[2:4], group[leader].term
    invariant(group[leader].catch_up_message(term, metas) is not None, "a leader sends what it has")
    invariant(group[leader].catch_up_message(term - 1, metas) is None, "what was asked for in another term is not sent")
    invariant(group["c"].catch_up_message(term, metas) is None, "a follower sends no entries")
    group.compact(leader, metas[0].index)
    invariant(group[leader].catch_up_message(term, metas) is None, "what is ahead of entries that are sent is kept")


def member_that_needs_dropped_entries_gets_a_snapshot(kind: EngineKind) -> None:
    """Check that a member that needs dropped entries gets a snapshot.

    The snapshot is wanted until it has arrived, and replaces the log. Then entries follow.
    """
    group = led_by_a(kind)
    group.isolate("c")
    last = group.propose("a", 10)
    group.settle()
    group.pass_time(0.2, "a", "b")
    for name in ("a", "b"):
        group.compact(name, last - 3)
    group.heal()
    group.settle()
    leader, term = group["a"], group["a"].term
    invariant(group.members["a"].snapshots_requested == [replica("c")], "a snapshot is asked for")
    invariant(leader.wants_snapshot(replica("c"), term), "it is wanted")
    invariant(not leader.wants_snapshot(replica("c"), term - 1), "it is wanted in this term")
    invariant(not leader.wants_snapshot(replica("b"), term), "who has the entries needs none")
    leader.snapshot_sent(replica("c"), term, group.now)
    group.pass_time(LONG_S)
    invariant(len(group.members["a"].snapshots_requested) > 1, "it is asked for again if nothing comes of it")
    generation = group["c"].generation
    group.install("a", "c")
    group.settle()
    group.pass_time(0.3)
    invariant(not leader.wants_snapshot(replica("c"), term), "it is wanted no more")
    invariant(
        group.members["c"].first_index == last - 2, "the log begins behind it", first=group.members["c"].first_index
    )
    invariant(group["c"].generation > generation, "no older sync vouches for what is behind it")
    require_equal_logs(group)


def member_trimmed_beyond_the_leader_gets_no_snapshot(kind: EngineKind) -> None:
    """Check that a follower that trimmed its log beyond the leader's gets no snapshot.

    It could not use a snapshot, and would get no entries. In this test its sync ends after it has heard of a leader,
    and before the leader asks where their logs join.
    """
    group = led_by_a(kind)
    group.propose("a", 6)
    group.settle()
    group.pass_time(0.2)
    group.compact("b", 2)
    group.compact("c", 4)
    group.unsynced.add("c")
    last = group.propose("a")
    group.settle()
    group.isolate("a")
    group.hold(lambda envelope: envelope.to == "c" and envelope.message.entries is not None)
    group.elect("b")
    invariant(group["c"].leader == replica("b"), "c knows who leads", leader=group["c"].leader)
    group.unsynced.clear()
    group.sync("c")
    group.settle()
    invariant(not group.members["b"].snapshots_requested, "nothing says that c lacks what is gone")
    group.release()
    group.pass_time(0.5, "b", "c")
    require_equal_logs(group, "b", "c")
    invariant(group["b"].commit_index == last + 1, "they go on", commit=group["b"].commit_index)


def conflict_below_the_log_is_settled_by_a_snapshot(kind: EngineKind) -> None:
    """Check that a follower gets a snapshot if the leader no longer has an entry that the follower's log could join."""
    group = led_by_a(kind)
    group.isolate("a")
    group.propose("a", 4)
    group.elect("b")
    last = group.propose("b", 5)
    group.settle()
    group.pass_time(0.2, "b", "c")
    group.compact("b", last - 2)
    group.heal()
    group.pass_time(0.3)
    invariant(group.members["b"].snapshots_requested == [replica("a")], "a snapshot is asked for")
    group.install("b", "a")
    group.settle()
    group.pass_time(0.3)
    require_equal_logs(group)


def snapshot_acknowledges_no_entry_behind_it(kind: EngineKind) -> None:
    """Check that a snapshot does not acknowledge another leader's entries behind it."""
    group = led_by_a(kind)
    group.isolate("a")
    group.propose("a", 4)
    group.elect("b")
    group.compact("b", 0)
    group.heal()
    group.wire.clear()
    group.install("b", "a")
    group.hold(lambda envelope: envelope.sender == "b")
    group.settle()
    peer = group["b"].progress[replica("a")]
    invariant(peer.match_index <= 0, "no more than the snapshot is acknowledged", match=peer.match_index)
    group.release()
    group.pass_time(1.0)
    require_equal_logs(group)


def snapshot_of_present_entries_replaces_nothing(kind: EngineKind) -> None:
    """Check that a snapshot of entries that are here replaces nothing, whether their commit is known here or not."""
    for told in (False, True):
        group = led_by_a(kind)
        last = group.propose("a", 5)
        group.settle()
        if told:
            group.pass_time(0.2)
        invariant((group["c"].commit_index == last) is told, "c knows what it was told", told=told)
        group.compact("a", last - 1)
        generation = group["c"].generation
        group.install("a", "c")
        group.settle()
        kept = group.members["c"].first_index, group.members["c"].last_index
        invariant(kept == (0, last), "the log is as it was", kept=kept)
        invariant(group["c"].generation == generation, "syncs still vouch")


def contradiction_of_committed_entries_is_refused(kind: EngineKind) -> None:
    """Check that a member refuses a leader whose log contradicts committed entries.

    An operator may have accepted the loss of committed entries. A member that still has them must not continue with
    them.
    """
    group = led_by_a(kind)
    last = group.propose("a", 6)
    group.settle()
    group.pass_time(0.2)
    group.isolate("c")
    for name in ("a", "b"):
        group.members[name].durable = 2
        group.crash(name)
    for index in range(2, last + 1):
        del group.committed[index]
    group.pass_time(LONG_S, "a", "b")
    group.heal()
    try:
        group.pass_time(LONG_S)
    except ContradictionError:
        return
    invariant(condition=False, what="a contradiction is told")


def follower_with_lost_entries_gets_them_again(kind: EngineKind) -> None:
    """Check that a follower that comes back without entries that it acknowledged is sent them again."""
    group = group_of(kind)
    group.elect("a")
    last = group.propose("a", 6)
    group.settle()
    group.pass_time(0.2)
    group.members["c"].durable = 3
    group.crash("c", may_vote=False)
    group.heal()
    group.pass_time(1.0)
    require_equal_logs(group)
    invariant(group["c"].commit_index == last and group["c"].may_vote, "it has all again, and votes")


def entries_on_the_others_survive_the_leaders_loss(kind: EngineKind) -> None:
    """Check that entries survive that the others have and the leader has lost.

    A leader commits the entries of a majority of the others, although its own disk lags. Without them it cannot lead
    again.
    """
    group = led_by_a(kind)
    group.unsynced.add("a")
    last = group.propose("a", 5)
    group.settle()
    group.pass_time(0.2)
    invariant(group["a"].commit_index == last, "two disks of three commit", commit=group["a"].commit_index)
    group.crash("a")
    group.unsynced.clear()
    invariant(group.members["a"].last_index < last, "its tail is gone", left=group.members["a"].last_index)
    group.pass_time(LONG_S, "a")
    invariant(not leaders(group), "nobody votes for a log that lacks what is here", leaders=leaders(group))
    _goes_on_behind(group, last)


def entries_on_one_follower_survive_the_leaders_loss(kind: EngineKind) -> None:
    """Check that entries survive that one other member has and the leader has lost.

    The leader here acknowledges before it syncs, and loses entries that counted. No member without them is elected.
    """
    group = led_by_a(kind)
    group.isolate("c")
    last = group.propose("a", 5)
    group.settle()
    invariant(group["a"].commit_index == last, "two of three commit", commit=group["a"].commit_index)
    group.members["a"].durable = 1
    group.crash("a", may_vote=False)
    group.heal()
    group.pass_time(LONG_S, "a", "c")
    invariant(not leaders(group), "who has it not is elected by nobody", leaders=leaders(group))
    _goes_on_behind(group, last)
    invariant(leaders(group) == ["b"] and group["a"].may_vote, "who has it leads, and makes it good")


def _goes_on_behind(group: Group, last: int) -> None:
    """Check that all members come to have the committed entries, and a no-op of another leader behind them."""
    group.pass_time(LONG_S)
    require_equal_logs(group)
    (leader,) = leaders(group)
    index = group.propose(leader)
    group.settle()
    group.pass_time(0.3)
    commits = {name: engine.commit_index for name, engine in engines(group).items()}
    invariant(set(commits.values()) == {index}, "all commit what comes behind", commits=commits)
    invariant(set(range(last + 1)) <= set(group.committed), "what was acknowledged is there", last=last)


def follower_does_not_count_for_lost_entries(kind: EngineKind) -> None:
    """Check that a follower that has lost acknowledged entries counts for them no more.

    It acknowledges before it syncs, and may come back with less. Its lost entries are not on two disks.
    """
    group = led_by_a(kind)
    group.isolate("b")
    group.unsynced.add("a")
    index = group.propose("a", 3)
    group.settle()
    invariant(group["a"].progress[replica("c")].match_index == index, "c acknowledges")
    group.members["c"].durable = 1
    group.crash("c", may_vote=False)
    group.hold(brings_entries)
    group["a"].peer_disconnected(replica("c"))
    group["a"].peer_connected(replica("c"), group.now)
    group.run("a")
    group.settle()
    group.sync("a")
    group.settle()
    invariant(group["a"].commit_index == 0, "what c has lost is on one disk", commit=group["a"].commit_index)
    group.release()
    group.settle()
    invariant(group["a"].commit_index == index, "c has it again", commit=group["a"].commit_index)


def entries_of_another_leader_are_not_acknowledged(kind: EngineKind) -> None:
    """Check that a member does not acknowledge entries of another leader: the next leader's log may differ.

    1. `a` gives entries 1 to 3 to `b` only.
    2. `c` leads, with entries 1 to 3 of its own, which `d` has, too.
    3. A heartbeat of `c` reaches `b` before any entries of `c`. The answer of `b` must claim none of them.
    """
    group = led_by_a(kind, "a", "b", "c", "d", "e")
    for name in ("c", "d", "e"):
        group.isolate(name)
    last = group.propose("a", 3)
    group.settle()
    group.join(*((one, other) for one in "bcde" for other in "bcde"))
    group.isolate("a")
    group.hold(lambda envelope: envelope.to in ("b", "e") and envelope.message.entries is not None)
    group.cut(("b", "c"), ("c", "b"))
    group.elect("c")
    group.propose("c", 2)
    group.settle()
    group.join(("b", "c"), ("c", "b"))
    group.pass_time(0.3, "c")
    logs = {name: group.members[name].terms for name in ("b", "d")}
    invariant(group.members["d"].last_index == last and logs["b"] != logs["d"], "both have something", logs=logs)
    match = group["c"].progress[replica("b")].match_index
    invariant(match <= 0 and group["c"].commit_index == 0, "nothing of it is acknowledged", match=match)
    group.release()
    group.pass_time(0.3, "b", "c", "d", "e")
    invariant(group["c"].commit_index == last, "b has its entries, and says so", commit=group["c"].commit_index)


def entries_after_a_truncation_are_not_yet_durable(kind: EngineKind) -> None:
    """Check that after a truncation new entries are not durable, although as many entries were before."""
    group = led_by_a(kind)
    group.isolate("a")
    group.propose("a", 9)
    group.elect("b")
    group.unsynced.add("a")
    group.heal()
    group.pass_time(0.3)
    group.isolate("c")
    index = group.propose("b")
    group.settle()
    invariant(group.members["a"].last_index == index, "it has the new leader's entries", index=index)
    match = group["b"].progress[replica("a")].match_index
    invariant(match == 0 and group["b"].commit_index < index, "none of them is on its disk", match=match)
    group.sync("a")
    group.settle()
    invariant(group["b"].commit_index == index, "now they are", commit=group["b"].commit_index)


def repeated_older_message_truncates_nothing(kind: EngineKind) -> None:
    """Check that a repeated older message truncates nothing: later entries have been acknowledged since."""
    group = led_by_a(kind)
    group.unsynced.update("ac")
    said: list[Envelope] = []

    def overhear(envelope: Envelope) -> bool:
        if envelope.to == "b" and brings_entries(envelope):
            said.append(envelope)
        return False

    group.hold(overhear)
    for _ in range(4):
        last = group.propose("a")
        group.settle()
    generation = group["b"].generation
    for envelope in said:
        group.deliver(envelope)
    kept = group.members["b"].last_index
    invariant((kept, group["b"].generation) == (last, generation), "the log is as it was", kept=kept, last=last)
    match = group["a"].progress[replica("b")].match_index
    invariant(match == last, "and acknowledged", match=match)


PROMISES: Final[tuple[Promise, ...]] = (
    entries_are_committed_unchanged_and_in_order,
    entries_durable_on_a_majority_are_committed,
    sync_counts_for_its_generation_only,
    earlier_terms_are_committed_by_an_own_entry,
    uncommitted_entries_of_another_leader_are_replaced,
    message_can_be_split,
    lagging_member_is_caught_up,
    member_that_needs_dropped_entries_gets_a_snapshot,
    member_trimmed_beyond_the_leader_gets_no_snapshot,
    conflict_below_the_log_is_settled_by_a_snapshot,
    snapshot_acknowledges_no_entry_behind_it,
    snapshot_of_present_entries_replaces_nothing,
    contradiction_of_committed_entries_is_refused,
    follower_with_lost_entries_gets_them_again,
    entries_on_the_others_survive_the_leaders_loss,
    entries_on_one_follower_survive_the_leaders_loss,
    follower_does_not_count_for_lost_entries,
    entries_of_another_leader_are_not_acknowledged,
    entries_after_a_truncation_are_not_yet_durable,
    repeated_older_message_truncates_nothing,
)

"""Promises about the log: what is appended, what is committed, and how those get it who lack it."""

from __future__ import annotations

from typing import Final

from dledger.consensus.engine import EngineKind
from dledger.errors import ContradictionError
from dledger.invariants import invariant
from dledger.testing.engine_group import Envelope, contents, replica
from dledger.testing.engine_suite.groups import (
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
from dledger.types import EntryMeta


def entries_are_committed_as_they_were_proposed(kind: EngineKind) -> None:
    """With index, term, position, size, channel and chain crc, in order, be they several of one proposal or not."""
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


def only_what_a_majority_has_durably_is_committed(kind: EngineKind) -> None:
    """Nobody counts for more than its syncs have covered, a follower no more than the leader."""
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


def a_sync_vouches_for_its_generation_alone(kind: EngineKind) -> None:
    """What replaced a truncated entry is not durable because its predecessor was."""
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


def entries_of_earlier_terms_are_committed_by_one_of_the_own_term(kind: EngineKind) -> None:
    """A majority that has an older entry may still lose it (figure 8 of the Raft paper)."""
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


def what_another_leader_wrote_is_replaced(kind: EngineKind) -> None:
    """As long as it was not committed; every log becomes that of the leader."""
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


def a_message_can_be_cut_in_two(kind: EngineKind) -> None:
    """Who has no space for all entries of a message takes some, and what is behind them as a message of its own."""
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


def who_lags_is_caught_up(kind: EngineKind) -> None:
    """Be it by a leader that remembers nothing of the entries but what it was started with."""
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


def who_needs_what_is_gone_gets_a_snapshot(kind: EngineKind) -> None:
    """It is wanted until it is there, and replaces the log; then entries follow."""
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
    invariant(group.members["a"].snapshots_asked == [replica("c")], "a snapshot is asked for")
    invariant(leader.wants_snapshot(replica("c"), term), "it is wanted")
    invariant(not leader.wants_snapshot(replica("c"), term - 1), "it is wanted in this term")
    invariant(not leader.wants_snapshot(replica("b"), term), "who has the entries needs none")
    leader.snapshot_sent(replica("c"), term, group.now)
    group.pass_time(LONG_S)
    invariant(len(group.members["a"].snapshots_asked) > 1, "it is asked for again if nothing comes of it")
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


def who_lacks_nothing_that_is_gone_gets_no_snapshot(kind: EngineKind) -> None:
    """A follower that has trimmed its log beyond the leader's could do nothing with it, and would get nothing else.

    Its sync ends when it has heard of a leader, and was not asked yet where their logs join.
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
    invariant(not group.members["b"].snapshots_asked, "nothing says that c lacks what is gone")
    group.release()
    group.pass_time(0.5, "b", "c")
    require_equal_logs(group, "b", "c")
    invariant(group["b"].commit_index == last + 1, "they go on", commit=group["b"].commit_index)


def who_conflicts_with_what_is_gone_gets_a_snapshot(kind: EngineKind) -> None:
    """The leader has nothing left that its log would join."""
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
    invariant(group.members["b"].snapshots_asked == [replica("a")], "a snapshot is asked for")
    group.install("b", "a")
    group.settle()
    group.pass_time(0.3)
    require_equal_logs(group)


def a_snapshot_says_nothing_of_what_follows_it(kind: EngineKind) -> None:
    """What another leader wrote behind its last entry is not acknowledged with it."""
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


def a_snapshot_of_what_is_here_replaces_nothing(kind: EngineKind) -> None:
    """Entries that are acknowledged stay where they are, be it known yet that they are committed or not."""
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


def what_contradicts_what_is_committed_is_refused(kind: EngineKind) -> None:
    """An operator may have accepted the loss of committed entries; who still has them goes on with nobody."""
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


def who_may_have_lost_entries_gets_them_again(kind: EngineKind) -> None:
    """A follower that comes back without what it acknowledged is sent it anew."""
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


def what_the_others_have_outlives_the_leader_that_loses_it(kind: EngineKind) -> None:
    """A leader commits what a majority of the others has, though its own disk lags; without that it leads no more."""
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


def what_one_other_has_outlives_the_leader_that_loses_it(kind: EngineKind) -> None:
    """A leader that syncs later than it says so loses what counted: nobody is elected without it."""
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
    """All come to have what was committed, and a no-op of another leader behind it."""
    group.pass_time(LONG_S)
    require_equal_logs(group)
    (leader,) = leaders(group)
    index = group.propose(leader)
    group.settle()
    group.pass_time(0.3)
    commits = {name: engine.commit_index for name, engine in engines(group).items()}
    invariant(set(commits.values()) == {index}, "all commit what comes behind", commits=commits)
    invariant(set(range(last + 1)) <= set(group.committed), "what was acknowledged is there", last=last)


def a_follower_counts_for_what_it_has_not_lost(kind: EngineKind) -> None:
    """One that syncs later than it says so may come back with less; what it has not is not on two disks."""
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


def what_another_leader_brought_is_not_acknowledged(kind: EngineKind) -> None:
    """The next leader's log may have other entries there.

    1. `a` gives entries 1 to 3 to `b` alone.  2. `c` leads, with entries 1 to 3 of its own, which `d` has, too.
    3. A beat of `c` reaches `b` before any of its entries: the answer claims none of them.
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


def a_truncation_takes_what_was_durable(kind: EngineKind) -> None:
    """What replaces it was on no disk, though as many entries were."""
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


def what_comes_again_cuts_nothing(kind: EngineKind) -> None:
    """An older message says nothing of what came behind it, acknowledged by now."""
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
    entries_are_committed_as_they_were_proposed,
    only_what_a_majority_has_durably_is_committed,
    a_sync_vouches_for_its_generation_alone,
    entries_of_earlier_terms_are_committed_by_one_of_the_own_term,
    what_another_leader_wrote_is_replaced,
    a_message_can_be_cut_in_two,
    who_lags_is_caught_up,
    who_needs_what_is_gone_gets_a_snapshot,
    who_lacks_nothing_that_is_gone_gets_no_snapshot,
    who_conflicts_with_what_is_gone_gets_a_snapshot,
    a_snapshot_says_nothing_of_what_follows_it,
    a_snapshot_of_what_is_here_replaces_nothing,
    what_contradicts_what_is_committed_is_refused,
    who_may_have_lost_entries_gets_them_again,
    what_the_others_have_outlives_the_leader_that_loses_it,
    what_one_other_has_outlives_the_leader_that_loses_it,
    a_follower_counts_for_what_it_has_not_lost,
    what_another_leader_brought_is_not_acknowledged,
    a_truncation_takes_what_was_durable,
    what_comes_again_cuts_nothing,
)

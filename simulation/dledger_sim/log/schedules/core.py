"""Schedules for consensus cores alone."""

from collections.abc import Callable
from typing import Any

from dledger.core.messages import Append, AppendReply, HeartbeatReply, TimeoutNow, VoteReply, VoteRequest
from dledger.environment import Environment
from dledger.replica.applying.reads import ReadWaiters
from dledger.types import Role
from dledger_sim.cores import CoreGroup
from dledger_sim.engine_group import entries, replica


def figure_8() -> None:
    """Replay figure 8 of the Raft paper.

    A majority that holds an entry of an older term does not commit it: the entry may still be overwritten.
    """
    group = CoreGroup("s1", "s2", "s3", "s4", "s5", one_entry_a_message=True)
    group.elect("s1")
    group.pass_time(0.2)
    # (a) s1 replicates entry 1 to s2 only.
    group.cut(("s1", "s3"), ("s1", "s4"), ("s1", "s5"))
    group.propose("s1")
    group.settle()
    # (b) s1 fails. s5 leads with the votes of s3 and s4, and appends another entry 1 that reaches no node.
    group.isolate("s1")
    group.isolate("s2")
    group.hold(lambda envelope: envelope.sender == "s5" and bool(envelope.metas))
    group.elect("s5")
    assert group.members["s5"].terms == [1, 2]
    # (c) s5 fails. s1 comes back and leads. Its old entry 1 reaches a majority, but its no-op does not.
    group.release()
    group.wire.clear()
    group.heal()
    group.crash("s1")
    group.crash("s5")
    group.isolate("s5")
    group.hold(lambda envelope: any(meta.index >= 2 for meta in envelope.metas))
    while not group["s1"].is_leader:
        group.campaign("s1")
        group.settle()
    assert [group.members[name].terms[:2] for name in ("s1", "s2", "s3")] == [[1, 1]] * 3
    # (d) s1 fails. s5 has a higher last term than the others, leads, and overwrites entry 1.
    group.held.clear()
    group.release()
    group.heal()
    group.wire.clear()
    group.isolate("s1")
    while not group["s5"].is_leader:
        group.campaign("s5")
        group.settle()
    group.pass_time(0.3, "s5")
    assert group.members["s3"].terms[:2] == [1, 2]


def stale_acknowledgement() -> None:
    """Check that a follower does not acknowledge to a new leader the entries that an older leader verified.

    1. `a` leads term 1 and gives entries 1 to 3 to `b` only.
    2. `c` leads term 2 with its own entries 1 to 3. `d` has them; `b` and `e` do not yet.
    3. A heartbeat of `c` reaches `b`. Its answer must not claim entries 1 to 3: with `c` and `d` that would be a
      majority.
    """
    group = _two_histories()
    group.settle()
    assert group["c"].commit_index == 0
    assert group["b"].commit_index == 0


def overtaking_heartbeat() -> None:
    """Check a heartbeat that overtakes its appends.

    The follower's own entries at those indexes come from an older leader.
    """
    group = _two_histories()
    group.hold(lambda envelope: envelope.to == "b" and isinstance(envelope.message, Append))
    held, group.held = group.held, []
    group.wire += [envelope for envelope in held if envelope.to == "e"]
    group.settle()
    group.pass_time(0.3)
    assert group["c"].commit_index == 3
    assert group["b"].commit_index == 0


def _two_histories() -> CoreGroup:
    """Return a group in which `b` holds entries 1 to 3 of term 1, and `c` and `d` hold those of term 2.

    Appends of `c` to `b` and `e` are held.
    """
    group = CoreGroup("a", "b", "c", "d", "e")
    group.elect("a")
    group.pass_time(0.2)
    group.cut(("a", "c"), ("a", "d"), ("a", "e"))
    group.propose("a", 3)
    group.settle()
    group.isolate("a")
    group.hold(
        lambda envelope: envelope.sender == "c" and envelope.to in ("b", "e") and isinstance(envelope.message, Append)
    )
    group.cut(("b", "c"))
    group.elect("c")
    group.propose("c", 2)
    group.settle()
    assert (group.members["b"].terms, group.members["d"].terms) == ([1, 1, 1, 1], [1, 2, 2, 2])
    group.join(("b", "c"))
    group.tick("c", group.settings.heartbeat_s)
    return group


def conflict_at_the_compacted_base() -> None:
    """Check conflicting entries that reach below the leader's first entry.

    Only a snapshot mends that, within few messages.
    """
    group = CoreGroup("a", "b", "c")
    group.elect("b")
    group.pass_time(0.2)
    group.isolate("b")
    group.propose("b", 6)
    group.elect("a")
    group.propose("a", 4)
    group.pass_time(0.2)
    group.compact("c", 4)
    group.heal()
    group.wire.clear()
    group.isolate("a")
    group.campaign("c")
    for _ in range(40):
        group.settle(limit=500)
        if replica("b") in group.members["c"].snapshots_requested:
            break
        group.now += group.settings.heartbeat_s
        group.tick("c")
    assert replica("b") in group.members["c"].snapshots_requested
    group.install("c", "b")
    group.pass_time(0.5)
    assert group["b"].table.last_index == group["c"].table.last_index == group["b"].commit_index
    assert group["b"].table.last_term == group["c"].table.last_term


def install_inside_the_log() -> None:
    """Check that a snapshot whose last entry is in the log drops no entry behind it, and verifies none.

    No seed reaches this. A follower that lacks nothing is sent no snapshot. If a fault makes the leader send one, the
    follower has committed all of it by then.

    1. `b` leads, and appends entries 4 and 5 that reach nobody. It restarts, and knows of no commit.
    2. `a` leads, commits another entry 4, and trims its log behind entry 3.
    3. `a` sends `b` the snapshot of entry 3.
    """
    group = CoreGroup("a", "b", "c")
    group.elect("b")
    group.propose("b", 3)
    group.pass_time(0.2)
    group.isolate("b")
    group.propose("b", 2)
    group.sync("b")
    group.crash("b")
    assert (group["b"].table.last_index, group["b"].commit_index) == (5, -1)
    group.elect("a")
    group.pass_time(0.2)
    group.compact("a", 3)
    group.heal()
    group.wire.clear()
    group.hold(lambda envelope: envelope.sender == "b")
    group.install("a", "b")
    group.settle()
    core = group["b"]
    assert (core.commit_index, core.verified_index, core.table.last_index) == (3, 3, 5)
    group.release()
    group.pass_time(1.0)
    assert core.table.last_index == group["a"].table.last_index == core.commit_index


def word_of_who_kept_what_was_lost() -> None:
    """Check a replica that alone kept committed entries whose loss was accepted.

    It must not acknowledge their replacements.

    Seeds find this only if a heartbeat reaches the replica first. Mostly an append comes first and contradicts the
    replica at once. `a` and `b` have lost the last committed entries; `a` leads, and writes others in their place.
    """
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.propose("a", 6)
    group.pass_time(0.2)
    group.isolate("c")
    for name in ("a", "b"):
        group.members[name].durable = 3
        group.crash(name)
    for index in range(3, 7):
        del group.committed[index]  # the operator has accepted this loss
    group.pass_time(1.0, "c")
    group.elect("a")
    group.propose("a", 8)
    group.settle()
    group.heal()
    for beat in [sent for sent in group.wire if sent.to == "c" and not isinstance(sent.message, Append)]:
        group.wire.remove(beat)
        group.deliver(beat)
    answers = [sent.message for sent in group.wire if sent.sender == "c"]
    assert [answer.match_index for answer in answers if isinstance(answer, HeartbeatReply)] == [-1]


def snapshot_without_effect() -> None:
    """Check that a snapshot is sent again if it had no effect, for example because its receiver's disk was full."""
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.isolate("b")
    group.propose("a", 5)
    group.pass_time(0.2)
    group.compact("a", 4)
    group.heal()
    group.pass_time(0.2)
    assert group.members["a"].snapshots_requested == [replica("b")]
    group["a"].snapshot_sent(replica("b"), group["a"].term, group.now)
    group.pass_time(3.0)
    assert len(group.members["a"].snapshots_requested) > 1


def transfer_under_load() -> None:
    """Check that a transfer waits for the successor to have everything, overrides the leader, and gives up in time."""
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.settle()
    group.propose("a", 20)
    assert group["a"].transfer(replica("b"), group.now)
    assert not group["a"].accepts_proposals
    assert not any(isinstance(envelope.message, TimeoutNow) for envelope in group.wire)
    group.settle()
    assert group["b"].is_leader
    assert group["b"].commit_index == group["b"].table.last_index
    group.isolate("c")
    assert group["b"].transfer(replica("c"), group.now)
    group.pass_time(group.settings.election_max_s * 1.1)
    assert group["b"].accepts_proposals, "a successor that does not answer is given up"


def one_way_partition() -> None:
    """Check that a leader steps down if no message reaches it, although its own messages arrive.

    The others replace it.
    """
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.settle()
    group.cut(("b", "a"), ("c", "a"))
    group.pass_time(group.settings.election_max_s * 1.2)
    assert not group["a"].is_leader
    group.pass_time(4.0)
    assert group["b"].is_leader or group["c"].is_leader


def late_tick() -> None:
    """Check timers that expired during a SIGSTOP. No node was silent: its messages are still unread."""
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.pass_time(0.3)
    term = group["a"].term
    group.now += 30.0
    group.tick("b", 0.0)
    assert group["b"].role is Role.FOLLOWER
    group.tick("a", 0.0)
    assert group["a"].is_leader
    group.pass_time(2.0)
    assert (group["a"].is_leader, group["a"].term) == (True, term)


def read_of_an_isolated_leader() -> None:
    """Check that a leader that was replaced without noticing confirms no read: its heartbeat round gets no answer."""
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.pass_time(0.2)
    group.isolate("a")
    group.elect("b")
    group.settle()
    assert group["a"].is_leader
    assert group["a"].read_index(group.now) is not None
    group.run("a")
    assert group.members["a"].reads == []
    number = group["b"].read_index(group.now)
    group.run("b")
    group.settle()
    assert number is not None
    assert group.members["b"].reads == [number]


def duplicate_append() -> None:
    """Check that an append that arrives twice or late removes nothing from a log that has gone on."""
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.settle()
    group.hold(lambda envelope: envelope.to == "b" and bool(envelope.metas))
    group.propose("a")
    late = group.held[-1]
    group.release()
    group.propose("a", 5)
    group.settle()
    before = list(group.members["b"].log)
    group.deliver(late)
    assert group.members["b"].log == before
    group.settle()


def vote_of_a_longer_log() -> None:
    """Check that a replica votes once per term, and never for a candidate that lacks entries of the voter."""
    group = CoreGroup("a", "b", "c", "d", "e")
    group.elect("a")
    group.isolate("e")
    group.propose("a", 3)
    group.pass_time(0.2)
    group.heal()
    group.wire.clear()
    group.isolate("a")
    group.now += group.settings.election_max_s
    last, term = group["b"].table.last_index, group["b"].table.last_term
    assert VoteReply(5, granted=True) not in group.send("e", "b", VoteRequest(5, last - 3, term))
    (first,) = group.send("c", "b", VoteRequest(6, last, term))
    (second,) = group.send("d", "b", VoteRequest(6, last, term))
    assert (first, second) == (VoteReply(6, granted=True), VoteReply(6, granted=False))


def sync_of_replaced_entries() -> None:
    """Check that a sync that began before a truncation does not vouch for the entries that came after it."""
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.pass_time(0.2)
    group.auto_sync = False
    group.cut(("a", "c"))
    group.propose("a", 3)
    group.settle()
    complete = group.begin_sync("b")
    group.isolate("a")
    group.auto_sync = True
    group.isolate("b")
    group.heal()
    group.isolate("a")
    group.auto_sync = False
    reply = group.send("c", "b", Append(9, 0, 1, 0, 3), entries(9, 9, 9, first=1))
    assert not any(isinstance(message, AppendReply) and message.match_index > 0 for message in reply)
    complete()
    assert group["b"].durable_index == 0
    assert all(
        envelope.message.match_index <= 0 for envelope in group.wire if isinstance(envelope.message, AppendReply)
    )


def read_waits_for_apply() -> None:
    """Check that a confirmed read waits until the commit index of its round is applied."""
    answered: list[Exception | None] = []
    soon: list[Callable[[], None]] = []

    class Loop:
        def call_soon(self, callback: Callable[[], None]) -> None:
            soon.append(callback)

        def now(self) -> float:
            return 0.0

    class Leader:
        """Engine, standing and driver of a leader whose first heartbeat round begins."""

        is_leader, is_stopped = True, False

        def read_index(self, _now: float) -> int:
            return 1

        def pump(self) -> None:
            """Do nothing: the heartbeats reach no node."""

    leader: Any = Leader()
    reads = ReadWaiters(_as_environment(Loop()), leader, leader, leader)
    reads.add(answered.append)
    soon.pop()()
    reads.confirmed(1, 5)
    reads.applied(4)
    assert answered == []
    reads.applied(5)
    assert answered == [None]


def _as_environment(loop: object) -> Environment:
    return loop  # type: ignore[return-value]


CORE_SCHEDULES = (
    word_of_who_kept_what_was_lost,
    figure_8,
    stale_acknowledgement,
    overtaking_heartbeat,
    conflict_at_the_compacted_base,
    install_inside_the_log,
    snapshot_without_effect,
    transfer_under_load,
    one_way_partition,
    late_tick,
    sync_of_replaced_entries,
    read_of_an_isolated_leader,
    duplicate_append,
    vote_of_a_longer_log,
    read_waits_for_apply,
)

"""The known faults again, for every role, link, index and moment that one story each leaves out."""

from itertools import permutations
from random import Random

import pytest
from answers import only

from dledger.core.messages import Append, AppendReply, Heartbeat, HeartbeatReply, VoteReply, VoteRequest
from dledger.format import HEADER_BYTES, seal
from dledger.store.log import LogStore
from dledger.store.snapshots import SnapshotStore
from dledger.testing.disk import SimDisk
from dledger.types import EntryKind, Role
from dledger_sim.cores import CoreGroup
from dledger_sim.engine_group import entries, replica

SEGMENT_BYTES = 4096
LINKS = tuple(permutations("abc", 2))


def test_a_candidate_names_the_term_of_its_last_entry() -> None:
    """The request does not name the candidate's own term, which only counts its campaigns."""
    group = CoreGroup("a", "b", "c")
    group.send("b", "a", Append(2, -1, 0, -1, 2), entries(2, 2))
    group.send("b", "a", Heartbeat(9, -1))
    group.crash("a")
    group.campaign("a")
    asked = {sent.message for sent in group.wire if isinstance(sent.message, VoteRequest)}
    assert asked == {VoteRequest(10, 1, 2, pre=True)}


@pytest.mark.parametrize(
    "answer", [HeartbeatReply(9, 0, -1), AppendReply(9, -1, -1), AppendReply(9, -1, -1, rejected_index=-1)]
)
def test_an_answer_that_comes_after_the_quorum_still_deposes(answer: HeartbeatReply | AppendReply) -> None:
    """Every answer is examined, also answers that are no longer needed for a commit or for the leadership."""
    group = CoreGroup("a", "b", "c", "d", "e")
    group.elect("a")
    group.hold(lambda envelope: envelope.sender == "e")
    index = group.propose("a")
    group.tick("a", group.settings.heartbeat_s)
    group.settle()
    assert group["a"].commit_index == index
    group.send("e", "a", answer)
    assert (group["a"].role, group["a"].term) == (Role.FOLLOWER, 9)


@pytest.mark.parametrize("role", list(Role))
def test_any_role_follows_a_leader_of_a_higher_term_at_once(role: Role) -> None:
    """The same message makes the core a follower and is answered by a follower."""
    group = CoreGroup("a", "b", "c")
    if role is Role.LEADER:
        group.elect("a")
    elif role is not Role.FOLLOWER:
        group.cut(("b", "a"), ("c", "a"))
        group.campaign("a")
    if role is Role.CANDIDATE:
        group.send("b", "a", VoteReply(1, True, pre=True))
    assert group["a"].role is role
    group.join(("b", "a"), ("c", "a"))
    group.wire.clear()
    answer = only(HeartbeatReply, group.send("b", "a", Heartbeat(5, -1)))
    assert (answer.term, group["a"].role, group["a"].leader) == (5, Role.FOLLOWER, replica("b"))


@pytest.mark.parametrize("lost", [(link,) for link in LINKS] + [(link, link[::-1]) for link in LINKS[:2]])
def test_a_lost_link_causes_at_most_a_single_election(lost: tuple[tuple[str, str], ...]) -> None:
    """If one link or one direction is lost, at most one election settles that, and proposals are committed."""
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.pass_time(0.3)
    group.cut(*lost)
    group.pass_time(4.0)
    term = max(core.engine.term for core in group.members.values())
    assert term <= 2
    group.pass_time(10.0)
    assert max(core.engine.term for core in group.members.values()) == term
    (leader,) = (name for name in "abc" if group[name].is_leader)
    index = group.propose(leader)
    group.pass_time(0.5)
    assert group[leader].commit_index == index


@pytest.mark.parametrize("saves", [0, 1, 2])
def test_a_power_loss_never_lets_a_voter_vote_twice(saves: int) -> None:
    """A vote that left is remembered. A vote that is forgotten never left."""
    group = CoreGroup("a", "b", "c")
    group.auto_save = False
    group.send("b", "a", VoteRequest(1, -1, 0))
    for _ in range(saves):
        group.save("a")
    left = [sent for sent in group.wire if isinstance(sent.message, VoteReply)]
    group.crash("a")
    group.auto_save = True
    answer = only(VoteReply, group.send("c", "a", VoteRequest(1, -1, 0)))
    assert answer.granted != bool(left)


def test_nothing_is_committed_before_a_majority_has_synced_it() -> None:
    """Written everywhere and synced on one node is not enough. Synced on two of three it survives any power loss."""
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.pass_time(0.2)
    group.auto_sync = False
    index = group.propose("a")
    group.settle()
    assert [core.engine.table.last_index for core in group.members.values()] == [index] * 3
    group.sync("a")
    group.settle()
    assert group["a"].commit_index == index - 1
    group.sync("c")
    group.settle()
    assert group["a"].commit_index == index
    group.auto_sync = True
    for name in "abc":
        group.crash(name)
    group.pass_time(6.0)
    (leader,) = (name for name in "abc" if group[name].is_leader)
    assert group[leader].table.term_at(index) == 1


def test_an_append_behind_a_gap_is_refused_however_many_fitted_before() -> None:
    """The next append of the same term reveals a lost append in the middle of a stream."""
    group = CoreGroup("a", "b", "c")
    group.send("b", "a", Append(1, -1, 0, -1, 3), entries(1, 1, 1))
    answer = only(AppendReply, group.send("b", "a", Append(1, 4, 1, -1, 1), entries(1, first=5)))
    assert (answer.rejected, answer.rejected_index, answer.hint_index) == (True, 4, 2)
    assert group.members["a"].terms == [1, 1, 1]


def test_a_stream_that_was_interrupted_is_sent_again_and_nothing_is_doubled() -> None:
    """The leader does not know what arrived. The follower answers duplicates with its last index."""
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.pass_time(0.2)
    group.hold(lambda envelope: envelope.sender == "b")
    index = group.propose("a", 5)
    group.settle()
    group.held.clear()
    group.release()
    group.heal()
    group.pass_time(0.2)
    assert group.members["b"].terms == [1] * (index + 1)
    assert group["a"].progress[replica("b")].match_index == index


def test_heartbeats_missed_for_less_than_the_shortest_time_out_cost_no_election() -> None:
    """A pause of several heartbeats is no failure."""
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.pass_time(0.3)
    group.isolate("a")
    group.pass_time(group.settings.election_min_s - group.settings.heartbeat_s)
    group.heal()
    group.pass_time(3.0)
    assert (group["a"].is_leader, group["a"].term) == (True, 1)


class Log:
    """Log of several segments on a simulated disk."""

    def __init__(self) -> None:
        self.disk = SimDisk(Random(1))
        self.chains: list[int] = []
        self.store = self.open()

    def open(self) -> LogStore:
        self.store, _ = LogStore.open(
            self.disk, segment_bytes=SEGMENT_BYTES, snapshots=SnapshotStore.open(self.disk), reserve_bytes=1024
        )
        return self.store

    def append(self, count: int, term: int) -> None:
        for _ in range(count):
            entry = bytearray(HEADER_BYTES) + bytes([term]) * 500
            position = self.store.next_position(len(entry))
            index = self.store.last_index + 1
            meta = seal(entry, EntryKind.GROUP, index, term, position, 0, self.store.last_chain)
            if not self.store.claim([meta]):
                self.store.reserve(self.store.need_for([meta]))
            self.store.append([meta], entry)
            self.chains.append(meta.chain_crc)

    def sync(self) -> None:
        ticket = self.store.begin_sync()
        if ticket is not None:
            ticket.run()
            self.store.finish_sync(ticket)

    def check(self) -> None:
        assert self.store.last_index == len(self.chains) - 1
        found: list[int] = []
        while len(found) < len(self.chains):
            metas, _ = self.store.read_entries(len(found), 1 << 20, verify=True)
            found += [meta.chain_crc for meta in metas]
        assert found == self.chains


@pytest.mark.parametrize("kept", range(30))
def test_a_truncation_at_any_index_keeps_exactly_the_entries_before(kept: int) -> None:
    """The index may lie in any segment, with other entries behind it, and a power loss may follow."""
    log = Log()
    log.append(30, term=1)
    log.sync()
    assert len(log.store.segments()) >= 4
    log.store.take_cut(log.store.cut(kept))
    del log.chains[kept:]
    log.check()
    log.append(3, term=2)
    log.sync()
    log.check()
    log.disk.crash(Random(kept), "none")
    log.open()
    log.check()

"""A follower has a void entry where the leader's log has a blank, and takes a snapshot behind that place."""

from collections.abc import Callable

from node_group import JournalService
from sim_groups import run, run_until, started

from dledger.consensus.peers import Mode
from dledger.store.verify import verify
from dledger.types import Role
from dledger_sim.log.group import GroupSettings, SimNode

SEGMENT_BYTES = 64 << 10


class VoidTail:
    """The leader, the follower that wrote the void entry, and their history.

    The void entry `index` is the no-op of a term in which the follower led, cut off from the others. It fitted into the
    first segment. The leader's own entry `index` did not fit. A majority committed it. It starts the second segment,
    where a snapshot is, and everything before was trimmed. `last` is a later entry, acknowledged with only the
    follower's help: the third node is down.
    """

    def __init__(self) -> None:
        settings = GroupSettings(segment_bytes=SEGMENT_BYTES, scrub_interval_ms=3_600_000)
        self.group = started(settings, JournalService, seed=6)
        self.leader = self.group.leader
        self.index = self._write_the_leaders_entry()
        self.follower, self.third = self._write_the_void_entry()
        self._trim()
        self._send_the_snapshot()
        self.last = self._acknowledge_another()

    def run(self, seconds: float) -> None:
        run(self.group, seconds)

    def _until(self, holds: Callable[[], bool], step_s: float = 0.0002) -> None:
        run_until(self.group, holds, step_s, 30.0)

    def _block(self, senders: list[SimNode], receivers: list[SimNode]) -> None:
        for sender in senders:
            for receiver in receivers:
                self.group.network.block(sender.name, receiver.name)

    def _unblock(self, one: SimNode, other: SimNode) -> None:
        self.group.network.unblock(one.name, other.name)
        self.group.network.unblock(other.name, one.name)

    @property
    def _others(self) -> list[SimNode]:
        return [node for node in self.group.nodes.values() if node is not self.leader]

    def _put(self, size: int) -> None:
        self.leader.life.replica.stage(size, lambda _: (bytes(size),))

    def _write_the_leaders_entry(self) -> int:
        """Write the leader's entry behind an entry that all nodes have and that no node knows to be committed."""
        store, others = self.leader.life.replica.store, self._others
        while store.end_position < SEGMENT_BYTES - 2_000:
            self._put(1000)
            self.run(0.01)
        self.run(0.5)
        self._block(others, [self.leader])
        self._put(400)
        self.run(0.03)
        self._block([self.leader], others)
        index = store.last_index + 1
        for node in others:
            replica = node.life.replica
            assert replica.store.durable == index - 1 > replica.engine.commit_index
        self._put(5000)
        self.run(0.05)
        assert (store.last_index, store.durable, store.meta(index).position) == (index, index, SEGMENT_BYTES)
        return index

    def _write_the_void_entry(self) -> tuple[SimNode, SimNode]:
        others = self._others

        def is_candidate(node: SimNode) -> bool:
            return node.life.replica.engine.role is Role.CANDIDATE

        self._until(lambda: any(map(is_candidate, others)))
        follower, third = sorted(others, key=is_candidate, reverse=True)
        replica = follower.life.replica
        self._until(lambda: third.life.replica.engine.vote == replica.me)
        self._block([follower], [third])
        self._until(lambda: replica.engine.role is Role.LEADER)
        self._block([third], [follower])
        self.run(1.5)
        assert replica.store.last_index == replica.store.durable == self.index
        assert replica.store.meta(self.index).end < SEGMENT_BYTES
        assert third.life.replica.store.last_index == self.index - 1
        return follower, third

    def _trim(self) -> None:
        """Let the leader lead again with the third node, commit its entry, and trim everything before it."""
        replica = self.leader.life.replica
        self._unblock(self.leader, self.third)
        self._until(lambda: replica.is_ready and replica.engine.commit_index > self.index, 0.01)
        self._until(lambda: any(meta.position == SEGMENT_BYTES for meta in replica.snapshots.list()), 0.01)
        assert replica.propose_trim(SEGMENT_BYTES)
        self._until(lambda: replica.store.first_position == SEGMENT_BYTES, 0.01)
        self.run(0.5)

    def _send_the_snapshot(self) -> None:
        """Break the link while the leader knows nothing above the follower's commit index. It has trimmed that index.

        This state follows if the follower acknowledged that entry in this term and its later acknowledgements were
        lost.
        """
        follower = self.follower.life.replica
        progress = self.leader.life.replica.engine.progress[follower.me]
        self.follower.sync_delay_s = 0.3
        self._unblock(self.leader, self.follower)
        self._unblock(self.third, self.follower)
        self._until(lambda: self.leader.life.replica.engine.leader == follower.engine.leader)
        assert progress.mode is Mode.PROBE
        assert 0 <= follower.engine.commit_index < self.index - 1
        progress.match_index = follower.engine.commit_index
        self.group.network.cut(self.leader.name, self.follower.name)
        self._until(lambda: progress.mode is Mode.SNAPSHOT)

    def _acknowledge_another(self) -> int:
        self.group.kill(self.third.name)
        replica = self.leader.life.replica
        last = replica.store.last_index + 1
        self._put(300)
        self._until(lambda: replica.applied_index >= last)
        return last


def test_entries_synced_by_a_majority_survive_a_power_loss_and_a_kill() -> None:
    scene = VoidTail()
    scene.group.crash(scene.follower.name, "none")
    scene.group.kill(scene.leader.name)
    for node in (scene.follower, scene.third):
        scene.group.start(node.name)
    scene.run(5.0)
    for node in (scene.follower, scene.third):
        assert node.life.replica.store.last_index >= scene.last


def test_the_void_entry_leaves_no_trace_in_the_log() -> None:
    scene = VoidTail()
    assert verify(scene.follower.name, disk=scene.follower.disk).problems == []

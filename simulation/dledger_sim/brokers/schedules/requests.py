"""Schedules of requests and files that meet a fault or a change at the worst moment."""

from __future__ import annotations

import errno
from typing import Final, cast

from dledger.errors import CorruptionError
from dledger.testing.disk import SimDisk
from dledger_broker.views.checkpoint import read_checked
from dledger_broker.views.keyfile import ActiveIndexFile, IndexDamageError, IndexHeader, IndexLayout, as_keys
from dledger_broker.views.keyindex import CHECKPOINT, IndexCheckpoint, KeyIndex
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_sim.brokers.schedules.brokers import TOPIC, Brokers
from dledger_sim.brokers.service import BrokerSettings, SimBroker
from dledger_sim.log.registers import leading


def send_in_the_turn_of_a_deletion() -> None:
    """Check that a message that arrives in the same turn as the deletion of its topic is not staged behind it.

    1. A send to a topic is read and waits for the end of the turn.
    2. The deletion of the topic is read in the same turn, and proposed at once.
    3. The message does not fit into the rest of the segment, so its entry would follow the deletion: acknowledged, and
      in no queue.
    """
    brokers = Brokers()
    connection = brokers.connect(brokers.leader)
    brokers.ask(connection, RequestCode.UPDATE_AND_CREATE_TOPIC, brokers.workload.topic_fields("passing"))
    for _ in range(20):
        brokers.send(connection, TOPIC)
    brokers.run(1.0)
    assert "passing" in brokers.workload.truth.topics
    brokers.await_turn()
    store = leading(brokers.group).replica.store
    brokers.send(connection, "passing", padding=store.segment_bytes - store.end_position % store.segment_bytes)
    brokers.ask(connection, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "passing"})
    brokers.run(2.0)
    assert "passing" not in brokers.workload.truth.topics


def handover_that_fails() -> None:
    """Check that a failed handover keeps the queue offsets of messages in flight.

    1. A message is on its way to slow followers.
    2. The leader begins to hand over to a node that it cannot reach, and takes no proposals.
    3. The message is committed, the handover given up. The next message must not get the same offset.
    """
    brokers = Brokers()
    leader, group = brokers.leader, brokers.group
    life = leading(group)
    target, other = (name for name in group.nodes if name != leader)
    group.network.slow(leader, other, 0.2)
    group.network.block(leader, target)
    connection = brokers.connect(leader)
    brokers.send(connection, TOPIC)
    brokers.run(0.05)
    member = life.replica.engine.membership.find(target)
    assert member is not None
    assert life.replica.transfer(member)
    group.network.slow(leader, other, 0.0)
    for _ in range(40):
        brokers.run(0.1)
        if life.replica.is_ready:
            break
    brokers.send(connection, TOPIC)
    brokers.run(3.0)
    assert brokers.workload.counts["ok"] == 2


def question_to_a_deposed_leader() -> None:
    """Check that a leader that was paused and replaced does not report the end of a queue without a confirmation.

    1. The leader is stopped (SIGSTOP) and cut off; another node leads and takes a message.
    2. The old leader wakes, still believes that it leads, and is asked for the end of the queue.
    """
    brokers = Brokers()
    group, old = brokers.group, leading(brokers.group)
    before = brokers.connect(old.node.name)
    brokers.send(before, TOPIC)
    brokers.run(0.5)
    for name in group.nodes:
        if name != old.node.name:
            group.network.block(name, old.node.name)
            group.network.block(old.node.name, name)
    old.environment.pause(brokers.scheduler.now + 4.0)
    brokers.run(3.0)
    brokers.send(brokers.connect(brokers.leader), TOPIC)
    brokers.run(0.5)
    assert brokers.workload.counts["ok"] == 2
    answers = brokers.ask(before, RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"})
    brokers.run(4.0)
    assert [answer.ext["offset"] for answer in answers if answer and answer.code == ResponseCode.SUCCESS] in ([], ["2"])


def index_write_that_failed() -> None:
    """Check that entries of the key index still lead to earlier entries after a failed and repeated write."""
    disk = SimDisk()
    file = ActiveIndexFile(disk, "f", IndexLayout(slots=4, entries=8), IndexHeader(), 1)
    file.add(as_keys([(5, 100, 1000)]))
    disk.fail(lambda operation, _path: operation == "pwrite", errno.ENOSPC)
    try:
        file.add(as_keys([(5, 200, 2000)]))
    except OSError:
        pass
    else:
        raise AssertionError("a failed write is an error")
    file.add(as_keys([(5, 200, 2000)]))
    try:
        found = list(file.positions(5, 0, 1 << 60))
    except CorruptionError as error:
        raise AssertionError("the entries of one key are one chain") from error
    assert found == [200, 100]


def index_that_has_rotted() -> None:
    """Check that a rotten entry of the key index hides no other entry: the whole index counts as damaged."""
    disk = SimDisk()
    layout = IndexLayout(slots=4, entries=8)
    file = ActiveIndexFile(disk, "f", layout, IndexHeader(), 1)
    file.add(as_keys([(5, 100, 1000), (5, 200, 2000)]))
    disk.flip_bit("f", 8 * (layout.entry_at(2) + 19))  # the link to the previous entry
    try:
        found = list(file.positions(5, 0, 1 << 60))
    except IndexDamageError:
        return
    raise AssertionError(f"damage is found, not {found}")


def index_sync_that_failed() -> None:
    """Check that nodes with a failed sync of the key index have all of it after a power loss, and find every key."""
    brokers = Brokers()
    nodes = brokers.group.nodes
    connection = brokers.connect(brokers.leader)
    for _ in range(5):
        brokers.send(connection, TOPIC)
        brokers.run(5.0)
    for node in nodes.values():
        node.disk.fail(lambda operation, path: operation == "datasync" and path.startswith("keyindex/2"))
    for _ in range(2):
        brokers.send(connection, TOPIC)
        brokers.run(30.0)
    assert not any(node.disk.faults for node in nodes.values())
    layout = IndexLayout(BrokerSettings().index_slots, BrokerSettings().index_entries)
    for name, node in nodes.items():
        brokers.group.crash(name, "none")
        checkpoint = read_checked(node.disk, CHECKPOINT, IndexCheckpoint)
        assert checkpoint is not None
        index = KeyIndex(node.disk, layout)
        assert index.load(checkpoint.incarnation) == checkpoint.position
        index.close()
    for name in nodes:
        brokers.group.start(name)
    brokers.run(5.0)
    connection = brokers.connect(brokers.leader)
    for stored in brokers.workload.acknowledged:
        code, fields = brokers.workload.make_lookup(stored, by_key=True)
        answers = brokers.ask(connection, code, fields)
        brokers.run(1.0)
        brokers.workload.looked_up(stored, answers[0], by_key=True)
    assert brokers.workload.counts["found by key"] == 7


def views_of_a_killed_node() -> None:
    """Check that a node without its views rebuilds them, also the part below its snapshot, and answers as before."""
    brokers = Brokers()
    follower = brokers.follower
    connection = brokers.connect(brokers.leader)
    for _ in range(30):
        brokers.send(connection, TOPIC, padding=4000)
        brokers.run(0.1)
    brokers.run(1.0)
    replica = brokers.group.nodes[follower].replica
    assert replica is not None
    assert replica.snapshots.latest() is not None
    brokers.group.kill(follower)
    for directory in ("consumequeue", "views", "keyindex"):
        brokers.group.nodes[follower].disk.rmtree(directory)
    brokers.group.start(follower)
    brokers.run(2.0)
    life = brokers.group.nodes[follower].life
    assert life is not None
    queue = cast(SimBroker, life.service).broker.queue(TOPIC, 0)
    assert queue is not None
    assert (queue.min_offset, queue.view.end, queue.max_offset) == (0, 30, 30)


REQUEST_SCHEDULES: Final = (
    send_in_the_turn_of_a_deletion,
    handover_that_fails,
    question_to_a_deposed_leader,
    index_write_that_failed,
    index_sync_that_failed,
    index_that_has_rotted,
    views_of_a_killed_node,
)

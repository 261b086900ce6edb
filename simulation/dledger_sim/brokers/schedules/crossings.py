"""Schedules of changes that cross others on their way into the log, or come to a deposed leader."""

from __future__ import annotations

from errno import ENOSPC
from typing import Final, cast

from dledger.store.snapshots import DIRECTORY as SNAPSHOTS
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_sim.brokers.schedules.brokers import GROUP_NAME, TOPIC, Brokers, offset_fields
from dledger_sim.brokers.service import SimBroker
from dledger_sim.log.registers import leading

PASSING: Final = "passing"


def deletion_by_a_deposed_leader() -> None:
    """Check that a leader that was paused and replaced does not report a topic as deleted that it never knew.

    1. The leader is stopped (SIGSTOP) and cut off; another node leads and creates a topic.
    2. The old leader wakes, still believes that it leads, and is told to delete the topic.
    3. The others are heard again.
    """
    brokers = Brokers()
    group, old = brokers.group, leading(brokers.group)
    before = brokers.connect(old.node.name)
    links = [(a, b) for a in group.nodes for b in group.nodes if a != b and old.node.name in {a, b}]
    for link in links:
        group.network.block(*link)
    old.environment.pause(brokers.scheduler.now + 4.0)
    brokers.run(3.0)
    fields = brokers.workload.topic_fields(PASSING)
    brokers.ask(brokers.connect(brokers.leader), RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    brokers.run(0.5)
    assert PASSING in brokers.workload.truth.topics
    deleted = brokers.ask(before, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": PASSING})
    brokers.run(0.6)
    for link in links:
        group.network.unblock(*link)
    brokers.run(4.0)
    codes = [answer.code for answer in deleted if answer]
    assert codes != [ResponseCode.SUCCESS] or PASSING not in brokers.workload.truth.topics


def commit_in_the_moment_of_a_deletion() -> None:
    """Check a commit that the leader has taken and not proposed when its topic is deleted.

    It must not follow the deletion.

    The next topic of the same name begins at offset 0. A group that began at a higher offset would miss messages.
    """
    brokers = Brokers()
    connection = brokers.connect(brokers.leader)
    brokers.found_group(connection)
    brokers.ask(connection, RequestCode.UPDATE_AND_CREATE_TOPIC, brokers.workload.topic_fields(PASSING))
    brokers.run(1.0)
    brokers.ask(connection, RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(5) | {"topic": PASSING})
    brokers.run(0.01)
    brokers.ask(connection, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": PASSING})
    brokers.run(2.0)
    assert PASSING not in brokers.workload.truth.topics
    assert (GROUP_NAME, PASSING, 0) not in brokers.workload.truth.committed


def pin_of_what_others_have_trimmed() -> None:
    """Check that a leader pins no position that the others have trimmed, although it could not trim without a snapshot.

    1. A follower has no space for a snapshot, and so keeps the log that the leader makes all nodes trim.
    2. It becomes leader, and a reader pins the log from its first position on.
    """
    brokers = Brokers()
    heir = brokers.follower
    node = brokers.group.nodes[heir]
    assert node.life is not None
    node.disk.fail(lambda operation, path: operation == "open" and _is_unfinished_snapshot(path), ENOSPC, once=False)
    connection = brokers.connect(brokers.leader)
    for _ in range(30):
        brokers.send(connection, TOPIC, padding=4000)
        brokers.run(0.1)
    old = leading(brokers.group)
    position = old.replica.snapshots.list()[-1].position
    cast(SimBroker, old.service).trim(position)
    brokers.run(1.0)
    assert node.life.replica.store.first_position < position == old.replica.store.first_position
    brokers.hand_over(heir)
    brokers.run(2.0)
    assert brokers.leader == heir
    ext = {"name": "reader", "position": "0", "leaseMillis": "60000"}
    answers = brokers.ask(brokers.connect(heir), RequestCode.PIN_LOG, ext)
    brokers.run(2.0)
    assert [answer.code for answer in answers if answer] == [ResponseCode.READ_TRIMMED]


def _is_unfinished_snapshot(path: str) -> bool:
    return path.startswith(SNAPSHOTS) and path.endswith(".tmp")


CROSSING_SCHEDULES: Final = (
    deletion_by_a_deposed_leader,
    commit_in_the_moment_of_a_deletion,
    pin_of_what_others_have_trimmed,
)

"""Schedules by hand for brokers: what random search finds rarely.

They raise `AssertionError` or `Violation` if the code under them breaks its promise.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random
from typing import Final, cast

from dledger.sim.disk import SimDisk
from dledger.sim.group import GroupSettings, SimGroup
from dledger.sim.registers import leading
from dledger.sim.scheduler import Scheduler
from dledger_broker.sim.clients import ClientSettings, pull_fields
from dledger_broker.sim.connection import TURN_S, Answer, SimConnection
from dledger_broker.sim.service import BrokerSettings, SimBroker
from dledger_broker.sim.trial import BrokerTrial
from dledger_broker.sim.truth import encode_body
from dledger_broker.views.keyfile import ActiveIndexFile, IndexHeader, IndexLayout, as_keys
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.hosts import HostAddress

TOPIC: Final = "lasting-0"
GROUP_NAME: Final = "group-0"
TIMEOUT_S: Final = 6.0
STANDSTILL_S: Final = 60.0
CLIENT: Final = HostAddress("127.0.0.1", 50_000)


class _Brokers:
    """A whole group with one topic, and no clients but those of the schedule."""

    def __init__(self) -> None:
        nobody = ClientSettings(producers=0, consumers=0, administrators=0, readers=0, topics=1, queues=1)
        self.trial = BrokerTrial(Random(1), nobody, BrokerSettings(), None)
        self.scheduler = Scheduler()
        self.group = SimGroup(self.scheduler, Random(2), GroupSettings(clock_drift=0.0), self.trial.serve)
        for name in self.group.nodes:
            self.group.start(name)
        self.run(2.0)
        self.trial.start(self.group)
        self.run(2.0)
        self._connections = 0

    def run(self, seconds: float) -> None:
        self.scheduler.run_until(self.scheduler.now + seconds)

    def await_turn(self) -> None:
        """What is sent now is read in one turn."""
        self.scheduler.run_until((self.scheduler.now // TURN_S + 1) * TURN_S)

    def connect(self, name: str) -> SimConnection:
        life = self.group.nodes[name].life
        assert life is not None
        self._connections += 1
        return SimConnection(self.group, life, Random(self._connections), CLIENT, self._connections)

    def ask(self, connection: SimConnection, code: int, ext: dict[str, str]) -> list[Answer | None]:
        """Send a request; its answer will stand in the list."""
        answers: list[Answer | None] = []
        connection.call(RemotingCommand(code, ext=ext), TIMEOUT_S, answers.append)
        return answers

    def send(self, connection: SimConnection, topic: str, *, padding: int = 0) -> None:
        """Send a message, whose answer is checked."""
        operation = self.trial.next_operation()
        code, ext, _ = self.trial.make_send(topic, 0, [operation], batch=False)
        body = encode_body(operation, padding)
        connection.call(
            RemotingCommand(code, ext=ext, body=body),
            TIMEOUT_S,
            lambda answer: self.trial.sent([operation], 0, answer),
        )

    def found_group(self, connection: SimConnection) -> None:
        """Have some messages, and a consumer group that has pulled them."""
        for _ in range(3):
            self.send(connection, TOPIC)
        pull = {"consumerGroup": GROUP_NAME, "topic": TOPIC, "queueId": "0", **pull_fields(0, 8)}
        self.ask(connection, RequestCode.PULL_MESSAGE, pull)
        self.run(1.0)

    @property
    def leader(self) -> str:
        return leading(self.group).node.name

    @property
    def follower(self) -> str:
        return next(name for name in self.group.nodes if name != self.leader)


def _key(offset: int) -> dict[str, str]:
    return {"consumerGroup": GROUP_NAME, "topic": TOPIC, "queueId": "0", "commitOffset": str(offset)}


def send_in_the_turn_of_a_deletion() -> None:
    """A message that arrives in one turn with the deletion of its topic is not staged behind it.

    1. A send to a topic is read and waits for the end of the turn.
    2. The deletion of the topic is read in the same turn, and proposed at once.
    3. The message does not fit what is left of the segment, so that it would come into an entry behind the deletion:
       acknowledged, and in no queue.
    """
    brokers = _Brokers()
    connection = brokers.connect(brokers.leader)
    brokers.ask(connection, RequestCode.UPDATE_AND_CREATE_TOPIC, brokers.trial.topic_fields("passing"))
    for _ in range(20):
        brokers.send(connection, TOPIC)
    brokers.run(1.0)
    assert "passing" in brokers.trial.truth.topics
    brokers.await_turn()
    store = leading(brokers.group).replica.store
    brokers.send(connection, "passing", padding=store.segment_bytes - store.end_position % store.segment_bytes)
    brokers.ask(connection, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "passing"})
    brokers.run(2.0)
    assert "passing" not in brokers.trial.truth.topics


def handover_that_fails() -> None:
    """A handover that nobody takes over leaves what is in flight its queue offsets.

    1. A message is on its way to slow followers.
    2. The leader begins to hand over to one that it cannot reach, and takes no proposals.
    3. The message is committed, the handover given up; the next message must not get the same offset.
    """
    brokers = _Brokers()
    leader, group = brokers.leader, brokers.group
    life = leading(group)
    target, other = (name for name in group.nodes if name != leader)
    group.network.slow(leader, other, 0.2)
    group.network.block(leader, target)
    connection = brokers.connect(leader)
    brokers.send(connection, TOPIC)
    brokers.run(0.05)
    member = life.replica.engine.table.membership.find(target)
    assert member is not None
    assert life.replica.transfer(member)
    group.network.slow(leader, other, 0.0)
    for _ in range(40):
        brokers.run(0.1)
        if life.replica.is_ready:
            break
    brokers.send(connection, TOPIC)
    brokers.run(3.0)
    assert brokers.trial.counts["ok"] == 2


def commit_that_was_overtaken() -> None:
    """A commit that a slow link holds back does not undo a later one of its client.

    1. A consumer commits 1 through a follower whose link to the leader is slow.
    2. It commits 2 at the leader.
    3. The first commit arrives.
    """
    brokers = _Brokers()
    leader, follower = brokers.leader, brokers.follower
    at_leader, at_follower = brokers.connect(leader), brokers.connect(follower)
    brokers.found_group(at_leader)
    brokers.group.network.slow(follower, leader, 1.0)
    brokers.ask(at_follower, RequestCode.UPDATE_CONSUMER_OFFSET, _key(1))
    brokers.run(0.1)
    second = brokers.ask(at_leader, RequestCode.UPDATE_CONSUMER_OFFSET, _key(2))
    brokers.run(4.0)
    assert second[0] is not None
    assert second[0].code == ResponseCode.SUCCESS
    assert brokers.trial.truth.committed[GROUP_NAME, TOPIC, 0] == 2


def commit_that_missed_two_leaders() -> None:
    """A commit that waited for a leader does not undo one that a leader has taken meanwhile which is gone again.

    1. A consumer commits 1 through a follower whose link to everybody is slow.
    2. It commits 2 at the leader, which then hands over.
    3. The first commit arrives at the new leader, which knows of 2 from the log only.
    """
    brokers = _Brokers()
    leader = brokers.leader
    follower, heir = (name for name in brokers.group.nodes if name != leader)
    at_leader, at_follower = brokers.connect(leader), brokers.connect(follower)
    brokers.found_group(at_leader)
    brokers.group.network.slow(follower, leader, 0.8)
    brokers.ask(at_follower, RequestCode.UPDATE_CONSUMER_OFFSET, _key(1))
    brokers.ask(at_leader, RequestCode.UPDATE_CONSUMER_OFFSET, _key(2))
    brokers.run(0.4)
    assert brokers.trial.truth.committed[GROUP_NAME, TOPIC, 0] == 2
    life = leading(brokers.group)
    life.replica.transfer(life.replica.engine.table.membership.find(heir))
    brokers.run(4.0)
    assert brokers.leader == heir
    assert brokers.trial.truth.committed[GROUP_NAME, TOPIC, 0] == 2


def commit_in_a_node_that_stood_still() -> None:
    """A commit that lay for a minute in a node that stood still does not undo a later one, whoever leads by then.

    1. A follower is stopped (SIGSTOP), and a consumer commits 1 there.
    2. It commits 2 at the leader, which soon hands over.
    3. The follower wakes after a minute, and passes the first commit on to the new leader, which knows of 2 from the
       log only.
    """
    brokers = _Brokers()
    leader = brokers.leader
    follower, heir = (name for name in brokers.group.nodes if name != leader)
    at_leader, at_follower = brokers.connect(leader), brokers.connect(follower)
    brokers.found_group(at_leader)
    stopped = brokers.group.nodes[follower].life
    assert stopped is not None
    stopped.environment.pause(brokers.scheduler.now + STANDSTILL_S)
    counters = cast(SimBroker, stopped.service).counters
    forwarded = counters.forwarded
    brokers.ask(at_follower, RequestCode.UPDATE_CONSUMER_OFFSET, _key(1))
    brokers.ask(at_leader, RequestCode.UPDATE_CONSUMER_OFFSET, _key(2))
    brokers.run(1.0)
    assert brokers.trial.truth.committed[GROUP_NAME, TOPIC, 0] == 2
    life = leading(brokers.group)
    life.replica.transfer(life.replica.engine.table.membership.find(heir))
    brokers.run(STANDSTILL_S + 4.0)
    assert brokers.leader == heir
    assert counters.forwarded > forwarded
    assert brokers.trial.truth.committed[GROUP_NAME, TOPIC, 0] == 2


def commit_behind_a_refused_one() -> None:
    """What was sent behind a refused request does not pass it.

    1. A leader begins to hand over to a node that it cannot reach.
    2. A consumer commits 1 through a follower whose link to the leader is slow, and then 2: both are under way.
    3. The first commit arrives and is refused; the handover is given up; the second commit arrives.
    """
    brokers = _Brokers()
    leader, group = brokers.leader, brokers.group
    follower, target = (name for name in group.nodes if name != leader)
    brokers.found_group(brokers.connect(leader))
    at_follower = brokers.connect(follower)
    group.network.slow(follower, leader, 0.4)
    group.network.block(leader, target)
    life = leading(group)
    member = life.replica.engine.table.membership.find(target)
    assert member is not None
    assert life.replica.transfer(member)
    gives_up_s = life.node.config.election_max_ms / 1000
    brokers.run(gives_up_s - 0.5)
    first = brokers.ask(at_follower, RequestCode.UPDATE_CONSUMER_OFFSET, _key(1))
    brokers.run(0.3)
    second = brokers.ask(at_follower, RequestCode.UPDATE_CONSUMER_OFFSET, _key(2))
    brokers.run(0.2)
    assert cast(SimBroker, life.service).counters.forward_refusals == 1
    assert life.replica.is_ready
    brokers.run(3.0)
    assert [answer.code for answer in (*first, *second) if answer] == [ResponseCode.SUCCESS, ResponseCode.SUCCESS]
    assert brokers.trial.truth.committed[GROUP_NAME, TOPIC, 0] == 2


def commit_that_came_back() -> None:
    """A commit that a deposed leader gives back does not undo a later one that the next leader has taken itself.

    1. A consumer commits 1 through a follower whose link to the leader is slow.
    2. The follower comes to lead, and the consumer commits 2 there, over another connection.
    3. The first commit arrives at the old leader, which refuses it: it comes back to the follower.
    """
    brokers = _Brokers()
    leader, follower = brokers.leader, brokers.follower
    brokers.found_group(brokers.connect(leader))
    brokers.group.network.slow(follower, leader, 0.8)
    brokers.ask(brokers.connect(follower), RequestCode.UPDATE_CONSUMER_OFFSET, _key(1))
    brokers.run(0.1)
    life = leading(brokers.group)
    life.replica.transfer(life.replica.engine.table.membership.find(follower))
    brokers.run(0.4)
    assert brokers.leader == follower
    second = brokers.ask(brokers.connect(follower), RequestCode.UPDATE_CONSUMER_OFFSET, _key(2))
    brokers.run(4.0)
    assert second[0] is not None
    assert second[0].code == ResponseCode.SUCCESS
    assert brokers.trial.truth.committed[GROUP_NAME, TOPIC, 0] == 2


def commit_behind_one_that_is_away() -> None:
    """A node that comes to lead handles no request before an earlier one of its channel that another node still has.

    1. A consumer commits 1 through a follower whose link to the leader is slow.
    2. The follower comes to lead, and the consumer commits 2 over the same connection.
    3. The first commit arrives at the old leader, which refuses it: it comes back to the follower.
    """
    brokers = _Brokers()
    leader, follower = brokers.leader, brokers.follower
    brokers.found_group(brokers.connect(leader))
    brokers.group.network.slow(follower, leader, 0.8)
    connection = brokers.connect(follower)
    first = brokers.ask(connection, RequestCode.UPDATE_CONSUMER_OFFSET, _key(1))
    brokers.run(0.1)
    life = leading(brokers.group)
    life.replica.transfer(life.replica.engine.table.membership.find(follower))
    brokers.run(0.4)
    assert brokers.leader == follower
    second = brokers.ask(connection, RequestCode.UPDATE_CONSUMER_OFFSET, _key(2))
    brokers.run(4.0)
    assert [answer.code for answer in (*first, *second) if answer] == [ResponseCode.SUCCESS, ResponseCode.SUCCESS]
    assert brokers.trial.truth.committed[GROUP_NAME, TOPIC, 0] == 2


def pull_behind_a_later_commit() -> None:
    """A pull that is passed on behind a later commit of its connection does not undo it.

    1. The leader is stopped (SIGSTOP) and cut off; another node leads.
    2. It wakes and still believes that it leads.  A consumer pulls there, behind the end, and commits 1 with that: the
       answer waits until the others have confirmed the leader.
    3. It begins to hand over, and the consumer commits 2 over the same connection: that waits for a leader.
    4. The others are heard again.  The second commit is passed on, and then the pull.
    """
    brokers = _Brokers()
    group, old = brokers.group, leading(brokers.group)
    connection = brokers.connect(old.node.name)
    brokers.found_group(connection)
    links = [(a, b) for a in group.nodes for b in group.nodes if a != b and old.node.name in {a, b}]
    for link in links:
        group.network.block(*link)
    old.environment.pause(brokers.scheduler.now + 4.0)
    brokers.run(3.9)
    ext = {"consumerGroup": GROUP_NAME, "topic": TOPIC, "queueId": "0"} | pull_fields(99, 8, commits=True)
    brokers.ask(connection, RequestCode.PULL_MESSAGE, ext | {"commitOffset": "1"})
    brokers.run(0.11)
    assert old.replica.is_ready
    heir = next(name for name in group.nodes if name != old.node.name)
    assert old.replica.transfer(old.replica.engine.table.membership.find(heir))
    second = brokers.ask(connection, RequestCode.UPDATE_CONSUMER_OFFSET, _key(2))
    brokers.run(0.01)
    for link in links:
        group.network.unblock(*link)
    brokers.run(4.0)
    assert brokers.leader != old.node.name
    assert [answer.code for answer in second if answer] == [ResponseCode.SUCCESS]
    assert brokers.trial.truth.committed[GROUP_NAME, TOPIC, 0] == 2


def overtaken_commit_and_a_killed_leader() -> None:
    """A commit that was overtaken is acknowledged only once the one that overtook it is in the log.

    1. A consumer commits 1 through a follower whose link to the leader is slow.
    2. It commits 2 at the leader, which collects commits for a while.
    3. The first commit arrives meanwhile; the leader is killed before it would have proposed the second by itself.
    """
    brokers = _Brokers()
    leader, follower = brokers.leader, brokers.follower
    at_leader = brokers.connect(leader)
    brokers.found_group(at_leader)
    brokers.group.network.slow(follower, leader, 0.5)
    first = brokers.ask(brokers.connect(follower), RequestCode.UPDATE_CONSUMER_OFFSET, _key(1))
    brokers.run(0.4)
    brokers.ask(at_leader, RequestCode.UPDATE_CONSUMER_OFFSET, _key(2))
    brokers.run(0.15)
    brokers.group.kill(leader)
    brokers.run(3.0)
    assert brokers.leader != leader
    assert [answer.code for answer in first if answer] == [ResponseCode.SUCCESS]
    assert brokers.trial.truth.committed.get((GROUP_NAME, TOPIC, 0), -1) >= 1


def question_to_a_deposed_leader() -> None:
    """A leader that was stopped, and replaced meanwhile, does not say how long a queue is before it has asked.

    1. The leader is stopped (SIGSTOP) and cut off; another node leads and takes a message.
    2. The old leader wakes, still believes that it leads, and is asked for the end of the queue.
    """
    brokers = _Brokers()
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
    assert brokers.trial.counts["ok"] == 2
    answers = brokers.ask(before, RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"})
    brokers.run(4.0)
    assert [answer.ext["offset"] for answer in answers if answer and answer.code == ResponseCode.SUCCESS] in ([], ["2"])


def index_write_that_failed() -> None:
    """Entries of the key index whose write failed and was repeated lead to those before them."""
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
    assert list(file.positions(5, 0, 1 << 60)) == [200, 100]


def views_of_a_killed_node() -> None:
    """A node that lost its views rebuilds also what its snapshot covers, and answers as if nothing had happened."""
    brokers = _Brokers()
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


SCHEDULES: Final[tuple[Callable[[], None], ...]] = (
    send_in_the_turn_of_a_deletion,
    handover_that_fails,
    commit_that_was_overtaken,
    commit_that_missed_two_leaders,
    commit_in_a_node_that_stood_still,
    commit_behind_a_refused_one,
    commit_that_came_back,
    commit_behind_one_that_is_away,
    pull_behind_a_later_commit,
    overtaken_commit_and_a_killed_leader,
    question_to_a_deposed_leader,
    index_write_that_failed,
    views_of_a_killed_node,
)

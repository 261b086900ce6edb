"""Clients of a simulated broker group: producers, consumers, administrators, readers. Other modules have more.

Each does one thing at a time, through the node that it believes in. Some follow the leader. Some stay at their node and
rely on forwarding; some ask for no forwarding. Only idempotent sends (`repeats`) are ever repeated under the same
operation number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import Final

from dledger_broker.frontend.forwarding import NO_FORWARD_FIELD
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand
from dledger_remoting.hosts import HostAddress
from dledger_sim.brokers.account_truth import ROOT_CREDENTIALS
from dledger_sim.brokers.connection import Answer, Done, SimConnection
from dledger_sim.brokers.service import node_at
from dledger_sim.brokers.workload import NOT_STORED, Workload
from dledger_sim.log.invariants import require

CLIENT_HOST: Final = "127.0.0.1"
FIRST_CLIENT_PORT: Final = 50_000
LATE_EFFECT_S: Final = 15.0
"""Maximum delay of the effect of an unanswered request, in seconds, besides the longest pause of a node.

It may wait for a leader, or in a blocked link.
"""
LEAVE_SHARE: Final = 0.2
"""Share of a client's steps in which it learns that its node is about to stop."""


class Client:
    """Client. A subclass chooses the next action in `act`, and calls `pause` at its end."""

    def __init__(self, workload: Workload, number: int) -> None:
        self.workload = workload
        self.number = number
        self.random: Random = workload.random
        self.name = f"client-{number}"
        self.credentials = ROOT_CREDENTIALS if workload.brokers.access else None
        """Account for which the client signs."""
        self._connection: SimConnection | None = None
        self._connections = count(1)
        self._chosen_node = self.random.choice(workload.group.settings.names)
        self._keeps_node = self.random.random() < workload.settings.stay_share
        self._no_forward = not self._keeps_node and self.random.random() < workload.settings.no_forward_share

    def act(self) -> None:
        """Do the next action."""
        raise NotImplementedError

    def pause(self, then: Callable[[], None] | None = None, *, haste: float = 1.0) -> None:
        """Continue after a random pause, which is multiplied by `haste`."""
        workload, act = self.workload, partial(self._act, then or self.act)
        workload.group.scheduler.after(self.random.expovariate(1.0) * workload.settings.think_s * haste, act)

    def _act(self, act: Callable[[], None]) -> None:
        if self.workload.takes_another():
            act()

    def call(
        self,
        code: int,
        ext: dict[str, str],
        done: Done,
        *,
        body: bytes = b"",
        oneway: bool = False,
        timeout_s: float | None = None,
    ) -> bool:
        """Send a request to the client's chosen node.

        Return False without sending if it cannot be reached.
        """
        connection = self._connect()
        if connection is None:
            self._chosen_node = self.random.choice(self.workload.group.settings.names)
            return False
        if self._no_forward:
            ext[NO_FORWARD_FIELD] = "true"
        command = RemotingCommand(code, flag=FLAG_ONEWAY if oneway else 0, ext=ext, body=body)
        connection.credentials = self.credentials

        def answered(answer: Answer | None) -> None:
            if answer is not None:
                self.workload.answered(code, answer)
            self._learn_from_answer(answer, oneway=oneway)
            done(answer)

        connection.call(command, timeout_s or self.workload.settings.timeout_s, answered)
        return True

    def _connect(self) -> SimConnection | None:
        connection, group = self._connection, self.workload.group
        leaves = self._chosen_node in group.leaving
        if connection is not None and connection.is_usable and not (leaves and self.random.random() < LEAVE_SHARE):
            return connection
        life = group.nodes[self._chosen_node].life
        if life is None or life.stopping or leaves or self._chosen_node in group.unreachable:
            return None
        port = FIRST_CLIENT_PORT + 100 * self.number + next(self._connections) % 100
        self._connection = SimConnection(group, life, self.random, HostAddress(CLIENT_HOST, port), port)
        self.connected(self._connection)
        return self._connection

    def connected(self, connection: SimConnection) -> None:
        """Handle a new connection over which nothing has been sent."""

    def _learn_from_answer(self, answer: Answer | None, *, oneway: bool) -> None:
        """Choose another node if this node did not answer, or refers to the leader."""
        if oneway or (answer is not None and answer.code not in {ResponseCode.SERVICE_NOT_AVAILABLE, 1}):
            return
        address = None if answer is None else answer.ext.get("leaderAddr")
        if address and not self._keeps_node:
            self._switch_node(node_at(address))
        elif answer is None or self.random.random() < 0.5:
            self._switch_node(self.random.choice(self.workload.group.settings.names))

    def _switch_node(self, name: str) -> None:
        if name != self._chosen_node or not (self._connection and self._connection.is_usable):
            self._chosen_node = name
            if self._connection is not None:
                self._connection.close()
                self._connection = None


class Producer(Client):
    """Producer of single messages and batches."""

    def act(self) -> None:
        """Send a message or a batch."""
        workload, random, settings = self.workload, self.random, self.workload.settings
        topic = workload.any_topic()
        many = random.random() < settings.batch_share
        operations = [
            workload.next_operation() for _ in range(random.randint(2, settings.most_in_batch) if many else 1)
        ]
        oneway = random.random() < settings.oneway_share
        queue_id = random.randrange(settings.queues)
        code, ext, body = workload.make_send(topic, queue_id, operations, batch=many)

        def done(answer: Answer | None) -> None:
            workload.sent(operations, queue_id, answer)
            self.pause()

        if not self.call(code, ext, done, body=body, oneway=oneway):
            workload.not_sent(operations)
            self.pause()


@dataclass(slots=True)
class _Position:
    """Position of a consumer in one queue."""

    offset: int = -1
    """Next offset; -1 if the consumer has to ask for it."""
    attempted: int = -1
    """Highest offset that it ever tried to commit."""
    acknowledged: int = field(default=-1)


class Consumer(Client):
    """Consumer of all queues of a lasting topic, the only member of its group. It commits ever higher offsets."""

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self.group_name = f"group-{number}"
        self.topic = self.random.choice(sorted(workload.lasting))
        self._positions = {queue_id: _Position() for queue_id in range(workload.settings.queues)}

    def act(self) -> None:
        """Ask for the committed offset, commit, or pull."""
        queue_id = self.random.choice(sorted(self._positions))
        position = self._positions[queue_id]
        if position.offset < 0 or self.random.random() < self.workload.settings.restart_share:
            self._ask_offset(queue_id, position)
        elif position.offset > position.attempted and self.random.random() < 0.3:
            self._commit(queue_id, position)
        else:
            self._pull(queue_id, position)

    def _make_fields(self, queue_id: int) -> dict[str, str]:
        return {"consumerGroup": self.group_name, "topic": self.topic, "queueId": str(queue_id)}

    def _ask_offset(self, queue_id: int, position: _Position) -> None:
        floor = position.acknowledged

        def done(answer: Answer | None) -> None:
            if answer is not None:
                self.workload.questions.offset((self.group_name, self.topic, queue_id), answer)
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                position.offset = self.workload.offset_read(answer, floor, self._make_fields(queue_id))
            elif answer is not None and answer.code == ResponseCode.QUERY_NOT_FOUND:
                require(floor < 0, "a committed offset is known", group=self.group_name, acknowledged=floor)
                position.offset = 0
            self.pause()

        ext = self._make_fields(queue_id) | {"setZeroIfNotFound": "false"}
        if not self.call(RequestCode.QUERY_CONSUMER_OFFSET, ext, done):
            self.pause()

    def _commit(self, queue_id: int, position: _Position) -> None:
        offset = position.attempted = position.offset
        change = ("offset", self.group_name, self.topic, queue_id, offset)
        self.workload.truth.expected.attempt(change)
        oneway = self.random.random() < self.workload.settings.oneway_share

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                position.acknowledged = max(position.acknowledged, offset)
                self.workload.truth.commit_acknowledged((self.group_name, self.topic, queue_id), offset)
                self.workload.counts["commit"] += 1
            elif answer is not None and answer.code in NOT_STORED:
                self.workload.truth.expected.refuse(change)
            self.pause()

        ext = self._make_fields(queue_id) | {"commitOffset": str(offset)}
        if not self.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext, done, oneway=oneway):
            self.pause()

    def _pull(self, queue_id: int, position: _Position) -> None:
        random, settings = self.random, self.workload.settings
        waits = random.random() < settings.long_poll_share
        commits = position.offset > position.attempted and random.random() < 0.3
        offset = position.offset
        if commits:
            position.attempted = offset
            self.workload.truth.expected.attempt(("offset", self.group_name, self.topic, queue_id, offset))

        def done(answer: Answer | None) -> None:
            if answer is not None:
                after = self.workload.pulled(self.topic, queue_id, offset, answer)
                if position.offset == offset and after is not None:
                    position.offset = after
            self.pause()

        poll_s = random.uniform(0.2, 2.0) if waits else 0.0
        ext = self._make_fields(queue_id) | pull_fields(
            offset, random.choice((1, 4, 32)), poll_s=poll_s, commits=commits
        )
        if not self.call(RequestCode.PULL_MESSAGE, ext, done, timeout_s=settings.timeout_s + poll_s):
            self.pause()


def pull_fields(offset: int, most: int, *, poll_s: float = 0.0, commits: bool = False) -> dict[str, str]:
    """Return the fields of a pull besides its queue."""
    return {
        "queueOffset": str(offset),
        "maxMsgNums": str(most),
        "sysFlag": str(4 | (2 if poll_s else 0) | (1 if commits else 0)),
        "commitOffset": str(offset if commits else 0),
        "suspendTimeoutMillis": str(int(poll_s * 1000)),
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }


class Administrator(Client):
    """Administrator of one topic.

    It creates and deletes the topic again and again while others send, and commits offsets in it.
    """

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self.topic = f"passing-{number}"
        self._topic_exists: bool | None = None
        """True or False as the last answer said, None if unknown."""
        self._unsure_since: float | None = None
        """Time at which the client stopped waiting for the outcome of its last change.

        That change may take effect after later changes.
        """
        workload.passing.append(self.topic)

    def act(self) -> None:
        """Create or delete the topic, commit, or check that the last change still holds."""
        choice = self.random.random()
        if choice < 0.1:
            self._pull()
        elif choice < 0.4:
            ext = self.workload.topic_fields(self.topic)
            self._change(RequestCode.UPDATE_AND_CREATE_TOPIC, ext, exists=True)
        elif choice < 0.7:
            self._change(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": self.topic}, exists=False)
        else:
            self._query_topic()

    @property
    def _may_be_undone(self) -> bool:
        """True if an earlier change may still take effect."""
        group, since = self.workload.group, self._unsure_since
        return since is not None and group.scheduler.now < since + LATE_EFFECT_S + group.longest_pause_s

    def _change(self, code: int, ext: dict[str, str], *, exists: bool) -> None:
        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                self._topic_exists = exists
                self.workload.counts["topic changed"] += 1
            elif answer is None or answer.code not in NOT_STORED:
                self._unsure_since = self.workload.group.scheduler.now
            if self._may_be_undone:
                self._topic_exists = None
            self.pause()

        if not self.call(code, ext, done):
            self.pause()

    def _pull(self) -> None:
        """Commit an offset by a pull. The leader collects such commits for a while."""
        key = {"consumerGroup": self.name, "topic": self.topic, "queueId": "0"}
        fields = pull_fields(self.random.randrange(8), 1, commits=True)
        if not self.call(RequestCode.PULL_MESSAGE, key | fields, lambda _: self.pause()):
            self.pause()

    def _query_topic(self) -> None:
        expected = self._topic_exists

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code in {ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST}:
                self.workload.topic_seen(self.topic, expected=expected, found=answer.code == ResponseCode.SUCCESS)
            self.pause()

        if not self.call(RequestCode.GET_TOPIC_CONFIG, {"topic": self.topic}, done):
            self.pause()


class Reader(Client):
    """Reader that asks any node for acknowledged messages, and for the ends of queues."""

    def act(self) -> None:
        """Ask for the end of a queue or for a message."""
        choice = self.random.random()
        if choice < 0.4:
            self._ask_end()
        else:
            self._look_up_message(by_key=choice < 0.8)

    def _ask_end(self) -> None:
        workload = self.workload
        topic, queue_id = self.random.choice(sorted(workload.lasting)), self.random.randrange(workload.settings.queues)
        floor = workload.floors.get((topic, queue_id), 0)

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                found = int(answer.ext["offset"])
                require(found >= floor, "the end of a queue is never stale", topic=topic, found=found, floor=floor)
                workload.counts["read"] += 1
            self.pause()

        if not self.call(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)}, done):
            self.pause()

    def _look_up_message(self, *, by_key: bool) -> None:
        workload = self.workload
        stored = workload.any_acknowledged(self.random)
        if stored is None:
            self.pause()
            return

        def done(answer: Answer | None) -> None:
            workload.looked_up(stored, answer, by_key=by_key)
            self.pause()

        code, ext = workload.make_lookup(stored, by_key=by_key)
        if not self.call(code, ext, done):
            self.pause()

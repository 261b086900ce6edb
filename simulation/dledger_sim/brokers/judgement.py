"""Judge of a healed broker group: it checks every node by requests and in its files."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final, cast

from dledger.errors import CorruptionError
from dledger_base.loop_guard import as_worker
from dledger_broker.features.delay.messages import DueMessages
from dledger_broker.features.quotas.table import PutQuota
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.queues import QueueState
from dledger_broker.views.timefile import NAME as TIME_INDEX
from dledger_broker.views.timerows import Key
from dledger_broker.views.unitfiles import queue_directory
from dledger_broker.views.unitreader import read_units
from dledger_broker.views.units import READ_UNIT
from dledger_remoting.bodies import encode_body
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.quotas import Quota
from dledger_remoting.topics import is_broker_written
from dledger_sim.brokers.account_truth import ROOT_CREDENTIALS
from dledger_sim.brokers.clients import pull_fields
from dledger_sim.brokers.connection import Answer, SimConnection
from dledger_sim.brokers.delays import check_delivered
from dledger_sim.brokers.expected import OffsetKey, Stored
from dledger_sim.brokers.halves import check_ended
from dledger_sim.brokers.service import SimBroker, address_of
from dledger_sim.brokers.workload import Workload
from dledger_sim.log.group import Life, SimGroup
from dledger_sim.log.invariants import require

ANSWER_S: Final = 8.0
LONGEST_POLL_S: Final = 10.0
SETTLE_S: Final = 5.0
"""Time in which all requests end that clients began before they stopped, in seconds."""
CATCH_UP_S: Final = 2.0
"""Time in seconds after which a follower has caught up.

It may learn of the newest commits only with the next heartbeat.
"""
SCRUB_S: Final = 15.0
LOOKUPS: Final = 4
MESSAGES: Final = 64
"""Maximum number of messages in a pull."""
"""`LOOKUPS` is the number of messages that each node is asked for by key, and by position."""
VIEW_DIRECTORIES: Final = ("consumequeue", "keyindex", "views")
WHOLE_S: Final = 20.0
MENDED_S: Final = 15.0


def check_views(life: Life, workload: Workload) -> None:
    """Check that the consume queues of a node, in memory and in files, equal the log."""
    machine = cast(SimBroker, life.service).broker
    for name, topic in machine.state.topics.items():
        truth = workload.truth.topics.get(name)
        if truth is None or truth.created != topic.created_position:
            continue  # this replica has not applied everything yet
        for queue in topic.queues.values():
            stored = truth.queues.get(queue.queue_id, [])
            view = queue.view
            require(
                view.end == queue.next_offset <= len(stored),
                "a view holds everything that the state covers",
                node=life.node.name,
                queue=queue,
                view=(view.start, view.end),
            )
            expected = b"".join(
                READ_UNIT.pack(message.position, message.size, message.tag_code)
                for message in stored[view.start : view.end]
            )
            require(
                _strip_stamps(_read_units(life, queue)) == expected,
                "a view equals a rebuild from the log",
                node=life.node.name,
                queue=queue,
                view=(view.start, view.end),
            )


def _read_units(life: Life, queue: QueueState) -> bytes:
    """Return all units of a queue as a consumer would get them."""
    queues = cast(SimBroker, life.service).broker.queues
    found: list[bytes] = []
    offset = queue.view.start
    while offset < queue.view.end:
        units = queues.read(queue.view, offset, 1 << 20)
        if units is None:
            count = min(queues.layout.room(offset), queue.view.tail_start - offset)
            directory = queue_directory(queue.topic, queue.queue_id)
            units = read_units(life.node.disk, queues.layout, directory, queue.view.seed, offset, count)
        require(units, "a view's file holds its units", node=life.node.name, queue=queue, offset=offset)
        found.append(units)
        offset += len(units) // READ_UNIT.size
    return b"".join(found)


def _scrub_queues(life: Life, broker: BrokerMachine) -> None:
    """Read all written units of a node's queues, and report damage as the scrub does."""
    for queue in broker.state.topic_table.queues():
        view, queues = queue.view, broker.queues
        directory = queue_directory(view.topic, view.queue_id)
        try:
            read_units(life.node.disk, queues.layout, directory, view.seed, view.start, view.written - view.start)
        except CorruptionError as error:
            queues.found_damage(view, view.start, error)


def _strip_stamps(units: bytes) -> bytes:
    return b"".join(READ_UNIT.pack(*unit) for unit in READ_UNIT.iter_unpack(units))


class Judge:
    """Judge that asks a whole group."""

    def __init__(self, workload: Workload, group: SimGroup) -> None:
        self._workload = workload
        self._group = group

    def judge(self) -> None:
        """Raise `Violation` unless every node shows everything."""
        self._group.scheduler.run_until(self._group.scheduler.now + SETTLE_S)
        self._check_answers()
        self._grow_back()
        self._lift_quotas()
        check_delivered(self._group, self._workload.truth.due)
        check_ended(self._group, self._workload.brokers)
        for name in self._group.nodes:
            self._check_node(name)
        name = self._workload.random.choice(self._group.settings.names)
        self._delete_views(name)
        self._check_node(name)

    def _check_answers(self) -> None:
        """Check that every request to a running node has its answer, once no poll may wait any more."""
        scheduler, deadline = self._group.scheduler, self._group.scheduler.now + LONGEST_POLL_S
        while unanswered := self._find_unanswered():
            require(scheduler.now < deadline, "every request is answered", unanswered=unanswered)
            scheduler.run_until(scheduler.now + 0.5)

    def _find_unanswered(self) -> list[tuple[str, list[int]]]:
        lives = [node.life for node in self._group.nodes.values() if node.life is not None]
        connections = [connection for life in lives for connection in cast(SimBroker, life.service).connections]
        return [(connection.key, codes) for connection in connections if (codes := connection.unanswered)]

    def _grow_back(self) -> None:
        """Restore the queues that a topic lost for a while. Their messages are there again with them."""
        workload, group = self._workload, self._group
        for name in sorted(workload.lasting & workload.truth.topics.keys()):
            config = workload.truth.topics[name].config
            if config.read_queue_nums < workload.settings.queues and (leader := group.leader) and leader.life:
                fields = workload.topic_fields(name)
                answer = self._ask(self._connect(leader.life), RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
                require(answer.code == ResponseCode.SUCCESS, "a healed group changes a topic", answer=answer)

    def _lift_quotas(self) -> None:
        """Remove all quotas: the judge reads and sends more than they allow."""
        expected, leader = self._workload.truth.expected, self._group.leader
        for kind, name in [owner for owner, history in expected.quotas.items() if history.last is not None]:
            if leader is not None and leader.life:
                expected.attempt(("quota", PutQuota(kind, name)))
                body = encode_body(Quota(kind, name))
                answer = self._ask(self._connect(leader.life), RequestCode.PUT_QUOTA, {}, body)
                require(answer.code == ResponseCode.SUCCESS, "a healed group deletes a quota", answer=answer)

    def _check_node(self, name: str) -> None:
        life = self._group.nodes[name].life
        require(life is not None, "all nodes of a healed group run", node=name)
        assert life is not None
        self._check_time_index(life)
        self._mend_queues(life)
        check_views(life, self._workload)
        connection = self._connect(life)
        for topic in list(self._workload.truth.topics.values()):  # leaders' jobs may make topics in between
            if is_broker_written(topic.name):
                self._check_hidden(connection, topic.name)
                continue
            for queue_id, stored in topic.queues.items():
                self._read_queue(connection, topic.name, queue_id, len(stored), topic.kept(queue_id))
        self._check_offsets(connection)
        for _ in range(LOOKUPS):
            for by_key in (True, False):
                self._look_up(connection, by_key=by_key)
        self._send(connection)

    def _mend_queues(self, life: Life) -> None:
        """Let the scrub find all rot in a node's queues, and wait until it is repaired.

        Units that are written meanwhile may go into a file whose name is lost. So the queues are then read again.
        """
        broker, scheduler = cast(SimBroker, life.service).broker, self._group.scheduler
        deadline = scheduler.now + MENDED_S
        while True:
            _scrub_queues(life, broker)
            if broker.mender.is_whole:
                return
            require(scheduler.now < deadline, "damaged queues are repaired", node=life.node.name)
            scheduler.run_until(scheduler.now + 0.1)

    def _check_time_index(self, life: Life) -> None:
        """Require that a node notices damage of its time index's file with the next question, and rebuilds the file."""
        broker, scheduler = cast(SimBroker, life.service), self._group.scheduler
        rows = broker.service.parts[DueMessages].index.rows
        answers: list[AbstractSet[Key] | BaseException] = []
        deadline = scheduler.now + MENDED_S
        while not answers or isinstance(answers[-1], BaseException):
            require(scheduler.now < deadline, "a damaged time index is rebuilt", node=life.node.name, answers=answers)
            asked = len(answers)
            life.environment.call_soon(lambda: rows.pending([(0, 0)], answers.append))
            while len(answers) == asked and scheduler.now < deadline:
                scheduler.run_until(scheduler.now + 0.1)
        with as_worker():
            whole = broker.databases.is_whole(TIME_INDEX)
        require(whole, "no node works on a time index whose file is gone or cut short", node=life.node.name)

    def _check_hidden(self, connection: SimConnection, topic: str) -> None:
        """Check that the broker's own topics cannot be read."""
        answer = self._ask(connection, RequestCode.PULL_MESSAGE, self._make_pull_fields(topic, 0, 0, 1))
        refused = answer.code == ResponseCode.NO_PERMISSION
        require(refused, "the broker's own topics are not read", node=connection.key, topic=topic, answer=answer)

    def _connect(self, life: Life) -> SimConnection:
        connection = SimConnection(self._group, life, self._workload.random, address_of("n9"), 1 << 30)
        connection.credentials = ROOT_CREDENTIALS if self._workload.brokers.access else None
        return connection

    def _ask(self, connection: SimConnection, code: int, ext: dict[str, str], body: bytes = b"") -> Answer:
        answers: list[Answer | None] = []
        connection.call(RemotingCommand(code, ext=ext, body=body), ANSWER_S, answers.append)
        scheduler = self._group.scheduler
        while not answers:
            scheduler.run_until(scheduler.now + 0.002)
        answer = answers[0]
        require(answer is not None, "a healed group answers", code=code, ext=ext, node=connection.key)
        assert answer is not None
        return answer

    def _read_queue(self, connection: SimConnection, topic: str, queue_id: int, end: int, kept: list[Stored]) -> None:
        offset = kept[0].offset if kept else end
        scheduler, deadline = self._group.scheduler, self._group.scheduler.now + CATCH_UP_S
        messages = MESSAGES
        while offset < end:
            fields = self._make_pull_fields(topic, queue_id, offset, messages)
            answer = self._ask(connection, RequestCode.PULL_MESSAGE, fields)
            again = answer.code in {ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY}
            if again and scheduler.now < deadline:
                scheduler.run_until(scheduler.now + 0.05)
                continue
            after = self._workload.pulled(topic, queue_id, offset, answer)
            if self._group.rotten and after is None:
                if scheduler.now < deadline + SCRUB_S:
                    scheduler.run_until(scheduler.now + 0.5)
                    continue
                if messages > 1:
                    messages = 1
                    continue
                after = self._skip_rot(topic, queue_id, offset)
            require(
                after is not None and after > offset,
                "acknowledged messages can be read on every node",
                node=connection.key,
                topic=topic,
                queue=queue_id,
                offset=offset,
                answer=(answer.code, answer.ext, answer.remark),
            )
            assert after is not None
            offset, deadline = after, scheduler.now + CATCH_UP_S  # a trim may affect any of the pulls
        answer = self._ask(connection, RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)})
        require(
            int(answer.ext["offset"]) == end, "a queue ends where the log says", topic=topic, answer=answer, end=end
        )

    def _skip_rot(self, topic: str, queue_id: int, offset: int) -> int:
        """Skip a message that rotted on a running node.

        It must lie in the last segment, which no scrub has read yet.
        """
        position = self._workload.truth.topics[topic].queues[queue_id][offset].position
        end = max(node.life.replica.store.end_position for node in self._group.nodes.values() if node.life is not None)
        require(
            position >= end - end % self._group.settings.segment_bytes,
            "rot in a full segment is found by the scrub",
            topic=topic,
            queue=queue_id,
            offset=offset,
        )
        return offset + 1

    @staticmethod
    def _make_pull_fields(topic: str, queue_id: int, offset: int, messages: int) -> dict[str, str]:
        return {"consumerGroup": "judges", "topic": topic, "queueId": str(queue_id), **pull_fields(offset, messages)}

    def _check_offsets(self, connection: SimConnection) -> None:
        for key in list(self._workload.truth.committed):
            group, topic, queue_id = key
            ext = {
                "consumerGroup": group,
                "topic": topic,
                "queueId": str(queue_id),
                "setZeroIfNotFound": "false",
            }
            # A trim in between moves popping groups forward.
            before = self._get_committed(key)
            answer = self._ask(connection, RequestCode.QUERY_CONSUMER_OFFSET, ext)
            after = self._get_committed(key)
            require(
                answer.code == ResponseCode.SUCCESS and before <= int(answer.ext["offset"]) <= after,
                "every node answers with the committed offset",
                node=connection.key,
                key=key,
                committed=(before, after),
                answer=answer,
            )
        for key, history in self._workload.truth.expected.offsets.items():
            if history.last is None:
                self._check_no_offset(connection, *key)

    def _get_committed(self, key: OffsetKey) -> int:
        """Return the committed offset of a group in a queue, or the target of a reset that no client has seen."""
        offset, _ = self._workload.truth.resets.pending.get(key, (self._workload.truth.committed[key], 0))
        return offset

    def _check_no_offset(self, connection: SimConnection, group: str, topic: str, queue_id: int) -> None:
        ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "setZeroIfNotFound": "false"}
        answer = self._ask(connection, RequestCode.QUERY_CONSUMER_OFFSET, ext)
        require(
            answer.code == ResponseCode.QUERY_NOT_FOUND,
            "no node answers with an offset that was deleted",
            node=connection.key,
            key=(group, topic, queue_id),
            answer=answer,
        )

    def _look_up(self, connection: SimConnection, *, by_key: bool) -> None:
        stored = self._workload.any_acknowledged(self._workload.random)
        if stored is not None:
            code, ext = self._workload.make_lookup(stored, by_key=by_key)
            answer = self._ask(connection, code, ext)
            found = answer.code == ResponseCode.SUCCESS or self._group.rotten
            require(
                found or not self._workload.is_kept(stored),
                "acknowledged messages are found",
                stored=stored,
                answer=answer,
            )
            self._workload.looked_up(stored, answer, by_key=by_key)

    def _send(self, connection: SimConnection) -> None:
        workload = self._workload
        topic = min(workload.lasting)
        if topic not in workload.truth.topics:
            return
        operation = workload.next_operation()
        code, ext, body = workload.make_send(topic, 0, [operation], batch=False)
        answer = self._ask(connection, code, ext, body)
        require(answer.code == ResponseCode.SUCCESS, "a healed group stores a message", answer=answer)
        workload.sent([operation], 0, answer)

    def _delete_views(self, name: str) -> None:
        """Check that views are disposable: delete them and restart the node."""
        group = self._group
        group.kill(name)
        for directory in VIEW_DIRECTORIES:
            group.nodes[name].disk.rmtree(directory)
        group.start(name)
        scheduler, deadline = group.scheduler, group.scheduler.now + WHOLE_S
        while not group.healthy():
            require(scheduler.now < deadline, "a node without views answers again soon", node=name)
            scheduler.run_until(scheduler.now + 0.05)
        self._workload.counts["views deleted"] += 1

"""Small fake name servers and brokers in this process that speak the real protocol.

A `FakeGroup` has one list of records per queue, shared by its nodes, and one leader or none. A test can replace the
handling of a request code: `node.on[code] = function(command) -> response, None (no answer) or CLOSE`.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from typing import Self

from dledger_client.cluster.connection import Connection
from dledger_remoting.batch import decode_batch
from dledger_remoting.bodies import ConsumerList, TopicList, encode_body
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, decode_command, encode_command, make_response
from dledger_remoting.consumers import ConsumerConnection, MemberConnection
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.headers import (
    CheckTransactionHeader,
    PullMessageHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    RouteWatchHeader,
    SearchOffsetHeader,
    SendMessageHeader,
    UnregisterClientHeader,
    UpdateConsumerOffsetHeader,
    decode_ext,
    encode_ext,
)
from dledger_remoting.headers_pop import PopResponseHeader
from dledger_remoting.heartbeat import decode_heartbeat
from dledger_remoting.hosts import HostAddress
from dledger_remoting.ids import offset_message_id
from dledger_remoting.record import MessageRecord, encode_record
from dledger_remoting.route import BrokerData, ClusterInfo, QueueData, TopicRouteData, encode_cluster_info, encode_route
from tests.waiting import until

CLOSE = object()
LEADER_CHANGED = 20002


def refusing(code: int, remark: str = "no", **ext: str) -> Callable[[RemotingCommand], RemotingCommand]:
    """Return a handler that answers with a code and a text."""
    return lambda command: make_response(command, code, remark, ext)


def answering(body: bytes = b"", **ext: str) -> Callable[[RemotingCommand], RemotingCommand]:
    """Return a handler that answers with success."""
    return lambda command: make_response(command, 0, ext=ext, body=body)


def answer_to_pop(command: RemotingCommand, records: Sequence[MessageRecord]) -> RemotingCommand:
    """Return the answer of a broker that has these messages of one queue for a pop, or none."""
    header = PopResponseHeader(1_000, 30_000, 0, 0, f"0 0 {records[0].queue_offset}" if records else "", "")
    code = ResponseCode.SUCCESS if records else ResponseCode.POLLING_TIMEOUT
    return make_response(command, code, ext=encode_ext(header), body=b"".join(map(encode_record, records)))


class HandClock:
    """Clock of the running loop that only the test moves within the `with` block. Afterwards it runs on from there.

    Timers wait until the test moves the clock, however busy the machine is.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._real = self._loop.time
        self._now = self._real()

    def __enter__(self) -> Self:
        self._loop.time = lambda: self._now
        return self

    def __exit__(self, *_: object) -> None:
        real, ahead = self._real, self._now - self._real()
        self._loop.time = lambda: real() + ahead

    def advance(self, seconds: float) -> None:
        self._now += seconds

    async def until(self, condition: Callable[[], object], seconds: float = 10) -> None:
        """Wait as `until` does, without a timer of the loop."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline
            await asyncio.sleep(0)

    async def run_for(self, seconds: int) -> None:
        """Move the clock by a second at a time, and run what is due."""
        for _ in range(seconds):
            self.advance(1)
            for _ in range(10):
                await asyncio.sleep(0)

    async def run_between_attempts(self, call: asyncio.Task[object], links: Sequence[Connection]) -> None:
        """Move the clock until a call is done, but not while a request is under way over one of the connections.

        A request under way at the call's deadline would have an unknown outcome, and the call would end with its
        time-out.
        """
        while not call.done():
            await self.until(lambda: call.done() or not any(link.pending for link in links))
            self.advance(0.01)
            await asyncio.sleep(0)


class FakeServer:
    """Server that accepts connections and answers each request in a task of its own."""

    def __init__(self) -> None:
        self.on: dict[int, Callable] = {}
        self.answers: list[RemotingCommand] = []
        self.received: list[RemotingCommand] = []
        self.port = 0
        self._server: asyncio.Server | None = None
        self.writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop as a killed process does: the port refuses, and connections break."""
        if self._server is not None:
            self._server.close()
        for writer in list(self.writers):
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._server = None

    def codes(self) -> list[int]:
        return [command.code for command in self.received]

    def requests(self, code: int) -> list[RemotingCommand]:
        return [command for command in self.received if command.code == code]

    def answer_in_turn(self, code: int, *handlers: Callable) -> None:
        """Let each handler answer one request with this code, and the last one all later requests."""
        left = list(handlers)

        def handle(command: RemotingCommand) -> object:
            return (left.pop(0) if len(left) > 1 else left[0])(command)

        self.on[code] = handle

    def hold(self, code: int) -> asyncio.Event:
        """Let requests with this code wait for the event that is returned."""
        go_on = asyncio.Event()

        async def wait(command: RemotingCommand) -> RemotingCommand | None:
            await go_on.wait()
            return await self.handle(command, None)

        self.on[code] = wait
        return go_on

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        decoder = FrameDecoder()
        try:
            while data := await reader.read(65536):
                decoder.receive_data(data)
                while (frame := decoder.next_frame()) is not None:
                    command = decode_command(frame)
                    if command.is_response:
                        self.answers.append(command)
                    else:
                        self.received.append(command)
                        task = asyncio.create_task(self._answer(command, writer))
                        self._tasks.add(task)
                        task.add_done_callback(self._tasks.discard)
        except ConnectionError:
            pass
        finally:
            self.writers.discard(writer)
            self.disconnected(writer)
            writer.close()

    async def _answer(self, command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        handler = self.on.get(command.code)
        response = handler(command) if handler is not None else await self.handle(command, writer)
        if asyncio.iscoroutine(response):
            response = await response
        if response is CLOSE:
            writer.transport.abort()
        elif response is not None and not command.is_oneway and not writer.is_closing():
            writer.write(encode_command(response))

    async def handle(self, command: RemotingCommand, writer: asyncio.StreamWriter) -> RemotingCommand | None:
        raise NotImplementedError

    def disconnected(self, writer: asyncio.StreamWriter) -> None:
        pass


class FakeNameServer(FakeServer):
    def __init__(self) -> None:
        super().__init__()
        self.groups: list[FakeGroup] = []
        self.topics: dict[str, int] = {}
        self.version = 1
        self.has_watch = True
        self.tells_of_absent = True
        self._changed = asyncio.Event()

    def changed(self) -> None:
        self.version += 1
        event, self._changed = self._changed, asyncio.Event()
        event.set()

    async def handle(self, command, writer):
        match command.code:
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                topic, groups = command.ext["topic"], self._groups_for(command)
                if topic not in self.topics or not groups:
                    return make_response(command, ResponseCode.TOPIC_NOT_EXIST, "No topic route info")
                return make_response(command, 0, body=encode_route(self._route(topic, groups), standard=True))
            case RequestCode.DLEDGER_ROUTE_WATCH if self.has_watch:
                header = decode_ext(RouteWatchHeader, command.ext)
                if header.version == self.version:
                    try:
                        async with asyncio.timeout(header.timeout_millis / 1000):
                            await self._changed.wait()
                    except TimeoutError:
                        pass
                return make_response(command, 0, ext={"version": str(self.version)})
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                groups = self._groups_for(command)
                info = ClusterInfo(
                    {group.name: group.broker_data() for group in groups}, {"C": [group.name for group in groups]}
                )
                return make_response(command, 0, body=encode_cluster_info(info, standard=True))
            case RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
                return make_response(command, 0, body=encode_body(TopicList(sorted(self.topics))))
            case RequestCode.DELETE_TOPIC_IN_NAMESRV:
                self.topics.pop(command.ext["topic"], None)
                self.changed()
                return make_response(command, 0)
        return make_response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported")

    def _groups_for(self, command: RemotingCommand) -> list[FakeGroup]:
        absent_too = self.tells_of_absent and command.ext.get("includeAbsent") == "true"
        return [group for group in self.groups if absent_too or group.broker_data().broker_addrs]

    def _route(self, topic: str, groups: list[FakeGroup]) -> TopicRouteData:
        queues = self.topics[topic]
        perm = 7 if topic == "TBW102" else 6
        return TopicRouteData(
            queue_datas=[
                QueueData(group.name, queues, queues, perm, topic_created=group.told_in_routes.get(topic))
                for group in groups
            ],
            broker_datas=[group.broker_data() for group in groups],
        )


class FakeGroup:
    def __init__(self, name: str, name_server: FakeNameServer, nodes: int) -> None:
        self.name = name
        self.name_server = name_server
        self.nodes = [FakeNode(self) for _ in range(nodes)]
        self.leader: FakeNode | None = self.nodes[0]
        self.term = 1
        self.queues: dict[tuple[str, int], list[MessageRecord]] = defaultdict(list)
        self.first_offsets: dict[tuple[str, int], int] = defaultdict(int)
        self.created: dict[str, int] = defaultdict(int)
        """Number of the current creation of each topic."""
        self.told_in_routes: dict[str, int] = {}
        """Number of the creation that a topic's route names."""
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.members: dict[str, dict[str, asyncio.StreamWriter]] = defaultdict(dict)
        self.retry_max_times = 16
        self.readers_go_to = 0
        """Broker id that answers to pulls suggest for the next pull."""
        self.arrived = asyncio.Event()
        name_server.groups.append(self)

    def broker_data(self) -> BrokerData:
        addresses = {
            0 if node is self.leader else number + 1: node.address
            for number, node in enumerate(self.nodes)
            if node.alive
        }
        return BrokerData(self.name, "C", addresses)

    async def elect(self, node: FakeNode | None, *, notify: bool = True, register: bool = True) -> None:
        self.term += 1
        self.leader = node
        if register:
            self.name_server.changed()
        if node is not None and notify:
            notice = RemotingCommand(
                LEADER_CHANGED, flag=FLAG_ONEWAY, ext={"term": str(self.term), "leaderAddr": node.address}
            )
            for writer in node.notified:
                writer.write(encode_command(notice))

    def store(
        self, topic: str, queue_id: int, body: bytes, properties: bytes = b"", sys_flag=0, reconsume=0, flag=0
    ) -> MessageRecord:
        records = self.queues[topic, queue_id]
        now_ms = int(time.time() * 1000)
        record = MessageRecord(
            topic=topic,
            queue_id=queue_id,
            queue_offset=len(records),
            physical_offset=sum(len(found) for found in self.queues.values()) * 1000,
            body=body,
            properties=properties,
            sys_flag=sys_flag,
            born_timestamp=now_ms,
            born_host=HostAddress("127.0.0.1", 1),
            store_timestamp=now_ms,
            store_host=HostAddress("127.0.0.1", self.nodes[0].port),
            reconsume_times=reconsume,
            flag=flag,
        )
        records.append(record)
        event, self.arrived = self.arrived, asyncio.Event()
        event.set()
        return record

    async def ask_about(self, record: MessageRecord, unique_key: str = "K") -> None:
        """Ask the producers that the leader knows for the state of the transaction of a message."""
        leader = self.leader
        assert leader is not None
        await until(lambda: leader.notified)
        header = CheckTransactionHeader(
            tran_state_table_offset=0, commit_log_offset=0, topic=record.topic, msg_id=unique_key, bname=self.name
        )
        request = RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE, ext=encode_ext(header))
        request.body = encode_record(record)
        for writer in leader.notified:
            writer.write(encode_command(request))

    def bodies(self, topic: str) -> list[bytes]:
        return [
            record.body for (name, _), records in sorted(self.queues.items()) if name == topic for record in records
        ]


class FakeNode(FakeServer):
    def __init__(self, group: FakeGroup) -> None:
        super().__init__()
        self.group = group
        self.alive = True
        self.notified: set[asyncio.StreamWriter] = set()

    async def kill(self) -> None:
        self.alive = False
        await self.stop()

    def not_leader(self, command: RemotingCommand) -> RemotingCommand:
        ext = {"term": str(self.group.term)}
        if self.group.leader is not None:
            ext["leaderAddr"] = self.group.leader.address
        return make_response(command, ResponseCode.SERVICE_NOT_AVAILABLE, "not the leader", ext)

    def disconnected(self, writer) -> None:
        self.notified.discard(writer)
        for name, members in self.group.members.items():
            for client_id in [client_id for client_id, channel in members.items() if channel is writer]:
                del members[client_id]
                self._notify_members(name)

    async def handle(self, command, writer):
        if command.ext.get("dledgerNotify") == "true":
            self.notified.add(writer)
        if command.ext.get("noForward") == "true" and self.group.leader is not self:
            return self.not_leader(command)
        match command.code:
            case RequestCode.SEND_MESSAGE_V2 | RequestCode.SEND_BATCH_MESSAGE:
                return self._send(command)
            case RequestCode.PULL_MESSAGE:
                return await self._pull(command)
            case RequestCode.HEART_BEAT:
                self._heartbeat(command, writer)
                return make_response(command, 0)
            case RequestCode.UNREGISTER_CLIENT:
                header = decode_ext(UnregisterClientHeader, command.ext)
                if header.consumer_group and self.group.members[header.consumer_group].pop(header.client_id, None):
                    self._notify_members(header.consumer_group)
                return make_response(command, 0)
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                members = self.group.members.get(command.ext["consumerGroup"])
                if not members:
                    return make_response(command, 1, "no consumer for this group")
                return make_response(command, 0, body=encode_body(ConsumerList(list(members))))
            case RequestCode.GET_CONSUMER_CONNECTION_LIST:
                members = self.group.members.get(command.ext["consumerGroup"])
                if not members:
                    return make_response(command, ResponseCode.CONSUMER_NOT_ONLINE, "not online")
                connections = [
                    MemberConnection(client_id, "{}:{}".format(*channel.get_extra_info("peername")), "PYTHON")
                    for client_id, channel in members.items()
                ]
                return make_response(command, 0, body=encode_body(ConsumerConnection(connections)))
            case RequestCode.QUERY_CONSUMER_OFFSET:
                header = decode_ext(QueryConsumerOffsetHeader, command.ext)
                offset = self.group.offsets.get((header.consumer_group, header.topic, header.queue_id))
                if offset is None:
                    ext = {"topicCreated": str(self.group.created[header.topic])}
                    return make_response(command, ResponseCode.QUERY_NOT_FOUND, "Not found", ext=ext)
                return self._offset(command, header.topic, offset)
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                header = decode_ext(UpdateConsumerOffsetHeader, command.ext)
                key = (header.consumer_group, header.topic, header.queue_id)
                if header.topic_created in (None, self.group.created[header.topic]):
                    self.group.offsets[key] = header.commit_offset
                return make_response(command, 0)
            case RequestCode.GET_MAX_OFFSET:
                header = decode_ext(QueueHeader, command.ext)
                end = len(self.group.queues[header.topic, header.queue_id])
                return self._offset(command, header.topic, end)
            case RequestCode.GET_MIN_OFFSET:
                header = decode_ext(QueueHeader, command.ext)
                first = self.group.first_offsets[header.topic, header.queue_id]
                return self._offset(command, header.topic, first)
            case RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                header = decode_ext(SearchOffsetHeader, command.ext)
                records = self.group.queues[header.topic, header.queue_id]
                later = [record.queue_offset for record in records if record.store_timestamp >= header.timestamp]
                return self._offset(command, header.topic, later[0] if later else len(records))
            case RequestCode.UPDATE_AND_CREATE_TOPIC:
                self.group.name_server.topics[command.ext["topic"]] = int(command.ext["readQueueNums"])
                self.group.name_server.changed()
                return make_response(command, 0)
            case RequestCode.DELETE_TOPIC_IN_BROKER:
                return make_response(command, 0)
        return make_response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported")

    def _send(self, command):
        header = SendMessageHeader.decode(command.ext)
        topics = self.group.name_server.topics
        if header.topic not in topics:
            if "TBW102" not in topics:
                return make_response(command, ResponseCode.TOPIC_NOT_EXIST, f"topic {header.topic} does not exist")
            topics[header.topic] = header.default_topic_queue_nums
            self.group.name_server.changed()
        topic = header.topic
        if topic.startswith("%RETRY%"):
            limit = header.max_reconsume_times
            if header.reconsume_times > (self.group.retry_max_times if limit is None else limit):
                topic = topic.replace("%RETRY%", "%DLQ%")
        if header.batch:
            messages = decode_batch(command.body)
            records = [self.group.store(topic, header.queue_id, m.body, m.properties) for m in messages]
        else:
            properties = (header.properties or "").encode()
            told = (properties, header.sys_flag, header.reconsume_times or 0, header.flag)
            records = [self.group.store(topic, header.queue_id, command.body, *told)]
        ids = ",".join(offset_message_id(record.store_host, record.physical_offset) for record in records)
        ext = {"msgId": ids, "queueId": str(header.queue_id), "queueOffset": str(records[0].queue_offset)}
        return make_response(command, 0, ext=ext)

    def _offset(self, command, topic, offset):
        ext = {"offset": str(offset), "topicCreated": str(self.group.created[topic])}
        return make_response(command, 0, ext=ext)

    async def _pull(self, command):
        header = decode_ext(PullMessageHeader, command.ext)
        records = self.group.queues[header.topic, header.queue_id]
        deadline = asyncio.get_running_loop().time() + header.suspend_timeout_millis / 1000
        while header.queue_offset == len(records):
            arrived = self.group.arrived
            try:
                async with asyncio.timeout_at(deadline):
                    await arrived.wait()
            except TimeoutError:
                break
        first = self.group.first_offsets[header.topic, header.queue_id]
        found = records[header.queue_offset : header.queue_offset + header.max_msg_nums]
        code = ResponseCode.SUCCESS if found else ResponseCode.PULL_NOT_FOUND
        next_offset = header.queue_offset + len(found)
        if not first <= header.queue_offset <= len(records):
            end = first if header.queue_offset < first else len(records)
            code, next_offset, found = ResponseCode.PULL_OFFSET_MOVED, end, []
        ext = {
            "suggestWhichBrokerId": str(self.group.readers_go_to),
            "nextBeginOffset": str(next_offset),
            "minOffset": str(first),
            "maxOffset": str(len(records)),
        }
        created = self.group.created[header.topic]
        if header.topic_created not in (None, created):
            again = {"nextBeginOffset": str(first), "topicCreated": str(created)}
            return make_response(command, ResponseCode.PULL_OFFSET_MOVED, "TOPIC_MADE_AGAIN", ext=ext | again)
        return make_response(command, code, ext=ext, body=b"".join(map(encode_record, found)))

    def _heartbeat(self, command, writer) -> None:
        heartbeat = decode_heartbeat(command.body)
        for consumer in heartbeat.consumer_data_set:
            members = self.group.members[consumer.group_name]
            is_new = heartbeat.client_id not in members
            if is_new or self is self.group.leader:
                members[heartbeat.client_id] = writer
            retry_topic = f"%RETRY%{consumer.group_name}"
            if retry_topic not in self.group.name_server.topics:
                self.group.name_server.topics[retry_topic] = 1
                self.group.name_server.changed()
            if is_new:
                self._notify_members(consumer.group_name)

    def _notify_members(self, name: str) -> None:
        notice = RemotingCommand(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, opaque=1_000_000_001, flag=FLAG_ONEWAY, ext={"consumerGroup": name}
        )
        for writer in self.group.members[name].values():
            if not writer.is_closing():
                writer.write(encode_command(notice))


class FakeCluster:
    def __init__(self, groups: int, nodes: int) -> None:
        self.name_server = FakeNameServer()
        self.groups = [FakeGroup(f"broker-{'abc'[number]}", self.name_server, nodes) for number in range(groups)]

    @property
    def namesrv(self) -> str:
        return self.name_server.address

    @property
    def group(self) -> FakeGroup:
        return self.groups[0]

    @property
    def nodes(self) -> list[FakeNode]:
        return [node for group in self.groups for node in group.nodes]

    def servers(self) -> list[FakeServer]:
        return [self.name_server, *self.nodes]

    def answer(self, code: int, handler: Callable) -> None:
        """Let a handler answer all requests with this code, at any node."""
        for node in self.nodes:
            node.on[code] = handler

    def requests(self, code: int) -> list[RemotingCommand]:
        """Return the requests with this code, node by node."""
        return [command for node in self.nodes for command in node.requests(code)]


@asynccontextmanager
async def fake_cluster(*, groups: int = 1, nodes: int = 3, topics: dict[str, int] | None = None):
    cluster = FakeCluster(groups, nodes)
    cluster.name_server.topics.update({"T": 4} if topics is None else topics)
    for server in cluster.servers():
        await server.start()
    try:
        yield cluster
    finally:
        for server in cluster.servers():
            await server.stop()

"""Broker's service on a fake node, and clients that speak frames to it without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import pytest

from dledger.replica.status import PeerStatus
from dledger_broker.clients.channels import Channels
from dledger_broker.config import KEYS, BrokerConfig
from dledger_broker.features import group_settings, retention
from dledger_broker.features.group_settings.settings import GroupSettings
from dledger_broker.features.groups.proposals import GroupProposals
from dledger_broker.features.groups.requests import GroupRequests
from dledger_broker.features.offsets.buffer import OffsetBuffer
from dledger_broker.features.offsets.requests import OffsetRequests
from dledger_broker.features.settings.table import PutSettings
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.live_config import text_of
from dledger_broker.kernel.parts import Feature
from dledger_broker.kernel.requests import Buffer, WaitsCounted
from dledger_broker.kernel.tables import Table, TableKey
from dledger_broker.service import BrokerService
from dledger_broker.testing import BrokerInMemory
from dledger_broker.testing.node import NODE_ID
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, decode_command, encode_command
from dledger_remoting.errors import FrameError
from dledger_remoting.frame import FrameDecoder, split_frames
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from dledger_remoting.hosts import HostAddress, pack_host
from dledger_remoting.record import MessageRecord, iter_records
from dledger_remoting.topics import SubscriptionGroupConfig
from tests.broker.kernel.applied_commands import apply

STORE_HOST = HostAddress("10.0.0.1", 10911)
CLIENT_HOST = HostAddress("10.0.0.9", 40000)
T = TypeVar("T", bound=Table)


class FakeClient(WaitsCounted):
    """Client's channel: the `Origin` of its requests, which keeps the answers."""

    is_forwarded = False

    def __init__(self, broker: ServedBroker, key: str = "client/1") -> None:
        self.address = CLIENT_HOST
        self.born_host = pack_host(CLIENT_HOST)
        self.key = key
        self.is_open = True
        self.held = self.in_flight = self.forwards = self.forward_refused = self.forward_epoch = 0
        self.forwards_sent: set[int] = set()
        self.forward_target: str | None = None
        self.client_ids: set[str] = set()
        self.is_trusted = False
        self.answers: list[RemotingCommand] = []
        self.settled = 0
        self.pushed: list[tuple[int, dict[str, str]]] = []
        self.pushed_bodies: list[bytes] = []
        self.serialize_type = 0
        self.wants_leader_notices = False
        self.alias: int | None = None
        self.broker = broker
        self._opaque = 0
        self._expected: asyncio.Future[RemotingCommand] | None = None

    def answer(self, parts: Sequence[Buffer]) -> None:
        self.in_flight -= 1
        decoder = FrameDecoder()
        decoder.receive_data(b"".join(parts))
        frame = decoder.next_frame()
        assert frame is not None
        assert decoder.next_frame() is None
        answer = decode_command(frame)
        self.answers.append(answer)
        if self._expected is not None and not self._expected.done():
            self._expected.set_result(answer)

    def answer_frame(self, frame: bytes) -> None:
        self.answer((frame,))

    def answer_frames(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            self.answer_frame(frame)

    def settle(self) -> None:
        self.in_flight -= 1
        self.settled += 1

    def refuse(self, term: int) -> None:
        raise AssertionError("only a forwarded request is refused")

    def break_off(self, error: FrameError) -> None:
        raise error

    def push(self, code: int, ext: dict[str, str], body: bytes = b"", *, oneway: bool = True) -> int:
        self.pushed.append((code, ext))
        self.pushed_bodies.append(body)
        return len(self.pushed)

    def send(
        self,
        code: int,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        oneway: bool = False,
        serialize_type: int = 0,
        version: int = 479,
    ) -> int:
        """Hand a request to the broker, and return its opaque."""
        self._opaque += 1
        how = {"flag": FLAG_ONEWAY if oneway else 0, "serialize_type": serialize_type, "version": version}
        self.feed(encode_command(RemotingCommand(code, self._opaque, ext=ext or {}, body=body, **how)))
        return self._opaque

    def feed(self, data: bytes) -> None:
        """Hand whole frames to the broker, as one read."""
        frames, consumed = split_frames(data, len(data))
        assert consumed == len(data)
        self.broker.service.requests.on_frames(self, bytes(data), frames)

    def call(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", *, serialize_type: int = 0
    ) -> RemotingCommand:
        """Send a request, and return its answer, which comes without time passing."""
        opaque = self.send(code, ext, body, serialize_type=serialize_type)
        self.broker.settle()
        return self.answered(opaque)

    def call_from_disk(self, code: int, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
        """Do as `call` does, for a request whose answer is made in a task."""

        async def scenario() -> RemotingCommand:
            self._expected = asyncio.get_running_loop().create_future()
            self.send(code, ext, body)
            return await self.broker.memory.env.finish(self._expected)

        return asyncio.run(scenario())

    def answered(self, opaque: int) -> RemotingCommand:
        """Return the only answer to a request."""
        found = [answer for answer in self.answers if answer.opaque == opaque]
        assert len(found) == 1, f"{len(found)} answers to request {opaque}"
        return found[0]

    def has_answer(self, opaque: int) -> bool:
        return any(answer.opaque == opaque for answer in self.answers)

    # ---- the requests that most tests need

    def send_message(
        self,
        topic: str,
        body: bytes = b"hello",
        queue_id: int = 0,
        properties: str = "",
        code: int = 310,
        **letters: str,
    ) -> RemotingCommand:
        return self.call(code, send_ext(topic, queue_id, properties, **letters), body)

    def pull(self, topic: str, queue_id: int = 0, offset: int = 0, **fields: str) -> RemotingCommand:
        return self.call(11, pull_ext(topic, queue_id, offset, **fields))


def join(client: FakeClient, client_id: str, *subscriptions: SubscriptionData, language: int = 0) -> None:
    """Have a client heartbeat as a member of CG."""
    heartbeat = HeartbeatData(client_id, [], [ConsumerData("CG", subscription_data_set=list(subscriptions))])
    client.broker.service.gossip.local.heartbeat(client, heartbeat, language, 479, client.broker.memory.env.now())


def send_ext(topic: str, queue_id: int = 0, properties: str = "", **letters: str) -> dict[str, str]:
    values = ("PG", topic, "TBW102", "4", str(queue_id), "0", "1700000000000", "0", properties)
    return dict(zip("abcdefghi", values, strict=True)) | letters


LONG_SEND: Final = {
    "producerGroup": "PG",
    "topic": "T1",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    **dict.fromkeys(("queueId", "sysFlag", "bornTimestamp", "flag"), "0"),
}
"""The ext fields of a send by their long names."""


def pull_ext(topic: str, queue_id: int = 0, offset: int = 0, **fields: str) -> dict[str, str]:
    place = {"consumerGroup": "CG", "topic": topic, "queueId": str(queue_id), "queueOffset": str(offset)}
    limits = {"maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"}
    return place | limits | {"subscription": "*", "subVersion": "0"} | fields


def records(response: RemotingCommand) -> list[MessageRecord]:
    return list(iter_records(response.body, verify_crc=True))


def bodies(response: RemotingCommand) -> list[bytes]:
    return [record.body for record in records(response)]


def assert_refused(answer: RemotingCommand, code: int, *texts: str) -> None:
    """Fail unless the answer has this code, and its remark has each of the texts."""
    assert answer.code == code
    for text in texts:
        assert text in (answer.remark or "")


def submit(client: FakeClient, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> int:
    """Send a request, let everything that is ready happen, and return the opaque of the request."""
    opaque = client.send(code, ext, body)
    client.broker.settle()
    return opaque


def make_group(broker: ServedBroker, name: str = "CG", **settings: Any) -> None:
    """Make a consumer group, or change its settings."""
    broker.groups.put_group(SubscriptionGroupConfig(name, **settings), lambda _: None)
    broker.settle()


def founded(broker: ServedBroker, **keys: Any) -> ServedBroker:
    """Have a leader propose the settings of its group, with other values of these keys."""
    broker.memory.machine.events.add(
        GroupSettings(broker.memory.machine, broker.memory.env, replace(broker.config, **keys))
    )
    broker.settle()
    return broker


def topic_ext(name: str, attributes: str = "", **fields: str) -> dict[str, str]:
    """Return the ext fields of a request that makes a topic or changes it."""
    return {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "attributes": attributes,
        **fields,
    }


@dataclass
class ServedBroker:
    """Broker's service, with the node and the state that it stands on."""

    config: BrokerConfig
    memory: BrokerInMemory
    group: LeadershipView
    counters: BrokerCounters
    service: BrokerService

    @property
    def groups(self) -> GroupProposals:
        return self.service.parts[GroupRequests].proposals

    @property
    def offsets(self) -> OffsetBuffer:
        return self.service.parts[OffsetRequests].commits.buffer

    def settle(self) -> None:
        """Let everything that is ready happen, without time passing."""
        self.memory.env.run_ready()

    def advance(self, seconds: float) -> None:
        self.memory.env.advance(seconds)

    def client(self, key: str = "client/1") -> FakeClient:
        return FakeClient(self, key)

    def table(self, key: TableKey[T]) -> T:
        """Return a feature's table in the applied state."""
        return self.memory.machine.state.table(key)

    def gauge(self, name: str) -> float:
        """Return what the only gauge with a name reads."""
        (value,) = (gauge.read() for part in self.service.parts for gauge in part.gauges if gauge.name == name)
        return value

    def put_group(self, name: str = "CG", **settings: object) -> ServedBroker:
        """Make a consumer group, or change its settings."""
        self.groups.put_group(SubscriptionGroupConfig(name, **settings), lambda _: None)  # type: ignore[arg-type]
        self.settle()
        return self

    def see_peer(self, first_position: int, silent_ms: int = 0, *, is_voter: bool = True) -> None:
        """Give the node one peer, whose log begins at this position."""
        peer = PeerStatus("n1", is_voter, 0, 0, silent_ms, "stream", 0, None, first_position)
        status = msgspec.structs.replace(self.memory.node.status(), peers=[peer])
        self.memory.node.status = lambda: status  # type: ignore[method-assign]

    def lead_anew(self) -> None:
        """Depose the node and have it lead in the next term."""
        self.memory.node.step_down()
        self.memory.node.lead()

    def keep_commands(self) -> list[Command]:
        """Return a list of the commands that are proposed from now on."""
        commands: list[Command] = []
        stage = self.memory.machine.stage_command

        def keep(command: Command, done: Done, *, privileged: bool = False) -> None:
            commands.append(command)
            stage(command, done, privileged=privileged)

        self.memory.machine.stage_command = keep  # type: ignore[method-assign]
        return commands


MakeBroker = Callable[..., ServedBroker]


def make_served_broker(
    config: BrokerConfig, memory: BrokerInMemory, channels: Channels | None = None, more: Sequence[Feature] = ()
) -> ServedBroker:
    """Return a broker's service that does nothing by itself.

    `channels` are its clients' own, which most tests do without. `more` are features of a test, which replicate
    nothing.
    """
    machine, counters = memory.machine, BrokerCounters()
    group = LeadershipView(NODE_ID, "127.0.0.1:10911", machine.events)
    features = [feature for feature in memory.features if feature not in (group_settings.FEATURE, retention.FEATURE)]
    features += more
    service = BrokerService(
        config, features, machine, memory.node, memory.env, group, counters, STORE_HOST, channels or Channels()
    )
    group.on_leadership(machine.leadership)
    return ServedBroker(config, memory, group, counters, service)


@pytest.fixture
def make_broker() -> MakeBroker:
    """Return a factory of brokers that lead. Keywords are configuration keys.

    Live keys are set for the group while it runs, so that code that reads a key only once fails. With `own`, they stand
    in the node's own configuration.
    """

    def make(*, topics: Sequence[str] = ("T1",), own: bool = False, **keys: object) -> ServedBroker:
        live = {} if own else {key: text_of(value) for key, value in keys.items() if key in KEYS.live}
        config = BrokerConfig(
            broker_group="broker-a",
            node_id=NODE_ID,
            data_dir=Path("unused"),
            **{key: value for key, value in keys.items() if key not in live},  # type: ignore[arg-type]
        )
        broker = make_served_broker(config, BrokerInMemory())
        if live:
            apply(broker.memory.machine.state, PutSettings(live))
        for topic in topics:
            broker.memory.create_topic(topic)
        return broker

    return make


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    """Return a broker that leads and has topic T1 with 4 queues."""
    return make_broker()


@pytest.fixture
def client(broker: ServedBroker) -> FakeClient:
    return broker.client()


def json_body(response: RemotingCommand) -> object:
    return msgspec.json.decode(response.body)

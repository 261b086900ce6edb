"""A broker's service on a fake node, and clients that speak frames to them without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from dledger_broker.clients.channels import Channels
from dledger_broker.config import KEYS, BrokerConfig
from dledger_broker.features import group_settings, retention
from dledger_broker.features.groups.proposals import GroupProposals
from dledger_broker.features.groups.requests import GroupRequests
from dledger_broker.features.offsets.buffer import OffsetBuffer
from dledger_broker.features.offsets.requests import OffsetRequests
from dledger_broker.features.settings.table import PutSettings
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.leadership import Group
from dledger_broker.kernel.parts import Feature
from dledger_broker.kernel.requests import Buffer, WaitsCounted
from dledger_broker.live_keys import text_of
from dledger_broker.service import BrokerService
from dledger_broker.testing import BrokerInMemory
from dledger_broker.testing.node import NODE_ID
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, decode_command, encode_command
from dledger_remoting.errors import FrameError
from dledger_remoting.frame import FrameDecoder, split_frames
from dledger_remoting.hosts import HostAddress, pack_host
from dledger_remoting.record import MessageRecord, iter_records
from tests.broker.kernel.applied_commands import apply

STORE_HOST = HostAddress("10.0.0.1", 10911)
CLIENT_HOST = HostAddress("10.0.0.9", 40000)


class FakeClient(WaitsCounted):
    """A client's channel: the `Origin` of its requests, which keeps what is answered."""

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
        """Put a request in front of the broker; returns its opaque."""
        self._opaque += 1
        flag = FLAG_ONEWAY if oneway else 0
        command = RemotingCommand(
            code,
            opaque=self._opaque,
            flag=flag,
            ext=ext or {},
            body=body,
            serialize_type=serialize_type,
            version=version,
        )
        self.feed(encode_command(command))
        return self._opaque

    def feed(self, data: bytes) -> None:
        """Put whole frames in front of the broker, as one read."""
        frames, consumed = split_frames(data, len(data))
        assert consumed == len(data)
        self.broker.service.requests.on_frames(self, bytes(data), frames)

    def call(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", *, serialize_type: int = 0
    ) -> RemotingCommand:
        """A request and its answer, which comes without time passing."""
        opaque = self.send(code, ext, body, serialize_type=serialize_type)
        self.broker.settle()
        return self.answered(opaque)

    def call_from_disk(self, code: int, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
        """As `call`, for a request whose answer is made in a task."""

        async def scenario() -> RemotingCommand:
            self._expected = asyncio.get_running_loop().create_future()
            self.send(code, ext, body)
            return await self.broker.memory.env.finish(self._expected)

        return asyncio.run(scenario())

    def answered(self, opaque: int) -> RemotingCommand:
        """The one answer to a request."""
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


def send_ext(topic: str, queue_id: int = 0, properties: str = "", **letters: str) -> dict[str, str]:
    return {
        "a": "PG",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": properties,
        **letters,
    }


def pull_ext(topic: str, queue_id: int = 0, offset: int = 0, **fields: str) -> dict[str, str]:
    return {
        "consumerGroup": "CG",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        **fields,
    }


def records(response: RemotingCommand) -> list[MessageRecord]:
    return list(iter_records(response.body, verify_crc=True))


@dataclass
class ServedBroker:
    """A broker's service and what it stands on."""

    config: BrokerConfig
    memory: BrokerInMemory
    group: Group
    counters: BrokerCounters
    service: BrokerService

    @property
    def groups(self) -> GroupProposals:
        return self.service.parts[GroupRequests].proposals

    @property
    def offsets(self) -> OffsetBuffer:
        return self.service.parts[OffsetRequests].commits.buffer

    def settle(self) -> None:
        """Let everything that is ready happen; no time passes."""
        self.memory.env.run_ready()

    def advance(self, seconds: float) -> None:
        self.memory.env.advance(seconds)

    def client(self, key: str = "client/1") -> FakeClient:
        return FakeClient(self, key)


MakeBroker = Callable[..., ServedBroker]


def make_served_broker(
    config: BrokerConfig, memory: BrokerInMemory, channels: Channels | None = None, more: Sequence[Feature] = ()
) -> ServedBroker:
    """A broker's service that does nothing by itself; `channels` are its clients' own, which most tests do without.

    `more` are features of a test, which replicate nothing.
    """
    group = Group(NODE_ID, "127.0.0.1:10911")
    counters = BrokerCounters()
    machine = memory.machine
    features = [feature for feature in memory.features if feature not in (group_settings.FEATURE, retention.FEATURE)]
    features += more
    service = BrokerService(
        config, features, machine, memory.node, memory.env, group, counters, STORE_HOST, channels or Channels()
    )
    group.on_leadership(machine.leadership)
    return ServedBroker(config, memory, group, counters, service)


@pytest.fixture
def make_broker() -> MakeBroker:
    """Makes a broker that leads; keywords are configuration keys.

    Live ones are set for its group while it runs, so that whoever reads a key only once fails, unless `own` says that
    they stand in the node's own configuration.
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
    """A broker that leads and has topic T1 with 4 queues."""
    return make_broker()


@pytest.fixture
def client(broker: ServedBroker) -> FakeClient:
    return broker.client()


def json_body(response: RemotingCommand) -> object:
    return msgspec.json.decode(response.body)

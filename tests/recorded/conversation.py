"""Conversations with a broker in memory over its own connections, recorded as lines of text.

    record = Record()
    broker = record.broker("a topic with 4 queues")
    broker.create_topic("T1")
    await broker.ask("the end of a queue", 30, {"topic": "T1", "queueId": "0"})

Each frame is one line with its sender (`>`) or receiver (`<`), its unchanged header, and its body. Everything that
clock, chance or process would decide is fixed: no byte depends on the time and place of a run. Time passes only while a
request waits for its answer, or by `pass_time`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path

import pytest

from dledger.environment import Environment
from dledger.format import HEADER_BYTES
from dledger.statemachine import Leadership
from dledger.types import EntryKind
from dledger_broker.clients.channels import Channels
from dledger_broker.clients.gossip import Gossip
from dledger_broker.config import BrokerConfig
from dledger_broker.features.group_settings.settings import GroupSettings
from dledger_broker.frontend.connection import ClientConnection
from dledger_broker.frontend.listener import Listener
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.testing import BrokerInMemory
from dledger_remoting.codes import LanguageCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, decode_command, encode_command
from dledger_remoting.frame import FrameDecoder, SerializeType, join_frame
from dledger_remoting.topics import SubscriptionGroupConfig
from tests.broker.served_broker import NODE_ID, make_served_broker
from tests.recorded.golden_files import bytes_text

CHANNEL_NUMBERS = "dledger_broker.kernel.requests._channels"
"""Name of the counter for the numbers in channel keys."""
VERSION = "dledger_broker.features.runtime.description.package_version"
"""Name of the function that returns a node's version."""
TOLD_KINDS = (16, 17, 300)
"""Command kinds that a node announces to the leader. They are fixed, since each feature adds some."""
STEP_S = 0.01
"""Step in seconds by which time passes while a request waits."""
LONGEST_WAIT_S = 90.0
LONGEST_TEXT = 20_000
"""Maximum number of characters of a body that is shown in full."""
TURNS = 10
"""Number of quiet turns of the event loop after which nothing is considered under way."""


def fix_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fix the process id, channel numbers, random numbers, the version, and the announced command kinds."""
    monkeypatch.setattr("os.getpid", lambda: 4711)
    monkeypatch.setattr("secrets.randbits", lambda bits: 0x5EED_0000_0001 & ((1 << bits) - 1))
    monkeypatch.setattr(CHANNEL_NUMBERS, count(1_000))
    monkeypatch.setattr(VERSION, lambda: "1.2.3")
    monkeypatch.setattr("dledger_broker.service.Gossip", gossip_that_tells)
    monkeypatch.setattr("dledger_broker.features.accounts.sealing.new_nonce", lambda: bytes(12))
    random.seed(7)


def gossip_that_tells(
    env: Environment,
    group: LeadershipView,
    peers: Iterable[str],
    _kinds: tuple[int, ...],
    learned: Callable[[str, tuple[int, ...]], None],
) -> Gossip:
    """Return a node's gossip that announces `TOLD_KINDS`."""
    return Gossip(env, group, peers, TOLD_KINDS, learned)


class Record:
    """Lines of all conversations of an area, and the request codes in them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.asked: set[int] = set()
        self.routes: set[int] = set()
        self._brokers: list[Broker] = []

    def broker(self, what: str, *, group: str = "", topic: str = "", **config: object) -> Broker:
        """Create another broker, and let it lead. Keywords are a group and topic of it, and configuration keys."""
        self.lines.append(f"==== {what}")
        broker = Broker(self, **config)
        if group:
            broker.create_group(group)
        if topic:
            broker.create_topic(topic)
        self._brokers.append(broker)
        self.routes |= set(broker.served.service.requests._table)
        return broker

    def closed(self) -> list[str]:
        """Return all lines, followed by what the conversations put into each broker's log."""
        for number, broker in enumerate(self._brokers, 1):
            self.lines.append(f"==== log {number}")
            self.lines += broker.entries()
        return self.lines


class Broker:
    """A broker and its connected clients."""

    def __init__(self, record: Record, **config: object) -> None:
        keys: dict[str, object] = {"broker_group": "broker-a", "node_id": NODE_ID, "data_dir": Path("unused"), **config}
        self.config = BrokerConfig(**keys)  # type: ignore[arg-type]
        self.memory = BrokerInMemory()
        self._clients: dict[str, Client] = {}
        self.served = make_served_broker(self.config, self.memory, Channels(self))
        service = self.served.service
        self._listener = Listener(
            NODE_ID, service.live, self.served.counters, set(), service.requests.on_reads, service.channel_lost
        )
        self.memory.machine.events.add(GroupSettings(self.memory.machine, self.memory.env, self.config))
        self.served.settle()
        # Each feature may add to a leader's first entry. In a segment of its own that entry shifts no other position.
        self.memory.log.roll(self.memory.env.wall_ms())
        self._begin = self.memory.log.end
        self._record = record
        self._opaques = count(1)
        self._happened = 0

    # ---------------------------------------------------------------- clients

    def __iter__(self) -> Iterator[ClientConnection]:
        """Yield the connections of all clients."""
        return (client.connection for client in self._clients.values())

    async def ask(
        self,
        what: str,
        code: int,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        client: str = "client",
        serialize_type: int = SerializeType.JSON,
        language: LanguageCode = LanguageCode.JAVA,
        version: int = 479,
    ) -> RemotingCommand:
        """Send a request, wait for its answer, and return it."""
        opaque = await self.send(
            what, code, ext, body, client=client, serialize_type=serialize_type, language=language, version=version
        )
        return await self.answer(opaque, client)

    async def send(
        self,
        what: str,
        code: int,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        client: str = "client",
        oneway: bool = False,
        serialize_type: int = SerializeType.JSON,
        language: LanguageCode = LanguageCode.JAVA,
        version: int = 479,
    ) -> int:
        """Send a request, let all immediate work happen, and return the opaque."""
        opaque = next(self._opaques)
        command = RemotingCommand(
            code,
            opaque=opaque,
            flag=FLAG_ONEWAY if oneway else 0,
            ext=ext or {},
            body=body,
            serialize_type=serialize_type,
            language=language,
            version=version,
        )
        await self.feed(what, encode_command(command), client)
        self._record.asked.add(code)
        return opaque

    async def feed(self, what: str, frame: bytes, client: str = "client") -> None:
        """Send one frame unchanged."""
        self.note(what)
        self._note_frame(f"> {client}", frame)
        self.client(client).connection.data_received(frame)
        await self.settle()

    async def answer(self, opaque: int, client: str = "client") -> RemotingCommand:
        """Wait for the answer to a request."""
        env, waiting = self.memory.env, self.client(client)
        deadline = env.now() + LONGEST_WAIT_S
        while opaque not in waiting.answers:
            assert env.now() < deadline, f"no answer to request {opaque}"
            env.advance(STEP_S)
            await self.settle()
        return waiting.answers[opaque]

    def client(self, name: str = "client") -> Client:
        """Return the client of a name, connected at its first use."""
        known = self._clients.get(name)
        if known is None:
            address = ("10.0.0.9", 40_000 + len(self._clients))
            known = self._clients[name] = Client(name, address, self._listener, self._note_frame)
        return known

    async def disconnect(self, name: str = "client") -> None:
        """Break a client's connection."""
        self.note(f"{name} is gone")
        self._clients.pop(name).connection.connection_lost(None)
        await self.settle()

    # ---------------------------------------------------------------- events

    async def settle(self) -> None:
        """Let all immediate work happen."""
        quiet = 0
        while quiet < TURNS:
            before = self._happened
            self.memory.env.run_ready()
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._happened == before else 0

    async def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self.note(f"{seconds} s pass")
        for _ in range(round(seconds / STEP_S)):
            self.memory.env.advance(STEP_S)
            await self.settle()

    async def step_down(self) -> None:
        """Let the node step down."""
        self.note("the node steps down")
        self.memory.node.step_down()
        await self.settle()

    async def follow(self, leader: str = "n1", address: str = "10.0.0.2:10911") -> None:
        """Let another node lead. The address of its clients is known, but there is no link to it."""
        await self.step_down()
        self.note(f"{leader} leads, at {address}")
        self.served.group.learn_address(leader, address)
        self.served.group.on_leadership(Leadership(self.memory.node.term + 1, leader, is_leader=False, ready=False))
        await self.settle()

    async def lead(self) -> None:
        """Let the node lead in another term."""
        self.note("the node leads")
        self.memory.node.lead()
        await self.settle()

    def create_topic(self, name: str, queues: int = 4) -> None:
        """Create a topic without recording that."""
        self.memory.create_topic(name, queues)

    def create_group(self, name: str) -> None:
        """Create a consumer group without recording that."""
        self.served.groups.put_group(SubscriptionGroupConfig(name), lambda _: None)
        self.served.settle()

    def stop_committing(self) -> None:
        """Let no entry be committed any more."""
        self.note("nothing is committed")
        self.memory.node.commit = lambda: None  # type: ignore[method-assign]

    # ---------------------------------------------------------------- lines

    def entries(self) -> list[str]:
        """Return the entries of the conversation, without their headers."""
        log = self.memory.log
        lines = []
        for meta in log.entries:
            if meta.position >= self._begin:
                body = bytes(log.data[meta.position + HEADER_BYTES : meta.end])
                records, commands = body[: len(body) - meta.channel], body[len(body) - meta.channel :]
                content = f"records {bytes_text(records)}, commands {bytes_text(commands)}"
                lines.append(f"{EntryKind(meta.kind).name} of term {meta.term} at {meta.position}: {content}")
        return lines

    def note(self, what: str) -> None:
        """Record a comment about the next lines."""
        self._record.lines.append(f"# {what}")

    def note_event(self, line: str) -> None:
        """Record a frame. More may follow from it."""
        self._happened += 1
        self._record.lines.append(line)

    def _note_frame(self, who: str, frame: bytes) -> None:
        self.note_event(f"{who} {frame_text(frame)}")


class Client:
    """Client at the other end of a broker's connection."""

    def __init__(
        self, name: str, address: tuple[str, int], listener: Listener, note: Callable[[str, bytes], None]
    ) -> None:
        self.answers: dict[int, RemotingCommand] = {}
        self._name = name
        self._note = note
        self._decoder = FrameDecoder()
        self.connection = ClientConnection(listener)
        self.connection.connection_made(_Transport(address, self._receive))

    def _receive(self, data: bytes) -> None:
        self._decoder.receive_data(data)
        while (frame := self._decoder.next_frame()) is not None:
            command = decode_command(frame)
            self._note(f"< {self._name}", join_frame(frame.serialize_type, frame.header, frame.body))
            if command.is_response:
                self.answers[command.opaque] = command


class _Transport(asyncio.Transport):
    """Broker's end of a connection, without a socket."""

    def __init__(self, address: tuple[str, int], receive: Callable[[bytes], None]) -> None:
        super().__init__({"peername": address})
        self._receive = receive
        self._closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._receive(bytes(data))

    def writelines(self, parts: Iterable[bytes | bytearray | memoryview]) -> None:
        self._receive(b"".join(parts))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True

    abort = close


def frame_text(frame: bytes) -> str:
    """Return a frame as one line: header and body, or everything in hexadecimal if the header is no text."""
    decoder = FrameDecoder()
    decoder.receive_data(frame)
    parts = decoder.next_frame()
    assert parts is not None
    if parts.serialize_type != SerializeType.JSON or join_frame(0, parts.header, parts.body) != frame:
        return f"bytes {bytes_text(frame)}"
    body = bytes(parts.body)
    return f"{_text(parts.header)} {_text(body)}" if body else _text(parts.header)


def _text(data: bytes) -> str:
    """Return bytes as text if they are one line of plain text, or else in hexadecimal."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\n"
    return text if text.isprintable() and len(text) <= LONGEST_TEXT else f"bytes {bytes_text(data)}"

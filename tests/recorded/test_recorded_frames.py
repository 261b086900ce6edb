"""Frames between the nodes of a broker group about their clients, and those to name servers, stay the same."""

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from dledger.net.transport import PeerError, PeerFailedError, PeerTimeoutError
from dledger.types import ReplicaId
from dledger_broker.addresses import Address
from dledger_broker.frontend import registration
from dledger_remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand, encode_command
from dledger_remoting.heartbeat import decode_heartbeat
from dledger_remoting.topics import TopicConfig
from tests.recorded.areas.membership import heartbeat
from tests.recorded.areas.pulling import SUSPEND, pull_ext
from tests.recorded.areas.sending import long_ext, send_ext
from tests.recorded.conversation import Broker, Record, fix_names, frame_text
from tests.recorded.golden_files import bytes_text, compare

PEERS = {name: Address("10.0.0.2", 20_000 + number) for number, name in enumerate(("n1", "n2"))}
REFUSED, SETTLED = b"\x01" + bytes(7) + b"\x07", b"\x02"
QUEUE = {"topic": "T1", "queueId": "0"}
OLDER_TABLE = msgspec.msgpack.encode((2, "", True, (), (), False))
"""Client table of a version that sent fewer fields."""


@pytest.fixture(autouse=True)
def fixed_names(monkeypatch: pytest.MonkeyPatch) -> None:
    fix_names(monkeypatch)


def broker_of_three(record: Record, what: str) -> Broker:
    return record.broker(what, peers=PEERS, secret_file=Path("unused"))


class Exchange:
    """Channel between the nodes of a group. It records this node's requests, and the test answers them."""

    def __init__(self, broker: Broker, name: str) -> None:
        self._broker = broker
        self._name = name
        self._waiting: list[Callable[[bytes | PeerError], None]] = []

    def submit(self, to: str, data: bytes, on_reply: Callable[[bytes | PeerError], None], timeout_s: float) -> bool:
        self._broker.note_event(f"> {to} {self._name} within {timeout_s:g} s: {bytes_text(data)}")
        self._waiting.append(on_reply)
        return True

    async def answer(self, answer: bytes | PeerError) -> None:
        """Answer the oldest request."""
        said = repr(str(answer)) if isinstance(answer, PeerError) else bytes_text(answer)
        self._broker.note_event(f"< {self._name}: {said}")
        self._waiting.pop(0)(answer)
        await self._broker.settle()

    async def receive(self, sender: str, handler: Callable[..., None], data: bytes) -> None:
        """Let another node's request be handled."""
        self._broker.note_event(f"< {sender} {self._name}: {bytes_text(data)}")
        handler(ReplicaId(sender, "0" * 8), data, self._reply)
        await self._broker.settle()

    def _reply(self, answer: bytes) -> None:
        self._broker.note_event(f"> {self._name}: {bytes_text(answer)}")


async def test_requests_are_passed_on_as_recorded() -> None:
    record = Record()
    await passed_on(record)
    await taken_over(record)
    compare("forwarding", record.closed())


async def passed_on(record: Record) -> None:
    broker = broker_of_three(record, "a node that passes requests on")
    broker.create_topic("T1")
    await broker.ask("its group is made", 11, pull_ext("T1"))
    exchange = Exchange(broker, "forwarding")
    broker.served.service.forwarder.attach(exchange)
    await broker.follow()
    await broker.ask("who the client is", 34, body=heartbeat("c1"))
    for what, code, ext in (("a send", 310, send_ext("T1")), ("a question", 30, QUEUE)):
        opaque = await broker.send(what, code, ext, b"hello")
        await exchange.answer(answered(opaque))
    opaque = await broker.send("a send in binary", 10, long_ext("T1"), b"hello", serialize_type=1)
    await exchange.answer(answered(opaque, serialize_type=1))
    await broker.send("one that is not answered", 310, send_ext("T1"), b"hello", oneway=True)
    await exchange.answer(SETTLED)
    await broker.send("a pull with a commit, far behind the end", 11, pull_ext("T1", 9, sysFlag="5", commitOffset="3"))
    await exchange.answer(SETTLED)
    await exchange.answer(PeerTimeoutError("n1 did not answer in time"))
    await broker.send("a send of which nobody knows what became", 310, send_ext("T1"), b"hello")
    await exchange.answer(PeerFailedError("n1 failed"))
    await broker.send("a question that is not answered", 30, QUEUE)
    await exchange.answer(PeerTimeoutError("n1 did not answer in time"))
    first = await broker.send("a send that is refused", 310, send_ext("T1"), b"hello")
    second = await broker.send("one behind it", 310, send_ext("T1"), b"hello")
    await exchange.answer(REFUSED)
    await exchange.answer(REFUSED)
    await broker.pass_time(0.1)
    await exchange.answer(answered(first))
    await broker.pass_time(0.1)
    await exchange.answer(answered(second))
    await broker.send("one that no frame between nodes can carry", 310, send_ext("T1"), bytes(16_776_905))


def answered(opaque: int, serialize_type: int = 0) -> bytes:
    """Return an answer of the leader."""
    command = RemotingCommand(0, opaque, FLAG_RESPONSE, ext={"queueId": "0"}, body=b"as it is")
    command.serialize_type = serialize_type
    return b"\x00" + encode_command(command)


async def taken_over(record: Record) -> None:
    leader = broker_of_three(record, "a node to which requests are passed on")
    leader.create_topic("T1")
    exchange = Exchange(leader, "forwarding")
    handler = leader.served.service.forwarder.on_request
    send, question = RemotingCommand(310, 1, ext=send_ext("T1"), body=b"hello"), RemotingCommand(30, 2, ext=QUEUE)
    quiet = RemotingCommand(310, 3, FLAG_ONEWAY, ext=send_ext("T1"), body=b"hello")
    for command in (send, question, quiet):
        await exchange.receive("n1", handler, envelope(command))
    await exchange.receive("n1", handler, envelope(RemotingCommand(30, 4, ext={"topic": "T1", "queueId": "one"})))
    await leader.step_down()
    await exchange.receive("n1", handler, envelope(send))
    await leader.lead()
    leader.note("what was sent behind it is refused, too, until its channel has begun anew")
    await exchange.receive("n1", handler, envelope(question))
    await exchange.receive("n1", handler, envelope(question, epoch=1))


def envelope(command: RemotingCommand, epoch: int = 0) -> bytes:
    """Return a request as another node forwards it."""
    frame = encode_command(command)
    header = frame[8 : 8 + int.from_bytes(frame[5:8], "big")]
    fields = ("n1/7", "10.0.0.9", 40_000, ("c1",), 5, command.serialize_type, header, command.body, epoch)
    return msgspec.msgpack.encode(fields)


# ---------------------------------------------------------------- clients


async def test_clients_are_told_as_recorded() -> None:
    record = Record()
    await follower_tells(record)
    await leader_is_told(record)
    compare("gossip", record.closed())


async def follower_tells(record: Record) -> None:
    broker = broker_of_three(record, "a node that tells its leader")
    broker.create_topic("T1")
    await broker.ask("its group is made", 11, pull_ext("T1"))
    await broker.follow()
    exchange = Exchange(broker, "gossip")
    gossip = broker.served.service.gossip
    gossip.start(exchange)
    await exchange.answer(hello("10.0.0.3:20002"))
    await broker.pass_time(0.05)
    await exchange.answer(hello("10.0.0.2:10911"))
    waiting = await broker.send("a heartbeat", 34, body=heartbeat("c1"))
    await broker.pass_time(0.05)
    await exchange.answer(hello("10.0.0.2:10911"))
    await broker.answer(waiting)
    poll = await broker.send("a pull that waits", 11, pull_ext("T1", **SUSPEND))
    await broker.pass_time(0.05)
    await exchange.answer(hello("10.0.0.2:10911"))
    await exchange.receive("n1", gossip.on_request, groups_changed(["CG"], ["c1"]))
    await broker.answer(poll)
    await broker.pass_time(0.05)
    await exchange.answer(hello("10.0.0.2:10911"))
    await broker.disconnect()
    await broker.pass_time(0.05)
    await exchange.answer(PeerTimeoutError("n1 did not answer in time"))
    await broker.pass_time(0.05)
    await exchange.answer(hello("10.0.0.2:10912"))
    await broker.pass_time(6)
    gossip.stop()


async def leader_is_told(record: Record) -> None:
    broker = broker_of_three(record, "a leader that is told")
    exchange = Exchange(broker, "gossip")
    gossip = broker.served.service.gossip
    gossip.start(exchange)
    member = msgspec.to_builtins(decode_heartbeat(heartbeat("c1")).consumer_data_set)
    row = ("c1", "10.0.0.9:50000", 0, 479, ("PG",), member)
    await broker.ask("a member of its own", 34, body=heartbeat("c2"))
    await exchange.receive("n1", gossip.on_request, hello("10.0.0.2:10911"))
    asked = await broker.send("a leader that knows no other's clients", 38, {"consumerGroup": "CG"})
    await exchange.receive("n1", gossip.on_request, table(whole=True, rows=[row]))
    await exchange.receive("n2", gossip.on_request, table(whole=True, holds_pulls=True))
    await broker.answer(asked)
    await broker.ask("who is there, and how", 203, {"consumerGroup": "CG"})
    await exchange.receive("n1", gossip.on_request, table(whole=False, removed=["c1"]))
    await broker.ask("who is there", 38, {"consumerGroup": "CG"})
    await exchange.receive("n1", gossip.on_request, OLDER_TABLE)
    await broker.pass_time(25)
    gossip.stop()


def hello(address: str) -> bytes:
    return msgspec.msgpack.encode((1, address))


def table(*, whole: bool, rows: Sequence[object] = (), removed: Sequence[str] = (), holds_pulls: bool = False) -> bytes:
    return msgspec.msgpack.encode((2, "10.0.0.2:10911", whole, rows, removed, holds_pulls, (16, 17), False))


def groups_changed(groups: Sequence[str], clients: Sequence[str]) -> bytes:
    return msgspec.msgpack.encode((3, "10.0.0.2:10911", groups, clients))


# ---------------------------------------------------------------- name servers


async def test_registrations_are_as_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Record()
    broker = record.broker("a node that registers", broker_id_when_follower=3)
    registers = registration.Registrar(broker.memory.machine, broker.served.group, broker.config)

    def tell(what: str, command: RemotingCommand | None) -> None:
        broker.note(what)
        assert command is not None, what
        broker.note_event(f"> {frame_text(encode_command(command))}")

    first = registers.identity
    tell("all", registers.registration(first))
    tell("a sign of life", registers.comparison(first))
    changed = TopicConfig("T1", 3, 4, 4, "MULTI_TAG", 1, True, {"+message.type": "FIFO", "a": "ö"})
    broker.memory.machine.proposals.put_topic(changed, lambda _: None)
    for name in ("T2", "T3"):
        broker.create_topic(name)
    await broker.settle()
    second = registers.identity
    tell("what has changed", registers.changes(first, second))
    broker.memory.delete_topic("T3")
    broker.memory.delete_topic("T9")
    await broker.settle()
    third = registers.identity
    tell("what has changed since", registers.changes(second, third))
    tell("all that has changed", registers.changes(first, third))
    tell("all", registers.registration(third))
    await broker.follow()
    assert registers.changes(third, registers.identity) is None, "a node in another role tells all"
    tell("another one leads", registers.registration(registers.identity))
    tell("a sign of life", registers.comparison(registers.identity))
    tell("it leaves", registers.unregistration(3))
    monkeypatch.setattr(registration, "MAX_PLAIN_BYTES", 100)
    registers = registration.Registrar(broker.memory.machine, broker.served.group, broker.config)
    command = registers.registration(registers.identity)
    body, command.body = command.body, b""
    tell("more topics than a frame has room for", command)
    broker.note_event(f"> inflated: {bytes_text(zlib.decompress(body))}")
    compare("registration", record.closed())

"""Frames between the nodes of a group stay the same: handshakes, messages, data of the log's channels, requests."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import ClassVar, get_args

import msgspec

from dledger.consensus.peers import DISK_FULL
from dledger.core import messages as m
from dledger.errors import LostDirectoryError
from dledger.format import encode_command
from dledger.net.frames import Frame, FrameKind, FrameReader, encode_head
from dledger.net.handshake import PROTOCOL_VERSION, Handshake, Hello
from dledger.net.links import Links
from dledger.net.requests import RequestChannel
from dledger.replica.snapshots.keeping import SnapshotKeeper
from dledger.replica.snapshots.marks import DIGEST, SNAPSHOT_MARK, TRIM, Digest, Trim
from dledger.replica.snapshots.sending import SnapshotReceiver, SnapshotSender
from dledger.replica.start.inquiries import AnswerDesk, GroupKnowledge, ReturnInquiry
from dledger.replica.upkeep.repair import Repairer
from dledger.store.damage import CorruptRange
from dledger.store.snapshots import SnapshotStore
from dledger.testing.disk import SimDisk
from dledger.types import Lane, Membership, ReplicaId, SnapshotMeta
from dledger_broker.testing import FakeEnvironment
from tests.dledger.fake_driver import Unfailing, connected_to
from tests.recorded.golden_files import bytes_text, compare

ME, PEER = ReplicaId("n0", "0123456789abcdef0123456789abcdef"), ReplicaId("n1", 32 * "f")
MEMBERS = Membership((ME, PEER), (ReplicaId("n2", ""),))
SECRET = b"sixteen bytes or more"
MOST = (1 << 63) - 1

MESSAGES: tuple[tuple[str, m.Message], ...] = (
    ("a vote is asked for", m.VoteRequest(7, 1 << 40, 6)),
    ("whether a vote would be given, for a transfer", m.VoteRequest(MOST, -1, 0, pre=True, transfer=True)),
    ("a vote", m.VoteReply(7, granted=True)),
    ("no vote", m.VoteReply(8, granted=False, pre=True)),
    ("entries", m.Append(7, 1 << 33, 6, 1 << 32, 3, 0xFFFFFFFF)),
    ("a probe", m.Append(7, -1, 0, -1)),
    ("entries are durable", m.AppendReply(7, 1 << 33, 1 << 33, disk_used=412, wall_ms=1_700_000_000_000)),
    (
        "entries do not join",
        m.AppendReply(7, -1, -1, 1 << 33, 1 << 32, 5, DISK_FULL, 1_700_000_000_000, healthy=False),
    ),
    ("a beat", m.Heartbeat(7, 1 << 33, 9)),
    ("a beat's answer", m.HeartbeatReply(7, 9, 1 << 33, 412, 1_700_000_000_000, healthy=False)),
    ("a successor", m.TimeoutNow(7)),
    ("a snapshot", m.InstallSnapshot(7, 1 << 30, 1 << 20, 6, 0xFFFFFFFF, MEMBERS, 1 << 19)),
)


class Wire:
    """Other end of the links. It records their frames as lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.frames: list[bytes] = []
        self.peer = PEER
        self.links = Links(
            ME,
            cluster="c",
            group="g",
            segment_bytes=1 << 20,
            secret=SECRET,
            bind=("", 0),
            peers={},
            receiver=self,
            codec=m.CODEC,
        )
        self.links._peers[PEER.node_id] = self  # type: ignore[assignment]
        self.received: list[tuple[object, ...]] = []

    def send(self, lane: Lane, head: bytes, payload: Sequence[bytes]) -> bool:
        self.frames.append(head + b"".join(payload))
        self.lines.append(f"{lane.name.lower()}: {bytes_text(self.frames[-1])}")
        return True

    def queued_bytes(self, _lane: Lane) -> int:
        return 0

    def on_message(self, sender: ReplicaId, message: m.Message, payload: bytes) -> None:
        self.received.append((sender, message, payload))

    def on_data(self, sender: ReplicaId, channel: int, data: bytes) -> None:
        self.received.append((sender, channel, data))


def frames_in(data: bytes) -> list[Frame]:
    reader = FrameReader(max(len(data), 64))
    reader.get_buffer()[: len(data)] = data
    reader.received(len(data))
    frames = []
    while (frame := reader.next_frame()) is not None:
        frames.append(frame)
    return frames


# ---------------------------------------------------------------- messages and data


def test_peer_messages_are_sent_as_recorded_and_read_back_equal() -> None:
    wire = Wire()
    lines = []
    for what, message in MESSAGES:
        payload = (b"raw ", b"entries") if isinstance(message, m.Append) and message.count else ()
        assert wire.links.send("n1", Lane.CONTROL, message, payload)
        lines.append(f"{what}: {wire.lines.pop()}")
    assert wire.links.send_data("n1", 1, (b"head", b"body"))
    assert wire.links.send_data("n1", 300, ())
    lines += [f"data: {line}" for line in wire.lines]
    accepted = SimpleNamespace(peer=PEER, ready=True)
    for frame in wire.frames:
        (read,) = frames_in(frame)
        wire.links.on_frame(accepted, read)  # type: ignore[arg-type]
    entries = b"raw entries"
    sent = [(PEER, one, entries if isinstance(one, m.Append) and one.count else b"") for _, one in MESSAGES]
    assert wire.received == [*sent, (PEER, 1, b"headbody"), (PEER, 300, b"")]
    compare("peer/messages", lines)


def test_each_kind_of_message_has_an_example() -> None:
    assert {type(message) for _, message in MESSAGES} == set(get_args(m.Message))


def test_the_logs_own_commands_are_as_recorded() -> None:
    commands = (
        ("a mark", SNAPSHOT_MARK, b""),
        ("a trim", TRIM, msgspec.msgpack.encode(Trim(1 << 40))),
        ("a digest", DIGEST, msgspec.msgpack.encode(Digest(1 << 40, *ME, (1 << 64) - 1))),
    )
    compare(
        "peer/commands", [f"{what}: {bytes_text(encode_command(kind, payload))}" for what, kind, payload in commands]
    )


# ---------------------------------------------------------------- handshakes


def hello(node: ReplicaId, group: str = "broker-a") -> Hello:
    return Hello(PROTOCOL_VERSION, "c", group, 1 << 30, *node, Lane.BULK, "10.0.0.1", 10_912)


def shake(dialler: Handshake, acceptor: Handshake) -> list[str]:
    """Return everything that both sides send to each other, in turns."""
    lines = []
    said = {"acceptor": acceptor.start(), "dialler": dialler.start()}
    while any(said.values()):
        for who, other, hears in (("acceptor", "dialler", dialler), ("dialler", "acceptor", acceptor)):
            data, said[who] = said[who], b""
            if data:
                lines.append(f"{who}: {bytes_text(data)}")
                said[other] += b"".join(map(hears.receive, frames_in(data)))
    return lines


def test_handshakes_are_as_recorded() -> None:
    lines = []
    for what, group, secret, expected in (
        ("two nodes of a group", "broker-a", SECRET, "n1"),
        ("nodes of two groups", "broker-b", SECRET, "n1"),
        ("nodes with two secrets", "broker-a", SECRET + b"!", "n1"),
        ("another node than was dialled", "broker-a", SECRET, "n2"),
    ):
        dialler = Handshake.dial(hello(ME), SECRET, bytes(range(32)), expected)
        acceptor = Handshake.accept(hello(PEER, group), secret, bytes(range(32, 64)))
        lines += [f"==== {what}", *shake(dialler, acceptor)]
        lines += [f"{side.peer}, {side.error}" for side in (dialler, acceptor)]
    compare("peer/handshakes", [*lines, "==== both lanes stand", bytes_text(encode_head(FrameKind.READY, b""))])


# ---------------------------------------------------------------- requests and other channels


def test_requests_between_nodes_are_as_recorded() -> None:
    wire, env = Wire(), FakeEnvironment()

    def handler(_sender: ReplicaId, data: bytes, reply) -> None:
        if data == b"fail":
            raise ValueError("on purpose")
        reply(data.upper())

    wire.links.can_exchange = lambda node_id: node_id == "n1"  # type: ignore[method-assign]
    channel = RequestChannel(wire.links, 1, handler, env)
    answers: list[object] = []
    assert channel.submit("n1", b"hello", answers.append, 1.0)
    assert channel.submit("n1", b"", answers.append, 1.0)
    assert not channel.submit("n2", b"hello", answers.append, 1.0)
    for data in (b"hello", b"fail"):
        channel.on_data(PEER, b"\x00" + bytes(7) + b"\x05" + data)
    (first, *_) = (frames_in(frame)[0].payload for frame in wire.frames)
    channel.on_data(PEER, b"\x01" + first[1:9] + b"an answer")
    assert answers == [b"an answer"]
    compare("peer/requests", wire.lines)


def test_a_node_that_lost_something_asks_as_recorded() -> None:
    wire, env = Wire(), FakeEnvironment()
    waits = ReturnInquiry("n0", LostDirectoryError("log/0 is gone", "start it with --accept-loss"), ["n1"], env)
    ended: list[object] = []
    waits.start(wire.links, ended.append)
    waits.on_data(PEER, 253, b"\x00")
    for standing in (GroupKnowledge(), GroupKnowledge(False, MEMBERS, "n1"), GroupKnowledge(True, MEMBERS, "n1", "")):
        desk = AnswerDesk(wire.links, lambda standing=standing: standing, lambda confirmed: confirmed(None))
        desk.on_data(PEER, b"\x00")
    answer = frames_in(wire.frames[-1])[0].payload
    waits.on_data(PEER, 253, answer)
    assert ended == [None]
    compare("peer/returning", wire.lines)


def test_a_snapshot_is_sent_as_recorded() -> None:
    wire, env = Wire(), FakeEnvironment()
    meta = SnapshotMeta(1 << 30, 1 << 20, 6, 0xFFFFFFFF, MEMBERS, 1 << 19)
    chunks = SimpleNamespace(read_chunks=lambda _meta: iter((b"first chunk", b"second chunk")))
    events: list[str] = []
    SnapshotSender(
        env,
        wire.links,
        chunks,  # type: ignore[arg-type]
        PEER,
        meta,
        m.InstallSnapshot.of(7, meta),
        is_wanted=lambda: True,
        on_sent=lambda: events.append("sent"),
        on_broken=lambda: events.append("broken"),
        on_rotten=lambda: events.append("rotten"),
    ).start()
    env.run_ready()
    assert events == ["sent"]
    *pieces, _end, _install = wire.frames
    store = SimpleNamespace(snapshots=SnapshotStore.open(SimDisk()))
    receiver = SnapshotReceiver(
        env,
        wire.links,
        store,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        Unfailing(),
        on_taken=lambda _sender, _data: None,
    )
    for piece in pieces:
        receiver.on_data(PEER, frames_in(piece)[0].payload)
        env.run_ready()
    compare("peer/snapshots", wire.lines)


class Rotten:
    """Log of 1 MiB with a hole of 300 KiB, and a rotten snapshot."""

    first_position, durable_position, end_position, segment_bytes = 0, 1 << 20, 1 << 20, 1 << 20
    corrupt_ranges = (CorruptRange(1_000, 301_000, 3, 90),)
    rotten: ClassVar[dict[int, None]] = {4_096: None}
    filled = 0

    def spool(self, _damaged: CorruptRange) -> "Rotten":
        return self

    def restart(self) -> None:
        """Collect from the beginning."""

    def read(self, position: int, size: int) -> bytes:
        return f"{size} bytes at {position}".encode()

    def positions(self) -> list[int]:
        return [8_192]

    def read_file(self, position: int, offset: int, size: int) -> tuple[bytes, int]:
        return f"{size} bytes at {offset} of {position}".encode(), 1 << 19


def test_rotten_entries_are_asked_for_as_recorded() -> None:
    wire, env = Wire(), FakeEnvironment()
    repairer = Repairer(
        "n0",
        env,
        wire.links,
        Rotten(),  # type: ignore[arg-type]
        connected_to(PEER),
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        SimpleNamespace(commit_index=100),  # type: ignore[arg-type]
        Unfailing(),
        rest_s=60.0,
    )
    repairer.tick()
    for request in ("00000000090000000000001000000001f4", "0000000009000000000010000000000001"):
        repairer.on_data(PEER, bytes.fromhex(request))
        env.run_ready()
    compare("peer/repair", wire.lines)


def test_rotten_snapshots_are_asked_for_as_recorded() -> None:
    wire, env = Wire(), FakeEnvironment()
    keeper = SnapshotKeeper(
        "n0",
        env,
        wire.links,
        Rotten(),  # type: ignore[arg-type]
        Rotten(),  # type: ignore[arg-type]
        connected_to(PEER),
        SimpleNamespace(applied_position=1 << 20),  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        Unfailing(),
        rest_s=60.0,
    )
    keeper.tick()
    for position in (8_192, 4_096):
        head = b"\x00" + (9).to_bytes(4, "big") + position.to_bytes(8, "big") + (77).to_bytes(8, "big") + bytes(8)
        keeper.on_data(PEER, head)
        env.run_ready()
    compare("peer/snapshot-copies", wire.lines)

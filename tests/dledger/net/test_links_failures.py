"""Links come back after a loss and refuse strangers. A loss of one direction leaves the other direction working."""

import asyncio
import contextlib
import logging
import socket

import msgspec
import pytest

from dledger.core.messages import Heartbeat
from dledger.errors import ConfigError
from dledger.net.connection import PeerConnection
from dledger.net.frames import FrameKind, FrameReader, encode_head
from dledger.net.handshake import Handshake
from dledger.net.settings import LinkLimits
from dledger.types import Lane
from dledger_base.secret import GroupSecrets


class Proxy:
    """Proxy in one direction of a link, byte by byte. While it is cut, it refuses and resets connections."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.address = self._server.sockets[0].getsockname()

    async def cut(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        self._writers |= {writer, far_writer}
        self._pumps |= {
            asyncio.create_task(self._pump(reader, far_writer)),
            asyncio.create_task(self._pump(far_reader, writer)),
        }

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1):
                writer.write(data)
        writer.transport.abort()


async def dial_port(address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*address)


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    """Return everything that the node sends until the connection ends, in any way."""
    received = bytearray()
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1000):
                received += data
    return bytes(received)


async def send_and_read_to_end(node, data: bytes) -> None:
    """Dial a node as a stranger, say something, and wait for the end of the connection."""
    reader, writer = await dial_port(node.links.address)
    writer.write(data)
    await read_to_end(reader)
    writer.close()


async def test_a_restarted_peer_is_found_and_known_by_its_new_incarnation(group):
    a, b = await group.pair()
    address = b.links.address
    await b.links.stop()
    await a.until(lambda: not a.connected)
    assert not a.links.send("b", Lane.CONTROL, Heartbeat(1, 1))
    c = await group.start("b", {"a": a.links.address}, bind=address, incarnation="second")
    await group.linked(a, c)
    assert a.links.send("b", Lane.CONTROL, Heartbeat(1, 2))
    await c.until(lambda: bool(c.messages))
    assert a.events == [("connected", b.me), ("disconnected", b.me), ("connected", c.me)]
    assert a.links.counters.reconnects == 1


async def test_a_peer_that_dials_in_ends_the_pause_before_the_next_attempt(group):
    address = group.free_address()
    limits = LinkLimits(redial_min_s=3600, redial_max_s=3600)
    a = await group.start("a", {"b": address}, limits=limits)
    await a.until(lambda: bool(a.dial_errors))
    b = await group.start("b", {"a": a.links.address}, bind=address)
    await group.linked(a, b)


@pytest.mark.parametrize("nowhere", [("a..b", 1), ("x" * 64, 1), ("127.0.0.1", 70_000)])
async def test_an_invalid_peer_address_is_dialled_again(group, nowhere):
    a = await group.start("a", {"b": nowhere})
    await a.until(lambda: len(a.dial_errors) > 2)
    assert not a.connected


@pytest.mark.parametrize("event", ["on_connected", "on_disconnected"])
async def test_a_receiver_that_raises_does_not_end_the_dialling(group, monkeypatch, event):
    a, b = await group.pair()
    failures = []
    told = getattr(a, event)

    def fail_once(peer):
        told(peer)
        if not failures:
            failures.append(peer)
            raise RuntimeError("nobody expected that")

    monkeypatch.setattr(a, event, fail_once)
    for lost in (1, 2):
        b.links._accepted["a", Lane.CONTROL].end()
        again = 1 + lost + (event == "on_connected")  # the first call was recorded and then raised, so it is repeated
        await a.until(lambda again=again: a.events.count(("connected", b.me)) == again)
    assert failures == [b.me]
    assert a.links.counters.task_restarts == (event == "on_connected")
    assert a.links.send("b", Lane.CONTROL, Heartbeat(1, 1))
    await b.until(lambda: bool(b.messages))


async def test_one_direction_of_a_link_can_be_lost_alone(group):
    address = group.free_address()
    a = await group.start("a", {"b": address})
    proxy = Proxy(a.links.address)
    await proxy.start()
    b = await group.start("b", {"a": proxy.address}, bind=address)
    await group.linked(a, b)
    await proxy.cut()
    await b.until(lambda: not b.connected)
    assert not b.links.send("a", Lane.CONTROL, Heartbeat(1, 1))
    assert a.links.send("b", Lane.CONTROL, Heartbeat(1, 2))
    assert a.links.send_data("b", 1, (b"still here",))
    await b.until(lambda: len(b.messages) == 1 and len(b.data) == 1)
    assert a.events == [("connected", b.me)]
    await proxy.start(proxy.address[1])
    await b.until_connected("a")
    assert b.links.send("a", Lane.CONTROL, Heartbeat(1, 3))
    await a.until(lambda: bool(a.messages))
    await proxy.cut()


async def test_the_loss_of_a_lane_reconnects_both_lanes(group):
    a, b = await group.pair()
    b.links._accepted["a", Lane.CONTROL].end()
    await a.until(lambda: a.events.count(("connected", b.me)) == 2)
    assert ("disconnected", b.me) in a.events
    assert a.links.send_data("b", 1, (b"again",))
    await b.until(lambda: bool(b.data))
    assert b.events == [("connected", a.me)], "what b dialled was never touched"


async def test_a_newer_connection_of_a_node_replaces_the_older(group, caplog):
    caplog.set_level(logging.WARNING)
    patient = LinkLimits(redial_min_s=3600, redial_max_s=3600)
    a = await group.start("a", {"b": ("127.0.0.1", 1)})
    older = await group.start("b", {"a": a.links.address}, limits=patient)
    await older.until_connected("a")
    newer = await group.start("b", {"a": a.links.address}, limits=patient, incarnation="second")
    await newer.until_connected("a")
    await older.until(lambda: not older.connected)
    assert not older.links.send("a", Lane.CONTROL, Heartbeat(1, 1))
    assert newer.links.send("a", Lane.CONTROL, Heartbeat(1, 2))
    await a.until(lambda: bool(a.messages))
    assert [sender for sender, _, _ in a.messages] == [newer.me]
    assert "b#second dialled in anew while b#first was connected" in caplog.text


async def test_a_wrong_secret_never_connects_and_is_named_on_both_sides(group, caplog):
    caplog.set_level(logging.WARNING)
    address = group.free_address()
    a = await group.start("a", {"b": address})
    b = await group.start("b", {"a": a.links.address}, bind=address, secret=b"the secret of another group")
    await a.until(lambda: bool(a.dial_errors))
    await b.until(lambda: bool(b.dial_errors))
    assert not a.connected
    assert not b.connected
    assert a.links.counters.auth_failures > 0
    assert b.links.counters.auth_failures > 0
    assert "cannot link to peer a at" in caplog.text
    assert "all nodes of a group need the same secret" in caplog.text


async def test_a_secret_is_changed_on_one_node_after_the_other_and_links_are_made_throughout(group):
    old, new = b"the old secret of the group", b"the new secret of the group"
    secrets = {"a": GroupSecrets(old), "b": GroupSecrets(old)}
    a, b = await group.pair({"secret": secrets["a"]}, {"secret": secrets["b"]})
    for accepted in ((old, new), (new, old), (new,)):
        for changed in ("a", "b"):
            secrets[changed].all = accepted
            await group.linked(a, b)
            for connection in list(a.links._accepted.values()):
                connection.end()  # which has all lanes of both nodes dialled again
            await b.until(lambda: not b.connected)
    await b.until_connected("a")
    assert a.links.counters.auth_failures == b.links.counters.auth_failures == 0


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"cluster": "other"}, "cluster 'other' found, 'test' expected"),
        ({"group": "other"}, "group 'other' found, 'a' expected"),
        ({"segment_bytes": 4096}, "segment_bytes 4096 found, 1048576 expected"),
    ],
)
async def test_nodes_that_disagree_are_not_linked_and_log_the_reason_once(group, caplog, option, text):
    caplog.set_level(logging.WARNING)
    a = await group.start("a")
    b = await group.start("b", {"a": a.links.address}, **option)
    await b.until(lambda: len(b.dial_errors) == 3)
    assert not b.connected
    assert a.links.counters.rejected_hellos >= 3
    lines = [record.message for record in caplog.records]
    assert sum(text in line and "closed a connection" in line for line in lines) == 1
    assert sum(text in line and "cannot link to peer a" in line for line in lines) == 1


async def test_an_address_that_answers_as_another_node_is_refused(group, caplog):
    caplog.set_level(logging.WARNING)
    a = await group.start("a")
    b = await group.start("b", {"c": a.links.address})
    await b.until(lambda: bool(b.dial_errors))
    assert "node 'a' found, 'c' expected" in caplog.text
    assert not any(peer.node_id == "c" for peer in b.connected)


async def test_an_unconfigured_node_is_dialled_at_its_advertised_address_also_once_it_moved(group):
    a = await group.start("a")
    b = await group.start("b", {"a": a.links.address}, advertise=None)
    await group.linked(a, b)
    assert a.links.send("b", Lane.CONTROL, Heartbeat(1, 1))
    await b.until(lambda: bool(b.messages))
    await b.links.stop()
    moved = await group.start("b", {"a": a.links.address}, incarnation="second")
    await a.until(lambda: moved.me in a.connected)


async def test_a_configured_address_outranks_the_advertised_address(group):
    a, b = await group.pair(of_b={"advertise": ("127.0.0.1", 1)})
    assert a.links._peers["b"].address == b.links.address


async def test_learned_nodes_are_bounded(group, caplog):
    caplog.set_level(logging.WARNING)
    a = await group.start("a", limits=LinkLimits(max_learned_peers=1))
    b = await group.start("b", {"a": a.links.address})
    await a.until_connected("b")
    c = await group.start("c", {"a": a.links.address})
    await c.until_connected("a")
    assert "c#first dialled in, and is sent nothing" in caplog.text
    assert c.links.send("a", Lane.CONTROL, Heartbeat(1, 1))
    await a.until(lambda: bool(a.messages))
    await b.links.stop()


async def test_a_learned_node_that_left_is_forgotten_and_makes_room_for_another(group):
    a = await group.start("a", limits=LinkLimits(max_learned_peers=1))
    b = await group.start("b", {"a": a.links.address})
    await a.until_connected("b")
    await b.links.stop()
    await a.until(lambda: "b" not in a.links._peers)
    assert a.events == [("connected", b.me), ("disconnected", b.me)]
    await group.start("c", {"a": a.links.address})
    await a.until_connected("c")


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(100),
        b"\xff" * 100,
        encode_head(FrameKind.HELLO, b"\x90"),
        b"\x7f\0\0\0\7\0\0\0",
    ],
)
async def test_garbage_closes_its_connection_and_affects_no_other_link(group, garbage):
    a, b = await group.pair()
    await send_and_read_to_end(a, garbage)
    assert a.links.counters.protocol_errors == 1
    assert b.links.send("a", Lane.CONTROL, Heartbeat(1, 1))
    await a.until(lambda: bool(a.messages))
    assert a.events == [("connected", b.me)]
    assert b.events == [("connected", a.me)]


async def test_a_stranger_that_says_nothing_is_closed(group, caplog):
    caplog.set_level(logging.WARNING)
    a = await group.start("a", limits=LinkLimits(handshake_timeout_s=0.01))
    await send_and_read_to_end(a, b"")
    assert "not finished within 0.01 s" in caplog.text
    assert a.links.counters.protocol_errors == 1


PATIENT = LinkLimits(max_strangers=4, handshake_timeout_s=3600)


async def dial_greeted(address, host="127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a stranger's connection, and wait until the node has accepted it."""
    reader, writer = await asyncio.open_connection(*address, local_addr=(host, 0))
    await reader.readexactly(8)
    return reader, writer


@contextlib.asynccontextmanager
async def strangers_of(node, *hosts):
    """Hold a stranger's connection from each host to a node, which has accepted all of them."""
    held = [await dial_greeted(node.links.address, host) for host in hosts]
    yield held
    for _, writer in held:
        writer.close()


async def test_many_broken_connections_write_few_log_lines(group, caplog):
    caplog.set_level(logging.WARNING)
    a = await group.start("a", limits=PATIENT)
    for number in range(60):
        async with strangers_of(a, "127.0.0.1") as [(reader, writer)]:
            writer.write(((1 << 20) + number).to_bytes(4, "big") + b"\2\0\0\1")
            assert await read_to_end(reader)
    assert a.links.counters.protocol_errors == 60
    assert caplog.text.count("closed a connection from 127.0.0.1: frame of") == 1


async def test_a_stranger_above_the_limit_replaces_the_oldest_stranger(group, caplog):
    caplog.set_level(logging.WARNING)
    a = await group.start("a", limits=PATIENT)
    async with strangers_of(a, *["127.0.0.1"] * 5) as held:
        assert await read_to_end(held[0][0])
        assert len(a.links._strangers) == 4
        assert a.links.counters.refused_strangers == 1
        assert "connections from 127.0.0.1 are closed before their handshakes are finished: 4 are" in caplog.text


async def test_a_flood_from_a_host_displaces_no_stranger_of_another_host_and_keeps_no_node_out(group):
    a = await group.start("a", limits=PATIENT)
    async with strangers_of(a, "127.0.0.1", *["127.0.0.2"] * 20):
        assert a.links.counters.refused_strangers == 17
        hosts = [connection.remote_host for connection in a.links._strangers]
        assert hosts == ["127.0.0.1", "127.0.0.2", "127.0.0.2", "127.0.0.2"]
        b = await group.start("b", {"a": a.links.address}, limits=PATIENT)
        await group.linked(a, b)
        assert not b.dial_errors


async def test_reconnecting_strangers_keep_no_node_out(group):
    a = await group.start("a", limits=LinkLimits(max_strangers=16, handshake_timeout_s=3600))
    address, comings = a.links.address, asyncio.Semaphore(0)

    async def come_back() -> None:
        while True:
            reader, writer = await dial_port(address)
            comings.release()
            await read_to_end(reader)
            writer.close()

    strangers = [asyncio.create_task(come_back()) for _ in range(20)]
    for _ in range(2 * len(strangers)):
        await comings.acquire()
    b = await group.start("b", {"a": address})
    await group.linked(a, b)
    for stranger in strangers:
        stranger.cancel()
    await asyncio.gather(*strangers, return_exceptions=True)


async def test_data_before_both_lanes_are_open_is_a_protocol_error(group):
    a = await group.start("a", peers={"b": ("127.0.0.1", 1)})
    hello = msgspec.structs.replace(a.links._context.hello, node_id="b", lane=Lane.BULK)
    handshake = Handshake.dial(hello, a.links._secrets.first, bytes(32), "a")
    reader, writer = await dial_port(a.links.address)
    frames = FrameReader()
    while handshake.peer is None:
        data = await reader.read(1000)
        frames.get_buffer()[: len(data)] = data
        frames.received(len(data))
        while (frame := frames.next_frame()) is not None:
            writer.write(handshake.receive(frame))
    writer.write(encode_head(FrameKind.DATA, b"\x01", 1) + b"x")
    await read_to_end(reader)
    writer.close()
    assert not a.data
    assert a.links.counters.protocol_errors == 1


async def test_an_unusable_address_or_a_short_secret_is_a_configuration_error(group):
    address = (await group.start("a")).links.address
    for options, text in (
        ({"bind": address}, f"127.0.0.1:{address[1]}.*in use"),
        ({"bind": ("nowhere.invalid", 1)}, r"nowhere\.invalid:1"),
        ({"secret": b"short"}, "5 bytes"),
    ):
        with pytest.raises(ConfigError, match=text):
            await group.start("b", **options)


async def test_a_dial_cancelled_as_the_connection_opens_does_not_delay_a_stop(group, monkeypatch):
    """uvloop closes a connection that opens while its attempt is cancelled, without any callback."""
    made = asyncio.get_running_loop().create_future()
    connection_made = PeerConnection.connection_made

    def made_and_given_up(connection: PeerConnection, transport: asyncio.BaseTransport) -> None:
        connection_made(connection, transport)
        [dialling] = [task for task in asyncio.all_tasks() if task.get_name() == "dial b"]
        dialling.cancel()
        made.set_result(connection)

    listener = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    async with listener:
        monkeypatch.setattr(PeerConnection, "connection_made", made_and_given_up)
        node = await group.start("a", {"b": listener.sockets[0].getsockname()})
        async with asyncio.timeout(20):
            connection = await made
            await node.links.stop()
        assert not connection.ask_stranger()


async def test_nothing_is_called_after_stop(group):
    a, b = await group.pair()
    events = list(a.events)
    b.links.send("a", Lane.CONTROL, Heartbeat(1, 1))
    await a.links.stop()
    await a.links.stop()
    await b.until(lambda: not b.connected)
    assert a.events == events
    assert not a.messages


async def test_a_connection_to_itself_is_refused(group):
    # After enough dials to a free local port, TCP connects the port to itself.
    class Owner:
        def __init__(self) -> None:
            self.errors: list[Exception | None] = []

        def on_closed(self, connection, error) -> None:
            self.errors.append(error)

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.connect(sock.getsockname())
        sock.setblocking(False)
        a = await group.start("a")
        owner = Owner()
        handshake = Handshake.dial(a.links._context.hello, b"s" * 16, b"n" * 32, "b")
        connection = PeerConnection(handshake, owner, a.links.counters, 2.0)
        await asyncio.get_running_loop().create_connection(lambda: connection, sock=sock.dup())
        await connection.wait_closed()
    assert isinstance(owner.errors[0], ConnectionRefusedError)

"""A client of a port with TLS is connected, or gets the reason for its refusal, and no other client notices."""

import asyncio
import socket
import ssl
import tracemalloc
from contextlib import asynccontextmanager, suppress

import pytest

from dledger_base import doorman, handshakes
from dledger_base.doorman import HELD_BYTES
from dledger_base.handshakes import STEPS_PER_TURN, Handshake
from dledger_base.tls import TlsContext
from dledger_remoting.speakers import TLS_ALERT

DEADLINE_S = 30.0


@asynccontextmanager
async def connected(port, words=b"", **options):
    """Connect a client that says this, and provide its streams."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port.number, **options)
    try:
        writer.write(words)
        yield reader, writer
    finally:
        writer.close()


async def exchange(port, words=b"hello", **options):
    async with connected(port, words, **options) as (reader, _):
        return await reader.readexactly(len(words))


@pytest.fixture(autouse=True)
async def deadline():
    async with asyncio.timeout(DEADLINE_S):
        yield


async def until(holds):
    """Wait for a condition that only the server's side of a connection knows."""
    while not holds():  # noqa: ASYNC110 - see above
        await asyncio.sleep(0)


async def shake_hands(port, certificates, version=ssl.TLSVersion.TLSv1_3):
    """Do a handshake without the client's last bytes, which the caller writes together with others."""
    client, incoming, outgoing = await hello(certificates, version)
    reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
    while True:
        writer.write(outgoing.read())
        incoming.write(await reader.read(1 << 16))
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
            return client, outgoing, writer


async def hello(certificates, version=ssl.TLSVersion.TLSv1_3):
    """Return a client, and the first bytes of its handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = certificates.client()
    context.maximum_version = version
    client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return client, incoming, outgoing


@pytest.mark.parametrize("takes_plain", [False, True])
async def test_a_tls_client_is_served_and_a_permissive_port_accepts_plain_clients(serving, certificates, takes_plain):
    words = bytes(range(256)) * 4096
    async with serving(takes_plain=takes_plain) as port:
        if takes_plain:
            assert await exchange(port) == b"hello"
            assert port.door.counters.handshakes == 0
        assert await exchange(port, words, ssl=certificates.client()) == words
        assert (port.door.counters.handshakes, port.door.counters.failures) == (1, 0)


async def test_a_plain_client_at_a_tls_port_gets_an_alert(serving, caplog):
    async with serving() as port:
        async with connected(port, b"\0\0\1\0 and so on") as (reader, _):
            assert await reader.read() == TLS_ALERT
        assert not port.received
        assert port.door.counters.refused_plain == 1
    assert "it speaks without TLS, which this port asks for (tls = enforcing)" in caplog.text


async def test_a_handshake_that_comes_byte_by_byte_is_finished(serving, certificates):
    """The bytes that the doorman has read and those still unread form one stream."""
    async with serving() as port:
        client, incoming, outgoing = await hello(certificates)
        reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in outgoing.read():
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(1 << 16))
        client.write(b"first words")  # in one write with the end of the handshake
        writer.write(outgoing.read())
        await until(lambda: port.received)
        assert b"".join(port.received) == b"first words"
        writer.close()


async def test_garbage_after_the_first_byte_is_a_failed_handshake(serving, caplog):
    async with serving() as port:
        async with connected(port, b"\x16\x03\x01" + b"garbage" * 20) as (reader, _):
            await reader.read()
        await until(lambda: port.door.counters.failures == 1)
        assert not port.open
    assert "its TLS handshake failed" in caplog.text


async def test_a_connection_that_breaks_as_it_is_handed_over_is_not_open(serving, certificates):
    """The transport reports the loss to its former protocol."""
    async with serving() as port:
        _, outgoing, writer = await shake_hands(port, certificates)
        writer.write(outgoing.read() + b"\x17\x03\x03\x00\x20" + bytes(32))
        await port.lost.wait()
        assert not port.open
        writer.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("is_told", [False, True])
async def test_bytes_sent_just_before_a_close_are_received(serving, certificates, version, is_told):
    async with serving() as port:
        client, outgoing, writer = await shake_hands(port, certificates, version)
        client.write(b"all that it says")
        if is_told:
            with pytest.raises(ssl.SSLWantReadError):
                client.unwrap()
        writer.write(outgoing.read())
        writer.close()
        await port.lost.wait()
        assert b"".join(port.received) == b"all that it says"
        assert not port.open


async def test_a_client_that_begins_with_more_than_a_first_message_is_closed(serving, certificates, monkeypatch):
    """Thousands wait for their handshakes, and what each of them has sent is held."""
    async with serving() as port:
        monkeypatch.setattr(handshakes, "MAX_HANDSHAKES", 0)
        async with connected(port, b"\x16\x03\x01" + bytes(1 << 20)) as (reader, _):
            async with asyncio.timeout(5):  # sooner than a handshake is too slow
                with suppress(ConnectionError):
                    assert await reader.read() == b""
            assert (port.door.counters.failures, port.door.waiting) == (1, [])
        monkeypatch.undo()
        assert await exchange(port, ssl=certificates.client()) == b"hello"


class Steps:
    """Number of first handshake messages taken in each turn of the event loop."""

    def __init__(self, context: TlsContext) -> None:
        self.taken = [0]
        context.context.sni_callback = self._take
        self._timer = asyncio.get_running_loop().call_soon(self._turn)

    def _take(self, *_):
        self.taken[-1] += 1

    def _turn(self):
        self.taken.append(0)
        self._timer = asyncio.get_running_loop().call_soon(self._turn)

    def stop(self):
        self._timer.cancel()


@pytest.mark.parametrize("held_back", [0, 1])
async def test_many_handshakes_at_once_leave_turns_for_others(serving, certificates, held_back):
    """This includes clients that hold back the last byte and then all send it at once."""
    count = 40
    async with serving(context=(context := TlsContext.for_server(certificates.files))) as port:
        _, _, outgoing = await hello(certificates)
        message = outgoing.read()
        clients = [socket.create_connection(("127.0.0.1", port.number)) for _ in range(count)]
        for client in clients:
            client.sendall(message[: len(message) - held_back])
        steps = Steps(context)

        def waiting():
            return [one for one in port.door.waiting if isinstance(one._transport.get_protocol(), Handshake)]

        if held_back:
            await until(lambda: len(waiting()) == count)
            assert not sum(steps.taken)
            for client in clients:
                client.sendall(message[-held_back:])
        await until(lambda: sum(steps.taken) == count)
        steps.stop()
        assert max(steps.taken) <= STEPS_PER_TURN
        for client in clients:
            client.close()


async def test_the_read_buffer_of_a_paused_connection_is_limited(serving, certificates):
    async with serving() as port, connected(port, b"first", ssl=certificates.client()) as (reader, writer):
        await reader.readexactly(5)
        (served,) = port.open
        served.transport.pause_reading()
        writer.write(bytes(8 << 20))
        held = served.transport.get_read_buffer_size
        await until(lambda: held() >= HELD_BYTES)
        for _ in range(100):
            await asyncio.sleep(0)
        assert held() < HELD_BYTES + (256 << 10)  # one read of uvloop
        writer.transport.abort()


async def test_an_idle_connection_keeps_little_memory(serving, certificates):
    count = 20
    is_uvloop = type(asyncio.get_running_loop()).__module__.startswith("uvloop")
    untouched = 256 << 10 if is_uvloop else 0  # allocated, but without physical memory before the first read
    async with serving() as port:
        tracemalloc.start()
        try:
            clients = [await shake_hands(port, certificates) for _ in range(count)]
            for _, outgoing, writer in clients:
                writer.write(outgoing.read())
            await until(lambda: len(port.open) == count)
            assert tracemalloc.get_traced_memory()[0] < count * (untouched + (128 << 10))
        finally:
            tracemalloc.stop()
        for _, _, writer in clients:
            writer.transport.abort()


async def test_a_client_lost_during_its_handshake_leaves_no_connection(serving, certificates):
    _, _, outgoing = await hello(certificates)
    async with serving() as port, connected(port, outgoing.read()) as (_, writer):
        writer.transport.abort()
        await until(lambda: port.door.counters.failures and not port.door.waiting)
        assert not port.open


async def test_silent_connections_give_way_to_new_clients(serving, certificates):
    async with serving(max_connections=3) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port.number) for _ in range(3)]
        assert await exchange(port, ssl=certificates.client()) == b"hello"
        assert await silent[0][0].read() == b""
        for _, writer in silent:
            writer.close()


async def test_a_flood_does_not_end_the_handshake_of_another_host_while_clients_have_all_places(serving):
    async with serving(takes_plain=True, max_connections=3) as port:
        clients = [await asyncio.open_connection("127.0.0.1", port.number) for _ in range(3)]
        for reader, writer in clients:
            writer.write(b"x")
            await reader.readexactly(1)
        other = await asyncio.open_connection("127.0.0.1", port.number, local_addr=("127.0.0.2", 0))
        flood = [await asyncio.open_connection("127.0.0.1", port.number) for _ in range(6)]
        for reader, _ in flood[:-2]:
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        assert (len(port.open), len(port.door.waiting)) == (3, 3)
        other[1].write(b"x")
        assert await other[0].readexactly(1) == b"x"
        for _, writer in (*clients, other, *flood):
            writer.close()


async def test_a_handshake_that_is_never_finished_ends(serving, certificates, monkeypatch):
    monkeypatch.setattr(doorman, "HANDSHAKE_TIMEOUT_S", 0.05)
    _, _, outgoing = await hello(certificates)
    async with serving() as port, connected(port, outgoing.read()) as (reader, _):
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1 << 20)
        assert port.door.counters.failures == 1


async def test_a_client_without_a_certificate_is_kept_out_where_one_is_asked_for(serving, certificates):
    files = certificates.files
    asking = TlsContext.for_server(type(files)(files.certificate, files.key, certificates.trusted), ssl.CERT_REQUIRED)
    async with serving(context=asking) as port:
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await exchange(port, ssl=certificates.client())
        await until(lambda: port.door.counters.failures)
        shown = certificates.client()
        shown.load_cert_chain(files.certificate, files.key)
        assert await exchange(port, ssl=shown) == b"hello"

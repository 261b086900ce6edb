"""Whoever comes to a port with TLS is connected, or told why not, and nobody else notices."""

import asyncio
import socket
import ssl
import tracemalloc
from contextlib import suppress

import pytest

from dledger.net.tls import TlsContext
from dledger_remoting.speakers import TLS_ALERT
from dledger_serving import doorman
from dledger_serving.doorman import HELD_BYTES
from dledger_serving.handshakes import STEPS_PER_TURN, Handshake

DEADLINE_S = 30.0


async def exchange(port, words=b"hello", **options):
    reader, writer = await asyncio.open_connection("127.0.0.1", port.number, **options)
    try:
        writer.write(words)
        return await reader.readexactly(len(words))
    finally:
        writer.close()


@pytest.fixture(autouse=True)
async def deadline():
    async with asyncio.timeout(DEADLINE_S):
        yield


async def until(holds):
    """Wait for what only the server's side of a connection knows."""
    while not holds():  # noqa: ASYNC110 - see above
        await asyncio.sleep(0)


async def shake_hands(port, certificates, version=ssl.TLSVersion.TLSv1_3):
    """Do a handshake but for the client's last bytes, which whoever calls writes together with others."""
    client, incoming, outgoing = await hello(certificates, version)
    reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
    while True:
        writer.write(outgoing.read())
        incoming.write(await reader.read(1 << 16))
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
            return client, outgoing, writer


async def hello(certificates, version=ssl.TLSVersion.TLSv1_3):
    """The bytes with which a client begins."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = certificates.client()
    context.maximum_version = version
    client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return client, incoming, outgoing


@pytest.mark.parametrize("takes_plain", [False, True])
async def test_tls_comes_in_and_what_is_said_arrives(serving, certificates, takes_plain):
    words = bytes(range(256)) * 4096
    async with serving(takes_plain=takes_plain) as port:
        assert await exchange(port, words, ssl=certificates.client()) == words
        assert (port.door.counters.handshakes, port.door.counters.failures) == (1, 0)


async def test_plain_comes_in_where_the_port_is_permissive(serving):
    async with serving(takes_plain=True) as port:
        assert await exchange(port) == b"hello"
        assert port.door.counters.handshakes == 0


async def test_plain_is_told_by_an_alert_where_it_is_not(serving, caplog):
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
        writer.write(b"\0\0\1\0 and so on")
        assert await reader.read() == TLS_ALERT
        writer.close()
        assert not port.received
        assert port.door.counters.refused_plain == 1
    assert "it speaks without TLS, which this port asks for (tls = enforcing)" in caplog.text


async def test_a_handshake_that_comes_byte_by_byte_is_finished(serving, certificates):
    """What the doorman has read, and what it has not, are the same stream."""
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
        client.write(b"first words")  # in one write with the last of the handshake
        writer.write(outgoing.read())
        await until(lambda: port.received)
        assert b"".join(port.received) == b"first words"
        writer.close()


async def test_garbage_after_the_first_byte_is_a_failed_handshake(serving, caplog):
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
        writer.write(b"\x16\x03\x01" + b"garbage" * 20)
        await reader.read()
        writer.close()
        await until(lambda: port.door.counters.failures == 1)
        assert not port.open
    assert "its TLS handshake failed" in caplog.text


async def test_a_connection_that_breaks_as_it_is_handed_over_is_not_open(serving, certificates):
    """The transport has the loss told to the protocol that it had before."""
    async with serving() as port:
        _, outgoing, writer = await shake_hands(port, certificates)
        writer.write(outgoing.read() + b"\x17\x03\x03\x00\x20" + bytes(32))
        await port.lost.wait()
        assert not port.open
        writer.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("is_told", [False, True])
async def test_who_says_something_and_closes_at_once_is_heard(serving, certificates, version, is_told):
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


class Steps:
    """How many first messages of handshakes were taken in each turn of the event loop."""

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
    """Also of clients that hold back the last byte and send it all at the same time."""
    count = 40
    async with serving(context=(context := TlsContext.for_server(certificates.files))) as port:
        _, _, outgoing = await hello(certificates)
        message = outgoing.read()
        clients = [socket.create_connection(("127.0.0.1", port.number)) for _ in range(count)]
        for client in clients:
            client.sendall(message[: len(message) - held_back])
        steps = Steps(context)
        if held_back:
            await until(
                lambda: sum(isinstance(d._transport.get_protocol(), Handshake) for d in port.door._waiting) == count
            )
            assert not sum(steps.taken)
            for client in clients:
                client.sendall(message[-held_back:])
        await until(lambda: sum(steps.taken) == count)
        steps.stop()
        assert max(steps.taken) <= STEPS_PER_TURN
        for client in clients:
            client.close()


async def test_what_a_paused_connection_holds_is_bounded(serving, certificates):
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port.number, ssl=certificates.client())
        writer.write(b"first")
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
    untouched = 256 << 10 if is_uvloop else 0  # allocated, but no memory before something is read
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


async def test_whoever_is_gone_in_the_middle_of_a_handshake_leaves_nothing(serving, certificates):
    async with serving() as port:
        _, _, outgoing = await hello(certificates)
        _, writer = await asyncio.open_connection("127.0.0.1", port.number)
        writer.write(outgoing.read())
        writer.transport.abort()
        await until(lambda: port.door.counters.failures and not port.door._waiting)
        assert not port.open


async def test_those_who_say_nothing_give_way(serving, certificates):
    async with serving(max_connections=3) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port.number) for _ in range(3)]
        assert await exchange(port, ssl=certificates.client()) == b"hello"
        assert await silent[0][0].read() == b""
        for _, writer in silent:
            writer.close()


async def test_a_handshake_that_is_never_finished_ends(serving, certificates, monkeypatch):
    monkeypatch.setattr(doorman, "HANDSHAKE_TIMEOUT_S", 0.05)
    async with serving() as port:
        _, _, outgoing = await hello(certificates)
        reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
        writer.write(outgoing.read())
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1 << 20)
        writer.close()
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


async def test_versions_before_1_2_are_refused(serving, certificates):
    old = certificates.client()
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    async with serving() as port:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await exchange(port, ssl=old)

"""The bytes that a client with TLS leaves unread are counted, in pieces of any size."""

import asyncio
import socket
from contextlib import asynccontextmanager

from dledger_base.accepted_connection import PIECE_BYTES, is_secured, write_secured

UNREAD = 24 << 20


class Talker(asyncio.Protocol):
    """Protocol that writes its texts in one turn, as soon as a client has connected."""

    def __init__(self, parts) -> None:
        self._parts = parts
        self.is_paused = False
        self.said = asyncio.Event()

    def connection_made(self, transport):
        self.transport = transport
        transport.set_write_buffer_limits(high=1 << 20)
        write_secured(transport, self._parts)
        self.said.set()

    def pause_writing(self):
        self.is_paused = True

    def resume_writing(self):
        self.is_paused = False


@asynccontextmanager
async def met(door, parts, context):
    """Have the server say these parts to a client, and provide the server's protocol and the client's stream."""
    loop, talker = asyncio.get_running_loop(), Talker(parts)
    server = await loop.create_server(lambda: door.doorman(lambda: talker), "127.0.0.1", 0)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await loop.sock_connect(client, server.sockets[0].getsockname())
    reader, writer = await asyncio.open_connection(sock=client, ssl=context, server_hostname="127.0.0.1", limit=4096)
    yield talker, reader
    writer.transport.abort()
    talker.transport.abort()
    server.close()


async def test_unread_bytes_are_counted_in_the_write_buffer(serving, certificates):
    parts = [bytes(1 << 10), bytes(UNREAD), bytes(1 << 10)]
    async with asyncio.timeout(30), serving() as port, met(port.door, parts, certificates.client()) as (talker, _):
        await talker.said.wait()
        assert is_secured(talker.transport)
        assert talker.is_paused
        assert talker.transport.get_write_buffer_size() > UNREAD // 2


async def test_bytes_written_in_pieces_arrive_unchanged(serving, certificates):
    sizes = [1, PIECE_BYTES - 2, 0, 5, 2 * PIECE_BYTES, 1, PIECE_BYTES - 5, 7]
    parts = [bytes([number]) * size for number, size in enumerate(sizes)]
    parts[4] = memoryview(bytearray(parts[4]))
    async with asyncio.timeout(30), serving() as port, met(port.door, parts, certificates.client()) as (talker, reader):
        assert await reader.readexactly(sum(sizes)) == b"".join(parts)
        assert not talker.is_paused


async def test_a_transport_that_is_closing_is_given_nothing_more():
    class Transport(asyncio.Transport):
        def __init__(self):
            self.written = []

        def is_closing(self):
            return len(self.written) == 2

        def write(self, data):
            self.written.append(len(data))

    transport = Transport()
    write_secured(transport, [bytes(3 * PIECE_BYTES)])
    assert transport.written == [PIECE_BYTES, PIECE_BYTES]

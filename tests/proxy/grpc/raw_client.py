"""Client of HTTP/2 that can break any rule above it."""

from __future__ import annotations

import asyncio
import struct

from h2.config import H2Configuration
from h2.connection import H2Connection

from dledger_proxy.grpc.service import SERVICE

SECONDS = 10.0


class RawClient:
    """A connection of such a client."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.events = []

    @classmethod
    async def to(cls, proxy):
        client = cls(*await asyncio.open_connection(*proxy.port.address))
        client.flush()
        return client

    def flush(self):
        self.writer.write(self.h2.data_to_send())

    def request(self, name="GetOffset", headers=()):
        stream = self.h2.get_next_available_stream_id()
        own = [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "x"),
            (":path", f"/{SERVICE}/{name}"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("x-mq-client-id", "raw"),
        ]
        self.h2.send_headers(stream, [*own, *headers])
        self.flush()
        return stream

    def send(self, stream, data, *, end=False):
        self.h2.send_data(stream, data, end_stream=end)
        self.flush()

    async def until(self, wanted):
        """Read until an event of this kind has come, and return it; None if the connection has ended."""
        async with asyncio.timeout(SECONDS):
            while True:
                for event in self.events:
                    if wanted(event):
                        return event
                data = await self.reader.read(1 << 16)
                if not data:
                    return None
                self.events += self.h2.receive_data(data)
                self.flush()

    def close(self):
        self.writer.transport.abort()


def message_frame(request=b""):
    """Return a message as a request carries it."""
    return struct.pack(">?I", False, len(request)) + request

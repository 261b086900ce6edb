"""An event loop whose clock only the test moves, and whose connections lead to fake servers in memory.

Everything above the connection is the client's own code. What is ready runs until nothing is, without real time going
by; then the test moves the clock to the next timer. So a test that looks for interleavings tries the same ones always.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from client_fakes import FakeServer

from dledger_remoting.command import decode_command
from dledger_remoting.frame import FrameDecoder


class HandLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._now = 1000.0
        self._clock_resolution = 0.0  # or what is a rounding error early would be due, find that it is not, and so on
        self.servers: dict[int, FakeServer] = {}

    def time(self) -> float:
        return self._now

    def serve(self, server: FakeServer) -> None:
        server.port = 20_000 + len(self.servers)
        self.servers[server.port] = server

    async def create_connection(self, protocol_factory, host, port, **_):
        server = self.servers.get(port)
        if server is None:
            raise ConnectionRefusedError(111, "refused")
        protocol = protocol_factory()
        transport = MemoryTransport(self, server, protocol)
        protocol.connection_made(transport)
        return transport, protocol

    async def until_idle(self) -> None:
        """Let the others run until each waits for a time or for the test."""
        quiet = 0
        while quiet < 2:  # timers that are due become ready between two turns
            quiet = 0 if self._ready else quiet + 1
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Move the clock on, timer by timer, with all that follows from each."""
        end = self._now + seconds
        await self.until_idle()
        while self._scheduled and self._scheduled[0].when() <= end:
            self._now = max(self._now, self._scheduled[0].when() + 1e-6)
            await self.until_idle()
        self._now = max(self._now, end)
        await self.until_idle()

    def do(self, work: Coroutine | None = None):
        """Run `work` on this loop, which nobody runs now, and what follows from it."""

        async def both():
            result = None if work is None else await work
            await self.until_idle()
            return result

        return self.run_until_complete(both())

    def end(self) -> None:
        """Cancel what is left, and close."""

        async def cancel_all():
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self.run_until_complete(cancel_all())
        self.close()


class MemoryTransport(asyncio.Transport):
    """Both ends of a connection: what the client writes goes to the server, which writes to the client's protocol."""

    def __init__(self, loop: HandLoop, server: FakeServer, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.transport = self  # as a `StreamWriter` has one
        self._loop = loop
        self._server = server
        self._protocol = protocol
        self._decoder = FrameDecoder()
        self._answer = _Answer(self)
        server.writers.add(self._answer)

    def set_write_buffer_limits(self, high=None, low=None) -> None:
        pass

    def is_closing(self) -> bool:
        return self._answer not in self._server.writers

    def write(self, data: bytes) -> None:
        self._decoder.receive_data(data)
        while (frame := self._decoder.next_frame()) is not None:
            command = decode_command(frame)
            if not command.is_response:
                self._server.received.append(command)
                self._loop.create_task(self._server._answer(command, self._answer))

    def close(self) -> None:
        if not self.is_closing():
            self._server.writers.discard(self._answer)
            self._server.disconnected(self._answer)
            self._loop.call_soon(self._protocol.connection_lost, None)

    abort = close

    def deliver(self, data: bytes) -> None:
        if not self.is_closing():
            self._protocol.data_received(data)


class _Answer:
    """What a fake server takes for its `StreamWriter`."""

    def __init__(self, transport: MemoryTransport) -> None:
        self.transport = transport

    def is_closing(self) -> bool:
        return self.transport.is_closing()

    def write(self, data: bytes) -> None:
        self.transport._loop.call_soon(self.transport.deliver, data)

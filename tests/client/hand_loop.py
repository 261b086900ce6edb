"""Event loop whose clock only the test moves, and whose connections lead to fake servers in memory.

Everything above the connection is the client's own code. Ready callbacks run until none is left, without real time
passing. Then the test moves the clock to the next timer. A test that explores interleavings so tries the same ones in
each run.
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
        # Otherwise a timer within the resolution runs early, finds that it is not due, and is set again without end.
        self._clock_resolution = 0.0
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
        """Let the other tasks run until each waits for a time or for the test."""
        quiet = 0
        while quiet < 2:  # due timers become ready between two turns
            quiet = 0 if self._ready else quiet + 1
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Move the clock from timer to timer, and run everything that follows from each."""
        end = self._now + seconds
        await self.until_idle()
        while self._scheduled and self._scheduled[0].when() <= end:
            self._now = max(self._now, self._scheduled[0].when() + 1e-6)
            await self.until_idle()
        self._now = max(self._now, end)
        await self.until_idle()

    def do(self, work: Coroutine | None = None):
        """Run `work` and everything that follows from it. The loop must not be running."""

        async def both():
            result = None if work is None else await work
            await self.until_idle()
            return result

        return self.run_until_complete(both())

    def end(self) -> None:
        """Cancel all tasks, and close the loop."""

        async def cancel_all():
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self.run_until_complete(cancel_all())
        self.close()


class MemoryTransport(asyncio.Transport):
    """Both ends of a connection. The client writes to the server, and the server writes to the client's protocol."""

    def __init__(self, loop: HandLoop, server: FakeServer, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.transport = self  # for the server, as in a `StreamWriter`
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
    """`StreamWriter` of a fake server."""

    def __init__(self, transport: MemoryTransport) -> None:
        self.transport = transport

    def is_closing(self) -> bool:
        return self.transport.is_closing()

    def write(self, data: bytes) -> None:
        self.transport._loop.call_soon(self.transport.deliver, data)

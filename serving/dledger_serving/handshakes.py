"""Handshakes of a port with TLS, a few steps in each turn of the event loop.

A step of a handshake may have a signature made, of half a millisecond and more. Whoever sends three hundred first
messages at once would hold up everything else of the process for that long, elections among it; so what has come for a
handshake waits until it is let go on. Who is silent in the middle of one takes no step, and is in nobody's way.
"""

from __future__ import annotations

import asyncio
from asyncio import sslproto
from collections import deque
from typing import Final, cast

STEPS_PER_TURN: Final = 8
READ_BYTES: Final = 16 << 10
"""What a connection with TLS reads at once on asyncio's event loop: about a record."""


class Turns:
    """Lets steps go on in the order in which they came, `STEPS_PER_TURN` in a turn of the event loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def next(self) -> None:
        """Wait for one's turn."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._let_go, loop)
        self._waiting.append(turn)
        await turn

    def _let_go(self, loop: asyncio.AbstractEventLoop) -> None:
        steps = 0
        while self._waiting and steps < STEPS_PER_TURN:
            turn = self._waiting.popleft()
            if not turn.done():  # cancelled, if its connection is gone
                turn.set_result(None)
                steps += 1
        if self._waiting:
            loop.call_soon(self._let_go, loop)


class Handshake(asyncio.Protocol):
    """What has come for a handshake waits here, between the socket and the protocol of TLS, until it is let go on."""

    def __init__(self, transport: asyncio.Transport, first: bytes) -> None:
        self._transport = transport
        self._tls = cast("asyncio.BufferedProtocol", transport.get_protocol())
        self._arrived = [first]
        self._is_ended = self._is_told = self._is_lost = False
        self.may_go_on = asyncio.Event()
        """There is something to do: bytes or an end have come, or the handshake is over."""
        transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        """Keep what came, and read no more until it is let go on."""
        self._arrived.append(data)
        self._transport.pause_reading()
        self.may_go_on.set()

    def eof_received(self) -> bool:
        """The client sends no more; TLS is told behind what came before."""
        self._is_ended = True
        self.may_go_on.set()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Have TLS told at once."""
        self._is_lost = True
        self._tls.connection_lost(exc)

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._tls.pause_writing()

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._tls.resume_writing()

    def step(self) -> None:
        """Give TLS what has come, and read on."""
        self.may_go_on.clear()
        arrived, self._arrived = self._arrived, []
        for data in arrived:
            if not self._is_lost:
                _feed(self._tls, data)
        if self._is_lost:
            return
        if not self._is_ended:
            self._transport.resume_reading()
        elif not self._is_told:
            self._is_told = True
            if not self._tls.eof_received():
                self._transport.close()

    def leave(self) -> None:
        """Go out of the way: TLS reads by itself from now on."""
        if not self._is_lost:
            self._transport.set_protocol(self._tls)
            self.step()


def bound_read_buffers() -> None:
    """Keep asyncio from holding 256 KiB for each connection with TLS, whether it reads anything or not. That is one
    number for all of a process. uvloop does not touch what it does not use.
    """
    sslproto.SSLProtocol.max_size = READ_BYTES


def _feed(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    """Give a protocol bytes as if they had just been read."""
    left = memoryview(data)
    while left:
        buffer = memoryview(protocol.get_buffer(len(left)))
        size = min(len(left), len(buffer))
        buffer[:size] = left[:size]
        protocol.buffer_updated(size)
        left = left[size:]

"""Handshakes of a port with TLS, limited to a few steps in each turn of the event loop.

A step of a handshake may need a signature, which takes half a millisecond or more. Three hundred first messages at once
would otherwise delay everything else in the process, including elections. So received handshake data waits until the
handshake may continue. A client that is silent in the middle of a handshake takes no step, and so costs no time.
"""

from __future__ import annotations

import asyncio
from asyncio import sslproto
from collections import deque
from typing import Final, Protocol, cast

STEPS_PER_TURN: Final = 8
MAX_HANDSHAKES: Final = 256
"""Maximum number of handshakes under way at a port. Each holds about 65 KB."""
STALLED_S: Final = 1.0
"""Minimum seconds without a step after which a handshake is ended if another waits for its slot."""
READ_BYTES: Final = 16 << 10
"""Number of bytes that a connection with TLS reads at once on asyncio's event loop: about a TLS record."""


class Turns:
    """Lets steps continue in the order in which they were requested, `STEPS_PER_TURN` in a turn of the event loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def next(self) -> None:
        """Wait for the next free step."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._grant_turns, loop)
        self._waiting.append(turn)
        await turn

    def _grant_turns(self, loop: asyncio.AbstractEventLoop) -> None:
        steps = 0
        while self._waiting and steps < STEPS_PER_TURN:
            turn = self._waiting.popleft()
            if not turn.done():  # the future is cancelled if its connection is gone
                turn.set_result(None)
                steps += 1
        if self._waiting:
            loop.call_soon(self._grant_turns, loop)


class Stranger(Protocol):
    """Connection that has begun a handshake, or wants to."""

    stepped_at: float
    """Time of its handshake's last step, in seconds of the event loop's clock."""

    def end(self) -> None:
        """Close at once."""


class Slots:
    """Slots for handshakes under way. A connection beyond `MAX_HANDSHAKES` waits for a slot and is not read meanwhile.

    A client that is silent in the middle of a handshake keeps its slot until another connection waits for one.
    """

    def __init__(self) -> None:
        self._holders: dict[Stranger, None] = {}
        self._waiting: deque[tuple[Stranger, asyncio.Future[None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def take(self, connection: Stranger) -> None:
        """Wait for a slot. The caller must give it back, even if this call is cancelled."""
        if len(self._holders) < MAX_HANDSHAKES:
            self._grant_slot(connection)
            return
        loop = asyncio.get_running_loop()
        free: asyncio.Future[None] = loop.create_future()
        self._waiting.append((connection, free))
        if self._timer is None:
            self._timer = loop.call_later(STALLED_S / 4, self._end_stalled)
        await free

    def give_back(self, connection: Stranger) -> None:
        """Give a connection's slot, if it has one, to the next that waits."""
        if connection not in self._holders:
            return
        del self._holders[connection]
        while self._waiting:
            waiting, free = self._waiting.popleft()
            if not free.done():  # the future is cancelled if its connection is gone
                self._grant_slot(waiting)
                free.set_result(None)
                return

    def _grant_slot(self, connection: Stranger) -> None:
        connection.stepped_at = asyncio.get_running_loop().time()
        self._holders[connection] = None

    def _end_stalled(self) -> None:
        self._timer = None
        while self._waiting and self._waiting[0][1].done():
            self._waiting.popleft()
        if not self._waiting:
            return
        loop = asyncio.get_running_loop()
        stalled = [holder for holder in self._holders if loop.time() - holder.stepped_at >= STALLED_S]
        for holder in stalled[: len(self._waiting)]:
            holder.end()
        self._timer = loop.call_later(STALLED_S / 4, self._end_stalled)


class Handshake(asyncio.Protocol):
    """Protocol between the socket and TLS, which keeps received handshake data until the handshake may continue."""

    def __init__(self, transport: asyncio.Transport, first_bytes: bytes) -> None:
        self._transport = transport
        self._tls = cast("asyncio.BufferedProtocol", transport.get_protocol())
        self._received = [first_bytes]
        self._is_eof_received = self._is_eof_passed_on = self._is_lost = False
        self.may_go_on = asyncio.Event()
        """Set when there is something to do: bytes or an end have arrived, or the handshake has ended."""
        transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        """Keep the received data, and pause reading until the next step."""
        self._received.append(data)
        self._transport.pause_reading()
        self.may_go_on.set()

    def eof_received(self) -> bool:
        """Note that the client sends no more. TLS is notified after it has the data that arrived before."""
        self._is_eof_received = True
        self.may_go_on.set()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify TLS at once that the connection is lost."""
        self._is_lost = True
        self._tls.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass the call on to TLS."""
        self._tls.pause_writing()

    def resume_writing(self) -> None:
        """Pass the call on to TLS."""
        self._tls.resume_writing()

    def step(self) -> None:
        """Give TLS the received data, and continue reading."""
        self.may_go_on.clear()
        received, self._received = self._received, []
        for data in received:
            if not self._is_lost:
                feed(self._tls, data)
        if self._is_lost:
            return
        if not self._is_eof_received:
            self._transport.resume_reading()
        elif not self._is_eof_passed_on:
            self._is_eof_passed_on = True
            if not self._tls.eof_received():
                self._transport.close()

    def leave(self) -> None:
        """Step aside: TLS reads from the transport by itself from now on."""
        if not self._is_lost:
            self._transport.set_protocol(self._tls)
            self.step()


def bound_read_buffers() -> None:
    """Make asyncio hold less than its usual 256 KiB for each connection with TLS, whether it reads anything or not.

    This is one setting for the whole process. uvloop does not touch memory that it does not use.
    """
    sslproto.SSLProtocol.max_size = READ_BYTES


def feed(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    """Give a protocol bytes as if they had just been read."""
    remaining = memoryview(data)
    while remaining:
        buffer = memoryview(protocol.get_buffer(len(remaining)))
        size = min(len(remaining), len(buffer))
        buffer[:size] = remaining[:size]
        protocol.buffer_updated(size)
        remaining = remaining[size:]

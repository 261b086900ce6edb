"""Connections of simulated client processes: bytes arrive in order, in parts of any length.

A cut connection delays bytes until it is mended, as TCP does, and neither end notices. The machine of an ended process
closes the connection. A machine that loses its power sends nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Final, Protocol

from dledger_sim.log.scheduler import Scheduler

FASTEST_S: Final = 0.0001
SPREAD_S: Final = 0.001
CUT_STEP_S: Final = 0.05
"""Interval at which delivery over a cut connection is tried again, in seconds."""
SPLIT_SHARE: Final = 0.3
"""Share of writes that arrive in more than one part."""
MOST_CUTS: Final = 3

At = Callable[[float, Callable[[], None]], object]
"""Function that calls at a moment of simulated time, if the receiver lives then."""


class Pipe:
    """One direction of a connection. `deliver` gets each part, and None once the sender has hung up."""

    def __init__(
        self,
        scheduler: Scheduler,
        random: Random,
        at: At,
        deliver: Callable[[bytes | None], None],
        is_cut: Callable[[], bool],
    ) -> None:
        self._scheduler = scheduler
        self._random = random
        self._schedule_at = at
        self._deliver = deliver
        self._is_cut = is_cut
        self._pieces: deque[bytes | None] = deque()
        self._is_closed = False

    def send(self, data: bytes) -> None:
        """Send bytes. This has no effect after `hang_up`."""
        if self._is_closed or not data:
            return
        cuts = [0, len(data)]
        if self._random.random() < SPLIT_SHARE:
            cuts += (self._random.randrange(len(data)) for _ in range(self._random.randint(1, MOST_CUTS)))
        cuts.sort()
        self._append(*(data[begin:end] for begin, end in pairwise(cuts) if begin < end))

    def hang_up(self) -> None:
        """Stop sending. The receiver notices after the bytes already sent."""
        if not self._is_closed:
            self._is_closed = True
            self._append(None)

    def _append(self, *pieces: bytes | None) -> None:
        is_idle = not self._pieces
        self._pieces.extend(pieces)
        if is_idle:
            self._schedule_delivery(FASTEST_S + self._random.random() * SPREAD_S)

    def _schedule_delivery(self, delay_s: float) -> None:
        self._schedule_at(self._scheduler.now + delay_s, self._deliver_piece)

    def _deliver_piece(self) -> None:
        if self._is_cut():
            self._schedule_delivery(CUT_STEP_S)
            return
        piece = self._pieces.popleft()
        if self._pieces:
            self._schedule_delivery(self._random.random() * FASTEST_S)
        self._deliver(piece)


class Peer(Protocol):
    """Server's end of a connection."""

    def feed(self, data: bytes) -> None:
        """Send bytes to the server."""

    def leave(self) -> None:
        """Hang up."""


class ClientEnd:
    """Client's end of a connection, between a server's pipe and the client's protocol."""

    def __init__(self, from_outside: Callable[..., None], protocol: asyncio.Protocol) -> None:
        self._from_outside = from_outside
        self._protocol = protocol
        self.is_open = True

    def deliver(self, piece: bytes | None) -> None:
        """Pass received bytes to the protocol. None means that the server has hung up."""
        if piece is None:
            self.end(ConnectionResetError(104, "Connection reset by peer"))
        elif self.is_open:
            self._from_outside(self._receive, piece)

    def _receive(self, piece: bytes) -> None:
        if self.is_open:
            self._protocol.data_received(piece)

    def end(self, error: Exception | None) -> None:
        """Tell the protocol once that the connection is lost."""
        if self.is_open:
            self.is_open = False
            self._from_outside(self._protocol.connection_lost, error)


class SimTransport(asyncio.Transport):
    """Transport to which a client writes."""

    def __init__(self, end: ClientEnd, peer: Peer, on_written: Callable[[bytes], None]) -> None:
        super().__init__()
        self._end = end
        self._peer = peer
        self._on_written = on_written

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._end.is_open:
            self._on_written(bytes(data))
            self._peer.feed(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: a simulated server takes everything."""

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return not self._end.is_open

    def close(self) -> None:
        self._peer.leave()
        self._end.end(None)

    def abort(self) -> None:
        self.close()

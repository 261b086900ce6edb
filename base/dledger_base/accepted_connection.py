"""Connection that a server has accepted, without the requests in it.

It bounds what arrives of a request, the time until the first request, and what its client leaves unread. Broker and
name server derive their connections from `AcceptedConnection`, and decode requests in their own ways.

Writes to a connection with TLS are made in pieces, so that the limits on unread answers hold for them too. A transport
with TLS counts only the bytes that its lower transport has not taken yet. The lower transport takes
everything that one write has encrypted, however much. After one write of 25 MiB, `get_write_buffer_size` says 0 and
`pause_writing` is never called. If the data is written in pieces, the lower transport can report after each piece that
it is full. Later pieces then wait in the transport with TLS, which counts them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol, cast

from dledger_base.admission import Address
from dledger_base.port_bounds import PortBounds

PIECE_BYTES: Final = 256 << 10
"""Maximum size of one write in bytes. About as many unread bytes of a connection are not counted."""


def is_secured(transport: asyncio.BaseTransport) -> bool:
    """Return whether data written to `transport` is encrypted."""
    return transport.get_extra_info("sslcontext") is not None


def write_secured(transport: asyncio.Transport, parts: Iterable[bytes | bytearray | memoryview]) -> None:
    """Write `parts` to a transport with TLS, in pieces. Stop if the transport begins to close."""
    for piece in _split_pieces(parts):
        if transport.is_closing():
            return
        transport.write(piece)


def _split_pieces(parts: Iterable[bytes | bytearray | memoryview]) -> Iterator[bytes]:
    """Yield the bytes of `parts` in pieces of `PIECE_BYTES`, the last of which may be smaller."""
    gathered: list[memoryview] = []
    room = PIECE_BYTES
    for part in parts:
        left = memoryview(part)
        while len(left) >= room:
            gathered.append(left[:room])
            left = left[room:]
            yield b"".join(gathered)
            gathered, room = [], PIECE_BYTES
        gathered.append(left)
        room -= len(left)
    if room < PIECE_BYTES:
        yield b"".join(gathered)


FIRST_REQUEST_S: Final = 10.0
"""Interval in seconds between two checks of a connection.

A connection is late if nothing of its first request arrived between two checks: 10 to 20 s after the last byte. So a
slow request has more time while some of it arrives in each interval.
"""


class Sender(Protocol):
    """A connection whose client sends requests."""

    arrived: int
    """Bytes of an unfinished request that are held, 0 if there is none."""


class FirstRequest:
    """Timer for the first request of `sender`. Calls `on_late` when the request is late, unless `came` was called."""

    def __init__(self, sender: Sender, on_late: Callable[[], None]) -> None:
        self._sender = sender
        self._on_late = on_late
        self._last_arrived = -1
        self._timer: asyncio.TimerHandle | None = None
        self._check()

    def came(self) -> None:
        """Stop the timer, because the request has come or the connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        if self._sender.arrived == self._last_arrived:
            self._timer = None
            self._on_late()
            return
        self._last_arrived = self._sender.arrived
        self._timer = asyncio.get_running_loop().call_later(FIRST_REQUEST_S, self._check)


_logger = logging.getLogger(__name__)


class LimitCounters(Protocol):
    """Counters of a server for connections at these limits."""

    def count_unread_pause(self) -> None:
        """Count a connection that is not read, because its client left too many answers unread."""

    def count_slow_reader(self) -> None:
        """Count a connection that was closed because its client did not read in time."""

    def count_silence(self) -> None:
        """Count a connection that was closed after too long a silence."""


class Host(Protocol):
    """Server of a connection."""

    @property
    def bounds(self) -> PortBounds:
        """Bounds of the port."""

    @property
    def limit_counters(self) -> LimitCounters:
        """Counters of the limits."""

    @property
    def judges(self) -> bool:
        """True if access control is on."""


class AcceptedConnection(asyncio.Protocol):
    """A connection with its transport. Implements what `dledger_base` asks of senders, readers and guests."""

    address: Address
    """Address of the other end."""

    def __init__(self, host: Host) -> None:
        self.arrived = self.missing = 0
        self.waits_for_turn = False
        """True if its received requests wait for a turn of the event loop."""
        self._host = host
        self._transport: asyncio.Transport | None = None
        self._is_secured = False
        self._is_over = False
        """True if nothing more is read from it."""
        self._is_trusted = False
        """True if one of its requests was signed rightly."""
        self._request_memory = host.bounds.request_memory
        self._waits_for_memory = False
        self._write_paused = False
        """True while its client reads too slowly."""
        self._slow_timer: asyncio.TimerHandle | None = None
        self._first_request: FirstRequest | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or close it at once if there are too many."""
        self._transport = transport = cast("asyncio.Transport", transport)
        self._is_secured = is_secured(transport)
        transport.set_write_buffer_limits(high=self._host.bounds.limits.unread_bytes)
        if self._enter(transport.get_extra_info("peername")):
            self._first_request = FirstRequest(self, self._close_late)
        else:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 -- asyncio's signature
        """Forget what the connection holds."""
        self._transport = None
        self._is_over = True
        self._host.bounds.unread.forget(self)
        self._cancel_slow_timer()
        self._note_first_request()
        self._end_partial()

    def pause_writing(self) -> None:
        """Take no more requests until the client has caught up, because it reads too slowly."""
        self._write_paused = True
        self._host.limit_counters.count_unread_pause()
        self.update_reading()
        timeout_s = self._host.bounds.limits.slow_reader_timeout_ms / 1000
        self._slow_timer = asyncio.get_running_loop().call_later(timeout_s, self._drop_slow_reader)

    def resume_writing(self) -> None:
        """Take requests again, because the client has caught up."""
        self._write_paused = False
        self._cancel_slow_timer()
        self.update_reading()

    def hold(self) -> None:
        """Stop reading until `let_go`, because the memory for requests is short."""
        self._waits_for_memory = True
        self.update_reading()

    def let_go(self) -> None:
        """Read again."""
        self._waits_for_memory = False
        self.update_reading()

    def cut_off(self, why: str) -> None:
        """Close the connection and give up the part of a request that has arrived."""
        self._end_partial()
        self.drop(why)

    @property
    def is_strange(self) -> bool:
        """True if the arriving request counts as that of a client that has signed nothing."""
        return self._request_memory is self._host.bounds.stranger_memory

    @property
    def unread_bytes(self) -> int:
        """Size of the answers that the kernel has not taken yet, in bytes."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def update_reading(self) -> None:
        """Read or pause reading, as the present state requires."""
        raise NotImplementedError

    def drop(self, why: str) -> None:
        """Close the connection without waiting for the client to read, and log why."""
        self._log_end(logging.WARNING, "connection_dropped", why)
        self.abort()

    def abort(self) -> None:
        """Close the connection without waiting for the client to read."""
        self._is_over = True
        if self._transport is not None:
            self._transport.abort()

    def end(self, why: str) -> None:
        """Close the connection once the client has read its answers, and log why."""
        self._log_end(logging.INFO, "connection_closed", why)
        self.close()

    def close(self) -> None:
        """Close the connection once the client has read its answers."""
        self._is_over = True  # while closing, a transport with TLS still hands out data that it has already read
        if self._transport is not None:
            self._transport.close()

    def end_silence(self, idle_timeout_ms: int) -> None:
        """Close the connection after too long a silence, the second time without waiting for its client."""
        if self._is_over:
            self.abort()
            return
        self._host.limit_counters.count_silence()
        self.end(f"nothing was sent or received for {idle_timeout_ms} ms")

    def _enter(self, peer: tuple[str, int] | None) -> bool:
        """Note the address of the other end. Return False if there are too many connections."""
        raise NotImplementedError

    def _log_end(self, level: int, event: str, why: str) -> None:
        untold = self._host.bounds.telling.untold(self.address.ip, f"{event} {why}")
        if untold is not None:
            _logger.log(level, "event=%s client=%s reason=%r untold=%d", event, self.address, why, untold)

    def _count_partial(self, size: int, missing: int) -> None:
        """Count `size` more bytes of an incomplete request, of which `missing` bytes have not arrived."""
        if not self.arrived:
            is_strange, bounds = not self._is_trusted and self._host.judges, self._host.bounds
            self._request_memory = bounds.stranger_memory if is_strange else bounds.request_memory
        self.arrived += size
        self.missing = missing
        self._request_memory.grew(self, size)

    def _end_partial(self) -> None:
        """Release the memory of a request that is complete, or given up."""
        if self.arrived:
            self._request_memory.ended(self)
            self.arrived = self.missing = 0

    def _note_first_request(self) -> None:
        """Wait no longer for the first request."""
        if self._first_request is not None:
            self._first_request.came()
            self._first_request = None

    def _close_late(self) -> None:
        self._host.limit_counters.count_silence()
        self.end(f"nothing arrived of its first request for {FIRST_REQUEST_S:g} s")

    def _drop_slow_reader(self) -> None:
        limits = self._host.bounds.limits
        self._host.limit_counters.count_slow_reader()
        self.drop(f"it left {limits.unread_bytes} bytes of answers unread for {limits.slow_reader_timeout_ms} ms")

    def _cancel_slow_timer(self) -> None:
        if self._slow_timer is not None:
            self._slow_timer.cancel()
            self._slow_timer = None

"""One client's connection.

Whole frames are handed to the listener, which has those of all connections handled together at the end of a turn of
the event loop; what is left of a frame waits in the connection. Answers are collected and written together. A
connection that does not read, floods or sends garbage is slowed down first and closed then, each limit with a counter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from ipaddress import IPv6Address, ip_address
from typing import Final, Protocol, cast

from dledger_broker.clients.tables import NOTIFY_FIELD
from dledger_broker.config import BrokerConfig
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.requests import Buffer, WaitsCounted, channel_key
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, encode_command
from dledger_remoting.errors import FrameError
from dledger_remoting.frame import FrameBounds, Pieces, pending_frame_bytes, split_frames
from dledger_remoting.hosts import HostAddress, pack_host
from dledger_remoting.speakers import TLS_ALERT, tls_refusal
from dledger_serving.request_memory import RequestMemory
from dledger_serving.secured_writes import is_secured, write_secured

_logger = logging.getLogger(__name__)

JOIN_BYTES: Final = 64 << 10
"""Answers of one turn up to this size are joined; larger ones go to the kernel in pieces."""
_NOTIFY_BYTES: Final = NOTIFY_FIELD.encode()


class ConnectionOwner(Protocol):
    """What a connection needs of the listener that accepted it."""

    node_id: str
    limits: BrokerConfig
    counters: BrokerCounters
    request_memory: RequestMemory
    loop: asyncio.AbstractEventLoop
    is_deaf: bool
    """No connection is read any more."""

    def admit(self, connection: ClientConnection) -> bool:
        """Take a new connection; False if there are too many already."""

    def received(self, connection: ClientConnection, data: bytes, frames: list[FrameBounds]) -> None:
        """Have the whole frames in `data` handled at the end of this turn."""

    def handle_reads(self) -> None:
        """Handle now what was received."""

    def lost(self, connection: ClientConnection) -> None:
        """Forget a connection."""

    def schedule_flush(self, connection: ClientConnection) -> None:
        """Call `flush` of a connection behind what is being handled, or at the end of this turn."""


class ClientConnection(WaitsCounted, asyncio.Protocol):
    """Implements `Channel` for a client that is connected to this node."""

    is_forwarded: Final = False

    def __init__(self, listener: ConnectionOwner, alias: int | None = None) -> None:
        self._listener = listener
        self.alias = alias
        self._counters = listener.counters
        self._limits = listener.limits
        self._transport: asyncio.Transport | None = None
        self._is_secured = False
        self._is_over = False
        """Nothing more is taken from it."""
        self._request_memory = listener.request_memory
        self._pieces = Pieces()
        self.arrived = self.missing = 0
        self._takes_turns = False
        self._out: list[Buffer] = []
        self._reading_paused = False
        self._write_paused = False
        self._slow_timer: asyncio.TimerHandle | None = None
        self._greeted = False
        self._next_opaque = 1_000_000_000
        self.address = HostAddress("0.0.0.0", 0)
        self.born_host = b"\x00" * 8
        self.key = ""
        self.in_flight = 0
        self.held = 0
        self.forwards = 0
        self.forwards_sent: set[int] = set()
        self.forward_refused = self.forward_epoch = 0
        self.forward_target: str | None = None
        self.active = True
        self.idle_since = 0.0
        self.wants_leader_notices = False
        self.serialize_type = 0
        self.client_ids: set[str] = set()

    @property
    def is_open(self) -> bool:
        """See `Origin`."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or close it at once if there are too many."""
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.address = HostAddress(str(peer[0]), int(peer[1])) if peer else HostAddress("0.0.0.0", 0)
        self.born_host = pack_born_host(self.address)
        self.key = channel_key(self._listener.node_id)
        self.idle_since = self._listener.loop.time()
        self._is_secured = is_secured(transport)
        transport.set_write_buffer_limits(high=self._limits.pause_outgoing_bytes)
        if not self._listener.admit(self):
            self._is_over = True
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 -- asyncio's signature
        """Forget the connection; requests in progress finish without it."""
        self._transport = None
        self._cancel_slow_timer()
        self._end_partial()
        self._listener.lost(self)

    def eof_received(self) -> bool:
        """The client sends no more; it expects nothing more either."""
        return False

    def data_received(self, data: bytes) -> None:
        """Bytes came: cut frames, and have the requests in them handled."""
        if self._is_over:
            return
        self.active = True
        if self.arrived:
            self._pieces.add(data)
            size = len(data)
            if size < self.missing:
                self.arrived += size
                self.missing -= size
                self._request_memory.grew(self, size)
                return
            data = self._pieces.take()
            self._end_partial()
        try:
            frames, consumed = split_frames(data, len(data), 0, self._limits.max_frame_bytes)
            if frames:
                if not self._greeted:
                    self._greet(data, frames[0])
                self._listener.received(self, data, frames)
            if consumed < len(data):
                self._keep_rest(data, consumed)
        except FrameError as error:
            self._listener.handle_reads()  # what came before is answered
            refusal = None if self._greeted else tls_refusal(data)
            if refusal is not None:
                self._send((TLS_ALERT,))
            self.break_off(refusal or error)

    def too_much_in_flight(self) -> None:
        """Read on only after answers."""
        if not self._reading_paused:
            self._counters.max_in_flight += 1
            self.update_reading()

    def _keep_rest(self, data: bytes, position: int) -> None:
        """Put what is left of a frame aside. Raises `FrameError` if the frame can only be one that breaks a limit."""
        end = len(data)
        split_frames(data, end, position, self._limits.max_frame_bytes)
        self._pieces.add(data[position:])
        self.arrived = size = end - position
        self.missing = max(1, pending_frame_bytes(data, position, end) - size)
        self._request_memory.grew(self, size)

    def _end_partial(self) -> None:
        """A frame is complete, or given up."""
        if self.arrived:
            self._request_memory.ended(self)
            self._pieces.clear()
            self.arrived = self.missing = 0

    def hold(self) -> None:
        """See `Sender`."""
        self._takes_turns = True
        self.update_reading()

    def let_go(self) -> None:
        """See `Sender`."""
        self._takes_turns = False
        self.update_reading()

    def cut_off(self, why: str) -> None:
        """See `Sender`."""
        self._end_partial()
        self.drop(why)

    def _greet(self, data: bytes, frame: FrameBounds) -> None:
        """See once what a client of ours says in its first request."""
        self._greeted = True
        if data.find(_NOTIFY_BYTES, frame[0], frame[1]) >= 0:
            self.wants_leader_notices = True

    def break_off(self, error: FrameError) -> None:
        """See `Channel`."""
        self._counters.frames_refused += 1
        if "larger than the limit" in error.remark:
            self._counters.max_frame_bytes += 1
        self._close(f"it broke the protocol: {error.remark}")

    def answer(self, parts: Sequence[Buffer]) -> None:
        """See `Origin`; written with what else is answered now."""
        self.in_flight -= 1
        self._send(parts)

    def answer_frame(self, frame: bytes) -> None:
        """See `Origin`."""
        self.answer_frames((frame,))

    def answer_frames(self, frames: Sequence[bytes]) -> None:
        """See `Origin`."""
        self.in_flight -= len(frames)
        if not self._out:
            self._listener.schedule_flush(self)
        self._out.extend(frames)

    def settle(self) -> None:
        """See `Origin`."""
        self.in_flight -= 1
        self._look_whether_to_read()

    def begin_wait(self) -> None:
        """See `Origin`."""
        super().begin_wait()
        self._look_whether_to_read()

    def _look_whether_to_read(self) -> None:
        """Fewer requests are in flight, and nothing is written behind that, which would look."""
        if self._reading_paused:
            self.update_reading()

    def refuse(self, term: int) -> None:
        """Never called: only a forwarded request is refused."""

    def push(self, code: int, ext: dict[str, str], body: bytes = b"", *, oneway: bool = True) -> int:
        """See `ClientChannel`. The request's number is never 0, which some clients replace by one of their own."""
        self._next_opaque += 1
        command = RemotingCommand(
            code,
            opaque=self._next_opaque,
            flag=FLAG_ONEWAY if oneway else 0,
            ext=ext,
            body=body,
            serialize_type=self.serialize_type,
        )
        self._send((encode_command(command),))
        return command.opaque

    def _send(self, parts: Sequence[Buffer]) -> None:
        if not self._out:
            self._listener.schedule_flush(self)
        self._out.extend(parts)

    def flush(self) -> None:
        """Write what was collected, in one call."""
        parts, self._out = self._out, []
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self.active = True
        size = sum(map(len, parts))
        if size <= JOIN_BYTES:
            transport.write(b"".join(parts))
        elif self._is_secured:
            write_secured(transport, parts)
        else:
            transport.writelines(parts)
            # asyncio's writelines of Python 3.12 and 3.13 does not look whether that is too much; this does.
            transport.set_write_buffer_limits(high=self._limits.pause_outgoing_bytes)
        self._counters.bytes_out += size
        if self._write_paused and transport.get_write_buffer_size() > self._limits.max_outgoing_bytes:
            self._counters.max_outgoing_bytes += 1
            self.drop(
                f"it left {transport.get_write_buffer_size()} bytes of answers unread, the limit is "
                f"{self._limits.max_outgoing_bytes}"
            )
        elif self._reading_paused:
            self.update_reading()

    def pause_writing(self) -> None:
        """The client reads too slowly: take no more requests from it until it has caught up."""
        self._write_paused = True
        self._counters.pause_outgoing_bytes += 1
        self.update_reading()
        self._slow_timer = self._listener.loop.call_later(self._limits.slow_reader_timeout_ms / 1000, self._too_slow)

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._write_paused = False
        self._cancel_slow_timer()
        self.update_reading()

    def _too_slow(self) -> None:
        self._counters.slow_reader_timeout += 1
        self.drop(f"it read nothing like fast enough for {self._limits.slow_reader_timeout_ms} ms")

    def _cancel_slow_timer(self) -> None:
        if self._slow_timer is not None:
            self._slow_timer.cancel()
            self._slow_timer = None

    def update_reading(self) -> None:
        """Read on, or pause, as it is due now."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        limit = self._limits.max_in_flight // 2 if self._reading_paused else self._limits.max_in_flight
        pause = self._listener.is_deaf or self._takes_turns or self._write_paused or self.in_flight > limit
        if pause != self._reading_paused:
            self._reading_paused = pause
            if pause:
                transport.pause_reading()
            else:
                transport.resume_reading()

    def close_idle(self) -> None:
        """Close after too long a silence."""
        self._counters.idle_timeout += 1
        self._close(f"nothing was sent or received for {self._limits.idle_timeout_ms} ms")

    def drop(self, why: str) -> None:
        """Close without waiting for the client to read."""
        _logger.warning("event=connection_dropped client=%s reason=%r", self.address, why)
        if self._transport is not None:
            self._transport.abort()

    def _close(self, why: str) -> None:
        _logger.info("event=connection_closed client=%s reason=%r", self.address, why)
        self.close()

    def close(self) -> None:
        """Write what is queued, then close."""
        if self._out:
            self.flush()
        self._is_over = True  # closing, a transport with TLS hands out what it has read already
        if self._transport is not None:
            self._transport.close()


def pack_born_host(address: HostAddress) -> bytes:
    """A client's address as records hold it. Clients in C++ and JavaScript read 4-byte hosts only, so that an IPv6
    client is recorded by its port alone.
    """
    try:
        ip = ip_address(address.ip.partition("%")[0])
    except ValueError:
        return b"\x00" * 8
    if isinstance(ip, IPv6Address):
        ip4 = ip.ipv4_mapped
        return pack_host(HostAddress(str(ip4) if ip4 else "0.0.0.0", address.port))
    return pack_host(HostAddress(str(ip), address.port))

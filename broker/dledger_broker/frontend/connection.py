"""Connection of one client.

Whole frames go to the listener, which has the frames of all connections handled together at the end of a turn of the
event loop. The rest of a frame waits in the connection. Answers are collected and written together. A connection that
does not read, floods or sends garbage is first slowed down and then closed. Each limit has a counter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from ipaddress import IPv6Address, ip_address
from typing import Final, Protocol

from dledger_base.accepted_connection import AcceptedConnection, Host, write_secured
from dledger_broker.clients.tables import NOTIFY_FIELD
from dledger_broker.config import BrokerConfig
from dledger_broker.frontend.body_limits import STRANGER_BYTES, stranger_frame_bytes
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.requests import Buffer, WaitsCounted, channel_key
from dledger_remoting.codes import ResponseCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, encode_command, make_response
from dledger_remoting.errors import FrameError
from dledger_remoting.frame import PREFIX_BYTES, FrameBounds, Pieces, pending_frame_bytes, split_frames
from dledger_remoting.hosts import HostAddress, pack_host
from dledger_remoting.request_limits import MAX_REQUEST_HEADER_BYTES, SMALL_HEADER_BYTES, header_fault, undecoded
from dledger_remoting.speakers import TLS_ALERT, tls_refusal

_logger = logging.getLogger(__name__)

JOIN_BYTES: Final = 64 << 10
"""Maximum size in bytes of a turn's answers that are joined. Larger answers go to the operating system in parts."""
_NOTIFY_BYTES: Final = NOTIFY_FIELD.encode()


class ConnectionOwner(Host, Protocol):
    """The listener that accepted a connection, as the connection sees it."""

    node_id: str
    limits: BrokerConfig
    counters: BrokerCounters
    loop: asyncio.AbstractEventLoop
    is_deaf: bool
    """True if no connection is read any more."""
    is_full: bool
    """True if no connection is read for now."""

    def admit(self, connection: ClientConnection) -> bool:
        """Take a new connection. Return False if there are too many already."""

    def received(self, connection: ClientConnection, data: bytes, frames: list[FrameBounds]) -> None:
        """Have the whole frames in `data` handled at the end of this turn."""

    def handle_reads(self) -> None:
        """Handle the received frames now."""

    def greeted(self, connection: ClientConnection) -> None:
        """Keep the place of a connection, because its first request has arrived."""

    def proven(self, connection: ClientConnection) -> None:
        """Keep the place of a connection, because it was found to have an account."""

    def lost(self, connection: ClientConnection) -> None:
        """Forget a connection."""

    def collected(self, size: int) -> None:
        """Note that an answer of a size was collected in this turn."""

    def clogged(self, connection: ClientConnection, *, is_clogged: bool) -> None:
        """Stop answering pulls of a connection whose client does not read, or answer them again."""

    def schedule_flush(self, connection: ClientConnection) -> None:
        """Call `flush` of a connection after the requests that are being handled, or at the end of this turn."""


class ClientConnection(WaitsCounted, AcceptedConnection):
    """Channel of a client that is connected to this node; implements `Channel`."""

    is_forwarded: Final = False

    def __init__(self, listener: ConnectionOwner, alias: int | None = None) -> None:
        super().__init__(listener)
        self._listener = listener
        self.alias = alias
        self._counters = listener.counters
        self._limits = listener.limits
        self._pieces = Pieces()
        self._frame_bytes = self._header_end = 0
        """Size of the arriving frame, while it may be too large for a client that has signed nothing."""
        self._out: list[Buffer] = []
        self._out_bytes = 0
        """Size of the answers in `_out`, except answers to sends."""
        self._is_clogged = self._has_unread = False
        self._reading_paused = False
        self._greeted = False
        self._next_opaque = 1_000_000_000
        self.address: HostAddress = HostAddress("0.0.0.0", 0)
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
    def is_trusted(self) -> bool:
        """True if one of its requests was found to be of an account."""
        return self._is_trusted

    @is_trusted.setter
    def is_trusted(self, is_trusted: bool) -> None:
        self._is_trusted = is_trusted
        if is_trusted:
            self._listener.proven(self)

    @property
    def is_open(self) -> bool:
        """True while the client can read answers."""
        return self._transport is not None and not self._transport.is_closing()

    def _enter(self, peer: tuple[str, int] | None) -> bool:
        if peer:
            self.address = HostAddress(str(peer[0]), int(peer[1]))
        self.born_host = pack_born_host(self.address)
        self.key = channel_key(self._listener.node_id)
        self.idle_since = self._listener.loop.time()
        return self._listener.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection. Requests in progress finish without it."""
        super().connection_lost(exc)
        self._out.clear()
        self._listener.lost(self)

    def eof_received(self) -> bool:
        """Close the connection when the client sends no more, because it expects no more answers either."""
        return False

    def data_received(self, data: bytes) -> None:
        """Cut the received bytes into frames, and have the requests in them handled."""
        if self._is_over:
            return
        self.active = True
        if self.arrived:
            self._pieces.add(data)
            size = len(data)
            if size < self.missing:
                self._count_partial(size, self.missing - size)
                if self._frame_bytes and self.arrived >= self._header_end:
                    self._refuse_large_stranger()
                return
            data = self._pieces.take()
            self._end_partial()
        try:
            frames, consumed = split_frames(data, len(data), 0, self._limits.max_frame_bytes)
            if frames:
                if not self._greeted:
                    self._greet(data, frames[0])
                largest = frames[0][1] - frames[0][0]
                if len(frames) > 1 and len(data) > SMALL_HEADER_BYTES:
                    largest = max([body - header for header, body, _, _ in frames])
                if largest > SMALL_HEADER_BYTES:
                    frames = self._within_limits(data, frames)
                self._listener.received(self, data, frames)
            if consumed < len(data):
                self._keep_rest(data, consumed)
        except FrameError as error:
            self._listener.handle_reads()  # the frames before the error are answered
            refusal = None if self._greeted else tls_refusal(data)
            if refusal is not None:
                self._send((TLS_ALERT,))
            self.break_off(refusal or error)

    def on_in_flight_limit(self) -> None:
        """Pause reading until requests have been answered."""
        if not self._reading_paused:
            self._counters.max_in_flight += 1
            self.update_reading()

    def _within_limits(self, data: bytes, frames: list[FrameBounds]) -> list[FrameBounds]:
        """Return the frames whose headers may be decoded, and answer all other frames. Raises `FrameError` if that is
        impossible.
        """
        kept: list[FrameBounds] = []
        for frame in frames:
            header_start, body_start, _, serialize_type = frame
            is_large = body_start - header_start > SMALL_HEADER_BYTES
            header = data[header_start:body_start] if is_large else b""
            fault = header_fault(serialize_type, header)
            if not fault:
                kept.append(frame)
                continue
            self._counters.headers_refused += 1
            request = undecoded(serialize_type, header)
            if request is None or request.is_response:
                self._listener.received(self, data, kept)
                raise FrameError(fault)
            if not request.is_oneway:
                self._send((encode_command(make_response(request, ResponseCode.MESSAGE_ILLEGAL, fault)),))
        return kept

    def _keep_rest(self, data: bytes, position: int) -> None:
        """Keep the beginning of an incomplete frame. Raises `FrameError` if the frame is certain to break a limit."""
        end = len(data)
        split_frames(data, end, position, self._limits.max_frame_bytes)
        self._pieces.add(data[position:])
        size, frame_bytes = end - position, pending_frame_bytes(data, position, end)
        self._count_partial(size, max(1, frame_bytes - size))
        if self.is_strange and frame_bytes > STRANGER_BYTES:
            self._frame_bytes, self._header_end = frame_bytes, PREFIX_BYTES
            if size >= PREFIX_BYTES:
                self._require_small()

    def _refuse_large_stranger(self) -> None:
        try:
            self._require_small()
        except FrameError as error:
            self.break_off(error)

    def _require_small(self) -> None:
        """Check the code of a large frame once it has arrived. Raises `FrameError` unless the code has large bodies.

        A client that has signed nothing gets more memory of this node only for requests that need it.
        """
        prefix = self._pieces.first(PREFIX_BYTES)
        serialize_type, header_bytes = prefix[4], int.from_bytes(prefix[5:8], "big")
        self._header_end = PREFIX_BYTES + min(header_bytes, MAX_REQUEST_HEADER_BYTES)
        if self.arrived < self._header_end:
            return
        frame_bytes, self._frame_bytes = self._frame_bytes, 0
        request = undecoded(serialize_type, self._pieces.first(self._header_end)[PREFIX_BYTES:])
        limit = STRANGER_BYTES if request is None else stranger_frame_bytes(request.code)
        if limit is not None and frame_bytes > limit:
            raise FrameError(
                f"a request of {frame_bytes} bytes before any signed rightly: the limit is {limit} for its code"
            )

    def _end_partial(self) -> None:
        self._frame_bytes = 0
        if self.arrived:
            self._pieces.clear()
        super()._end_partial()

    def _greet(self, data: bytes, frame: FrameBounds) -> None:
        """Note the wishes of a client of ours in its first request."""
        self._greeted = True
        self._note_first_request()
        self._listener.greeted(self)
        if data.find(_NOTIFY_BYTES, frame[0], frame[1]) >= 0:
            self.wants_leader_notices = True

    def break_off(self, error: FrameError) -> None:
        """Close the connection, because the client sent bytes that cannot be decoded."""
        self._counters.frames_refused += 1
        if "larger than the limit" in error.remark:
            self._counters.max_frame_bytes += 1
        self.end(f"it broke the protocol: {error.remark}")

    def answer(self, parts: Sequence[Buffer]) -> None:
        """Collect an answer, to be written with the other answers of the turn. Nothing is collected for a lost
        connection.
        """
        self.in_flight -= 1
        if self._transport is None:
            return
        size = sum(map(len, parts))
        self._out_bytes += size
        self._listener.collected(size)
        self._send(parts)
        if self._out_bytes > self._limits.pause_outgoing_bytes:
            self._set_clogged(is_clogged=True)

    def answer_frame(self, frame: bytes) -> None:
        """Collect one response frame."""
        self.answer_frames((frame,))

    def answer_frames(self, frames: Sequence[bytes]) -> None:
        """Collect several response frames."""
        self.in_flight -= len(frames)
        if not self._out:
            self._listener.schedule_flush(self)
        self._out.extend(frames)

    def settle(self) -> None:
        """Settle a request without an answer."""
        self.in_flight -= 1
        self._update_reading()

    def begin_wait(self) -> None:
        """Count a request that waits for messages from now on. That may allow reading again."""
        super().begin_wait()
        self._update_reading()

    def _update_reading(self) -> None:
        """Read again if fewer requests in flight allow it. No write follows that would check this."""
        if self._reading_paused:
            self.update_reading()

    def refuse(self, term: int) -> None:
        """Do nothing. It is never called, because only a forwarded request is refused."""

    def push(self, code: int, ext: dict[str, str], body: bytes = b"", *, oneway: bool = True) -> int:
        """Send a request to the client. Return its number.

        The number is never 0, because some clients replace 0 by a number of their own.
        """
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
        """Write the collected answers, in one call."""
        parts, self._out = self._out, []
        self._out_bytes = 0
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self.active = True
        size = sum(map(len, parts))
        if size <= JOIN_BYTES:
            transport.write(b"".join(parts))
        elif self._is_secured:
            self._out = self._encrypt(transport, parts)
        else:
            transport.writelines(parts)
            # asyncio's writelines of Python 3.12 and 3.13 does not check the limit of the write buffer. This call does.
            transport.set_write_buffer_limits(high=self._limits.pause_outgoing_bytes)
        self._counters.bytes_out += size
        unread = transport.get_write_buffer_size()
        if self._out:
            unread += sum(map(len, self._out))
        if unread or self._has_unread:
            self._has_unread = unread > 0
            self._listener.bounds.unread.note(self, unread)
        if self._write_paused and unread > self._limits.max_outgoing_bytes:
            self._counters.max_outgoing_bytes += 1
            self.drop(f"it left {unread} bytes of answers unread, the limit is {self._limits.max_outgoing_bytes}")
            return
        if self._is_clogged:
            self._set_clogged(is_clogged=self._write_paused)
        if self._reading_paused:
            self.update_reading()

    @property
    def unread_bytes(self) -> int:
        """Size of the answers that the kernel has not taken yet, in bytes."""
        return super().unread_bytes + sum(map(len, self._out))

    def _encrypt(self, transport: asyncio.Transport, parts: list[Buffer]) -> list[Buffer]:
        """Write until the client has to read first. Return the unwritten answers, which are encrypted only after the
        client has read.
        """
        written = 0
        while written < len(parts) and (self._is_over or not self._write_paused):
            write_secured(transport, parts[written : written + 1])
            written += 1
        return parts[written:]

    def _set_clogged(self, *, is_clogged: bool) -> None:
        if is_clogged != self._is_clogged:
            self._is_clogged = is_clogged
            self._listener.clogged(self, is_clogged=is_clogged)

    def pause_writing(self) -> None:
        """Take no more requests from the client until it has caught up, because it reads too slowly."""
        super().pause_writing()
        self._set_clogged(is_clogged=True)

    def resume_writing(self) -> None:
        """Take requests again, because the client has caught up."""
        super().resume_writing()
        if self._out:
            self._listener.schedule_flush(self)
        self._set_clogged(is_clogged=False)

    def update_reading(self) -> None:
        """Read or pause reading, as the present state requires."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        limit = self._limits.max_in_flight // 2 if self._reading_paused else self._limits.max_in_flight
        pause = self.waits_for_turn or self._waits_for_memory or self._write_paused or self.in_flight > limit
        pause = pause or self._listener.is_deaf or self._listener.is_full
        if pause != self._reading_paused:
            self._reading_paused = pause
            if pause:
                transport.pause_reading()
            else:
                transport.resume_reading()

    def make_room(self) -> None:
        """Close a connection that has proven nothing, because another connection needs its place."""
        self._counters.max_connections += 1
        self.abort()

    def close(self) -> None:
        """Write the queued answers, then close the connection."""
        if self._out:
            self.flush()
        super().close()


def pack_born_host(address: HostAddress) -> bytes:
    """Return a client's address in the form of a record.

    Clients in C++ and JavaScript read only 4-byte hosts, so an IPv6 client is recorded by its port alone.
    """
    try:
        ip = ip_address(address.ip.partition("%")[0])
    except ValueError:
        return b"\x00" * 8
    if isinstance(ip, IPv6Address):
        ip4 = ip.ipv4_mapped
        return pack_host(HostAddress(str(ip4) if ip4 else "0.0.0.0", address.port))
    return pack_host(HostAddress(str(ip), address.port))

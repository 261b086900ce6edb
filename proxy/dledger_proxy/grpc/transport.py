"""HTTP/2 connections of the gRPC port: grpclib's, with limits that grpclib does not have.

- A message that is announced as larger than the limit is refused before it is read.
- A message is read only once the memory for requests has room for it. Until then HTTP/2's flow control holds the client
  back. The request keeps that memory until it ends.
- A message whose rest does not arrive in time ends its request.
- A connection has at most `MAX_STREAMS` requests at a time, and may reset `MAX_RESETS` requests in all.
- A connection is not read while its client leaves answers unread, and is closed if that lasts.
- Pings find connections whose other side is gone. Frames of unknown kinds are ignored, as HTTP/2 demands.
- A ping behind an answer tells whether the client has received the answer: pings are answered in their order.
- `drain` tells the client to send further requests over another connection.

grpclib's names that are used here without being documented are listed in a test.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, cast

from grpclib.config import Configuration
from grpclib.const import Status
from grpclib.encoding.base import GRPC_CONTENT_TYPE
from grpclib.exceptions import GRPCError
from grpclib.protocol import AbstractHandler, Connection, EventsProcessor, H2Protocol, Stream
from grpclib.server import Stream as ServerStream
from grpclib.utils import Wrapper
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import Event, PingAckReceived, RequestReceived, StreamReset
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame

from dledger_base.telling import LINES_OF_CLIENTS, Telling
from dledger_client.sending.window import InFlightWindow

MAX_STREAMS: Final = 1_000
"""Maximum number of requests of one connection at a time. Clients let further requests wait."""
MAX_RESETS: Final = 10_000
"""Maximum number of requests that one connection may reset. Each costs work and brings nothing."""
WINDOW_BYTES: Final = 1 << 20
"""Maximum number of bytes that a connection or a request may send ahead of what is read."""
MESSAGE_TIMEOUT_S: Final = 10.0
"""Time limit in seconds for a message to arrive, from its first bytes on."""
UNREAD_TIMEOUT_S: Final = 30.0
"""Time limit in seconds for a client that reads nothing of its answers."""
KEEPALIVE_S: Final = 60.0
"""Interval in seconds between two pings of a connection."""
PING_TIMEOUT_S: Final = 20.0
"""Time limit in seconds for the answer to a ping."""
_PREFIX_BYTES: Final = 5
_OWN_PING: Final = b"\xff"
"""First byte of pings that ask what has arrived. grpclib's begin with a 0, because they are times."""
_PING_BYTES: Final = 8
_DEFAULT_WINDOW_BYTES: Final = 65_535
_CONFIGURATION: Final = Configuration(
    _keepalive_time=KEEPALIVE_S,
    _keepalive_timeout=PING_TIMEOUT_S,
    _keepalive_permit_without_calls=True,
    _http2_max_pings_without_data=0,
    _http2_min_sent_ping_interval_without_data=KEEPALIVE_S / 2,
)
_H2_CONFIGURATION: Final = H2Configuration(
    client_side=False,
    header_encoding="ascii",
    validate_inbound_headers=False,
    normalize_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)

logger = logging.getLogger(__name__)


class Limits:
    """Limits that all connections of the port share. `count(name)` is called each time that one acts."""

    def __init__(self, max_message_bytes: int, max_messages_bytes: int, count: Callable[[str], None]) -> None:
        self.max_message_bytes = max_message_bytes
        self.memory = InFlightWindow(1 << 30, max_messages_bytes)
        self.count = count
        self.telling = Telling(of_host=LINES_OF_CLIENTS)


class _BoundedStream(Stream):
    """One request, whose messages are read as the limits allow."""

    limits: Limits
    held_bytes = 0

    async def send_headers(self, headers: list[tuple[str, str]], end_stream: bool = False) -> None:
        """Send headers. An answer that is refused before its handler gets the type that clients insist on."""
        if headers and headers[0] == (":status", "200") and "content-type" not in dict(headers):
            headers = [headers[0], ("content-type", GRPC_CONTENT_TYPE), *headers[1:]]
        await super().send_headers(headers, end_stream)

    async def recv_data(self, size: int) -> bytes:
        """Return the next bytes of the request. Raises `GRPCError` for a message that is too large or too slow."""
        if size <= _PREFIX_BYTES:
            self.release()  # a stream's next message: the last one is handled
            return await super().recv_data(size)
        limits = self.limits
        if size > limits.max_message_bytes:
            limits.count("max_request_bytes")
            text = f"the request has {size} bytes, the limit is {limits.max_message_bytes}: send less at once"
            raise GRPCError(Status.RESOURCE_EXHAUSTED, text)
        deadline = asyncio.get_running_loop().time() + MESSAGE_TIMEOUT_S
        try:
            await limits.memory.acquire(size, deadline)
        except TimeoutError:
            limits.count("max_requests_bytes")
            text = "the memory of the proxy for requests is full: try again later"
            raise GRPCError(Status.RESOURCE_EXHAUSTED, text) from None
        self.held_bytes = size
        try:
            async with asyncio.timeout_at(deadline):
                return await super().recv_data(size)
        except TimeoutError:
            limits.count("request_timeout")
            text = f"the request did not arrive within {MESSAGE_TIMEOUT_S:g} s"
            raise GRPCError(Status.DEADLINE_EXCEEDED, text) from None

    def release(self) -> None:
        """Give back the memory of the last message."""
        if self.held_bytes:
            self.limits.memory.release(self.held_bytes)
            self.held_bytes = 0


class _BoundedConnection(Connection):
    """A connection whose requests are bounded."""

    limits: Limits

    def __init__(self, connection: H2Connection, transport: asyncio.Transport, *, config: Configuration) -> None:
        super().__init__(connection, transport, config=config)
        self._pings = 0
        self._pinging: dict[bytes, asyncio.Future[None]] = {}
        """Pings that are not answered yet, by their data, in the order in which they were sent."""

    async def has_received(self) -> bool:
        """Return whether the client receives, within `PING_TIMEOUT_S`, all that was written to it until now."""
        self._pings += 1
        data = _OWN_PING + self._pings.to_bytes(_PING_BYTES - len(_OWN_PING))
        answered = self._pinging[data] = asyncio.get_running_loop().create_future()
        try:
            self._connection.ping(data)
            self.flush()
            async with asyncio.timeout(PING_TIMEOUT_S):
                await answered
        except (TimeoutError, ProtocolError):
            return False
        finally:
            self._pinging.pop(data, None)
        return True

    def on_ping_answered(self, data: bytes) -> None:
        """Note the answer to a ping."""
        answered = self._pinging.get(data)
        if answered is not None and not answered.done():
            answered.set_result(None)

    def create_stream(self, *, stream_id: int | None = None, wrapper: Wrapper | None = None) -> Stream:
        """Return a new request."""
        stream = _BoundedStream(self, self._connection, self._transport, stream_id=stream_id, wrapper=wrapper)
        stream.limits = self.limits
        return stream


async def has_received(stream: ServerStream[Any, Any]) -> bool:
    """Return whether the client of a request has received all that was written to it. False also after a while."""
    connection = stream._stream.connection  # noqa: SLF001 - grpclib shows it nowhere else
    return isinstance(connection, _BoundedConnection) and await connection.has_received()


class _Requests(EventsProcessor):
    """Requests of a connection. Each gives its memory back when it ends."""

    def register(self, stream: Stream) -> Callable[[], None]:
        """Note a new request. Returns the function that its end calls."""
        forget = super().register(stream)

        def release() -> None:
            if isinstance(stream, _BoundedStream):
                stream.release()
            forget()

        return release


class BoundedProtocol(H2Protocol):
    """HTTP/2 on one connection of the port. `opened` holds the protocol while the connection is open."""

    def __init__(self, handler: AbstractHandler, limits: Limits, opened: set[BoundedProtocol]) -> None:
        super().__init__(handler, _CONFIGURATION, _H2_CONFIGURATION)
        self._limits = limits
        self._opened = opened
        self._h2: H2Connection
        self.connection: _BoundedConnection
        self._transport: asyncio.Transport
        self._last_stream = 0
        self._resets = 0
        self._is_draining = False
        self._unread_timer: asyncio.TimerHandle | None = None

    @property
    def is_busy(self) -> bool:
        """True while a request of the connection is under way."""
        return bool(self.processor.streams)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with HTTP/2's settings."""
        self._transport = cast("asyncio.Transport", transport)
        self._opened.add(self)
        h2 = self._h2 = H2Connection(config=self.h2_config)
        h2.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.ENABLE_PUSH: 0,
                SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
                SettingCodes.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
                SettingCodes.MAX_HEADER_LIST_SIZE: H2Connection.DEFAULT_MAX_HEADER_LIST_SIZE,
            },
        )
        h2.initiate_connection()
        h2.increment_flow_control_window(WINDOW_BYTES - _DEFAULT_WINDOW_BYTES)
        connection = _BoundedConnection(h2, self._transport, config=self.config)
        connection.limits = self._limits
        self.connection = connection
        self.connection.flush()
        self.connection.initialize()
        self.processor = _Requests(self.handler, self.connection)

    def data_received(self, data: bytes) -> None:
        """Handle frames. A client that breaks the protocol is told so and disconnected."""
        if self._transport.is_closing():
            return
        try:
            events = self._h2.receive_data(data)
        except (ProtocolError, UnicodeError) as error:
            self._end(f"it broke HTTP/2: {str(error) or type(error).__name__}", "protocol_error")
            return
        for event in events:
            if not self._transport.is_closing():
                self._handle(event)
        if not self._transport.is_closing():
            self.connection.flush()

    def connection_lost(self, exc: BaseException | None) -> None:
        """End all requests of the connection."""
        self._opened.discard(self)
        self._stop_unread_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Read nothing more while the client leaves answers unread."""
        super().pause_writing()
        self._transport.pause_reading()
        self._stop_unread_timer()
        loop = asyncio.get_running_loop()
        self._unread_timer = loop.call_later(UNREAD_TIMEOUT_S, self._end, "it reads no answers", "unread_timeout")

    def resume_writing(self) -> None:
        """Read on: the client has read answers."""
        self._stop_unread_timer()
        if not self._transport.is_closing():
            self._transport.resume_reading()
        super().resume_writing()

    def drain(self) -> None:
        """Tell the client to use another connection for further requests. Those under way go on."""
        if self._is_draining or self._transport.is_closing():
            return
        self._is_draining = True
        # h2 itself can only say goodbye by ending everything at once.
        frame = GoAwayFrame(0, last_stream_id=self._last_stream, error_code=ErrorCodes.NO_ERROR)
        self._transport.write(frame.serialize())

    def close(self) -> None:
        """Close the connection; its requests are cancelled."""
        if not self._transport.is_closing():
            self._transport.close()

    def _handle(self, event: Event) -> None:
        if isinstance(event, RequestReceived) and event.stream_id is not None:
            if self._is_draining:
                self._h2.reset_stream(event.stream_id, ErrorCodes.REFUSED_STREAM)
                return
            self._last_stream = event.stream_id
        elif isinstance(event, PingAckReceived) and event.ping_data is not None:
            self.connection.on_ping_answered(event.ping_data)
        elif isinstance(event, StreamReset) and event.remote_reset:
            self._resets += 1
            if self._resets > MAX_RESETS:
                self._end(f"it has reset {self._resets} requests", "max_resets")
                return
        try:
            self.processor.process(event)
        except NotImplementedError:
            return  # an event that means nothing to a server

    def _end(self, reason: str, limit: str) -> None:
        """Disconnect the client, and say why in the log."""
        self._limits.count(limit)
        peer = self._transport.get_extra_info("peername") or ("?", 0)
        text = "event=grpc_disconnected client=%s reason=%r"
        self._limits.telling.log(logger, logging.INFO, str(peer[0]), limit, text, f"{peer[0]}:{peer[1]}", reason)
        if farewell := self._h2.data_to_send():
            self._transport.write(farewell)
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

"""One client or broker connection: bytes to requests, answers to bytes, within the limits of the configuration."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Protocol, cast

from dledger_remoting.codes import ResponseCode
from dledger_remoting.command import RemotingCommand, decode_command, encode_command, make_response
from dledger_remoting.errors import FrameError, RemotingError
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.hosts import HostAddress
from dledger_remoting.speakers import ENOUGH_BYTES, TLS_ALERT, tls_refusal
from dledger_serving.request_memory import RequestMemory
from dledger_serving.secured_writes import is_secured, write_secured

from .config import NameServerConfig
from .metrics import NameServerCounters

log = logging.getLogger("dledger.namesrv")


class ConnectionOwner(Protocol):
    """What a connection needs of its server."""

    config: NameServerConfig
    counters: NameServerCounters
    request_memory: RequestMemory

    def admit(self, connection: Connection) -> bool:
        """Count a new connection; False if there are too many."""

    def may_ask(self, connection: Connection, code: int) -> bool:
        """Whether a connection that sends a request of this code may stay."""

    def handle(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand | Coroutine[None, None, RemotingCommand]:
        """The answer, or a coroutine that waits for it. Raises `RemotingError`."""

    def connection_lost(self, connection: Connection) -> None:
        """Forget a connection and what depends on it."""


class Connection(asyncio.Protocol):
    """A connection, numbered so that the route table can tell over which one a broker registered."""

    def __init__(self, owner: ConnectionOwner, number: int) -> None:
        self.number = number
        self.address = HostAddress("0.0.0.0", 0)
        self.last_active = 0.0
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(owner.config.max_frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._is_secured = False
        self._is_over = False
        """Nothing more is taken from it."""
        self._slow_timer: asyncio.TimerHandle | None = None
        self._first = b""
        self._takes_turns = False
        self.arrived = self.missing = 0
        self._waiting: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start, unless there are too many connections."""
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.address = HostAddress(str(peer[0]), int(peer[1]))
        self._is_secured = is_secured(transport)
        self.last_active = self._loop.time()
        if not self._owner.admit(self):
            self.drop()
            return
        transport.set_write_buffer_limits(high=self._owner.config.max_write_buffer_bytes)

    def data_received(self, data: bytes) -> None:
        """Take bytes from the socket."""
        if self._is_over:
            return
        self.last_active = self._loop.time()
        self._decoder.receive_data(data)
        self._first = self._first or data[:ENOUGH_BYTES]
        self._process()
        self._count_partial()

    def pause_writing(self) -> None:
        """The client does not read its answers: take no more requests, and give it a limited time."""
        config = self._owner.config
        if self._transport is not None and not self._transport.is_closing():
            self._owner.counters.limits["max_write_buffer_bytes"] += 1
            self._slow_timer = self._loop.call_later(config.slow_reader_timeout_ms / 1000, self._abort_slow_reader)
            self._update_reading()

    def resume_writing(self) -> None:
        """The client has read its answers: go on."""
        self._stop_slow_timer()
        if self._transport is not None and not self._transport.is_closing():
            self._process()
            self._count_partial()
            self._update_reading()

    def connection_lost(self, _exc: Exception | None) -> None:
        """Drop what waits for this connection."""
        self._is_over = True
        self._stop_slow_timer()
        self._give_up_partial()
        for task in self._waiting:
            task.cancel()
        self._owner.connection_lost(self)

    def abort(self, reason: str) -> None:
        """Close at once, and say why in the log."""
        log.warning("event=connection_closed peer=%s reason=%r", self.address, reason)
        self.drop()

    def drop(self) -> None:
        """Close at once."""
        self._is_over = True
        if self._transport is not None:
            self._transport.abort()

    async def finish(self, grace_s: float) -> None:
        """Wait, for a limited time, until what is pending is answered; then close once it is written."""
        if self._waiting:
            await asyncio.wait(self._waiting, timeout=grace_s)
        self._is_over = True
        if self._transport is not None:
            self._transport.close()

    def hold(self) -> None:
        """See `Sender`."""
        self._takes_turns = True
        self._update_reading()

    def let_go(self) -> None:
        """See `Sender`."""
        self._takes_turns = False
        self._update_reading()

    def cut_off(self, why: str) -> None:
        """See `Sender`."""
        self._give_up_partial()
        self.abort(why)

    def _update_reading(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._takes_turns or self._slow_timer is not None:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _count_partial(self) -> None:
        """Account for what is left of a request after a read."""
        size = self._decoder.buffered_bytes - self.arrived
        if size > 0 and self._transport is not None and not self._transport.is_closing():
            self.arrived += size
            self.missing = max(1, self._decoder.missing_bytes)  # less while answers that nobody reads hold it up
            self._owner.request_memory.grew(self, size)

    def _give_up_partial(self) -> None:
        if self.arrived:
            self._owner.request_memory.ended(self)
            self.arrived = self.missing = 0

    def _abort_slow_reader(self) -> None:
        config = self._owner.config
        self._owner.counters.limits["slow_reader_timeout_ms"] += 1
        self.abort(f"left {config.max_write_buffer_bytes} bytes unread for {config.slow_reader_timeout_ms} ms")

    def _process(self) -> None:
        """Handle complete requests while the client keeps reading. It may have closed behind them: they count."""
        assert self._transport is not None
        while self._slow_timer is None and not self._is_over:
            try:
                frame = self._decoder.next_frame()
                if frame is None:
                    return
                self._give_up_partial()
                request = decode_command(frame)
            except FrameError as error:
                self._owner.counters.frames_refused += 1
                refusal = tls_refusal(self._first)
                if refusal is not None:
                    self._transport.write(TLS_ALERT)
                self.abort(str(refusal or error))
                return
            if request.is_response:
                continue
            if not self._owner.may_ask(self, request.code):
                self.drop()
                return
            self._handle(request)

    def _handle(self, request: RemotingCommand) -> None:
        try:
            answer = self._owner.handle(request, self)
        except Exception as error:
            self._send_error(request, error)
            return
        if isinstance(answer, RemotingCommand):
            self._send(request, answer)
        elif len(self._waiting) >= self._owner.config.max_in_flight:
            answer.close()
            self._owner.counters.limits["max_in_flight"] += 1
            remark = f"{len(self._waiting)} requests of this connection wait already, the limit is max_in_flight"
            self._send(request, make_response(request, ResponseCode.SYSTEM_BUSY, remark))
        else:
            task = self._loop.create_task(self._send_later(request, answer))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    async def _send_later(self, request: RemotingCommand, answer: Coroutine[None, None, RemotingCommand]) -> None:
        try:
            self._send(request, await answer)
        except Exception as error:
            self._send_error(request, error)

    def _send_error(self, request: RemotingCommand, error: Exception) -> None:
        """Answer with the error's own code, or with 1 and a log line if it is a fault of this program."""
        if isinstance(error, RemotingError):
            self._send(request, make_response(request, error.code, error.remark, error.ext))
            return
        log.error("event=request_failed code=%d peer=%s", request.code, self.address, exc_info=error)
        self._send(request, make_response(request, ResponseCode.SYSTEM_ERROR, f"internal error: {error!r}"))

    def _send(self, request: RemotingCommand, answer: RemotingCommand) -> None:
        self._owner.counters.errors += answer.code != ResponseCode.SUCCESS
        if request.is_oneway or self._transport is None or self._transport.is_closing():
            return
        self.last_active = self._loop.time()
        try:
            frame = encode_command(answer)
        except FrameError as error:
            frame = encode_command(make_response(request, ResponseCode.SYSTEM_ERROR, f"the answer: {error.remark}"))
        if self._is_secured:
            write_secured(self._transport, (frame,))
        else:
            self._transport.write(frame)

    def _stop_slow_timer(self) -> None:
        if self._slow_timer is not None:
            self._slow_timer.cancel()
            self._slow_timer = None

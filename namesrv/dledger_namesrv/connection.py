"""Connection of one client or broker: decodes requests and writes answers, within the limits of the configuration."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Protocol, cast

from dledger_base.first_requests import FIRST_REQUEST_S, FirstRequest
from dledger_base.request_memory import RequestMemory
from dledger_base.request_turns import RequestTurns
from dledger_base.secured_writes import is_secured, write_secured
from dledger_base.telling import Telling
from dledger_base.unread_answers import UnreadAnswers
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand, decode_command, encode_command, make_response
from dledger_remoting.errors import FrameError, RemotingError
from dledger_remoting.frame import Frame, FrameDecoder
from dledger_remoting.hosts import HostAddress
from dledger_remoting.request_limits import header_fault, undecoded
from dledger_remoting.speakers import ENOUGH_BYTES, TLS_ALERT, tls_refusal

from .config import NameServerConfig
from .metrics import NameServerCounters

log = logging.getLogger("dledger.namesrv")


class ConnectionOwner(Protocol):
    """Server of a connection."""

    config: NameServerConfig
    counters: NameServerCounters
    request_memory: RequestMemory
    stranger_memory: RequestMemory
    """Memory for requests of connections that have signed nothing, while access control is on."""
    unread: UnreadAnswers
    turns: RequestTurns
    telling: Telling

    @property
    def judges(self) -> bool:
        """True if access control is on."""

    def admit(self, connection: Connection) -> bool:
        """Count a new connection; False if there are too many."""

    def may_ask(self, connection: Connection, code: int) -> bool:
        """Return whether a connection that sends a request of this code may stay."""

    def handle(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand | Coroutine[None, None, RemotingCommand]:
        """Return the answer, or a coroutine that waits for it. Raises `RemotingError`."""

    def connection_lost(self, connection: Connection) -> None:
        """Forget a connection and everything that depends on it."""


class Connection(asyncio.Protocol):
    """A connection with a number. The route table uses the number to find the nodes that registered over it."""

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
        """True if the connection is read no longer."""
        self._slow_timer: asyncio.TimerHandle | None = None
        self._first_bytes = b""
        self._waits_for_memory = self._waits_for_turn = False
        self.arrived = self.missing = 0
        self._request_memory = owner.request_memory
        self._is_proven = False
        self._pending_answers: set[asyncio.Task[None]] = set()
        self._first_request: FirstRequest | None = None

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
        self._first_request = FirstRequest(self, self._close_late)

    def data_received(self, data: bytes) -> None:
        """Take bytes from the socket."""
        if self._is_over:
            return
        self.last_active = self._loop.time()
        self._decoder.receive_data(data)
        self._first_bytes = self._first_bytes or data[:ENOUGH_BYTES]
        if not self._waits_for_turn:
            self._process()
        self._count_partial()

    def pause_writing(self) -> None:
        """Stop taking requests while the client does not read its answers. Drop the connection after a time limit."""
        config = self._owner.config
        if self._transport is not None and not self._transport.is_closing():
            self._owner.counters.limits["max_write_buffer_bytes"] += 1
            self._slow_timer = self._loop.call_later(config.slow_reader_timeout_ms / 1000, self._abort_slow_reader)
            self._update_reading()

    def resume_writing(self) -> None:
        """Continue: the client has read its answers."""
        self._stop_slow_timer()
        if self._transport is not None and not self._transport.is_closing():
            if not self._waits_for_turn:
                self._process()
            self._count_partial()
            self._update_reading()

    def connection_lost(self, _exc: Exception | None) -> None:
        """Drop everything that waits for this connection."""
        self._is_over = True
        self._stop_slow_timer()
        self._stop_first_request_timer()
        self._owner.unread.forget(self)
        self._give_up_partial()
        for task in self._pending_answers:
            task.cancel()
        self._owner.connection_lost(self)

    def abort(self, reason: str) -> None:
        """Close at once, and log the reason."""
        untold = self._owner.telling.untold(self.address.ip, reason)
        if untold is not None:
            log.warning("event=connection_closed peer=%s reason=%r untold=%d", self.address, reason, untold)
        self.drop()

    def drop(self) -> None:
        """Close at once."""
        self._is_over = True
        if self._transport is not None:
            self._transport.abort()

    async def finish(self, grace_s: float) -> None:
        """Wait a limited time until pending requests are answered; then close once the answers are written."""
        if self._pending_answers:
            await asyncio.wait(self._pending_answers, timeout=grace_s)
        self._is_over = True
        if self._transport is not None:
            self._transport.close()

    def hold(self) -> None:
        """Stop reading until `let_go` is called, because the request memory is short."""
        self._waits_for_memory = True
        self._update_reading()

    def let_go(self) -> None:
        """Continue reading."""
        self._waits_for_memory = False
        self._update_reading()

    def prove(self) -> bool:
        """Note that a request was signed rightly. Returns False if one was before."""
        was_proven, self._is_proven = self._is_proven, True
        return not was_proven

    @property
    def is_strange(self) -> bool:
        """True if the arriving request is in the memory of connections that have signed nothing."""
        return self._request_memory is self._owner.stranger_memory

    def cut_off(self, why: str) -> None:
        """Close the connection and give up what has arrived of its request."""
        self._give_up_partial()
        self.abort(why)

    def _update_reading(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._waits_for_memory or self._waits_for_turn or self._slow_timer is not None:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _count_partial(self) -> None:
        """Report the unfinished part of a request after a read."""
        size = self._decoder.buffered_bytes - self.arrived
        if size > 0 and self._transport is not None and not self._transport.is_closing():
            if not self.arrived:
                is_strange = self._owner.judges and not self._is_proven
                self._request_memory = self._owner.stranger_memory if is_strange else self._owner.request_memory
            self.arrived += size
            # `missing_bytes` may be 0 or less while unread answers keep complete requests waiting
            self.missing = max(1, self._decoder.missing_bytes)
            self._request_memory.grew(self, size)

    def _give_up_partial(self) -> None:
        if self.arrived:
            self._request_memory.ended(self)
            self.arrived = self.missing = 0

    def _abort_slow_reader(self) -> None:
        config = self._owner.config
        self._owner.counters.limits["slow_reader_timeout_ms"] += 1
        self.abort(f"left {config.max_write_buffer_bytes} bytes unread for {config.slow_reader_timeout_ms} ms")

    def _process(self) -> None:
        """Handle complete requests while the client keeps reading.

        Requests are handled even if the client has closed the connection after sending them.
        """
        assert self._transport is not None
        while self._slow_timer is None and not self._is_over:
            if not self._owner.turns.has_time:
                self._waits_for_turn = True
                self._owner.turns.wait(self._continue_processing)
                self._update_reading()
                return
            try:
                frame = self._decoder.next_frame()
                if frame is None:
                    return
                self._give_up_partial()
                fault = header_fault(frame.serialize_type, frame.header)
                if fault:
                    self._refuse_header(frame, fault)
                    continue
                request = decode_command(frame)
            except FrameError as error:
                self._owner.counters.frames_refused += 1
                refusal = tls_refusal(self._first_bytes)
                if refusal is not None:
                    self._transport.write(TLS_ALERT)
                self.abort(str(refusal or error))
                return
            if request.is_response:
                continue
            self._stop_first_request_timer()
            if not self._owner.may_ask(self, request.code):
                self.drop()
                return
            self._handle(request)

    def _continue_processing(self) -> None:
        """Continue with the requests that had to wait for a turn of the event loop."""
        self._waits_for_turn = False
        self._process()
        self._count_partial()
        self._update_reading()

    def _refuse_header(self, frame: Frame, fault: str) -> None:
        """Answer a request that is not decoded. Raises `FrameError` if that is impossible.

        A route watch is answered as by a name server without watches. Clients of older versions, which ask for all
        their topics at once, then poll.
        """
        self._owner.counters.headers_refused += 1
        request = undecoded(frame.serialize_type, frame.header)
        if request is None or request.is_response:
            raise FrameError(fault)
        is_watch = request.code == RequestCode.DLEDGER_ROUTE_WATCH
        code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED if is_watch else ResponseCode.MESSAGE_ILLEGAL
        self._send(request, make_response(request, code, fault))

    def _handle(self, request: RemotingCommand) -> None:
        try:
            answer = self._owner.handle(request, self)
        except Exception as error:
            self._send_error(request, error)
            return
        if isinstance(answer, RemotingCommand):
            self._send(request, answer)
        elif len(self._pending_answers) >= self._owner.config.max_in_flight:
            answer.close()
            self._owner.counters.limits["max_in_flight"] += 1
            count = len(self._pending_answers)
            remark = f"{count} requests of this connection wait already, the limit is max_in_flight"
            self._send(request, make_response(request, ResponseCode.SYSTEM_BUSY, remark))
        else:
            task = self._loop.create_task(self._send_when_ready(request, answer))
            self._pending_answers.add(task)
            task.add_done_callback(partial(self._finish_answer, answer))

    def _finish_answer(self, answer: Coroutine[None, None, RemotingCommand], task: asyncio.Task[None]) -> None:
        """End the work on an answer, which never began if the connection was lost before."""
        self._pending_answers.discard(task)
        answer.close()

    async def _send_when_ready(self, request: RemotingCommand, answer: Coroutine[None, None, RemotingCommand]) -> None:
        try:
            self._send(request, await answer)
        except Exception as error:
            self._send_error(request, error)

    def _send_error(self, request: RemotingCommand, error: Exception) -> None:
        """Answer with the error's own code. A fault of this program is answered with code 1 and logged."""
        if isinstance(error, RemotingError):
            self._send(request, make_response(request, error.code, error.remark, error.ext))
            return
        kind, line = f"{request.code} {type(error).__name__}", "event=request_failed code=%d peer=%s"
        self._owner.telling.log(
            *(log, logging.ERROR, self.address.ip, kind, line), request.code, self.address, exc_info=error
        )
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
        self._owner.unread.note(self, self.unread_bytes)

    @property
    def unread_bytes(self) -> int:
        """Size of the answers that the kernel has not taken yet, in bytes."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _stop_first_request_timer(self) -> None:
        """Stop the timer of the first request."""
        if self._first_request is not None:
            self._first_request.came()
            self._first_request = None

    def _close_late(self) -> None:
        self._owner.counters.limits["idle_timeout_ms"] += 1
        self.abort(f"nothing arrived of its first request for {FIRST_REQUEST_S:g} s")

    def _stop_slow_timer(self) -> None:
        if self._slow_timer is not None:
            self._slow_timer.cancel()
            self._slow_timer = None

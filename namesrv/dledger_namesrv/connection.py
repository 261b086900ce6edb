"""Connection of one client or broker: decodes requests and writes answers, within the limits of the configuration."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Protocol

from dledger_base.accepted_connection import AcceptedConnection, Host, write_secured
from dledger_base.request_turns import RequestTurns
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


class ConnectionOwner(Host, Protocol):
    """Server of a connection."""

    config: NameServerConfig
    counters: NameServerCounters
    turns: RequestTurns

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


class Connection(AcceptedConnection):
    """A connection with a number. The route table uses the number to find the nodes that registered over it."""

    def __init__(self, owner: ConnectionOwner, number: int) -> None:
        super().__init__(owner)
        self.number = number
        self.address: HostAddress = HostAddress("0.0.0.0", 0)
        self.last_active = 0.0
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(owner.config.max_frame_bytes)
        self._first_bytes = b""
        self._pending_answers: set[asyncio.Task[None]] = set()

    def _enter(self, peer: tuple[str, int] | None) -> bool:
        if peer:
            self.address = HostAddress(str(peer[0]), int(peer[1]))
        self.last_active = self._loop.time()
        return self._owner.admit(self)

    def data_received(self, data: bytes) -> None:
        """Take bytes from the socket."""
        if self._is_over:
            return
        self.last_active = self._loop.time()
        self._decoder.receive_data(data)
        self._first_bytes = self._first_bytes or data[:ENOUGH_BYTES]
        if not self.waits_for_turn:
            self._process()
        self._count_rest()

    def resume_writing(self) -> None:
        """Continue: the client has read its answers."""
        super().resume_writing()
        if self._transport is not None and not self._transport.is_closing():
            if not self.waits_for_turn:
                self._process()
            self._count_rest()
            self.update_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop everything that waits for this connection."""
        super().connection_lost(exc)
        for task in self._pending_answers:
            task.cancel()
        self._owner.connection_lost(self)

    async def finish(self, grace_s: float) -> None:
        """Wait a limited time until pending requests are answered; then close once the answers are written."""
        if self._pending_answers:
            await asyncio.wait(self._pending_answers, timeout=grace_s)
        self.close()

    def prove(self) -> bool:
        """Note that a request was signed rightly. Returns False if one was before."""
        was_trusted, self._is_trusted = self._is_trusted, True
        return not was_trusted

    def update_reading(self) -> None:
        """Read or pause reading, as the present state requires."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._waits_for_memory or self.waits_for_turn or self._write_paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _count_rest(self) -> None:
        """Report the unfinished part of a request after a read."""
        size = self._decoder.buffered_bytes - self.arrived
        if size > 0 and self._transport is not None and not self._transport.is_closing():
            # `missing_bytes` may be 0 or less while unread answers keep complete requests waiting
            self._count_partial(size, max(1, self._decoder.missing_bytes))

    def _process(self) -> None:
        """Handle complete requests while the client keeps reading.

        Requests are handled even if the client has closed the connection after sending them.
        """
        while not self._write_paused and not self._is_over:
            if not self._owner.turns.has_time:
                self.waits_for_turn = True
                self._owner.turns.wait(self._continue_processing)
                self.update_reading()
                return
            try:
                frame = self._decoder.next_frame()
                if frame is None:
                    return
                self._end_partial()
                fault = header_fault(frame.serialize_type, frame.header)
                if fault:
                    self._refuse_header(frame, fault)
                    continue
                request = decode_command(frame)
            except FrameError as error:
                self._owner.counters.frames_refused += 1
                refusal = tls_refusal(self._first_bytes)
                if refusal is not None and self._transport is not None:
                    self._transport.write(TLS_ALERT)
                self.end(f"it broke the protocol: {(refusal or error).remark}")
                return
            if request.is_response:
                continue
            self._note_first_request()
            if not self._owner.may_ask(self, request.code):
                self.abort()
                return
            self._handle(request)

    def _continue_processing(self) -> None:
        """Continue with the requests that had to wait for a turn of the event loop."""
        self.waits_for_turn = False
        self._process()
        self._count_rest()
        self.update_reading()

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
        self._owner.bounds.telling.log(
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
        self._owner.bounds.unread.note(self, self.unread_bytes)

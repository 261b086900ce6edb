"""Connection to a broker or name server over TCP.

Requests are pipelined: any number may be under way, and answers are matched by their opaque number. Frames of one turn
of the event loop leave in one write. Each request has a deadline, which `under_way` watches.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Final, TypeAlias, cast

from dledger_remoting.codes import OPEN_CODES, LanguageCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, decode_command, encode_command
from dledger_remoting.errors import FrameError
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.hosts import split_host_port
from dledger_remoting.signatures import Credentials, signed
from dledger_remoting.speakers import Speaker, speaker_of
from dledger_remoting.speech import is_for_another

from ..errors import (
    ClientError,
    ConnectError,
    ConnectionLostError,
    WrongServerError,
)
from .forks import give_up_at_fork
from .under_way import STOOD_STILL_SECONDS, Late, RequestsUnderWay

logger = logging.getLogger(__name__)

_MAX_OPAQUE: Final = 0x3FFF_FFFF
"""Maximum opaque number. Servers' requests count from 1,000,000,000 on; different ranges keep captures readable."""

_SILENCE_SECONDS: Final = 2.75
"""Time limit for silence in seconds. A connection is given up if a request expires on it after such a silence.

Packets of the connection may be lost for good, for example because a firewall has forgotten it. A new connection may
work. A live broker sends something within 2.5 s, at least that it found no majority.
"""

_MIN_WAIT_SECONDS: Final = 1.0
"""Minimum time in seconds that a request must have waited to say something about the connection."""

_PLAUSIBLE_SPEAKERS: Final = (None, Speaker.REMOTING, Speaker.OTHER)
"""Speakers that may be brokers. The frame decoder judges their bytes, because a broker may be broken."""

RequestHandler: TypeAlias = "Callable[[Connection, RemotingCommand], None]"
"""Called for each request that the server sends on its own."""


class Connection(asyncio.Protocol):
    """An open connection from a `ConnectionPool`.

    Requests are signed for the account of `credentials`. A caller that encodes a request itself must sign it itself.
    """

    def __init__(
        self,
        address: str,
        on_request: RequestHandler,
        on_lost: Callable[[Connection], None],
        credentials: Credentials | None = None,
    ) -> None:
        self.address = address
        self.credentials = credentials
        self._on_request = on_request
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._pending_requests = RequestsUnderWay(self._loop, address, self._on_expired)
        self._opaque = 0
        self._outgoing: list[bytes] = []
        self._outgoing_opaques: list[int] = []
        """Opaque numbers of these frames; 0 for a frame whose answer is not awaited."""
        self._outgoing_since = 0.0
        self.written_at = 0.0
        """Time of the last write, by the event loop's clock."""
        self._flush_scheduled = False
        self._write_paused = False
        self._write_waiters: list[asyncio.Future[None]] = []
        self._silent_since: float | None = None
        self._first_bytes = b""
        self._speaker: Speaker | None = None
        self._close_reason: str | None = None

    @property
    def is_open(self) -> bool:
        """True while requests can be submitted."""
        return self._transport is not None and self._close_reason is None

    @property
    def pending(self) -> int:
        """Number of requests that wait for their answer."""
        return len(self._pending_requests)

    @property
    def speaker(self) -> Speaker | None:
        """Kind of server that has answered, None while that is unknown."""
        return self._speaker

    def next_opaque(self) -> int:
        """Return a number for the next request, for its header and for `submit`."""
        self._opaque = self._opaque % _MAX_OPAQUE + 1
        return self._opaque

    def submit(
        self,
        opaque: int,
        frame: bytes,
        deadline: float,
        *,
        attempt_seconds: float = math.inf,
        on_late: Late | None = None,
        to_leader: bool = False,
    ) -> asyncio.Future[RemotingCommand]:
        """Queue an encoded request. The returned future gets its answer, with any code.

        `deadline` is a time of the event loop's clock; `attempt_seconds` count from the writing of the frame. `on_late`
        is called with an answer that comes after a time-out. `to_leader` says that the node is asked as the leader.

        The future raises `ConnectionLostError` or `RequestTimeoutError`, with an unknown outcome. It raises
        `ConnectError` if the deadline passed before the frame was written. On a closed connection `submit` itself
        raises `ConnectError`.
        """
        if not self.is_open:
            raise self._make_send_error()
        future = self._pending_requests.add(opaque, deadline, attempt_seconds, on_late, to_leader=to_leader)
        if self._silent_since is None:
            self._silent_since = self._loop.time()
        self._write(frame, opaque)
        return future

    async def call(
        self,
        command: RemotingCommand,
        deadline: float,
        *,
        attempt_seconds: float = math.inf,
        on_late: Late | None = None,
        to_leader: bool = False,
    ) -> RemotingCommand:
        """Send a request and wait for its answer. Raises the errors of `submit` and its future."""
        self._complete(command)
        future = self.submit(
            *(command.opaque, encode_command(command), deadline),
            attempt_seconds=attempt_seconds,
            on_late=on_late,
            to_leader=to_leader,
        )
        try:
            return await future
        finally:
            if future.cancelled():
                self._pending_requests.forget(command.opaque)
                if not self._pending_requests:  # from here on nothing waits
                    self._silent_since = None

    def send_oneway(self, command: RemotingCommand) -> None:
        """Send a request that is not answered. Raises `ConnectError` if the connection is closed."""
        command.flag |= FLAG_ONEWAY
        self._complete(command)
        self.send_frame(encode_command(command))

    def _complete(self, command: RemotingCommand) -> None:
        """Number and sign a request. A request that a proxy sends for its client keeps that client's language."""
        command.opaque = self.next_opaque()
        if not is_for_another(command.ext):
            command.language = LanguageCode.PYTHON
        if self.credentials is not None and command.code not in OPEN_CODES:
            command.ext = signed(command.ext, command.body, self.credentials)

    def send_frame(self, frame: bytes) -> None:
        """Queue an encoded frame that gets no answer: a one-way request, or an answer to the server."""
        if not self.is_open:
            raise self._make_send_error()
        self._write(frame)

    async def writable(self) -> None:
        """Wait until earlier frames are written, or buffered as far as the limit allows while the peer does not read.

        Returns at once on a closed connection.
        """
        if self._flush_scheduled:
            await asyncio.sleep(0)
        while self._write_paused and self.is_open:
            waiter = self._loop.create_future()
            self._write_waiters.append(waiter)
            await waiter

    def expire_leader_requests_by(self, deadline: float) -> None:
        """Limit the deadline of every request to a leader that is under way to `deadline`.

        Requests that expire by this say nothing about the connection.
        """
        self._pending_requests.expire_by(deadline)

    def end_writing(self) -> None:
        """Close the sending side of a connection on which nothing has come.

        A server that reads lines then answers what it has.
        """
        if self.is_open and self._transport is not None and not self._first_bytes:
            self._close_reason = "nothing has come"
            self._flush()
            if self._transport.can_write_eof():  # TLS has no half-closed connections
                self._transport.write_eof()

    def close(self, reason: str = "closed by the client") -> None:
        """Close at once; requests under way raise `ConnectionLostError`."""
        if self._transport is None:
            return
        self._flush()
        self._fail(reason)
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=1 << 20)
        give_up_at_fork(self, self._transport)

    def data_received(self, data: bytes) -> None:
        self._pending_requests.heard += 1
        if self._speaker is not Speaker.REMOTING and not self._is_remoting(data):
            return
        try:
            self._decoder.receive_data(data)
            while (frame := self._decoder.next_frame()) is not None:
                command = decode_command(frame)
                if command.is_response:
                    self._pending_requests.answered(command)
                else:
                    self._on_request(self, command)
        except FrameError as error:
            if not self._pending_requests:  # otherwise the waiting callers get the error
                logger.warning("closing %s: %s", self.address, error)
            self.close(f"the server broke the protocol: {error}")
        self._silent_since = self._loop.time() if self._pending_requests else None

    def _is_remoting(self, data: bytes) -> bool:
        """Return False once the first bytes show that another protocol's server has answered.

        The connection is then closed.
        """
        self._first_bytes += data
        self._speaker = speaker_of(self._first_bytes)
        if self._speaker in _PLAUSIBLE_SPEAKERS:
            return True
        self.close(f"{self._speaker.value} answered")
        return False

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._flush()
        self._wake_writers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("closed by the server" if exc is None else str(exc) or type(exc).__name__)
        self._transport = None
        self._on_lost(self)

    def _write(self, frame: bytes, opaque: int = 0) -> None:
        if not self._outgoing:
            self._outgoing_since = self._loop.time()
        self._outgoing.append(frame)
        self._outgoing_opaques.append(opaque)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if not self._outgoing or self._write_paused or self._transport is None:
            return
        chunks, self._outgoing = self._outgoing, []
        opaques, self._outgoing_opaques = self._outgoing_opaques, []
        if self._transport.is_closing():
            return
        now = self.written_at = self._loop.time()
        if now - self._outgoing_since >= STOOD_STILL_SECONDS:
            self._silent_since = now if self._silent_since is not None else None
            unwanted = self._pending_requests.written_late(filter(None, opaques))
            chunks = [chunk for chunk, opaque in zip(chunks, opaques, strict=True) if opaque not in unwanted]
        self._transport.write(chunks[0] if len(chunks) == 1 else b"".join(chunks))

    def _wake_writers(self) -> None:
        waiters, self._write_waiters = self._write_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _on_expired(self, waited_seconds: float) -> None:
        """Give the connection up if requests expired in silence.

        `waited_seconds` is the longest wait of an expired request.
        """
        silence = 0.0 if self._silent_since is None else self._loop.time() - self._silent_since
        if silence >= _SILENCE_SECONDS and waited_seconds >= _MIN_WAIT_SECONDS and self._transport is not None:
            self._fail(f"nothing came for {silence:.3g} s")
            self._transport.abort()

    def _fail(self, reason: str) -> None:
        if self._close_reason is None:
            self._close_reason = reason
        self._wake_writers()
        self._pending_requests.fail(lambda: self._make_loss_error(reason))

    def _make_send_error(self) -> ConnectError:
        """Return the error of a request that cannot be sent.

        It says so if a server of another protocol has answered, which may happen before the first request.
        """
        if self._speaker in _PLAUSIBLE_SPEAKERS:
            return ConnectError(self.address, self._close_reason or "not connected")
        return WrongServerError(self.address, self._speaker)

    def _make_loss_error(self, reason: str) -> ClientError:
        """Return the error of a request whose answer does not come.

        A server of another protocol has not executed the request.
        """
        if self._speaker in _PLAUSIBLE_SPEAKERS:
            return ConnectionLostError(self.address, reason)
        return WrongServerError(self.address, self._speaker)


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[ipv6]:port`.

    Raises `ConnectError` for other texts and impossible hosts.
    """
    try:
        return split_host_port(address)
    except ValueError as error:
        raise ConnectError(address, str(error)) from error

"""One TCP connection to a broker or name server, and a pool of them by address.

Requests are pipelined: any number may be under way, answers are matched by their opaque number. What is written within
one turn of the event loop leaves in one write. Each request has a deadline; one timer per connection, set to the
earliest of them, serves all.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import Final, TypeAlias, cast

from dledger.net.tls import TlsContext, handshake_failure
from dledger_remoting.codes import LanguageCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, decode_command, encode_command
from dledger_remoting.errors import FrameError
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.hosts import split_host_port
from dledger_remoting.name_server_codes import OPEN_CODES
from dledger_remoting.signatures import Credentials, signed
from dledger_remoting.speakers import Speaker, speaker_of

from .errors import (
    ClientClosedError,
    ClientError,
    ConnectError,
    ConnectionLostError,
    RequestTimeoutError,
    TlsError,
    WrongServerError,
)
from .tls import Tls

logger = logging.getLogger(__name__)

_MAX_OPAQUE: Final = 0x3FFF_FFFF
"""Requests of servers count from 1,000,000,000 on; staying below keeps captures readable."""

_SILENCE_SECONDS: Final = 2.75
"""A connection is given up if a request expires on it and nothing at all has come for so long that was waited for:
what is sent over it may be lost for good (a firewall that has forgotten it, say), and a new one may work. A broker that
lives says something within 2.5 s, if only that it found no majority."""

_FAIR_WAIT_SECONDS: Final = 1.0
"""A request that had less time than this says nothing about the connection."""

_TIMER_SLACK_SECONDS: Final = 0.005
"""Requests that expire this soon after the timer fires expire with it, so that n deadlines do not need n timers."""

_PERHAPS_RIGHT: Final = (None, Speaker.REMOTING, Speaker.OTHER)
"""What may come from a broker, be it one that is out of its mind: the frame decoder judges that."""

RequestHandler: TypeAlias = "Callable[[Connection, RemotingCommand], None]"
"""Called for each request that the server sends on its own."""


class Connection(asyncio.Protocol):
    """An open connection. Obtain it from a `ConnectionPool`. Requests are signed for the account of `credentials`; who
    encodes one by himself has to sign it.
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
        self._pending: dict[int, tuple[float, float, asyncio.Future[RemotingCommand]]] = {}
        self._opaque = 0
        self._outgoing: list[bytes] = []
        self._flush_scheduled = False
        self._write_paused = False
        self._write_waiters: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
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
        """How many requests wait for their answer."""
        return len(self._pending)

    @property
    def speaker(self) -> Speaker | None:
        """Who has answered, None as long as nothing tells."""
        return self._speaker

    def next_opaque(self) -> int:
        """A number for the next request, to be put into its header and given to `submit`."""
        self._opaque = self._opaque % _MAX_OPAQUE + 1
        return self._opaque

    def submit(self, opaque: int, frame: bytes, deadline: float) -> asyncio.Future[RemotingCommand]:
        """Queue an encoded request; the future gets its answer, whatever code that has.

        `deadline` is a time of the event loop's clock. The future raises `ConnectionLostError` or
        `RequestTimeoutError`, of which the outcome is unknown; `ConnectError` is raised at once if the connection is
        closed.
        """
        if not self.is_open:
            raise self._refusal()
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        now = self._loop.time()
        self._pending[opaque] = (deadline, now, future)
        if self._silent_since is None:
            self._silent_since = now
        if self._timer is None or deadline < self._timer_at:
            self._arm(deadline)
        self._write(frame)
        return future

    async def call(self, command: RemotingCommand, deadline: float) -> RemotingCommand:
        """Send a request and wait for its answer. Raises what `submit` and its future raise."""
        command.opaque = self.next_opaque()
        command.language = LanguageCode.PYTHON
        self._sign(command)
        future = self.submit(command.opaque, encode_command(command), deadline)
        try:
            return await future
        finally:
            if future.cancelled():
                self._pending.pop(command.opaque, None)
                if not self._pending:  # from here on nobody waits
                    self._silent_since = None

    def send_oneway(self, command: RemotingCommand) -> None:
        """Send a request that is not answered. Raises `ConnectError` if the connection is closed."""
        command.opaque = self.next_opaque()
        command.language = LanguageCode.PYTHON
        command.flag |= FLAG_ONEWAY
        self._sign(command)
        self.send_frame(encode_command(command))

    def _sign(self, command: RemotingCommand) -> None:
        if self.credentials is not None and command.code not in OPEN_CODES:
            command.ext = signed(command.ext, command.body, self.credentials)

    def send_frame(self, frame: bytes) -> None:
        """Queue an encoded frame that nobody waits for: a one-way request, an answer to the server."""
        if not self.is_open:
            raise self._refusal()
        self._write(frame)

    async def writable(self) -> None:
        """Wait until what was queued before is written, or as much of it as the peer takes without reading it.

        Returns at once on a closed connection.
        """
        if self._flush_scheduled:
            await asyncio.sleep(0)
        while self._write_paused and self.is_open:
            waiter = self._loop.create_future()
            self._write_waiters.append(waiter)
            await waiter

    def expire_pending_by(self, deadline: float) -> None:
        """Bring the deadline of every request under way forward to `deadline` at the latest.

        That these expire says nothing about the connection.
        """
        now = self._loop.time()
        for opaque, (old, _, future) in self._pending.items():
            if old > deadline:
                self._pending[opaque] = (deadline, now, future)
        if self._pending and deadline < self._timer_at:
            self._arm(deadline)

    def end_writing(self) -> None:
        """Send nothing more on a connection on which nothing has come: who reads lines answers now what it has got."""
        if self.is_open and self._transport is not None and not self._first_bytes:
            self._close_reason = "nothing has come"
            self._flush()
            if self._transport.can_write_eof():  # TLS has no such half
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

    def data_received(self, data: bytes) -> None:
        if self._speaker is not Speaker.REMOTING and not self._is_remoting(data):
            return
        try:
            self._decoder.receive_data(data)
            while (frame := self._decoder.next_frame()) is not None:
                command = decode_command(frame)
                if command.is_response:
                    entry = self._pending.pop(command.opaque, None)
                    if entry is not None and not entry[2].done():
                        entry[2].set_result(command)
                else:
                    self._on_request(self, command)
        except FrameError as error:
            if not self._pending:  # else those who wait are told
                logger.warning("closing %s: %s", self.address, error)
            self.close(f"the server broke the protocol: {error}")
        self._silent_since = self._loop.time() if self._pending else None

    def _is_remoting(self, data: bytes) -> bool:
        """False once the first bytes tell that something else has answered; the connection is closed then."""
        self._first_bytes += data
        self._speaker = speaker_of(self._first_bytes)
        if self._speaker in _PERHAPS_RIGHT:
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

    def _write(self, frame: bytes) -> None:
        self._outgoing.append(frame)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._outgoing and not self._write_paused and self._transport is not None:
            chunks, self._outgoing = self._outgoing, []
            if not self._transport.is_closing():
                self._transport.write(chunks[0] if len(chunks) == 1 else b"".join(chunks))

    def _wake_writers(self) -> None:
        waiters, self._write_waiters = self._write_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        """Fail what is due, and set the timer to what is due next."""
        self._timer = None
        now = self._loop.time()
        limit = now + _TIMER_SLACK_SECONDS
        due = [opaque for opaque, (deadline, _, _) in self._pending.items() if deadline <= limit]
        silence = 0.0 if self._silent_since is None else now - self._silent_since
        given_up = False
        for opaque in due:
            _, started, future = self._pending.pop(opaque)
            given_up = given_up or (silence >= _SILENCE_SECONDS and now - started >= _FAIR_WAIT_SECONDS)
            if not future.done():
                future.set_exception(RequestTimeoutError(self.address, now - started))
        if given_up and self._transport is not None:
            self._fail(f"nothing came for {silence:.3g} s")
            self._transport.abort()
        elif self._pending:
            self._arm(min(deadline for deadline, _, _ in self._pending.values()))

    def _fail(self, reason: str) -> None:
        if self._close_reason is None:
            self._close_reason = reason
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake_writers()
        pending, self._pending = self._pending, {}
        for _, _, future in pending.values():
            if not future.done():
                future.set_exception(self._loss(reason))

    def _refusal(self) -> ConnectError:
        """Why a request cannot be sent: a wrong server may have shown itself before the first one."""
        if self._speaker in _PERHAPS_RIGHT:
            return ConnectError(self.address, self._close_reason or "not connected")
        return WrongServerError(self.address, self._speaker)

    def _loss(self, reason: str) -> ClientError:
        """Why the answer to a request does not come. A server of another protocol has not done what it asked for."""
        if self._speaker in _PERHAPS_RIGHT:
            return ConnectionLostError(self.address, reason)
        return WrongServerError(self.address, self._speaker)


class _Opening:
    """A connection that is being opened, and who waits for it."""

    __slots__ = ("task", "waiters")

    def __init__(self, task: asyncio.Task[Connection]) -> None:
        self.task = task
        self.waiters: list[asyncio.Future[Connection]] = []


class ConnectionPool:
    """At most one connection per address, opened when first asked for and again after it was lost.

    `on_connected` is called with each new connection before anyone else gets it; `on_lost` with each that ended. Those
    who wait for a connection get it in the order in which they asked, and before anyone who asks later.
    """

    def __init__(
        self,
        on_request: RequestHandler,
        *,
        on_connected: Callable[[Connection], None] | None = None,
        on_lost: Callable[[Connection], None] | None = None,
        connect_timeout: float = 3.0,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._credentials = credentials
        self._tls = None if tls is None else tls.context()
        self._on_request = on_request
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._connect_timeout = connect_timeout
        self._open: dict[str, Connection] = {}
        self._opening: dict[str, _Opening] = {}
        self._closed = False

    def peek(self, address: str) -> Connection | None:
        """The open connection to `address`, if there is one."""
        connection = self._open.get(address)
        return connection if connection is not None and connection.is_open else None

    def connections(self) -> list[Connection]:
        """All open connections."""
        return [connection for connection in self._open.values() if connection.is_open]

    async def get(self, address: str, deadline: float) -> Connection:
        """The connection to `address`, opened if need be. Raises `ConnectError` when that fails or takes too long."""
        opening = self._opening.get(address)
        if opening is None:
            connection = self.peek(address)
            if connection is not None:
                return connection
            if self._closed:
                raise ClientClosedError("the client is closed")
            opening = self._opening[address] = _Opening(
                asyncio.create_task(self._connect(address), name=f"connect {address}")
            )
            opening.task.add_done_callback(lambda _: self._hand_out(address))
        waiter: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        opening.waiters.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                return await waiter
        except TimeoutError:
            raise ConnectError(address, "not connected before the call's deadline") from None

    async def close(self) -> None:
        """Close all connections and wait until the transports have let go."""
        self._closed = True
        for opening in list(self._opening.values()):
            opening.task.cancel()
        for connection in list(self._open.values()):
            connection.close()
        await asyncio.sleep(0)

    async def _connect(self, address: str) -> Connection:
        host, port = split_address(address)
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(address, self._on_request, self._lost, self._credentials),
                    host,
                    port,
                    ssl=None if self._tls is None else await self._fresh(self._tls),
                )
        except TimeoutError:
            raise ConnectError(address, f"no connection within {self._connect_timeout:g} s") from None
        except OSError as error:
            raise self._failure(address, error) from error
        self._open[address] = connection
        if self._on_connected is not None:
            self._on_connected(connection)
        return connection

    def _failure(self, address: str, error: OSError) -> ConnectError:
        """Why an address cannot be connected to. One that resets a handshake may be about to stop."""
        said = None if self._tls is None else handshake_failure(error)
        kind = TlsError if isinstance(error, ssl.SSLError) else ConnectError
        return kind(address, said or _reason(error))

    @staticmethod
    async def _fresh(tls: TlsContext) -> ssl.SSLContext:
        """The context of the files as they are now; reading them takes the event loop no time."""
        await asyncio.to_thread(tls.refresh)
        return tls.context

    def _hand_out(self, address: str) -> None:
        """Give those who wait what came of the opening.

        A connection is handed out this way until nobody has come to ask meanwhile: who comes while others are about to
        go on must not get ahead of them.
        """
        opening = self._opening[address]
        waiters, opening.waiters = opening.waiters, []
        task = opening.task
        error = ClientClosedError("the client is closed") if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ClientError):
            logger.error("connecting to %s failed unexpectedly", address, exc_info=error)
        if waiters and error is None and task.result().is_open:
            asyncio.get_running_loop().call_soon(self._hand_out, address)
        else:
            del self._opening[address]
        for waiter in waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(task.result())
            else:
                waiter.set_exception(error)

    def _lost(self, connection: Connection) -> None:
        if self._open.get(connection.address) is connection:
            del self._open[connection.address]
        if self._on_lost is not None:
            self._on_lost(connection)


def _reason(error: OSError) -> str:
    """What went wrong, without the address that asyncio puts into its words."""
    if error.errno is None or isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[ipv6]:port`. Raises `ConnectError` if it is neither, or no name of a host."""
    try:
        return split_host_port(address)
    except ValueError as error:
        raise ConnectError(address, str(error)) from error

"""Port of the HTTP front: connections of aiohttp's server behind the door that all ports of this project have.

The door waits for the first byte and does the TLS handshake. Connections, the time for the head of a request, and the
time without reading an answer have no bounds in aiohttp. This module has them.
"""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, cast

from aiohttp import web

from dledger_base.accepting import Port
from dledger_base.doorman import Door
from dledger_base.errors import ConfigError
from dledger_base.eviction import Strangers
from dledger_base.tls import TlsContext

from .config import HttpKeys
from .metrics import HttpMetrics

if TYPE_CHECKING:
    from aiohttp.web_protocol import RequestHandler


class Places:
    """Places of a port's connections. A connection without a whole request is idle, and may be displaced."""

    def __init__(self, max_connections: int, metrics: HttpMetrics) -> None:
        self._max_connections = max_connections
        self._metrics = metrics
        self._open_connections: set[FrontConnection] = set()
        self._idle: Strangers[FrontConnection] = Strangers()

    def __len__(self) -> int:
        """Return the number of connections."""
        return len(self._open_connections)

    def admit(self, connection: FrontConnection) -> bool:
        """Take a connection, perhaps in the place of an idle one. Returns False if there is no place."""
        if len(self._open_connections) >= self._max_connections:
            self._metrics.refusals.labels("http_max_connections").inc()
            if not len(self._idle):
                return False
            self._idle.oldest_of_busiest_host().end()
        self._open_connections.add(connection)
        self._idle.add(connection, connection.host)
        self._metrics.connections.set(len(self._open_connections))
        return True

    def forget(self, connection: FrontConnection) -> None:
        """Give up the place of a connection."""
        self._idle.discard(connection)
        self._open_connections.discard(connection)
        self._metrics.connections.set(len(self._open_connections))

    def set_busy(self, connection: FrontConnection, *, is_busy: bool) -> None:
        """Note whether a connection has a whole request under way."""
        if is_busy:
            self._idle.discard(connection)
        elif connection in self._open_connections:
            self._idle.add(connection, connection.host)


class FrontSite(web.TCPSite):
    """A site of aiohttp whose connections have limits. `takes_plain` says whether clients without TLS are served."""

    def __init__(
        self,
        runner: web.AppRunner,
        host: str,
        config: HttpKeys,
        metrics: HttpMetrics,
        tls: TlsContext | None,
        *,
        takes_plain: bool,
    ) -> None:
        super().__init__(runner, host, config.http_port)
        self._config = config
        self._places = Places(config.http_max_connections, metrics)
        self._door = Door(
            tls,
            takes_plain=takes_plain or tls is None,
            max_connections=config.http_max_connections,
            open_connections=self._places.__len__,
        )
        self._bound: Port | None = None

    @property
    def port_number(self) -> int:
        """The port that is listened on."""
        assert self._bound is not None  # the site was started
        return self._bound.address[1]

    async def start(self) -> None:
        """Listen. Raises `ConfigError` if the port cannot be listened on."""
        await web.BaseSite.start(self)
        host, number = self._host or "", self._config.http_port
        try:
            port = await Port.bind(host, number, self._make_doorman, self._door.make_room)
        except OSError as error:
            what = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be listened on ({error.strerror})"
            raise ConfigError(
                f"http_port {number}: {host}:{number} {what}: stop what uses it, or set another http_port"
            ) from error
        self._server = port  # type: ignore[assignment]  # it has what aiohttp uses of a server
        self._bound = port
        port.start_serving()

    async def stop(self) -> None:
        """Stop accepting. Connections stay open until the runner's clean-up closes them."""
        await super().stop()
        self._door.close()

    def _make_doorman(self, _host: str) -> asyncio.Protocol:
        return self._door.doorman(self._make_connection)

    def _make_connection(self) -> FrontConnection:
        server = self._runner.server
        assert server is not None  # the runner was set up
        return FrontConnection(server(), self._config, self._places)


class FrontConnection(asyncio.Protocol):
    """One connection. It passes everything to aiohttp's handler, and ends if its client is too slow.

    The timer runs while no request is under way, and while the client reads nothing of its answer.
    """

    def __init__(self, handler: RequestHandler, config: HttpKeys, places: Places) -> None:
        self.host = ""
        self._handler = handler
        self._config = config
        self._places = places
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None
        self._unread_bytes = 0
        self._is_busy = False
        self._has_begun = False
        self._is_admitted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.host = str(peer[0]) if peer else ""
        self._is_admitted = self._places.admit(self)
        if not self._is_admitted:
            self._transport.abort()
            return
        self._await_request()
        self._handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        if self._is_admitted:
            self._places.forget(self)
            self._handler.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._is_admitted:
            return
        if not self._is_busy and not self._has_begun:
            self._has_begun = True
            self._set_head_timer(self._config.http_head_timeout_s)
        self._handler.data_received(data)

    def eof_received(self) -> None:
        """Close the connection: a client that has closed its side is taken for gone."""

    def pause_writing(self) -> None:
        self._handler.pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None
        self._handler.resume_writing()

    def begin_request(self) -> None:
        """Stop the timer of the head: a request is under way."""
        self._is_busy = True
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def protect(self) -> None:
        """Protect the connection from displacement, because its request has come as a whole."""
        self._places.set_busy(self, is_busy=True)

    def end_request(self) -> None:
        """Wait for the next request."""
        self._is_busy = False
        self._places.set_busy(self, is_busy=False)
        if self._transport is not None and not self._transport.is_closing():
            self._await_request()

    def end(self) -> None:
        """Close at once, and give up the place."""
        self._stop_timers()
        self._places.forget(self)
        if self._transport is not None:
            self._transport.abort()

    def _await_request(self) -> None:
        self._has_begun = False
        self._set_head_timer(self._config.http_idle_timeout_s)

    def _set_head_timer(self, seconds: float) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = self._loop.call_later(seconds, self.end)

    def _watch_reader(self) -> None:
        """Look later whether the client has read anything."""
        assert self._transport is not None  # only a transport pauses its protocol
        self._unread_bytes = self._transport.get_write_buffer_size()
        self._reader_timer = self._loop.call_later(self._config.http_reader_timeout_s, self._check_reader)

    def _check_reader(self) -> None:
        assert self._transport is not None  # as above
        if self._transport.get_write_buffer_size() < self._unread_bytes:
            self._watch_reader()
        else:
            self.end()

    def _stop_timers(self) -> None:
        for timer in (self._head_timer, self._reader_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._reader_timer = None

"""An HTTP port for probes, metrics and a few commands. Needs the packages of the extra `broker`.

Its load must not disturb the main work of the process. Connections are therefore few and short, and carry one small
request each. The limits are not configurable: a prober and a scraper need two connections for some milliseconds.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Iterable
from typing import Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from dledger_base.accepting import Port
from dledger_base.doorman import Door
from dledger_base.errors import ConfigError
from dledger_base.eviction import Strangers
from dledger_base.telling import Telling
from dledger_base.tls import TlsContext

SHUTDOWN_TIMEOUT_S: Final = 1.0
"""Time limit for answers in progress when the port stops, in seconds."""
MAX_CONNECTIONS: Final = 64
"""Maximum number of connections.

A further connection evicts a connection whose request has not come: the oldest one of the host that has most of them.
If all requests have come, the further connection is closed.
"""
REQUEST_TIMEOUT_S: Final = 5.0
"""Time limit for the one request of a connection, in seconds."""
CONNECTION_TIMEOUT_S: Final = 30.0
"""Time limit for a connection, from its opening to the end of the answer, in seconds."""
MAX_RECEIVED_BYTES: Final = 32 << 10
"""Maximum number of bytes that a client may send over a connection. The connection is closed if it sends more."""

_MAX_BODY_BYTES: Final = 1024


async def serve_http(
    host: str, http_port: int, routes: Iterable[web.AbstractRouteDef], tls: TlsContext | None = None
) -> web.AppRunner:
    """Serve until `cleanup()` of the returned runner, over TLS if `tls` is given. Port 0 takes a free port.

    Raises `ConfigError` if the port cannot be listened on.
    """
    app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=(_protect_connection,))
    app.on_response_prepare.append(_end_connection)
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=SHUTDOWN_TIMEOUT_S)
    complaints, logger = ComplaintFilter(), logging.getLogger("aiohttp.server")
    app.on_cleanup.append(lambda _: _remove_filter(logger, complaints))
    await runner.setup()
    logger.addFilter(complaints)
    try:
        await _Site(runner, host, http_port, tls).start()
    except OSError as error:
        await runner.cleanup()
        what = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be listened on ({error.strerror})"
        raise ConfigError(
            f"http_port {http_port}: {host}:{http_port} {what}: stop what uses it, or set another http_port"
        ) from error
    return runner


async def _remove_filter(logger: logging.Logger, complaints: ComplaintFilter) -> None:
    logger.removeFilter(complaints)


async def _end_connection(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Connection"] = "close"
    response.force_close()


class ComplaintFilter:
    """Filter of aiohttp's log, since clients can bring each of its errors about: few lines, none if the client is gone.

    A client that speaks no HTTP causes one line instead of a traceback.
    """

    def __init__(self) -> None:
        self._telling = Telling()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return True
        if isinstance(error, ConnectionError):
            return False
        args = record.args if isinstance(record.args, tuple) else ()
        kind = "" if isinstance(error, HttpProcessingError) else type(error).__name__
        untold = self._telling.untold(str(args[:1]), kind)
        if untold is None:
            return False
        if isinstance(error, HttpProcessingError):
            record.msg, record.levelno, record.levelname = f"{record.msg}: %s", logging.WARNING, "WARNING"
            args = (*args, " ".join(str(error.message).split())[:200])
            record.exc_info = None
        record.msg, record.args = f"{record.msg} untold=%d", (*args, untold)
        return True


@web.middleware
async def _protect_connection(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Protect a connection from eviction while its request is handled. A handover of the leadership takes long."""
    connection = None if request.transport is None else request.transport.get_protocol()
    if isinstance(connection, _Connection):
        connection.begin_request()
    return await handler(request)


class _Site(web.TCPSite):
    """An aiohttp site that bounds its connections in number, size and time, so that they do not slow down the log."""

    def __init__(self, runner: web.AppRunner, host: str, port: int, tls: TlsContext | None) -> None:
        super().__init__(runner, host, port)
        self._open_connections: set[_Connection] = set()
        self._idle: Strangers[_Connection] = Strangers()
        self._door = Door(
            tls,
            takes_plain=tls is None,
            max_connections=MAX_CONNECTIONS,
            open_connections=self._open_connections.__len__,
        )

    async def start(self) -> None:
        await web.BaseSite.start(self)
        port = await Port.bind(self._host or "", self._port, self._make_doorman, self._door.make_room)
        self._server = port  # type: ignore[assignment]  # it has what aiohttp uses of a server
        port.start_serving()

    async def stop(self) -> None:
        await super().stop()
        self._door.close()

    def _make_doorman(self, _host: str) -> asyncio.Protocol:
        return self._door.doorman(self._make_connection)

    def _make_connection(self) -> _Connection:
        server = self._runner.server
        assert server is not None  # the runner was set up
        return _Connection(server(), self._open_connections, self._idle)


class _Connection(asyncio.Protocol):
    """One connection. It passes everything to aiohttp's handler, and keeps the limits of this module.

    `open_connections` are the connections of a port, `idle` those whose request has not come.
    """

    def __init__(
        self, handler: asyncio.Protocol, open_connections: set[_Connection], idle: Strangers[_Connection]
    ) -> None:
        self._handler = handler
        self._open_connections = open_connections
        self._idle = idle
        self._received_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        remote = transport.get_extra_info("peername")
        if len(self._open_connections) >= MAX_CONNECTIONS and not self._make_room():
            self._transport.abort()
            return
        self._open_connections.add(self)
        self._idle.add(self, str(remote[0]) if remote else "")
        self._timer = asyncio.get_running_loop().call_later(REQUEST_TIMEOUT_S, self._close_idle)
        self._handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._forget()
            self._handler.connection_lost(exc)

    def begin_request(self) -> None:
        """Protect the connection from eviction, because its request has come."""
        self._idle.discard(self)

    def data_received(self, data: bytes) -> None:
        self._received_bytes += len(data)
        if self._received_bytes > MAX_RECEIVED_BYTES:
            self.end()
        elif self._timer is not None:
            self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        return self._handler.eof_received() if self._timer is not None else None

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()

    def _make_room(self) -> bool:
        """Evict another connection whose request has not come. Return False if there is none."""
        if not len(self._idle):
            return False
        self._idle.oldest_of_busiest_host().end()
        return True

    def _close_idle(self) -> None:
        if self in self._idle:
            self.end()
        else:
            left_s = CONNECTION_TIMEOUT_S - REQUEST_TIMEOUT_S
            self._timer = asyncio.get_running_loop().call_later(left_s, self.end)

    def _forget(self) -> None:
        self._open_connections.discard(self)
        self._idle.discard(self)

    def end(self) -> None:
        """Close at once and give up the place."""
        self._forget()
        if self._transport is not None:
            self._transport.abort()

"""An HTTP port for probes, metrics and a few commands; it needs what the extra `broker` brings.

Whatever comes over it must not disturb what the process is for: connections are few, short, and carry one small request
each.  These limits are no configuration: one prober and one scraper need two connections for some milliseconds.
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

from dledger.errors import ConfigError
from dledger.net.eviction import oldest_of_busiest_host
from dledger.net.tls import TlsContext

SHUTDOWN_TIMEOUT_S: Final = 1.0
"""How long a stop waits for answers in progress."""
MAX_CONNECTIONS: Final = 64
"""At a time; one more takes the place of the oldest whose request has not come, from the host that has most."""
CONNECTION_TIMEOUT_S: Final = 30.0
"""A connection carries one request, and is closed after so long even if that has not come."""
MAX_RECEIVED_BYTES: Final = 32 << 10
"""A connection that sends more, whatever it is, is closed."""

_MAX_BODY_BYTES: Final = 1024


async def serve_http(
    host: str, http_port: int, routes: Iterable[web.AbstractRouteDef], tls: TlsContext | None = None
) -> web.AppRunner:
    """Serve until `cleanup()` of the returned runner, port 0 being a free one, over TLS with `tls`.

    Raises `ConfigError` if the port cannot be listened on.
    """
    app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=(_keep_place,))
    app.on_response_prepare.append(_end_connection)
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=SHUTDOWN_TIMEOUT_S)
    await runner.setup()
    logging.getLogger("aiohttp.server").addFilter(_without_traceback)
    try:
        await _Site(runner, host, http_port, ssl_context=None if tls is None else tls.accepting).start()
    except OSError as error:
        await runner.cleanup()
        what = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be listened on ({error.strerror})"
        raise ConfigError(
            f"http_port {http_port}: {host}:{http_port} {what}: stop what uses it, or set another http_port"
        ) from error
    return runner


async def _end_connection(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Connection"] = "close"
    response.force_close()


def _without_traceback(record: logging.LogRecord) -> bool:
    """One line about a client that speaks no HTTP, instead of aiohttp's traceback."""
    if record.exc_info and isinstance(record.exc_info[1], HttpProcessingError):
        record.msg, record.levelno, record.levelname = f"{record.msg}: %s", logging.WARNING, "WARNING"
        words = str(record.exc_info[1].message).split()
        record.args = (*(record.args if isinstance(record.args, tuple) else ()), " ".join(words)[:200])
        record.exc_info = None
    return True


@web.middleware
async def _keep_place(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let nobody take the place of a client whose request is being handled, such as one to hand the leadership over."""
    connection = None if request.transport is None else request.transport.get_protocol()
    if isinstance(connection, _Connection):
        connection.is_busy = True
    try:
        return await handler(request)
    finally:
        if isinstance(connection, _Connection):
            connection.is_busy = False


class _Site(web.TCPSite):
    """A site whose connections are bounded in number, size and time, so that they take nothing from the log."""

    async def start(self) -> None:
        await web.BaseSite.start(self)
        server = self._runner.server
        assert server is not None  # the runner was set up
        self._live: dict[_Connection, None] = {}
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(server(), self._live), self._host, self._port, ssl=self._ssl_context
        )


class _Connection(asyncio.Protocol):
    """Hands everything to aiohttp's handler of a connection, and ends those that are too many, too long or too large.

    `live` are the connections of a port in the order of coming.
    """

    def __init__(self, handler: asyncio.Protocol, live: dict[_Connection, None]) -> None:
        self.is_busy = False
        """Whether a request of it is being handled."""
        self.remote_host = ""
        self._handler = handler
        self._live = live
        self._received_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        remote = transport.get_extra_info("peername")
        self.remote_host = str(remote[0]) if remote else ""
        if len(self._live) >= MAX_CONNECTIONS and not self._make_room():
            self._transport.abort()
            return
        self._live[self] = None
        self._timer = asyncio.get_running_loop().call_later(CONNECTION_TIMEOUT_S, self.end)
        self._handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._live.pop(self, None)
            self._handler.connection_lost(exc)

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
        """End the connection of somebody whose request has not come; False if there is none."""
        idle = [connection for connection in self._live if not connection.is_busy]
        if idle:
            oldest_of_busiest_host(idle, lambda connection: connection.remote_host).end()
        return bool(idle)

    def end(self) -> None:
        """Close at once, and hold no place from now on."""
        self._live.pop(self, None)
        if self._transport is not None:
            self._transport.abort()

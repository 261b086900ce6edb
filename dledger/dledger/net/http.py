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

from dledger.errors import ConfigError
from dledger.invariants import invariant

SHUTDOWN_TIMEOUT_S: Final = 1.0
"""How long a stop waits for answers in progress."""
MAX_CONNECTIONS: Final = 64
"""At a time; one more is closed at once."""
CONNECTION_TIMEOUT_S: Final = 30.0
"""A connection carries one request, and is closed after so long even if that has not come."""

_MAX_REQUEST_BYTES: Final = 1024


async def serve_http(host: str, http_port: int, routes: Iterable[web.AbstractRouteDef]) -> web.AppRunner:
    """Serve until `cleanup()` of the returned runner, port 0 being a free one.

    Raises `ConfigError` if the port cannot be listened on.
    """
    app = web.Application(client_max_size=_MAX_REQUEST_BYTES)
    app.on_response_prepare.append(_end_connection)
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=SHUTDOWN_TIMEOUT_S)
    await runner.setup()
    logging.getLogger("aiohttp.server").addFilter(_without_traceback)
    try:
        await _Site(runner, host, http_port).start()
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


class _Site(web.TCPSite):
    """A site whose connections are bounded in number and time, so that idle ones take no files from the log."""

    async def start(self) -> None:
        await web.BaseSite.start(self)
        server = self._runner.server
        invariant(server is not None, "a runner that was set up has a server")
        assert server is not None
        self._live: set[_Connection] = set()
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(server(), self._live), self._host, self._port
        )


class _Connection(asyncio.Protocol):
    """Hands everything to aiohttp's handler of a connection, and ends those that are too many or last too long."""

    def __init__(self, handler: asyncio.Protocol, live: set[_Connection]) -> None:
        self._handler = handler
        self._live = live
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        abort = cast("asyncio.Transport", transport).abort
        if len(self._live) >= MAX_CONNECTIONS:
            abort()
            return
        self._live.add(self)
        self._timer = asyncio.get_running_loop().call_later(CONNECTION_TIMEOUT_S, abort)
        self._handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._live.discard(self)
            self._handler.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._timer is not None:
            self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        return self._handler.eof_received() if self._timer is not None else None

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()

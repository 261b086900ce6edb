"""HTTP front: the server of the operations, and what each request goes through on its way to its handler.

1. The account is read from the header, and refused if it came without TLS from another machine.
2. The body is read, within limits of size, time and memory. Until then a newer connection may displace this one.
3. Places for requests and tails are limited. Beyond a limit the answer is 429.
4. The handler asks the cluster, and errors become problems.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Final, Self, TypeAlias

from aiohttp import web
from prometheus_client import CollectorRegistry

from dledger_base.http import ComplaintFilter
from dledger_base.openapi import Operation
from dledger_base.telling import Telling
from dledger_base.tls import TlsContext
from dledger_client import ClientError
from dledger_remoting.ids import UniqueKeyGenerator

from . import looking, operations, receiving, sending, tailing
from .accounts import caller_of
from .backend import Backend, BusyError, Caller
from .calls import Call, Front, Handler, encoded
from .config import HttpKeys
from .handles import HandleError
from .limits import Limits
from .metrics import HttpMetrics
from .port import FrontConnection, FrontSite
from .problems import MEDIA_TYPE, Kind, ProblemError, problem_of
from .reading import read_body, trace_parent_of

_HANDLERS: Final[Mapping[str, Handler]] = {
    operations.SEND.name: sending.send,
    operations.RECALL.name: sending.recall,
    operations.RECEIVE.name: receiving.receive,
    operations.ACK.name: receiving.ack,
    operations.NACK.name: receiving.nack,
    operations.EXTEND.name: receiving.extend,
    operations.TAIL.name: tailing.tail,
    operations.TOPICS.name: looking.topics,
    operations.TOPIC.name: looking.topic,
    operations.OFFSETS.name: looking.offsets,
    operations.DESCRIBE.name: looking.describe,
}
_Next: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
_OPERATION: Final = web.RequestKey("operation", Operation)
_CALLER: Final = web.RequestKey("caller", Caller)
_NO_OPERATION: Final = "none"
"""Name of the operation of requests for which there is none, in metrics."""

_logger = logging.getLogger(__name__)
_connections_logger = logging.getLogger(f"{__name__}.connections")
"""Logger of aiohttp's connections."""


class HttpFront:
    """Serves the operations on `host` between `start` and `stop`. It uses a backend, and does not close it.

    Port 0 takes a free one. With `tls`, clients speak TLS; with `takes_plain`, some may also speak without it.
    """

    def __init__(
        self,
        config: HttpKeys,
        backend: Backend,
        *,
        host: str = "127.0.0.1",
        tls: TlsContext | None = None,
        takes_plain: bool = False,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self._config = config
        self._host = host
        self._tls = tls
        self._takes_plain = takes_plain
        self._metrics = HttpMetrics(registry or CollectorRegistry())
        unique_keys = UniqueKeyGenerator("127.0.0.1", os.getpid(), int.from_bytes(os.urandom(4)))
        self._limits = Limits(config, self._metrics)
        self._front = Front(config, backend, self._metrics, self._limits, unique_keys, asyncio.Event())
        self._telling = Telling()
        self._complaints = ComplaintFilter()
        self._runner: web.AppRunner | None = None
        self._site: FrontSite | None = None

    @property
    def port(self) -> int:
        """The port that is listened on, once the front is started."""
        assert self._site is not None, "the front is not started"
        return self._site.port_number

    async def start(self) -> None:
        """Listen. Raises `ConfigError` if the port cannot be listened on."""
        app = web.Application(middlewares=(self._answer,))
        for operation in operations.INTERFACE.operations:
            app.router.add_route(operation.method, operation.path, partial(self._handle, operation))
        runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            handler_cancellation=True,  # a client that is gone must not take messages any more
            auto_decompress=False,  # a few bytes could become gigabytes
            keepalive_timeout=self._config.http_idle_timeout_s,
            shutdown_timeout=self._config.http_drain_timeout_s,
            logger=_connections_logger,
        )
        await runner.setup()
        self._runner = runner
        _connections_logger.addFilter(self._complaints)
        site = FrontSite(runner, self._host, self._config, self._metrics, self._tls, takes_plain=self._takes_plain)
        try:
            await site.start()
        except BaseException:
            await runner.cleanup()
            raise
        self._site = site

    async def stop(self) -> None:
        """Stop listening, end tails and waits, and let other requests finish, for `http_drain_timeout_s` at most."""
        self._front.stopping.set()
        if self._runner is not None:
            await self._runner.cleanup()
        _connections_logger.removeFilter(self._complaints)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @web.middleware
    async def _answer(self, request: web.Request, handler: _Next) -> web.StreamResponse:
        """Write the answer of a request, whatever happens to it, and measure it."""
        began, status = time.monotonic(), 0
        connection = _connection_of(request)
        if connection is not None:
            connection.begin_request()
        try:
            try:
                response = await handler(request)
            except web.HTTPException as error:
                response = _response_to(_problem_of_routing(request, error), error.headers.get("Allow"))
            except Exception as error:
                if isinstance(error, ConnectionError) and (request.transport is None or request.transport.is_closing()):
                    raise  # the client is gone: nobody is there to be answered
                response = _response_to(self._problem_of(request, error))
            status = response.status
            if not response.prepared:
                await response.prepare(request)
            await response.write_eof()  # within the time of the request, so that a slow reader is not taken for idle
        finally:
            name = _name_of(request)
            self._metrics.requests.labels(name, str(status)).inc()
            if name != operations.TAIL.name:
                self._metrics.seconds.labels(name).observe(time.monotonic() - began)
            if connection is not None:
                connection.end_request()
        return response

    async def _handle(self, operation: Operation, request: web.Request) -> web.StreamResponse:
        """Let a request of an operation in, read its body, and pass it to its handler."""
        request[_OPERATION] = operation
        request[_CALLER] = caller = caller_of(request)
        self._limits.guesses.require_patience(caller)
        with self._limits.bodies.share() as memory:
            body = b"" if operation.body is None else await read_body(request, self._config, memory.add)
            connection = _connection_of(request)
            if connection is not None:
                connection.protect()
            with self._limits.place(operation):
                call = Call(self._front, operation, request, caller, body, trace_parent_of(request))
                return await _HANDLERS[operation.name](call)

    def _problem_of(self, request: web.Request, error: Exception) -> ProblemError:
        """Return the problem of a request that has failed, and log what an operator should know of it."""
        host = request.remote or ""
        if isinstance(error, ProblemError):
            problem = error
        elif isinstance(error, ClientError | BusyError):
            problem = problem_of(error)
        elif isinstance(error, HandleError):
            problem = ProblemError(Kind.INVALID, str(error))
        else:
            problem = ProblemError(Kind.INTERNAL, "the log of the proxy says more: tell its operator")
        if problem.kind is Kind.UNAUTHORIZED and (caller := request.get(_CALLER)) is not None:
            self._limits.guesses.note(caller)
        if problem.kind.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self._telling.log(
                _logger,
                logging.ERROR if problem.kind is Kind.INTERNAL else logging.WARNING,
                host,
                problem.kind.type,
                "event=http_failed operation=%s status=%d client=%s traceparent=%s reason=%r",
                _name_of(request),
                problem.kind.status,
                host,
                trace_parent_of(request) or "none",
                str(error),
                exc_info=error if problem.kind is Kind.INTERNAL else None,
            )
        return problem


def _connection_of(request: web.Request) -> FrontConnection | None:
    """Return the connection of a request, None if it is lost."""
    connection = None if request.transport is None else request.transport.get_protocol()
    return connection if isinstance(connection, FrontConnection) else None


def _name_of(request: web.Request) -> str:
    """Return the name of a request's operation, in metrics and log lines."""
    operation: Operation | None = request.get(_OPERATION)
    return _NO_OPERATION if operation is None else operation.name


def _problem_of_routing(request: web.Request, error: web.HTTPException) -> ProblemError:
    """Return the problem of a request for which there is no operation."""
    what = f"{request.method} {request.path[:200]}"
    if error.status == HTTPStatus.METHOD_NOT_ALLOWED:
        return ProblemError(Kind.METHOD, f"{what}: the path has other methods, see /v1/openapi.json")
    if error.status == HTTPStatus.NOT_FOUND:
        return ProblemError(Kind.NOT_FOUND, f"{what}: there is no such path, see /v1/openapi.json")
    return ProblemError(Kind.INVALID, f"{what}: {error.reason}")


def _response_to(error: ProblemError, allow: str | None = None) -> web.Response:
    headers = error.headers if allow is None else {**error.headers, "Allow": allow}
    return web.Response(
        status=error.kind.status, body=encoded(error.problem) + b"\n", content_type=MEDIA_TYPE, headers=headers
    )

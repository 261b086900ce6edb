"""A node's HTTP port: how it is, for probes, dashboards and people; and its group's leadership and members.

    GET /healthz    200 `ok`; 503 with the reason once the node has failed and serves nothing any more
    GET /readyz     200 `ready` while clients can be served through this node; 503 with the reason otherwise
    GET /metrics    Prometheus' text format, see `exporter.py`
    GET /status     JSON of `dledger.replica.status.NodeStatus`
    PUT /leader/NODE-ID       200 once that node leads the group; 504 if it did not take over in time
    DELETE /members/NODE-ID   200 once the removal is proposed

The last two are for the leader; any other node answers 409 and says who leads. A node that was removed, still runs and
is among the leader's configured peers joins again as a learner. Nothing runs between two requests.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import Final, Protocol, cast

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest

from dledger.errors import ConfigError, LogError
from dledger.invariants import invariant
from dledger.replica.status import NodeStatus
from dledger_broker.exporter import Figures, NodeCollector

SHUTDOWN_TIMEOUT_S: Final = 1.0
"""How long a stop waits for answers in progress."""
MAX_CONNECTIONS: Final = 64
"""At a time; one more is closed at once."""
CONNECTION_TIMEOUT_S: Final = 30.0
"""A connection carries one request, and is closed after so long even if that has not come."""

_MAX_REQUEST_BYTES: Final = 1024


class HttpConfig(Protocol):
    """The part of the broker's configuration that matters here."""

    @property
    def host(self) -> str:
        """Address to bind."""

    @property
    def http_port(self) -> int:
        """Port to bind; 0 takes a free one."""


class GroupMember(Protocol):
    """What the HTTP port asks of the log."""

    async def transfer_leadership(self, to: str | None = None) -> bool:
        """See `dledger.node.Node.transfer_leadership`."""

    def remove(self, node_id: str) -> None:
        """See `dledger.node.Node.remove`."""


class HttpBroker(Figures, Protocol):
    """What the HTTP port needs of a broker: the metrics' figures, and whether it is leaving."""

    @property
    def config(self) -> HttpConfig:
        """Where to listen."""

    @property
    def node(self) -> GroupMember:
        """The log's node."""

    @property
    def is_introduced(self) -> bool:
        """Whether name servers list this node as the leader, with the topics that a broker has from the start."""

    @property
    def is_draining(self) -> bool:
        """True from the first signal to stop on: it forwards what clients still send, and wants no new ones."""


def _without_traceback(record: logging.LogRecord) -> bool:
    """One line about a client that speaks no HTTP, instead of aiohttp's traceback."""
    if record.exc_info and isinstance(record.exc_info[1], HttpProcessingError):
        record.msg, record.levelno, record.levelname = f"{record.msg}: %s", logging.WARNING, "WARNING"
        words = str(record.exc_info[1].message).split()
        record.args = (*(record.args if isinstance(record.args, tuple) else ()), " ".join(words)[:200])
        record.exc_info = None
    return True


async def start_http(broker: HttpBroker) -> web.AppRunner:
    """Serve until `cleanup()` of the returned runner; raises `ConfigError` if the port cannot be listened on."""
    host, port = broker.config.host, broker.config.http_port
    runner = web.AppRunner(make_app(broker), access_log=None, handle_signals=False, shutdown_timeout=SHUTDOWN_TIMEOUT_S)
    await runner.setup()
    logging.getLogger("aiohttp.server").addFilter(_without_traceback)
    try:
        await _Site(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        what = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be listened on ({error.strerror})"
        raise ConfigError(
            f"http_port {port}: {host}:{port} {what}: stop what uses it, or set another http_port"
        ) from error
    return runner


def make_app(broker: HttpBroker) -> web.Application:
    """Return the application that `start_http` serves."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NodeCollector(broker))
    ProcessCollector(registry=registry)

    async def healthz(_: web.Request) -> web.Response:
        failure = broker.status().failure
        return web.Response(text=failure or "ok", status=503 if failure else 200)

    async def readyz(_: web.Request) -> web.Response:
        obstacle = unready_because(broker.status(), is_draining=broker.is_draining, is_introduced=broker.is_introduced)
        return web.Response(text=obstacle or "ready", status=503 if obstacle else 200)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def status(_: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(broker.status()), content_type="application/json")

    async def lead(request: web.Request) -> web.Response:
        node_id = request.match_info["node_id"]
        try:
            taken = await broker.node.transfer_leadership(node_id)
        except LogError as error:
            return web.Response(text=str(error), status=409)
        return web.Response(
            text=f"{node_id} leads" if taken else f"{node_id} did not take over", status=200 if taken else 504
        )

    async def remove(request: web.Request) -> web.Response:
        node_id = request.match_info["node_id"]
        try:
            broker.node.remove(node_id)
        except LogError as error:
            return web.Response(text=str(error), status=409)
        return web.Response(text=f"{node_id} is being removed")

    async def end_connection(_: web.Request, response: web.StreamResponse) -> None:
        response.headers["Connection"] = "close"
        response.force_close()

    app = web.Application(client_max_size=_MAX_REQUEST_BYTES)
    app.on_response_prepare.append(end_connection)
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", metrics),
            web.get("/status", status),
            web.put("/leader/{node_id}", lead),
            web.delete("/members/{node_id}", remove),
        ]
    )
    return app


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


def unready_because(status: NodeStatus, *, is_draining: bool, is_introduced: bool) -> str | None:
    """Return why clients had better use another node, None when they can use this one."""
    if status.failure:
        return status.failure
    if is_draining:
        return "draining: leaving the group's route"
    if status.role == "leader":
        if not status.ready:
            return f"leader of term {status.term}, its first entry is not committed yet"
        return (
            None if is_introduced else f"leader of term {status.term}, name servers do not list it and its topics yet"
        )
    if status.leader_id is None:
        return f"{status.role} in term {status.term}, no leader is known"
    return None

"""One proxy: its fronts, the cluster behind them, health and metrics, from `start` to `stop`."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from dledger_base.certificates import Renewal, Watched
from dledger_base.errors import ConfigError as FileError
from dledger_base.http import serve_http
from dledger_base.metrics_page import MetricsPage
from dledger_base.supervision import supervise
from dledger_client.cluster.connection import Connection
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand

from .backends import Backends, Cluster
from .config import ProxyConfig, read_files
from .counters import ProxyCounters
from .grpc.clients import Clients
from .grpc.outgoing import Encoder
from .grpc.pops import Pops
from .grpc.port import GrpcPort
from .grpc.questions import Questions
from .grpc.receiving import Receiving
from .grpc.routes import Routes, parse_endpoints
from .grpc.sending import Sending
from .grpc.service import Service
from .grpc.telemetry import Telemetry
from .grpc.transactions import Transactions
from .http import ClientBackend, HttpFront
from .registrations import Registrations

LOOPBACK_HOSTS: Final = frozenset({"127.0.0.1", "::1", "localhost"})

logger = logging.getLogger("dledger.proxy")


class StartError(Exception):
    """The proxy cannot start. The text is one line with the thing, what was found and what to do."""


class Proxy:
    """A proxy. It serves from `await start()` until `await stop()`. Make it on the event loop that it runs on.

    It holds nothing that a restart loses. Raises `ConfigError` if a file that the configuration names cannot be used.
    """

    def __init__(self, config: ProxyConfig) -> None:
        self.config = config
        self.counters = ProxyCounters()
        self._is_stopping = False
        self._files = files = read_files(config)
        cluster = Cluster(config.namesrv, files.credentials, files.cluster_tls)
        self.backends = Backends(cluster)
        self._registrations = Registrations(cluster, self._on_request)
        self.clients = Clients(self._registrations, config.max_clients, self.counters.count_limit)
        self._pops = Pops(self.backends)
        self._transactions = Transactions(self.backends, self.clients)
        self._questions = Questions(self.clients, config.namesrv)
        self.port = GrpcPort(
            self._make_service(),
            self.clients,
            self.counters,
            tls=files.grpc_tls,
            takes_plain=config.tls != "enforcing",
            max_connections=config.max_connections,
            max_request_bytes=config.max_request_bytes,
            max_requests_bytes=config.max_requests_bytes,
        )
        self._front_registry = CollectorRegistry()
        self._front_backend = ClientBackend(config.namesrv, tls=files.cluster_tls, speaker=files.credentials)
        self._front: HttpFront | None = None
        watched: list[Watched] = [*files.contexts]
        self._renewal = Renewal(watched, self.counters.count_restart)
        self._tasks: list[asyncio.Task[None]] = []
        self._http: web.AppRunner | None = None
        asked = "Questions about transactions that producers were given"
        self.counters.totals["transactions_asked"] = (asked, self._count_asked)
        self.counters.gauges["clients"] = ("Clients whose settings are known here", self.clients.__len__)

    @property
    def metrics_port(self) -> int:
        """The port for health and metrics, 0 if there is none."""
        return 0 if self._http is None else int(self._http.addresses[0][1])

    async def start(self) -> None:
        """Listen, and begin to follow the cluster. No part of the cluster has to run yet.

        Raises `StartError`. After an error it holds no port.
        """
        self.backends.start()
        self._registrations.start()
        try:
            if self.config.metrics_port:
                self._http = await self._serve_http()
            await self._listen()
            if self.config.http_port:
                self._front = await self._start_front()
        except BaseException:
            await self._close()
            raise
        self._renewal.start()
        silent = supervise(self.clients.forget_silent, "forget silent clients", self.counters.count_restart)
        self._tasks.append(asyncio.get_running_loop().create_task(silent))
        if self.config.host not in LOOPBACK_HOSTS and self.config.tls != "enforcing":
            consequence = "whoever reads the network reads messages"
            logger.warning("event=no_tls host=%s consequence=%r", self.config.host, consequence)

    async def stop(self) -> None:
        """Answer the requests under way, tell clients to connect elsewhere, and close everything."""
        self._is_stopping = True
        self._pops.stop_waiting()
        await asyncio.gather(self.port.drain(self.config.drain_timeout_ms / 1_000), self._stop_front())
        await self._close()

    async def _close(self) -> None:
        self._renewal.stop()
        await self.port.close()
        await self._stop_front()
        await self._front_backend.close()
        await self._pops.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._questions.close()
        await self._registrations.close()
        await self.backends.close()
        if self._http is not None:
            await self._http.cleanup()
            self._http = None

    async def _listen(self) -> None:
        host, port = self.config.host, self.config.grpc_port
        try:
            await self.port.start(host, port)
        except (OSError, UnicodeError) as error:  # UnicodeError: the host cannot be a name
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                text = f"{host}:{port} is already in use: stop what uses it or choose another grpc_port"
            else:
                why = error.strerror if isinstance(error, OSError) else "no host has such a name"
                text = f"cannot listen on {host}:{port}: {why or error}"
            raise StartError(text) from error

    async def _start_front(self) -> HttpFront:
        """Serve messages over HTTP, in the names of the accounts that requests name."""
        front = HttpFront(
            self.config,
            self._front_backend,
            host=self.config.host,
            tls=self._files.front_tls,
            takes_plain=self.config.tls != "enforcing",
            registry=self._front_registry,
        )
        try:
            await front.start()
        except FileError as error:
            raise StartError(str(error)) from error
        return front

    async def _stop_front(self) -> None:
        if self._front is not None:
            await self._front.stop()

    def _collect(self) -> Iterator[Metric]:
        yield from self.counters.collect()
        yield from self._front_registry.collect()

    async def _serve_http(self) -> web.AppRunner:
        page = MetricsPage(self._collect, nullcontext, self._files.metrics_token)
        routes = [web.get("/healthz", self._healthz), web.get("/metrics", page.handle)]
        try:
            return await serve_http(self.config.host, self.config.metrics_port, routes, self._files.metrics_tls)
        except FileError as error:
            raise StartError(str(error).replace("http_port", "metrics_port")) from error

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="stopping" if self._is_stopping else "ok", status=503 if self._is_stopping else 200)

    def _make_service(self) -> Service:
        config, backends = self.config, self.backends
        encoder = Encoder(config.max_message_bytes, speaks=backends.cluster.credentials is not None)
        sending = Sending(backends, encoder, checks_types=config.check_message_types)
        telemetry = Telemetry(
            backends,
            self.clients,
            self._questions.on_result,
            self._pops.settle,
            max_body_bytes=config.max_message_bytes,
            checks_types=config.check_message_types,
        )
        return Service(
            Routes(backends, parse_endpoints(config.advertised)),
            sending,
            Receiving(backends, self._pops),
            self._transactions,
            telemetry,
            self.counters,
            config.max_requests,
        )

    def _count_asked(self) -> int:
        return self._transactions.asked

    def _on_request(self, connection: Connection, command: RemotingCommand) -> bool:
        """Handle a broker's request to a client. Returns whether it is answered, or needs no answer."""
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            self._transactions.check(command)
            return True
        return self._questions.ask(connection, command) or command.is_oneway

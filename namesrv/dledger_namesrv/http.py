"""HTTP port of a name server, for probes and Prometheus. Needs the packages of the extra `broker`.

    GET /healthz    200 `ok`; 503 with the reason if silent brokers are no longer removed
    GET /metrics    Prometheus' text format, `dledger_namesrv_*`

A name server that answers is ready. Brokers register once they can reach it, so readiness must not wait for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Protocol

from aiohttp import web
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dledger_base.certificates import ends_at
from dledger_base.doorman import DoorCounters
from dledger_base.http import serve_http
from dledger_base.metrics_page import MetricsPage
from dledger_base.tls import TlsContext

from .config import NameServerConfig
from .metrics import NameServerCounters
from .table import RouteTable


class ObservedServer(Protocol):
    """Data of a `NameServer` that the HTTP port shows."""

    tls: TlsContext | None
    http_tls: TlsContext | None
    metrics_token: str | None
    config: NameServerConfig
    counters: NameServerCounters

    @property
    def table(self) -> RouteTable:
        """The registry."""

    @property
    def connection_count(self) -> int:
        """Number of open connections."""

    @property
    def door_counters(self) -> DoorCounters:
        """Counters of clients before they were connected over TLS."""

    @property
    def watch_count(self) -> int:
        """Number of waiting route watches."""

    @property
    def watch_bytes(self) -> int:
        """Size of the waiting route watches, in bytes."""

    @property
    def failure(self) -> str:
        """Reason why the server no longer does its work, empty while it does."""


async def start_http(server: ObservedServer) -> web.AppRunner:
    """Serve until `cleanup()` of the returned runner. Raises `ConfigError` if the port cannot be listened on."""
    page = MetricsPage(NameServerCollector(server).collect, nullcontext, server.metrics_token)

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text=server.failure or "ok", status=503 if server.failure else 200)

    routes = [web.get("/healthz", healthz), web.get("/metrics", page.handle)]
    return await serve_http(server.config.host, server.config.http_port, routes, server.http_tls)


class NameServerCollector(Collector):
    """Collector that turns a server's numbers into metric families on request."""

    def __init__(self, server: ObservedServer) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        table, counters = self._server.table, self._server.counters
        limits = {**counters.limits, "max_absent_groups": table.absent_groups_forgotten}
        for name, text, value in (
            ("nodes", "Registered nodes of broker groups", table.node_count),
            ("broker_groups", "Broker groups with a registered node", table.group_count),
            ("absent_broker_groups", "Known broker groups without a registered node", table.absent_group_count),
            ("topics", "Topics that have a route", table.topic_count),
            ("routes", "Sum of the topics of all broker groups with a registered node", table.route_count),
            ("connections", "Connections of brokers and clients that are open", self._server.connection_count),
            ("route_watches", "Route watches of clients that wait", self._server.watch_count),
            ("route_watch_bytes", "Memory of the waiting route watches, in bytes", self._server.watch_bytes),
        ):
            yield GaugeMetricFamily(f"dledger_namesrv_{name}", text, value=value)
        for name, text, value in (
            ("errors", "Requests answered with a code other than success", counters.errors),
            ("frames_refused", "Frames that broke the protocol and closed their connection", counters.frames_refused),
            ("headers_refused", "Requests whose headers were too large to be decoded", counters.headers_refused),
            ("registrations", "Registrations of nodes that took effect", counters.registrations),
            (
                "registrations_refused",
                "Registrations refused, as those of an older term",
                counters.registrations_refused,
            ),
            (
                "task_restarts",
                "How often a task that must not end was started again after an unexpected exception",
                counters.task_restarts,
            ),
        ):
            yield CounterMetricFamily(f"dledger_namesrv_{name}", text, value=value)
        for name, text, label, values in (
            ("requests", "Requests by the name of their code", "code", counters.requests),
            ("nodes_removed", "Nodes that left the routes", "reason", counters.removals),
            ("limit_reached", "How often the limit of this key acted", "limit", limits),
        ):
            family = CounterMetricFamily(f"dledger_namesrv_{name}", text, labels=(label,))
            for key, count in sorted(values.items()):
                family.add_metric((key,), count)
            yield family
        yield from _tls_metrics(self._server)


def _tls_metrics(server: ObservedServer) -> Iterator[Metric]:
    """Yield the TLS metrics of the port; the end of its certificate only if it has one."""
    counters = server.door_counters
    for name, text, value in (
        ("handshakes", "Connections that speak TLS", counters.handshakes),
        ("failures", "TLS handshakes that failed, or took too long", counters.failures),
        ("refused_plain", "Connections without TLS that an enforcing port has refused", counters.refused_plain),
    ):
        yield CounterMetricFamily(f"dledger_namesrv_tls_{name}", text, value=value)
    if server.tls is not None:
        yield GaugeMetricFamily(
            "dledger_namesrv_tls_certificate_ends_seconds",
            "When the certificate of the port ends, in Unix time",
            value=ends_at(server.tls),
        )

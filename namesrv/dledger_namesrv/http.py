"""A name server's HTTP port, for probes and Prometheus; it needs what the extra `broker` brings.

    GET /healthz    200 `ok`; 503 with the reason once silent brokers are no longer looked for
    GET /metrics    Prometheus' text format, `dledger_namesrv_*`

A name server that answers is ready: brokers register with it once they can reach it, so nothing must wait for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dledger.net.tls import TlsContext
from dledger_serving.certificates import ends_at
from dledger_serving.doorman import DoorCounters
from dledger_serving.http import serve_http

from .config import NameServerConfig
from .metrics import NameServerCounters
from .table import RouteTable


class ObservedServer(Protocol):
    """What the HTTP port shows of a `NameServer`."""

    tls: TlsContext | None
    http_tls: TlsContext | None
    config: NameServerConfig
    counters: NameServerCounters

    @property
    def table(self) -> RouteTable:
        """The registry."""

    @property
    def connection_count(self) -> int:
        """Connections that are open."""

    @property
    def door_counters(self) -> DoorCounters:
        """What happened to clients before they were connected over TLS."""

    @property
    def watch_count(self) -> int:
        """Route watches that wait."""

    @property
    def watch_bytes(self) -> int:
        """What their requests take."""

    @property
    def failure(self) -> str:
        """Why the server no longer does its work, empty while it does."""


async def start_http(server: ObservedServer) -> web.AppRunner:
    """Serve until `cleanup()` of the returned runner; raises `ConfigError` if the port cannot be listened on."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NameServerCollector(server))
    ProcessCollector(registry=registry)

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text=server.failure or "ok", status=503 if server.failure else 200)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    routes = [web.get("/healthz", healthz), web.get("/metrics", metrics)]
    return await serve_http(server.config.host, server.config.http_port, routes, server.http_tls)


class NameServerCollector(Collector):
    """Turns a server's numbers into metric families when it is asked."""

    def __init__(self, server: ObservedServer) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        table, counters = self._server.table, self._server.counters
        limits = {**counters.limits, "max_absent_groups": table.absent_groups_forgotten}
        for name, text, value in (
            ("nodes", "Nodes of brokers that are registered", table.node_count),
            ("broker_groups", "Broker groups with at least one of them", table.group_count),
            ("absent_broker_groups", "Broker groups that are known and have none", table.absent_group_count),
            ("topics", "Topics that have a route", table.topic_count),
            ("routes", "Topics of all broker groups that have a live node, added up", table.route_count),
            ("connections", "Connections of brokers and clients that are open", self._server.connection_count),
            ("route_watches", "Clients' waits for a change of a route", self._server.watch_count),
            ("route_watch_bytes", "What the requests for these take", self._server.watch_bytes),
        ):
            yield GaugeMetricFamily(f"dledger_namesrv_{name}", text, value=value)
        for name, text, value in (
            ("errors", "Requests answered with a code other than success", counters.errors),
            ("frames_refused", "Frames that broke the protocol and closed their connection", counters.frames_refused),
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
        yield from _tls(self._server)


def _tls(server: ObservedServer) -> Iterator[Metric]:
    """What the port sees of TLS; the end of its certificate only if it has one."""
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

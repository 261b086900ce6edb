"""Metrics of the HTTP front, by the process's registry of Prometheus."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

BUCKETS_S: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class HttpMetrics:
    """Counters of a front.

    requests    ended requests by operation and status; `0` is the status of a request whose client was gone
    seconds     time from a request's head to the end of its answer, without tails
    refusals    requests and connections that reached a limit, by the limit's key
    messages    messages by direction: `in` stored, `out` taken, `tail` shown
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests: Final = Counter(
            "dledger_proxy_http_requests",
            "Requests over HTTP that have ended; status 0: the client was gone",
            ("operation", "status"),
            registry=registry,
        )
        self.seconds: Final = Histogram(
            "dledger_proxy_http_request_seconds",
            "Time from the head of a request over HTTP to the end of its answer, without tails",
            ("operation",),
            buckets=BUCKETS_S,
            registry=registry,
        )
        self.under_way: Final = Gauge(
            "dledger_proxy_http_requests_under_way", "Requests over HTTP that are under way", registry=registry
        )
        self.tails: Final = Gauge("dledger_proxy_http_tails", "Tails that are open", registry=registry)
        self.connections: Final = Gauge(
            "dledger_proxy_http_connections", "Connections to the port for HTTP", registry=registry
        )
        self.body_bytes: Final = Gauge(
            "dledger_proxy_http_body_bytes", "Memory that is reserved for bodies of requests", registry=registry
        )
        self.answer_bytes: Final = Gauge(
            "dledger_proxy_http_answer_bytes",
            "Memory of answers with taken messages",
            registry=registry,
        )
        self.refusals: Final = Counter(
            "dledger_proxy_http_refusals",
            "Requests and connections over HTTP that have reached a limit, by its key",
            ("limit",),
            registry=registry,
        )
        self.messages: Final = Counter(
            "dledger_proxy_http_messages",
            "Messages over HTTP: in = stored, out = taken by a group, tail = shown by a tail",
            ("direction",),
            registry=registry,
        )

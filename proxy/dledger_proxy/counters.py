"""Counters of a proxy, and the metrics that they become.

| metric | |
|---|---|
| `rocketmq_proxy_up` | 1, as RocketMQ's proxy has it |
| `dledger_proxy_requests_total` | answers by request and code |
| `dledger_proxy_request_seconds` | time of requests, without those that wait for messages |
| `dledger_proxy_requests_under_way`, `dledger_proxy_polls` | requests that work, and that wait for messages |
| `dledger_proxy_messages_in_total`, `dledger_proxy_bytes_in_total` | messages stored, and their bodies |
| `dledger_proxy_messages_out_total`, `dledger_proxy_bytes_out_total` | messages given out, and their bodies |
| `dledger_proxy_clients`, `dledger_proxy_connections` | clients and connections now |
| `dledger_proxy_transactions_asked_total` | questions about transactions that producers were given |
| `dledger_proxy_limit_reached_total` | how often each limit acted |
| `dledger_proxy_task_restarts_total` | background tasks that were started again |
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class ProxyCounters:
    """Counters of one process. `gauges` are numbers that are read when they are shown, by name with their text."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)  # holds the times alone
        self.seconds = Histogram(
            "dledger_proxy_request_seconds",
            "Time of requests, without those that wait for messages",
            ["request"],
            registry=self._registry,
            buckets=_BUCKETS,
        )
        self.answers: Counter[tuple[str, str]] = Counter()
        self.limits: Counter[str] = Counter()
        self.messages_in = self.messages_out = self.bytes_in = self.bytes_out = 0
        self.task_restarts = 0
        self.under_way = 0
        self.polls = 0
        self.idle = asyncio.Event()
        """Set while no request is under way and none waits for messages."""
        self.idle.set()
        self.gauges: dict[str, tuple[str, Callable[[], int]]] = {}
        self.totals: dict[str, tuple[str, Callable[[], int]]] = {}

    def count_limit(self, name: str) -> None:
        """Count that a limit has acted."""
        self.limits[name] += 1

    def count_restart(self) -> None:
        """Count a background task that was started again."""
        self.task_restarts += 1

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count a request that is under way during the block."""
        self.under_way += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.under_way -= 1
            self._look_idle()

    @contextmanager
    def polling(self) -> Iterator[None]:
        """Count a request that waits for messages during the block."""
        self.polls += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.polls -= 1
            self._look_idle()

    def _look_idle(self) -> None:
        if not self.under_way and not self.polls:
            self.idle.set()

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        yield GaugeMetricFamily("rocketmq_proxy_up", "1 while the proxy runs", value=1)
        answers = CounterMetricFamily("dledger_proxy_requests", "Answers", labels=("request", "code"))
        for (request, code), count in sorted(self.answers.items()):
            answers.add_metric((request, code), count)
        yield answers
        limits = CounterMetricFamily("dledger_proxy_limit_reached", "How often a limit acted", labels=("limit",))
        for name, count in sorted(self.limits.items()):
            limits.add_metric((name,), count)
        yield limits
        own: dict[str, tuple[str, int]] = {
            "messages_in": ("Messages that clients have stored", self.messages_in),
            "messages_out": ("Messages that clients were given", self.messages_out),
            "bytes_in": ("Bytes of the bodies that clients have stored", self.bytes_in),
            "bytes_out": ("Bytes of the bodies that clients were given", self.bytes_out),
            "task_restarts": ("Background tasks that were started again", self.task_restarts),
        }
        totals = own | {name: (text, read()) for name, (text, read) in self.totals.items()}
        for name, (text, total) in totals.items():
            yield CounterMetricFamily(f"dledger_proxy_{name}", text, value=total)
        under_way = "Requests that are not answered yet, without those that wait for messages"
        yield GaugeMetricFamily("dledger_proxy_requests_under_way", under_way, value=self.under_way)
        yield GaugeMetricFamily("dledger_proxy_polls", "Requests that wait for messages", value=self.polls)
        for name, (text, read) in self.gauges.items():
            yield GaugeMetricFamily(f"dledger_proxy_{name}", text, value=read())
        yield from self._registry.collect()

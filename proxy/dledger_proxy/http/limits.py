"""Limits on what the requests of a front occupy together: places of requests and tails, and memory for bodies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from aiohttp import web
from prometheus_client import Gauge

from dledger_proxy.openapi import Operation

from . import operations
from .accounts import Guesses
from .config import HttpKeys
from .metrics import HttpMetrics
from .problems import Kind, ProblemError
from .reading import expected_bytes


class Stock:
    """A stock of places or bytes, `most` in all. A single request may have more than that, if it is alone.

    `key` is the configuration key, and `what` completes the text of a refusal.
    """

    def __init__(self, key: str, most: int, what: str, gauge: Gauge, metrics: HttpMetrics) -> None:
        self._key = key
        self._most = most
        self._what = what
        self._gauge = gauge
        self._metrics = metrics
        self._used = 0

    @contextmanager
    def taken(self, amount: int = 1) -> Iterator[None]:
        """Take an amount for the block. Raises `ProblemError` if there is too little."""
        if self._used + amount > self._most and (self._used or not self._most):
            self._metrics.refusals.labels(self._key).inc()
            text = f"{self._key} = {self._most} {self._what}: try again in a second, or at another proxy"
            raise ProblemError(Kind.BUSY, text)
        self._set(self._used + amount)
        try:
            yield
        finally:
            self._set(self._used - amount)

    def _set(self, used: int) -> None:
        self._used = used
        self._gauge.set(used)


class Limits:
    """The limits of a front."""

    def __init__(self, config: HttpKeys, metrics: HttpMetrics) -> None:
        self.guesses: Final = Guesses(time.monotonic)
        self._config = config
        self._requests = Stock(
            "http_max_requests", config.http_max_requests, "requests are under way", metrics.under_way, metrics
        )
        self._tails = Stock("http_max_tails", config.http_max_tails, "tails are open", metrics.tails, metrics)
        self._bodies = Stock(
            "http_max_bodies_bytes",
            config.http_max_bodies_bytes,
            "bytes of memory for bodies are taken",
            metrics.body_bytes,
            metrics,
        )

        self.answers: Final = Stock(
            "http_max_answers_bytes",
            config.http_max_answers_bytes,
            "bytes of answers are being read",
            metrics.answer_bytes,
            metrics,
        )

    def place(self, operation: Operation) -> AbstractContextManager[None]:
        """Return a block with the place of a request."""
        return (self._tails if operation is operations.TAIL else self._requests).taken()

    def memory(self, operation: Operation, request: web.Request) -> AbstractContextManager[None]:
        """Return a block with the memory for the body of a request. Raises `ProblemError` for too large a body."""
        return nullcontext() if operation.body is None else self._bodies.taken(expected_bytes(request, self._config))

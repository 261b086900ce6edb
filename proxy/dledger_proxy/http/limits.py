"""Limits on what the requests of a front occupy together: places of requests and tails, and memory for bodies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from prometheus_client import Gauge

from dledger_base.openapi import Operation

from . import operations
from .accounts import Guesses
from .config import HttpKeys
from .metrics import HttpMetrics
from .problems import Kind, ProblemError


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
    def share(self, amount: int = 0) -> Iterator[Share]:
        """Return a block with a request's share, which begins with an amount. Raises `ProblemError` as `Share.add`."""
        share = Share(self)
        try:
            share.add(amount)
            yield share
        finally:
            self._set(self._used - share.amount)

    def take(self, amount: int, beside: int) -> None:
        """Take an amount for a share that has `beside` already. Raises `ProblemError` if there is too little."""
        is_alone = self._used == beside and self._most > 0
        if self._used + amount > self._most and not is_alone:
            self._metrics.refusals.labels(self._key).inc()
            text = f"{self._key} = {self._most} {self._what}: try again in a second, or at another proxy"
            raise ProblemError(Kind.BUSY, text)
        self._set(self._used + amount)

    def _set(self, used: int) -> None:
        self._used = used
        self._gauge.set(used)


class Share:
    """The share that a request has of a stock."""

    def __init__(self, stock: Stock) -> None:
        self._stock = stock
        self.amount = 0

    def add(self, amount: int) -> None:
        """Take more. Raises `ProblemError` if the stock has too little."""
        self._stock.take(amount, self.amount)
        self.amount += amount


class Limits:
    """The limits of a front."""

    def __init__(self, config: HttpKeys, metrics: HttpMetrics) -> None:
        self.guesses: Final = Guesses(time.monotonic)
        self._requests = Stock(
            "http_max_requests", config.http_max_requests, "requests are under way", metrics.under_way, metrics
        )
        self._tails = Stock("http_max_tails", config.http_max_tails, "tails are open", metrics.tails, metrics)
        self.bodies: Final = Stock(
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

    def place(self, operation: Operation) -> AbstractContextManager[Share]:
        """Return a block with the place of a request."""
        return (self._tails if operation is operations.TAIL else self._requests).share(1)

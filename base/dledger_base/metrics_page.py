"""Metrics in Prometheus' text format. They are computed at most once a second for all scrapers, in small slices.

A page of thousands of topics takes a large part of a second. Computed in one turn of the event loop, or for each of
many scrapers, it would delay a leader's messages to its followers.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from typing import Final, TypeAlias

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric

SHORTEST_S: Final = 1.0
"""Minimum time between two computations of the page, in seconds."""
REST: Final = 4.0
"""Minimum time between two computations, in multiples of the time that one takes."""
SAMPLES_PER_TURN: Final = 250
PIECE_BYTES: Final = 64 << 10
"""Maximum size of the part of a page that is written at once."""

Step: TypeAlias = Metric | None
"""A family of metrics, or None where other tasks may have their turn."""


class MetricsPage:
    """The metrics page of a process.

    `steps` returns the families one by one. The context manager `held` is entered around each slice that occupies the
    event loop. If a `token` is given, requests without it are refused.
    """

    def __init__(
        self,
        steps: Callable[[], Iterable[Step]],
        held: Callable[[], AbstractContextManager[object]],
        token: str | None = None,
    ) -> None:
        self._steps = steps
        self._held = held
        self._token = token
        self._process = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._process)
        self._computing: asyncio.Task[bytes] | None = None
        self._fresh_until = 0.0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a scraper."""
        if self._token is not None and not self._is_allowed(request.headers.get("Authorization", "")):
            text = "this needs the token in metrics_token_file: send it as 'Authorization: Bearer TOKEN'"
            return web.Response(text=text, status=401, headers={"WWW-Authenticate": "Bearer"})
        return await _write_in_pieces(request, await self._page())

    def _is_allowed(self, authorization: str) -> bool:
        sent = authorization.encode(errors="surrogateescape")  # bytes that are no UTF-8 are decoded to surrogates
        return hmac.compare_digest(sent, f"Bearer {self._token}".encode())

    async def _page(self) -> bytes:
        loop = asyncio.get_running_loop()
        computing = self._computing
        if computing is None or (computing.done() and (loop.time() >= self._fresh_until or computing.exception())):
            self._computing = computing = loop.create_task(self._compute())
        return await asyncio.shield(computing)

    async def _compute(self) -> bytes:
        loop = asyncio.get_running_loop()
        began, busy_s = loop.time(), 0.0
        pieces: list[bytes] = []
        remaining_pieces = self._render_pieces()
        while True:
            turn_began = loop.time()
            with self._held():
                piece = next(remaining_pieces, None)
            busy_s += loop.time() - turn_began
            if piece is None:
                break
            pieces.append(piece)
            await asyncio.sleep(0)
        self._fresh_until = began + max(SHORTEST_S, REST * busy_s)
        return b"".join(pieces)

    def _render_pieces(self) -> Iterator[bytes]:
        """Yield the text of the page, one piece for each turn of the event loop."""
        gathered: list[bytes] = []
        samples = 0
        for step in self._steps():
            if step is None:
                yield b""
                continue
            for part in _render_parts(step):
                gathered.append(part)
                samples += min(len(step.samples), SAMPLES_PER_TURN)
                if samples >= SAMPLES_PER_TURN:
                    yield b"".join(gathered)
                    gathered, samples = [], 0
        gathered.append(generate_latest(self._process))
        yield b"".join(gathered)


async def _write_in_pieces(request: web.Request, page: bytes) -> web.StreamResponse:
    """Write a page in pieces as its client reads. Clients that do not read share the page, and hold little else."""
    response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE_LATEST})
    response.content_length = len(page)
    await response.prepare(request)
    if request.method != "HEAD":
        for begin in range(0, len(page), PIECE_BYTES):
            await response.write(page[begin : begin + PIECE_BYTES])
    await response.write_eof()
    return response


class _SingleFamily:
    """A registry of one family."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        """Return the family."""
        return iter((self._metric,))


def _render_parts(metric: Metric) -> Iterator[bytes]:
    """Yield the text of a family. A large family of gauges is split, because it may have thousands of samples."""
    if metric.type != "gauge" or len(metric.samples) <= SAMPLES_PER_TURN:
        yield _render(metric)
        return
    remaining_samples = iter(metric.samples)
    heading = True
    while samples := list(islice(remaining_samples, SAMPLES_PER_TURN)):
        part = Metric(metric.name, metric.documentation, metric.type)
        part.samples = samples
        text = _render(part)
        yield text if heading else text.split(b"\n", 2)[2]  # behind `# HELP` and `# TYPE`
        heading = False


def _render(metric: Metric) -> bytes:
    return generate_latest(_SingleFamily(metric))

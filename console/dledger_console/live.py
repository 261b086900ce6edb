"""Live parts of pages: a stream of Server-Sent Events sends a part again whenever it changes.

An event `part` has the part's HTML as JSON text. `trouble` has a problem that may pass. `ended` tells the page to load
itself again, for example because the session has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import web

from dledger_admin.operations.access import is_person_unknown
from dledger_client import ClientError

from .problems import LoginNeededError, RefusedRequestError, problem_of

INTERVAL_SECONDS: Final = 2.0
"""Interval between two looks at the cluster for one page."""
MAX_STREAMS: Final = 100
"""Maximum number of pages that are open and move."""
_logger = logging.getLogger(__name__)

QUIET_SECONDS: Final = 14.0
"""Time without an event after which an empty line shows that the connection lives."""


class Streams:
    """All streams, which end together."""

    def __init__(self) -> None:
        self._stopping = asyncio.Event()
        self._open = 0

    def stop(self) -> None:
        """End all streams, and serve none any more."""
        self._stopping.set()

    async def serve(self, request: web.Request, part: Callable[[], Awaitable[str]]) -> web.StreamResponse:
        """Send what `part` returns, at once and whenever it changes. Raises `RefusedRequestError` for too many."""
        if self._open >= MAX_STREAMS or self._stopping.is_set():
            raise RefusedRequestError(
                HTTPStatus.SERVICE_UNAVAILABLE, "Too many pages are open that move. Load this one again to see news."
            )
        response = web.StreamResponse(headers={"X-Accel-Buffering": "no"})
        response.content_type = "text/event-stream"
        self._open += 1
        try:
            await response.prepare(request)
            await self._send_changes(response, part)
        except ConnectionError:
            pass  # the page was closed
        finally:
            self._open -= 1
        return response

    async def _send_changes(self, response: web.StreamResponse, part: Callable[[], Awaitable[str]]) -> None:
        last, quiet_s = ("", ""), 0.0
        while True:
            event = await _next_event(part)
            if event != last:
                last, quiet_s = event, 0.0
                await response.write(b"event: %s\ndata: %s\n\n" % (event[0].encode(), msgspec.json.encode(event[1])))
                if event[0] == "ended":
                    return
            elif quiet_s >= QUIET_SECONDS:
                quiet_s = 0.0
                await response.write(b":\n\n")
            try:
                async with asyncio.timeout(INTERVAL_SECONDS):
                    await self._stopping.wait()
                return
            except TimeoutError:
                quiet_s += INTERVAL_SECONDS


async def _next_event(part: Callable[[], Awaitable[str]]) -> tuple[str, str]:
    """Return the name and the text of the event that shows how things are now."""
    try:
        return "part", await part()
    except LoginNeededError:
        return "ended", "The session has ended."
    except Exception as error:
        if isinstance(error, ClientError) and is_person_unknown(error):
            return "ended", "The account is not known any more."
        problem = problem_of(error)
        if problem is None:
            _logger.exception("event=console_failed")
            return "trouble", "The console failed. Its log says more."
        return "trouble", problem.detail

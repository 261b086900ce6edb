"""Handler of tails: a topic as Server-Sent Events, for dashboards and for eyes. It takes messages from nobody.

An event has its message in one line of JSON. The last event of a batch has an id, the cursor behind the batch. When a
browser comes again, it sends the id that it saw last. So a broken connection leaves no gap, but may show messages of
the last batch twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Final

from aiohttp import web

from dledger_client import ClientError

from .backend import BusyError, Start, TailBatch, TailRequest
from .bodies import TailParameters
from .calls import Call, encoded
from .handles import open_cursor
from .problems import problem_of
from .reading import parameters_of, topic_of
from .receiving import filter_of
from .showing import shown

RETRY_MS: Final = 1_000
"""Time in ms after which a browser whose tail has ended opens it again."""
_HEADERS: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx would hold events back
}
_PING: Final = b":\n\n"


async def tail(call: Call) -> web.StreamResponse:
    """Write the messages of a topic as they come, until the client leaves, the front stops, or reading fails."""
    topic, parameters = topic_of(call.request), parameters_of(call.request, TailParameters)
    request = TailRequest(
        topic, parameters.group, filter_of(parameters.filter, parameters.sql), _start_of(call, topic, parameters)
    )
    batches = call.front.backend.tail(call.caller, request, call.front.config.http_ping_interval_s)
    async with aclosing(batches):
        first = await anext(batches)  # an error until here is answered as any other
        response = web.StreamResponse(headers=_HEADERS)
        await response.prepare(call.request)
        await response.write(f"retry: {RETRY_MS}\nid: {first.cursor.text}\n\n".encode())
        try:
            while (batch := await call.front.unless_stopped(_next(batches), None)) is not None:
                call.front.metrics.messages.labels("tail").inc(len(batch.messages))
                for piece in _events(batch, parameters):
                    await response.write(piece)
        except (ClientError, BusyError) as error:
            await response.write(b"event: problem\ndata: %b\n\n" % encoded(problem_of(error).problem))
        await response.write_eof()
    return response


async def _next(batches: AsyncGenerator[TailBatch, None]) -> TailBatch:
    return await anext(batches)


def _events(batch: TailBatch, parameters: TailParameters) -> Iterator[bytes]:
    """Yield the events of a batch, or a comment, which shows proxies on the way and the client that the tail lives."""
    last = len(batch.messages) - 1
    if last < 0:
        yield _PING
    for place, message in enumerate(batch.messages):
        head = f"id: {batch.cursor.text}\n" if place == last else ""
        yield b"%bevent: message\ndata: %b\n\n" % (head.encode(), encoded(shown(message, parameters.body_as)))


def _start_of(call: Call, topic: str, parameters: TailParameters) -> Start:
    cursor = call.request.headers.get("Last-Event-ID", parameters.after)
    if cursor is not None:
        return open_cursor(cursor, topic)
    return parameters.start if parameters.since is None else parameters.since

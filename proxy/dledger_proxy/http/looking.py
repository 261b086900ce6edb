"""Handlers that only look: topics, their queues, the progress of groups, and the document of the interface."""

from __future__ import annotations

from functools import cache

from aiohttp import web

from dledger_base.openapi import JSON, document

from .backend import queue_name
from .bodies import (
    GroupOffsets,
    OffsetsAnswer,
    OffsetsParameters,
    QueueOffsets,
    TopicAnswer,
    TopicsAnswer,
)
from .calls import Call, answered, encoded
from .operations import INTERFACE
from .reading import parameters_of, topic_of


async def topics(call: Call) -> web.StreamResponse:
    """List the topics."""
    return answered(TopicsAnswer(list(await call.front.backend.topics(call.caller))))


async def topic(call: Call) -> web.StreamResponse:
    """Show the queues of a topic."""
    name = topic_of(call.request)
    statuses = await call.front.backend.queues(call.caller, name, None)
    queues = [QueueOffsets(queue_name(status.queue), status.first, status.end) for status in statuses]
    return answered(TopicAnswer(name, queues))


async def offsets(call: Call) -> web.StreamResponse:
    """Show a group's progress in a topic."""
    name, group = topic_of(call.request), parameters_of(call.request, OffsetsParameters).group
    statuses = await call.front.backend.queues(call.caller, name, group)
    queues = [
        GroupOffsets(queue_name(status.queue), status.first, status.end, status.committed, status.lag)
        for status in statuses
    ]
    return answered(OffsetsAnswer(name, group, sum(queue.lag for queue in queues), queues))


async def describe(_: Call) -> web.StreamResponse:
    """Show the OpenAPI document."""
    return web.Response(body=_document() + b"\n", content_type=JSON)


@cache
def _document() -> bytes:
    return encoded(document(INTERFACE))

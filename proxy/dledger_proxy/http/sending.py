"""Handlers of sends and recalls: one message or several, once or as often as the caller repeats it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from aiohttp import web
from msgspec import UNSET

from dledger_client import SendError, SendResult

from .bodies import RecallAnswer, RecallRequest, SendAnswer, SendParameters, SendRequest, StoredMessage
from .calls import Call, answered
from .problems import problem_of
from .reading import decoded, idempotency_key_of, parameters_of, topic_of

TRACE_PROPERTY: Final = "traceparent"


async def send(call: Call) -> web.StreamResponse:
    """Store the messages of a request."""
    topic = topic_of(call.request)
    timeout_s = parameters_of(call.request, SendParameters).timeout_seconds
    key = idempotency_key_of(call.request)
    request: SendRequest = decoded(call.body, SendRequest)
    messages = request if isinstance(request, list) else [request]
    trace = {} if call.trace_parent is None else {TRACE_PROPERTY: call.trace_parent}
    names = _names(call, len(messages), key, is_single=not isinstance(request, list))
    places = {name: place for place, name in enumerate(names)}
    to_send = [message.message(name, trace) for message, name in zip(messages, names, strict=True)]
    try:
        results = await call.front.backend.send(
            call.caller, topic, to_send, idempotent=None if key is None else True, timeout_s=timeout_s
        )
    except SendError as error:
        call.front.metrics.messages.labels("in").inc(len(error.stored))
        raise problem_of(error).with_stored(_shown(error.stored, places)) from error
    call.front.metrics.messages.labels("in").inc(len(results))
    return answered(SendAnswer(_shown(results, places)))


async def recall(call: Call) -> web.StreamResponse:
    """Recall a message that is to be delivered later."""
    topic = topic_of(call.request)
    request: RecallRequest = decoded(call.body, RecallRequest)
    return answered(RecallAnswer(await call.front.backend.recall(call.caller, topic, request.recall_handle)))


def _names(call: Call, count: int, key: str | None, *, is_single: bool) -> list[str]:
    """Return a unique key for each message: by the idempotency key, so that a repetition has the same ones."""
    if key is None:
        now_ms = int(time.time() * 1000)
        return [call.front.unique_keys.next(now_ms) for _ in range(count)]
    return [key] if is_single else [f"{key}.{place}" for place in range(count)]


def _shown(results: Sequence[SendResult], places: Mapping[str, int]) -> list[StoredMessage]:
    return [
        StoredMessage(
            places[result.message_id],
            result.message_id,
            f"{result.broker_group}/{result.queue_id}",
            result.queue_offset,
            UNSET if result.recall_handle is None else result.recall_handle,
            result.repeated,
            result.perhaps_twice,
        )
        for result in results
    ]

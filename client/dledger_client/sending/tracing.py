"""Message traces of this client: the fate of each message, written to a topic in which every client can look it up.

Traces never delay the messages that they are about. They wait in memory, and a task sends them in batches. Traces that
do not fit, or cannot be sent, are dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Awaitable
from contextlib import suppress
from typing import Final, TypeAlias

import msgspec

from dledger_remoting import properties as names
from dledger_remoting.batch import decode_batch
from dledger_remoting.errors import InvalidParameter
from dledger_remoting.ids import parse_offset_message_id
from dledger_remoting.properties import parse_properties
from dledger_remoting.topics import TRACE_TOPIC
from dledger_remoting.traces import (
    DEFAULT_REGION,
    DELAYED_MESSAGE,
    FAILED,
    HALF_MESSAGE,
    HANDLED,
    NORMAL_MESSAGE,
    TRACE_PRODUCER_GROUP,
    DeliveryTrace,
    HandlingTrace,
    SendTrace,
    Trace,
    encode_trace,
)

from ..arguments import at_least
from ..cluster.core import ClientCore
from ..cluster.surroundings import wall_ms
from ..errors import ClientError
from ..messages import Message, ReceivedMessage, Settlement
from ..results import SendResult
from .outgoing import OutgoingEncoder, validate_destination
from .sender import Sender
from .wire import Outgoing

logger = logging.getLogger(__name__)

DEFAULT_MAX_TRACES: Final = 2048
MAX_BATCH_TRACES: Final = 100
MAX_BATCH_CHARS: Final = 118_000
MAX_KEYS_CHARS: Final = 8_000
"""Maximum length of a batch's keys in characters.

They are properties of its message: at most 32,767 bytes, four a character.
"""
LINGER_SECONDS: Final = 0.01
SEND_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 1.0
"""Time limit in seconds for the last traces of a client that is closed."""


_EncodedTrace: TypeAlias = tuple[str, list[str]]
"""A trace in its written form, and the keys by which it is found."""


def tracer(trace: bool | str, max_traces: int) -> Tracer | None:
    """Return the tracer that `trace=` asks for: none, for RocketMQ's topic, or another.

    Raises `InvalidArgumentError`.
    """
    at_least(1, max_traces=max_traces)
    if trace is False:
        return None
    topic = TRACE_TOPIC if trace is True else trace
    validate_destination(topic)
    return Tracer(topic, max_traces)


class Tracer:
    """Traces of one client that wait to be sent, at most `max_traces`. `dropped` counts the dropped traces."""

    def __init__(self, topic: str, max_traces: int) -> None:
        self.topic = topic
        self.dropped = 0
        self._max_traces = max_traces
        self._pending_traces: deque[Trace] = deque()
        self._has_traces = asyncio.Event()
        self._all_sent = asyncio.Event()
        self._all_sent.set()
        self._encoder = OutgoingEncoder()
        self._is_failing = False

    def start(self, core: ClientCore) -> None:
        """Begin to send."""
        sender = Sender(core, TRACE_PRODUCER_GROUP, attempt_timeout=3.0, retry_unknown=True)

        async def run() -> None:
            await self._send_all(core, sender)

        core.keep(run, "traces")

    def add(self, trace: Trace) -> None:
        """Send a trace later, unless too many wait."""
        if len(self._pending_traces) >= self._max_traces:
            self.dropped += 1
            return
        self._pending_traces.append(trace)
        self._all_sent.clear()
        self._has_traces.set()

    async def close(self) -> None:
        """Wait until the waiting traces are sent, for `CLOSE_SECONDS` at most. Then drop the rest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._all_sent.wait()
        self.dropped += len(self._pending_traces)
        self._pending_traces.clear()

    async def traced(self, outgoing: Outgoing, group: str, sending: Awaitable[list[SendResult]]) -> list[SendResult]:
        """Wait for the results of a send, or its error, and trace it."""
        started_at, begun_ms = time.monotonic(), wall_ms()
        results: list[SendResult] = []
        try:
            results = await sending
        finally:
            cost_ms = round((time.monotonic() - started_at) * 1000)
            for trace in traces_of_send(outgoing, group, results, begun_ms, cost_ms):
                self.add(trace)
        return results

    def delivered(self, message: ReceivedMessage, group: str) -> ReceivedMessage:
        """Trace that a consumer begins with a message. The returned message also traces its end."""
        request_id = uuid.uuid4().hex
        self.add(delivery_trace(message, group, request_id, wall_ms()))
        return msgspec.structs.replace(message, settle=_TracedDelivery(self, message, group, request_id))

    async def _send_all(self, core: ClientCore, sender: Sender) -> None:
        while True:
            await self._has_traces.wait()
            await asyncio.sleep(LINGER_SECONDS)
            while self._pending_traces:
                await self._send_batch(core, sender)
            self._has_traces.clear()
            self._all_sent.set()

    async def _send_batch(self, core: ClientCore, sender: Sender) -> None:
        batch = self._next_batch()
        count = len(batch)
        try:
            outgoing, count = self._encode_batch(batch)
            if outgoing is not None:
                await sender.deliver(outgoing, sender.next_queue, core.loop.time() + SEND_SECONDS)
        except ClientError as error:
            self.dropped += count
            level = logging.DEBUG if self._is_failing else logging.WARNING
            logger.log(level, "%d traces could not be sent to topic %s: %s", count, self.topic, error)
            self._is_failing = True
        except asyncio.CancelledError:
            self.dropped += count
            raise
        else:
            self._is_failing = False

    def _next_batch(self) -> list[_EncodedTrace]:
        """Return the traces that fit together: at least one, unless no waiting trace can be encoded."""
        batch: list[_EncodedTrace] = []
        body_chars = key_chars = 0
        while self._pending_traces and len(batch) < MAX_BATCH_TRACES:
            trace = self._pending_traces[0]
            keys = [key for key in (trace.message_id, *_keys_of(trace).split(" ")) if key]
            text = encode_trace(trace)
            body_chars += len(text)
            key_chars += sum(len(key) + 1 for key in keys)
            if batch and (body_chars > MAX_BATCH_CHARS or key_chars > MAX_KEYS_CHARS):
                break
            self._pending_traces.popleft()
            batch.append((text, keys))
        return batch

    def _encode_batch(self, batch: list[_EncodedTrace]) -> tuple[Outgoing | None, int]:
        """Return the message of a batch, and the number of its traces.

        A trace that cannot be sent, because one of its keys is invalid, is left out, so that the others are sent.
        """
        try:
            return self._encode_message(batch), len(batch)
        except (ClientError, UnicodeError):
            encodable = [encoded_trace for encoded_trace in batch if self._can_encode(encoded_trace)]
        return (self._encode_message(encodable) if encodable else None), len(encodable)

    def _can_encode(self, encoded_trace: _EncodedTrace) -> bool:
        try:
            self._encode_message([encoded_trace])
        except (ClientError, UnicodeError) as error:
            self.dropped += 1
            logger.warning(
                "the trace of message %r cannot be sent: %s", encoded_trace[1][0] if encoded_trace[1] else "", error
            )
            return False
        return True

    def _encode_message(self, batch: list[_EncodedTrace]) -> Outgoing:
        body = "".join(text for text, _ in batch)
        keys = dict.fromkeys(key for _, trace_keys in batch for key in trace_keys)
        return self._encoder.encode(self.topic, Message(body.encode(), list(keys)))


class _TracedDelivery:
    """Ends the work on a message, and traces it once."""

    def __init__(self, tracer: Tracer, message: ReceivedMessage[object], group: str, request_id: str) -> None:
        self._tracer = tracer
        self._settle = message.settle
        self._group = group
        self._request_id = request_id
        self._started_at = time.monotonic()
        self._is_ended = False

    def __call__(self, message: ReceivedMessage[object], settlement: Settlement) -> None:
        """Settle the message as it would have been settled without a trace."""
        if not self._is_ended:
            self._is_ended = True
            cost_ms = round((time.monotonic() - self._started_at) * 1000)
            succeeded = not settlement.again
            self._tracer.add(handling_trace(message, self._group, self._request_id, cost_ms, succeeded=succeeded))
        if self._settle is not None:
            self._settle(msgspec.structs.replace(message, settle=self._settle), settlement)


def delivery_trace(message: ReceivedMessage[object], group: str, request_id: str, timestamp_ms: int) -> DeliveryTrace:
    """Return the trace of a consumer that begins with a message."""
    region = message.properties.get(names.MSG_REGION, DEFAULT_REGION)
    keys = " ".join(message.keys)
    return DeliveryTrace(timestamp_ms, region, group, request_id, message.message_id, message.reconsume_times, keys)


def handling_trace(
    message: ReceivedMessage[object], group: str, request_id: str, cost_ms: int, *, succeeded: bool
) -> HandlingTrace:
    """Return the trace of a consumer that has ended its work on a message."""
    code = HANDLED if succeeded else FAILED
    keys = " ".join(message.keys)
    return HandlingTrace(request_id, message.message_id, cost_ms, succeeded, keys, code, wall_ms(), group)


def traces_of_send(
    outgoing: Outgoing, group: str, results: list[SendResult], begun_ms: int, cost_ms: int
) -> list[SendTrace]:
    """Return one trace for each message of a request. Without results, the request failed."""
    parts = [(outgoing.properties, len(outgoing.body))]
    if outgoing.is_batch:
        parts = [(part.properties.decode(), len(part.body)) for part in decode_batch(outgoing.body)]
    traces: list[SendTrace] = []
    for number, (unique_key, (text, body_bytes)) in enumerate(zip(outgoing.unique_keys, parts, strict=True)):
        properties = parse_properties(text)
        offset_id = results[number].offset_message_id if results else ""
        traces.append(
            SendTrace(
                begun_ms,
                DEFAULT_REGION,
                group,
                outgoing.topic,
                unique_key,
                properties.get(names.TAGS, ""),
                properties.get(names.KEYS, ""),
                _broker_in(offset_id),
                body_bytes,
                cost_ms,
                _type_of(properties),
                offset_id,
                bool(results),
            )
        )
    return traces


def _type_of(properties: dict[str, str]) -> int:
    if names.TRANSACTION_PREPARED in properties:
        return HALF_MESSAGE
    if names.TIMER_DELAY_MS in properties or names.TIMER_DELIVER_MS in properties:
        return DELAYED_MESSAGE
    return NORMAL_MESSAGE


def _broker_in(offset_message_id: str) -> str:
    try:
        return str(parse_offset_message_id(offset_message_id)[0])
    except InvalidParameter:
        return ""


def _keys_of(trace: Trace) -> str:
    return getattr(trace, "keys", "")

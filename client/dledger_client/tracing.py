"""Message traces of this client: what became of each message, written to a topic from where everybody can look it up.

Traces never hold up what they are about: they wait in memory, a task sends them in batches, and what does not fit, or
cannot be sent, is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Awaitable
from contextlib import suppress
from typing import Final

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

from .arguments import at_least
from .core import ClientCore
from .errors import ClientError
from .messages import Message, ReceivedMessage, Settlement
from .outgoing import OutgoingEncoder, validate_destination
from .results import SendResult
from .sender import Sender
from .wire import Outgoing

logger = logging.getLogger(__name__)

DEFAULT_MAX_TRACES: Final = 2048
MAX_BATCH_TRACES: Final = 100
MAX_BATCH_CHARS: Final = 118_000
MAX_KEYS_CHARS: Final = 8_000
"""The keys of a batch stand in its properties, which have at most 32,767 bytes: four for each character."""
LINGER_SECONDS: Final = 0.01
SEND_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 1.0
"""So long a client that is closed waits for its last traces."""


def tracer(trace: bool | str, max_traces: int) -> Tracer | None:
    """What `trace=` asks for: nothing, traces in RocketMQ's topic, or in another one. Raises `InvalidArgumentError`."""
    at_least(1, max_traces=max_traces)
    if trace is False:
        return None
    topic = TRACE_TOPIC if trace is True else trace
    validate_destination(topic)
    return Tracer(topic, max_traces)


class Tracer:
    """Traces of one client that wait to be sent, at most `max_traces`; `dropped` counts those that were given up."""

    def __init__(self, topic: str, max_traces: int) -> None:
        self.topic = topic
        self.dropped = 0
        self._max_traces = max_traces
        self._waiting: deque[Trace] = deque()
        self._some = asyncio.Event()
        self._none = asyncio.Event()
        self._none.set()
        self._encoder = OutgoingEncoder()
        self._is_failing = False

    def start(self, core: ClientCore) -> None:
        """Begin to send."""
        sender = Sender(core, TRACE_PRODUCER_GROUP, attempt_timeout=3.0, retry_unknown=True)

        async def run() -> None:
            await self._send_all(core, sender)

        core.keep(run, "traces")

    def add(self, trace: Trace) -> None:
        """Have a trace sent, unless too many wait."""
        if len(self._waiting) >= self._max_traces:
            self.dropped += 1
            return
        self._waiting.append(trace)
        self._none.clear()
        self._some.set()

    async def close(self) -> None:
        """Wait until what is there is sent, for `CLOSE_SECONDS` at most; what is left then is dropped."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._none.wait()
        self.dropped += len(self._waiting)
        self._waiting.clear()

    async def traced(self, outgoing: Outgoing, group: str, sending: Awaitable[list[SendResult]]) -> list[SendResult]:
        """Wait for the results of a send, or its error, and trace it."""
        begun, begun_ms = time.monotonic(), _now_ms()
        results: list[SendResult] = []
        try:
            results = await sending
        finally:
            cost_ms = round((time.monotonic() - begun) * 1000)
            for trace in _traces_of_send(outgoing, group, results, begun_ms, cost_ms):
                self.add(trace)
        return results

    def delivered(self, message: ReceivedMessage, group: str) -> ReceivedMessage:
        """Trace that a consumer begins with a message. The message that is returned traces how it ends, too."""
        request_id = uuid.uuid4().hex
        self.add(delivery_trace(message, group, request_id, _now_ms()))
        return msgspec.structs.replace(message, settle=_TracedDelivery(self, message, group, request_id))

    async def _send_all(self, core: ClientCore, sender: Sender) -> None:
        while True:
            await self._some.wait()
            await asyncio.sleep(LINGER_SECONDS)
            while self._waiting:
                await self._send_batch(core, sender)
            self._some.clear()
            self._none.set()

    async def _send_batch(self, core: ClientCore, sender: Sender) -> None:
        count, body, keys = self._next_batch()
        try:
            outgoing = self._encoder.encode(self.topic, Message(body.encode(), keys))
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

    def _next_batch(self) -> tuple[int, str, list[str]]:
        """How many traces, their body and its keys; at least one."""
        count = body_chars = key_chars = 0
        words: list[str] = []
        keys: dict[str, None] = {}
        while self._waiting and count < MAX_BATCH_TRACES:
            trace = self._waiting[0]
            word = encode_trace(trace)
            named = [key for key in (trace.message_id, *_keys_of(trace).split(" ")) if key]
            body_chars += len(word)
            key_chars += sum(len(key) + 1 for key in named)
            if count and (body_chars > MAX_BATCH_CHARS or key_chars > MAX_KEYS_CHARS):
                break
            self._waiting.popleft()
            count += 1
            words.append(word)
            keys.update(dict.fromkeys(named))
        return count, "".join(words), list(keys)


class _TracedDelivery:
    """Ends the work on a message, and traces it once."""

    def __init__(self, tracer: Tracer, message: ReceivedMessage, group: str, request_id: str) -> None:
        self._tracer = tracer
        self._settle = message.settle
        self._group = group
        self._request_id = request_id
        self._begun = time.monotonic()
        self._is_ended = False

    def __call__(self, message: ReceivedMessage, settlement: Settlement) -> None:
        """Settle the message as it would have been without a trace."""
        if not self._is_ended:
            self._is_ended = True
            cost_ms = round((time.monotonic() - self._begun) * 1000)
            succeeded = not settlement.again
            self._tracer.add(handling_trace(message, self._group, self._request_id, cost_ms, succeeded=succeeded))
        if self._settle is not None:
            self._settle(msgspec.structs.replace(message, settle=self._settle), settlement)


def delivery_trace(message: ReceivedMessage, group: str, request_id: str, timestamp_ms: int) -> DeliveryTrace:
    """The trace of a consumer that begins with a message."""
    region = message.properties.get(names.MSG_REGION, DEFAULT_REGION)
    keys = " ".join(message.keys)
    return DeliveryTrace(timestamp_ms, region, group, request_id, message.message_id, message.reconsume_times, keys)


def handling_trace(
    message: ReceivedMessage, group: str, request_id: str, cost_ms: int, *, succeeded: bool
) -> HandlingTrace:
    """The trace of a consumer that has ended its work on a message."""
    code = HANDLED if succeeded else FAILED
    keys = " ".join(message.keys)
    return HandlingTrace(request_id, message.message_id, cost_ms, succeeded, keys, code, _now_ms(), group)


def _traces_of_send(
    outgoing: Outgoing, group: str, results: list[SendResult], begun_ms: int, cost_ms: int
) -> list[SendTrace]:
    """One trace for each message of a request; no results: it failed."""
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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

"""Interceptor of the client's calls, which records them as spans and metrics of messaging.

| call | span | kind | parent | links |
|---|---|---|---|---|
| a send | `send T`, `send_oneway T`, `request T`, `begin T` | PRODUCER | current | |
| a reply | `reply T` | PRODUCER | current | the request |
| a message of a batch | `create T` | PRODUCER | current | |
| a batch | `send T` | CLIENT | current | its messages |
| a wait for messages | `receive T`, `poll T`, `receive_reply` | CLIENT | current | its messages |
| a handler | `process T` | CONSUMER | its message | its message, and the failed attempt before |
| `processing` | `process T` | CONSUMER | current, or its message | the same |
| a failed message is given back | `retry T`, `dead_letter T` | CLIENT | the failed attempt | its message |
| another settlement | `ack T`, `change_invisible T`, `commit` | CLIENT | current, or its message | its message |
| a check of a transaction | `check T` | CONSUMER | its message | its message |
| the end of a transaction | `commit T`, `rollback T`, `postpone T` | CLIENT | current, or its message | its message |

A message as parent or link stands for the context in which it was created.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

from opentelemetry.context import Context, create_key, get_current, get_value, set_value
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, set_span_in_context

from dledger_client import ClientClosedError, Interceptor, ReceivedMessage
from dledger_client.interception import HandleCall, ReceiveCall, SendCall, SettleCall, TransactionCall

from .conventions import (
    BATCH_COUNT,
    DESTINATION,
    MESSAGE_ID,
    TYPE,
    Attributes,
    attributes_of,
    consumer_attributes,
    destination_of,
    in_common,
    received_attributes,
    without,
    work_attributes,
)
from .propagation import context_in, creation_context, links_to, valid_span
from .recording import Operation, Recorder
from .sends import recorded_batch, recorded_send

MAX_REMEMBERED: Final = 4096
"""Maximum number of span contexts of failed attempts that are kept for later links. The same for transactions."""

_DECISIONS: Final = {"commit": "commit", "rollback": "rollback", "unknown": "postpone"}
_RECEIVES: Final = {"iterate": "receive", "reply": "receive_reply"}
"""Names of operations that differ from those of the client."""
_AT_WORK: Final = create_key("dledger-message-at-work")
"""Key of the message on which the current context works."""


class Remembered:
    """Span contexts by key, the newest `MAX_REMEMBERED` of them. Any thread may use it."""

    def __init__(self) -> None:
        self._contexts: OrderedDict[Hashable, SpanContext] = OrderedDict()
        self._lock = Lock()

    def put(self, key: Hashable, context: SpanContext | None) -> None:
        """Remember a context, if there is one. Forget the oldest context if there are too many."""
        if context is None or not context.is_valid:
            return
        with self._lock:
            self._contexts[key] = context
            self._contexts.move_to_end(key)
            if len(self._contexts) > MAX_REMEMBERED:
                self._contexts.popitem(last=False)

    def get(self, key: Hashable) -> SpanContext | None:
        """Return the context of a key, None if it is not remembered."""
        return self._contexts.get(key)

    def forget(self, key: Hashable) -> None:
        """Forget the context of a key, if it is remembered."""
        if key in self._contexts:
            with self._lock:
                self._contexts.pop(key, None)


class TelemetryInterceptor(Interceptor):
    """Records all calls by `recorder`. With `creates` each message of a batch gets a span of its own."""

    def __init__(self, recorder: Recorder, *, creates: bool) -> None:
        self._recorder = recorder
        self._creates = creates
        self._failed_attempts = Remembered()
        self._transactions = Remembered()

    @contextmanager
    def sending(self, call: SendCall) -> Iterator[None]:
        """Record a send, and have its messages carry their context."""
        if not is_instrumentation_enabled():
            yield
        elif call.operation == "send_batch":
            with recorded_batch(self._recorder, call, creates=self._creates):
                yield
        else:
            with recorded_send(self._recorder, call) as created:
                yield
            if call.operation == "begin":
                self._transactions.put(call.results[0].message_id, created)

    @contextmanager
    def receiving(self, call: ReceiveCall) -> Iterator[None]:
        """Record a wait that brought messages or failed.

        The others are left out: they are many while a consumer is idle, and the last one ends as the client is closed.
        """
        if not is_instrumentation_enabled():
            yield
            return
        started_ns, ticks_ns = time.time_ns(), time.perf_counter_ns()
        failure: Exception | None = None
        try:
            yield
        except (StopIteration, StopAsyncIteration, ClientClosedError):
            raise
        except Exception as error:
            failure = error
            raise
        finally:
            if failure is not None or call.messages:
                self._record_receive(call, failure, started_ns, ticks_ns)

    def _record_receive(self, call: ReceiveCall, failure: Exception | None, started_ns: int, ticks_ns: int) -> None:
        topics = {destination_of(message) for message in call.messages if isinstance(message, ReceivedMessage)}
        destination = call.topic if not topics else topics.pop() if len(topics) == 1 else None
        operation_name = _RECEIVES.get(call.operation, call.operation)
        attributes = attributes_of(call.caller, operation_name, "receive", destination)
        if call.operation != "reply":
            attributes |= consumer_attributes(call.caller)
        each = [received_attributes(message) for message in call.messages]
        common = in_common(each)
        attributes |= common
        if call.operation in {"receive", "poll"}:
            attributes[BATCH_COUNT] = len(call.messages)
        links: list[Link] = []
        for message, one in zip(call.messages, each, strict=True):
            details = without(common, one)
            if destination is None and isinstance(message, ReceivedMessage):
                details[DESTINATION] = destination_of(message)
            links += links_to(message.properties, details)
        span = self._recorder.start_span(SpanKind.CLIENT, attributes, links, started_ns=started_ns)
        operation = Operation(span, attributes, started_ns, ticks_ns)
        if failure is not None:
            operation.fail_with(failure)
        self._recorder.end(operation)
        if call.operation != "reply":
            self._recorder.count_consumed(attributes, len(call.messages))

    @contextmanager
    def handling(self, call: HandleCall) -> Iterator[None]:
        """Record the work of a handler, in the context that its message carries.

        The context around is that of the task that started the consumer, which has nothing to do with the message.
        """
        if not is_instrumentation_enabled():
            yield
            return
        message = call.message
        attributes = attributes_of(call.caller, "process", "process", destination_of(message))
        attributes |= consumer_attributes(call.caller) | received_attributes(message)
        self._recorder.count_consumed(attributes, 1)
        with self._at_work(message, call.caller.group, attributes, context_in(message.properties)):
            yield

    @contextmanager
    def processing(self, message: ReceivedMessage[object], group: str) -> Iterator[None]:
        """Record work on a message that the application has received.

        It stays in the current trace; without one, it goes on with the trace of the message.
        """
        if not is_instrumentation_enabled():
            yield
            return
        around = get_current() if valid_span() is not None else context_in(message.properties)
        with self._at_work(message, group, work_attributes(message, group), around):
            yield

    @contextmanager
    def _at_work(
        self, message: ReceivedMessage[object], group: str, attributes: Attributes, around: Context
    ) -> Iterator[None]:
        key = (group, message.topic, message.message_id)
        links = links_to(message.properties)
        if (before := self._failed_attempts.get(key)) is not None:
            links.append(Link(before))
        around = set_value(_AT_WORK, key, around)
        with self._recorder.operation(SpanKind.CONSUMER, attributes, links, around) as operation:
            try:
                yield
            except BaseException:
                self._failed_attempts.put(key, operation.span.get_span_context())
                raise
        self._failed_attempts.forget(key)

    @contextmanager
    def settling(self, call: SettleCall) -> Iterator[None]:
        """Record a request that settles messages."""
        if not is_instrumentation_enabled():
            yield
            return
        message = call.messages[0] if call.messages else None
        destination = None if message is None else destination_of(message)
        attributes = attributes_of(call.caller, call.operation, "settle", destination)
        attributes |= consumer_attributes(call.caller)
        links: list[Link] = []
        around: Context | None = None
        if message is not None:
            attributes |= received_attributes(message)
            links = links_to(message.properties)
            around = self._around_settlement(call, message)
        with self._recorder.operation(SpanKind.CLIENT, attributes, links, around) as operation:
            yield
            if not call.succeeded:
                operation.fail("not_settled", "the message is not held any more, or cannot be given back")

    def _around_settlement(self, call: SettleCall, message: ReceivedMessage[object]) -> Context | None:
        """Return the context to which a settlement belongs; None is the current one."""
        key = (call.caller.group, message.topic, message.message_id)
        if get_value(_AT_WORK) == key:
            if call.operation in {"retry", "dead_letter"}:
                self._failed_attempts.put(key, valid_span())
            return None
        if call.operation in {"retry", "dead_letter"} and (attempt := self._failed_attempts.get(key)) is not None:
            return set_span_in_context(NonRecordingSpan(attempt), Context())
        return None if valid_span() is not None else context_in(message.properties)

    @contextmanager
    def deciding(self, call: TransactionCall) -> Iterator[None]:
        """Record a check of a transaction, or its end."""
        if not is_instrumentation_enabled():
            yield
            return
        if call.operation == "check":
            self._transactions.put(call.message_id, creation_context(call.properties))
            attributes = attributes_of(call.caller, "check", "process", call.topic)
            kind, around = SpanKind.CONSUMER, context_in(call.properties)
        else:
            attributes = attributes_of(call.caller, _DECISIONS[call.decision], "settle", call.topic)
            kind, around = SpanKind.CLIENT, get_current()
        attributes |= {MESSAGE_ID: call.message_id, TYPE: "transaction"}
        created = self._transactions.get(call.message_id)
        links = [] if created is None else [Link(created)]
        if created is not None and valid_span(around) is None:
            around = set_span_in_context(NonRecordingSpan(created), around)
        with self._recorder.operation(kind, attributes, links, around):
            yield

"""Recording of sends: the spans of a send, and the context that its messages carry.

The context of a single send's span is the creation context of its message. In a batch each message has a creation
context of its own, that of a `create` span. The span of the send links to all of them.

Two kinds of messages get no context from here:

- A message whose properties carry a context already. The send links to it.
- A message with a `unique_key` of its own, outside transactions. Brokers compare the properties of idempotent sends, so
  a repetition in another trace would be stored as another message.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from opentelemetry.context import get_current
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, set_span_in_context

from dledger_client import InvalidArgumentError, Message, SendError, SendResult
from dledger_client.interception import SendCall
from dledger_remoting.properties import CORRELATION_ID

from .conventions import (
    BATCH_COUNT,
    CONVERSATION_ID,
    MESSAGE_ID,
    Attributes,
    attributes_of,
    error_type,
    in_common,
    outgoing_attributes,
    stored_attributes,
    without,
)
from .propagation import creation_context, links_to, with_context
from .recording import Recorder


@contextmanager
def recorded_send(recorder: Recorder, call: SendCall) -> Iterator[SpanContext | None]:
    """Record the send of one message. Yields the message's creation context, None if it has none."""
    (message,) = call.messages
    attributes = attributes_of(call.caller, call.operation, "send", call.topic)
    attributes |= outgoing_attributes(message, in_transaction=call.operation == "begin")
    links: list[Link] = []
    conversation = call.conversation_id
    if call.asked_by is not None:
        conversation = call.asked_by.properties.get(CORRELATION_ID)
        links += links_to(call.asked_by.properties)
    if conversation is not None:
        attributes[CONVERSATION_ID] = conversation
    own = creation_context(message.properties)
    links += [] if own is None else [Link(own)]
    may_carry = own is None and _may_carry(call, message)
    kind = SpanKind.PRODUCER if may_carry else SpanKind.CLIENT
    with _counting(recorder, call, attributes), recorder.operation(kind, attributes, links) as operation:
        created = own
        if may_carry:
            created = operation.span.get_span_context()
            call.messages = [with_context(message, get_current())]
        yield created
        if call.results:
            operation.span.set_attributes(stored_attributes(call.results[0]))


@contextmanager
def recorded_batch(recorder: Recorder, call: SendCall, *, creates: bool) -> Iterator[None]:
    """Record the send of several messages. With `creates` each message has a span of its own."""
    attributes = attributes_of(call.caller, "send", "send", call.topic)
    each = [outgoing_attributes(message) for message in call.messages]
    own = [creation_context(message.properties) for message in call.messages]
    carriers = [
        number for number, message in enumerate(call.messages) if own[number] is None and _may_carry(call, message)
    ]
    creations = _Creations(recorder, call, each, carriers if creates else [])
    common = in_common(each)
    attributes |= common
    attributes[BATCH_COUNT] = len(call.messages)
    created = creations.contexts | {number: context for number, context in enumerate(own) if context is not None}
    links = [Link(context, without(common, each[number])) for number, context in sorted(created.items())]
    kind = SpanKind.CLIENT if creates or not carriers else SpanKind.PRODUCER
    try:
        with _counting(recorder, call, attributes), recorder.operation(kind, attributes, links):
            messages = list(call.messages)
            for number in carriers:
                span = creations.spans.get(number)
                context = get_current() if span is None else set_span_in_context(span)
                messages[number] = with_context(messages[number], context)
            call.messages = messages
            yield
    finally:
        creations.end(call.results)


class _Creations:
    """`create` spans of a batch's messages, by the messages' numbers. They end when the ids of the messages are known.

    Their time is that of their creation all the same.
    """

    def __init__(self, recorder: Recorder, call: SendCall, each: Sequence[Attributes], numbers: Sequence[int]) -> None:
        self._created_ns = time.time_ns()
        attributes = attributes_of(call.caller, "create", "create", call.topic)
        self.spans: dict[int, Span] = {
            number: recorder.start_span(SpanKind.PRODUCER, attributes | each[number], started_ns=self._created_ns)
            for number in numbers
        }

    @property
    def contexts(self) -> dict[int, SpanContext]:
        contexts = {number: span.get_span_context() for number, span in self.spans.items()}
        return {number: context for number, context in contexts.items() if context.is_valid}

    def end(self, results: Sequence[SendResult]) -> None:
        for number, span in self.spans.items():
            if results:
                span.set_attribute(MESSAGE_ID, results[number].message_id)
            span.end(self._created_ns)


def _may_carry(call: SendCall, message: Message) -> bool:
    return message.unique_key is None or call.operation == "begin"


@contextmanager
def _counting(recorder: Recorder, call: SendCall, attributes: Attributes) -> Iterator[None]:
    """Count the messages that were sent, and those whose send failed."""
    count = len(call.messages)
    try:
        yield
    except InvalidArgumentError:  # nothing was sent
        raise
    except BaseException as error:
        stored = len(error.stored) if isinstance(error, SendError) else 0
        recorder.count_sent(attributes, stored)
        recorder.count_sent(attributes, count - stored, error_type(error))
        raise
    recorder.count_sent(attributes, count)

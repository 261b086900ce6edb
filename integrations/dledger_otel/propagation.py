"""Context of messages: the trace that a message belongs to travels in the message's properties.

The global propagator names the properties: by default they are `traceparent`, `tracestate` and `baggage`, as in W3C's
Trace Context and Baggage. OpenTelemetry's instrumentation of RocketMQ's Java clients (4.8 and 5.0) uses the same
properties. So a trace goes on from either language into the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, Setter
from opentelemetry.trace import Link, SpanContext

from dledger_client import Message
from dledger_remoting.properties import NAME_END, RESERVED_NAMES, VALUE_END
from dledger_remoting.record import MAX_PROPERTIES_BYTES

from .conventions import Attributes

ROOM_BYTES: Final = 1024
"""Size in bytes that a context leaves for the properties of client and broker, and of the copies of failed messages."""


class _Properties(Getter[Mapping[str, str]], Setter[dict[str, str]]):
    """Reads and writes properties as a propagator's fields.

    A field that cannot be a property is left out: it would make the send fail.
    """

    def get(self, carrier: Mapping[str, str], key: str) -> list[str] | None:
        value = carrier.get(key)
        return None if value is None else [value]

    def keys(self, carrier: Mapping[str, str]) -> list[str]:
        return list(carrier)

    def set(self, carrier: dict[str, str], key: str, value: str) -> None:
        is_property = key and not any(end in text for end in (NAME_END, VALUE_END) for text in (key, value))
        if is_property and key not in RESERVED_NAMES:
            carrier[key] = value


_properties = _Properties()


def context_in(properties: Mapping[str, str] | None) -> Context:
    """Return the context that properties carry, with its baggage; an empty one if they carry none."""
    return propagate.extract(properties or {}, context=Context(), getter=_properties)


def creation_context(properties: Mapping[str, str] | None) -> SpanContext | None:
    """Return the context in which a message was created, None if its properties tell none."""
    if not properties:
        return None
    return valid_span(context_in(properties))


def links_to(properties: Mapping[str, str] | None, attributes: Attributes | None = None) -> list[Link]:
    """Return a link to the context in which a message was created, none if its properties tell none."""
    created = creation_context(properties)
    return [] if created is None else [Link(created, attributes)]


def valid_span(context: Context | None = None) -> SpanContext | None:
    """Return the context of the span in `context`, or in the current one; None without a span."""
    span_context = trace.get_current_span(context).get_span_context()
    return span_context if span_context.is_valid else None


def with_context(message: Message, context: Context) -> Message:
    """Return the message with properties that carry a context. The application's own properties stay as they are.

    A context for which the message has no room is left out, because it would make the send fail.
    """
    carried: dict[str, str] = {}
    propagate.inject(carried, context=context, setter=_properties)
    own = message.properties or {}
    if _size_bytes(carried) + _size_bytes(own) + _key_bytes(message) > MAX_PROPERTIES_BYTES - ROOM_BYTES:
        return message
    return msgspec.structs.replace(message, properties={**carried, **own})


def _size_bytes(properties: Mapping[str, str]) -> int:
    return sum(len(name.encode()) + len(value.encode()) + 2 for name, value in properties.items())


def _key_bytes(message: Message) -> int:
    """Return the size of a message's keys and tag. An iterator of keys can be read once, by the client."""
    keys = " ".join(message.key) if isinstance(message.key, list | tuple) else message.key
    texts = (keys if isinstance(keys, str) else "", message.tags or "")
    return sum(len(text.encode()) for text in texts)

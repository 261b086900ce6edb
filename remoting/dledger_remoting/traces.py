"""Message traces: what RocketMQ's clients write down about a message, as ordinary messages in a topic of its own.

The body of a trace message is text in UTF-8: traces, each ended by U+0002, whose fields U+0001 separates. The keys of
the message name the messages that its traces are about, and their keys. The first field says what follows:

| first field | written by | fields behind it |
|---|---|---|
| `Pub` | producer | time, region, group, topic, id, tags, keys, broker, bytes, cost, type, offset id, success[, host] |
| `Recall` | producer | time, region, group, topic, id, success |
| `EndTransaction` | producer | time, region, group, topic, id, tags, keys, broker, type, transaction, state, checked |
| `SubBefore` | consumer | time, region, group, request, id, deliveries before, keys[, host] |
| `SubAfter` | consumer | request, id, cost, success, keys, code[, time[, group]] |

Times and costs are in ms. What is not known is `null`. Old clients leave out the offset id of `Pub`, and what stands in
brackets. A request joins the two traces of one delivery. Source: `TraceDataEncoder` of RocketMQ 4.9.8 and 5.3.3, and
`internal/trace.go` of its Go client.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

import msgspec

FIELD_END: Final = "\x01"
TRACE_END: Final = "\x02"
DEFAULT_REGION: Final = "DefaultRegion"
"""The region of every broker that is not told another one."""
TRACE_PRODUCER_GROUP: Final = "_INNER_TRACE_PRODUCER"
"""The producer group of trace messages."""

NORMAL_MESSAGE: Final = 0
HALF_MESSAGE: Final = 1
COMMITTED_MESSAGE: Final = 2
DELAYED_MESSAGE: Final = 3
"""Types of messages in a trace; 4 is one of an order."""

HANDLED: Final = 0
FAILED: Final = 4
"""Codes of `HandlingTrace`; 1: it took too long, 2: its listener raised, 3: its listener returned nothing."""

_NULL: Final = "null"
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_OLD_PUB_FIELDS: Final = 12
_OFFSET_ID_FIELD: Final = 11


class SendTrace(msgspec.Struct, frozen=True):
    """A message was sent, or could not be; the broker is the one that stored it."""

    timestamp_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    tags: str
    keys: str
    broker: str
    body_bytes: int
    cost_ms: int
    message_type: int
    offset_message_id: str
    succeeded: bool
    host: str = ""


class RecallTrace(msgspec.Struct, frozen=True):
    """A message for later was taken back."""

    timestamp_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    succeeded: bool


class EndTrace(msgspec.Struct, frozen=True):
    """A transaction was ended; `by_check`: when a broker asked for it.

    `state` is `COMMIT_MESSAGE`, `ROLLBACK_MESSAGE` or `UNKNOW`.
    """

    timestamp_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    tags: str
    keys: str
    broker: str
    message_type: int
    transaction_id: str
    state: str
    by_check: bool


class DeliveryTrace(msgspec.Struct, frozen=True):
    """A consumer begins with a message; `reconsume_times` is how often it was delivered before."""

    timestamp_ms: int
    region: str
    group: str
    request_id: str
    message_id: str
    reconsume_times: int
    keys: str
    host: str = ""


class HandlingTrace(msgspec.Struct, frozen=True):
    """A consumer has ended its work on a message; clients before 4.9 tell neither time nor group."""

    request_id: str
    message_id: str
    cost_ms: int
    succeeded: bool
    keys: str
    context_code: int
    timestamp_ms: int = 0
    group: str = ""


Trace: TypeAlias = SendTrace | RecallTrace | EndTrace | DeliveryTrace | HandlingTrace


class TracesInBody(NamedTuple):
    """What the body of a trace message holds; `unreadable` counts what looks like a trace and is none."""

    traces: list[Trace]
    unreadable: int


def kind_of(trace: Trace) -> str:
    """The first field of a trace."""
    return _NAMES[type(trace)]


def encode_trace(trace: Trace) -> str:
    """A trace as it stands in a body. Its texts must not hold U+0001 or U+0002."""
    words = [kind_of(trace)]
    for field in msgspec.structs.fields(trace):
        value = getattr(trace, field.name)
        if field.name != "host" or value:
            words.append(str(value).lower() if isinstance(value, bool) else str(value) or _NULL)
    return FIELD_END.join(words) + TRACE_END


def decode_traces(body: bytes) -> TracesInBody:
    """The traces in the body of a trace message, whoever wrote it and whatever it holds."""
    traces: list[Trace] = []
    unreadable = 0
    for text in body.decode(errors="replace").split(TRACE_END):
        if not text.strip():
            continue
        kind, *words = text.split(FIELD_END)
        layout = _LAYOUTS.get(kind)
        trace = None if layout is None else layout.read(words)
        if trace is None:
            unreadable += 1
        else:
            traces.append(trace)
    return TracesInBody(traces, unreadable)


def traces_about(message_id: str, bodies: Iterable[bytes]) -> list[Trace]:
    """The traces of one message in the bodies of trace messages, each once: its sends, then the rest by time.

    Java's client writes one trace for a batch, with all ids in it, separated by commas. Go's tells when a send ended,
    not when it began: the message may have been delivered before.
    """
    found = {
        trace: None
        for body in bodies
        for trace in decode_traces(body).traces
        if message_id in trace.message_id.split(",")
    }
    begun = {trace.request_id: trace.timestamp_ms for trace in found if isinstance(trace, DeliveryTrace)}

    def moment(trace: Trace) -> tuple[bool, int, bool]:
        is_end = isinstance(trace, HandlingTrace)
        timestamp_ms = trace.timestamp_ms
        if isinstance(trace, HandlingTrace) and not timestamp_ms:
            timestamp_ms = begun.get(trace.request_id, 0) + trace.cost_ms
        return not isinstance(trace, SendTrace), timestamp_ms, is_end

    return sorted(found, key=moment)


class _Layout:
    """How the traces of one kind are read."""

    def __init__(self, kind: type[Trace]) -> None:
        self._kind = kind
        self._fields = msgspec.structs.fields(kind)
        self._required = sum(field.required for field in self._fields)

    def read(self, words: list[str]) -> Trace | None:
        """A trace from what follows the first field; None if that is something else."""
        if self._kind is SendTrace and len(words) == _OLD_PUB_FIELDS:
            words = [*words[:_OFFSET_ID_FIELD], "", words[_OFFSET_ID_FIELD]]
        if len(words) < self._required:
            return None
        values: dict[str, object] = {}
        for field, word in zip(self._fields, words, strict=False):
            value = _READERS[field.type](word)
            if value is None:
                return None
            values[field.name] = value
        return msgspec.convert(values, self._kind)


def _text(word: str) -> str:
    return "" if word == _NULL else word


def _number(word: str) -> int | None:
    return int(word) if _NUMBER.fullmatch(word) else None


def _truth(word: str) -> bool | None:
    return {"true": True, "false": False}.get(word.lower())


_READERS: Final[Mapping[object, Callable[[str], object]]] = {str: _text, int: _number, bool: _truth}
_KINDS: Final[Mapping[str, type[Trace]]] = {
    "Pub": SendTrace,
    "Recall": RecallTrace,
    "EndTransaction": EndTrace,
    "SubBefore": DeliveryTrace,
    "SubAfter": HandlingTrace,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}
_LAYOUTS: Final = {name: _Layout(kind) for name, kind in _KINDS.items()}

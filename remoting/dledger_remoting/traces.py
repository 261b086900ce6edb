"""Message traces: records that RocketMQ's clients write about a message, as ordinary messages in a topic of their own.

The body of a trace message is text in UTF-8: traces, each ended by U+0002, whose fields U+0001 separates. The keys of
the trace message are the ids and keys of the messages that its traces are about. The first field names the kind of the
trace:

| first field | written by | fields behind it |
|---|---|---|
| `Pub` | producer | time, region, group, topic, id, tags, keys, broker, bytes, cost, type, offset id, success[, host] |
| `Recall` | producer | time, region, group, topic, id, success |
| `EndTransaction` | producer | time, region, group, topic, id, tags, keys, broker, type, transaction, state, checked |
| `SubBefore` | consumer | time, region, group, request, id, deliveries before, keys[, host] |
| `SubAfter` | consumer | request, id, cost, success, keys, code[, time[, group]] |

Times and costs are in ms. Unknown values are `null`. Old clients leave out the offset id of `Pub`, and the fields in
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
"""Region of every broker that is not configured with another one."""
TRACE_PRODUCER_GROUP: Final = "_INNER_TRACE_PRODUCER"
"""The producer group of trace messages."""

NORMAL_MESSAGE: Final = 0
HALF_MESSAGE: Final = 1
COMMITTED_MESSAGE: Final = 2
DELAYED_MESSAGE: Final = 3
"""Types of messages in a trace. Type 4 is an ordered message."""

HANDLED: Final = 0
FAILED: Final = 4
"""Codes of `HandlingTrace`; 1: it took too long, 2: its listener raised, 3: its listener returned nothing."""

_NULL: Final = "null"
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_OLD_PUB_FIELDS: Final = 12
_OFFSET_ID_FIELD: Final = 11


class SendTrace(msgspec.Struct, frozen=True):
    """Trace of a send, which stored a message or failed. `broker` is the broker that stored it."""

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
    """Trace of the recall of a message that was not due yet."""

    timestamp_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    succeeded: bool


class EndTrace(msgspec.Struct, frozen=True):
    """Trace of the end of a transaction. `by_check` says that a broker had asked for its outcome."""

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
    """Trace of a message with which a consumer begins; `reconsume_times` is the number of earlier deliveries."""

    timestamp_ms: int
    region: str
    group: str
    request_id: str
    message_id: str
    reconsume_times: int
    keys: str
    host: str = ""


class HandlingTrace(msgspec.Struct, frozen=True):
    """Trace of the end of a consumer's work on a message. Clients before 4.9 report neither time nor group."""

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
    """Content of a trace message's body. `unreadable` counts the texts in it that cannot be read as a trace."""

    traces: list[Trace]
    unreadable: int


def kind_of(trace: Trace) -> str:
    """Return the first field of a trace."""
    return _NAMES[type(trace)]


def encode_trace(trace: Trace) -> str:
    """Return a trace as a body holds it. Its texts must not contain U+0001 or U+0002."""
    words = [kind_of(trace)]
    for field in msgspec.structs.fields(trace):
        value = getattr(trace, field.name)
        if field.name != "host" or value:
            words.append(str(value).lower() if isinstance(value, bool) else str(value) or _NULL)
    return FIELD_END.join(words) + TRACE_END


def decode_traces(body: bytes) -> TracesInBody:
    """Return the traces in the body of a trace message of any client and any content."""
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
    """Return the traces of one message in the bodies of trace messages, each once.

    The sends are first, then the other traces by time.

    Java's client writes one trace for a batch, with all ids in it, separated by commas. Go's client reports the end of
    a send instead of its beginning, so the message may have been delivered earlier.
    """
    traces = {
        trace: None
        for body in bodies
        for trace in decode_traces(body).traces
        if message_id in trace.message_id.split(",")
    }
    delivery_times = {trace.request_id: trace.timestamp_ms for trace in traces if isinstance(trace, DeliveryTrace)}

    def moment(trace: Trace) -> tuple[bool, int, bool]:
        is_end = isinstance(trace, HandlingTrace)
        timestamp_ms = trace.timestamp_ms
        if isinstance(trace, HandlingTrace) and not timestamp_ms:
            timestamp_ms = delivery_times.get(trace.request_id, 0) + trace.cost_ms
        return not isinstance(trace, SendTrace), timestamp_ms, is_end

    return sorted(traces, key=moment)


class _Layout:
    """Reader for the traces of one kind."""

    def __init__(self, kind: type[Trace]) -> None:
        self._kind = kind
        self._fields = msgspec.structs.fields(kind)
        self._required = sum(field.required for field in self._fields)

    def read(self, words: list[str]) -> Trace | None:
        """Return a trace from the fields behind the first; None if they are something else."""
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


def _read_text(word: str) -> str:
    return "" if word == _NULL else word


def _read_number(word: str) -> int | None:
    return int(word) if _NUMBER.fullmatch(word) else None


def _read_boolean(word: str) -> bool | None:
    return {"true": True, "false": False}.get(word.lower())


_READERS: Final[Mapping[object, Callable[[str], object]]] = {str: _read_text, int: _read_number, bool: _read_boolean}
_KINDS: Final[Mapping[str, type[Trace]]] = {
    "Pub": SendTrace,
    "Recall": RecallTrace,
    "EndTransaction": EndTrace,
    "SubBefore": DeliveryTrace,
    "SubAfter": HandlingTrace,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}
_LAYOUTS: Final = {name: _Layout(kind) for name, kind in _KINDS.items()}

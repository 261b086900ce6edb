"""Traces of a message: what clients wrote about its sends, deliveries and handling."""

from __future__ import annotations

from typing import Final

import msgspec

from dledger_client import Admin, NoRouteError
from dledger_remoting.traces import (
    DELAYED_MESSAGE,
    HALF_MESSAGE,
    DeliveryTrace,
    EndTrace,
    HandlingTrace,
    RecallTrace,
    SendTrace,
    Trace,
    kind_of,
)

from .errors import MissingError

_TRACE_HINT: Final = "clients write traces where they are told to: trace=True, or enableMsgTrace in RocketMQ's"
_END_STATES: Final = {"COMMIT_MESSAGE": "committed", "ROLLBACK_MESSAGE": "rolled back"}


class TraceView(msgspec.Struct, frozen=True, omit_defaults=True):
    """One trace as JSON shows it: those of its fields that are known, with the first field of its text as `kind`."""

    kind: str
    message_id: str
    group: str = ""
    timestamp_ms: int = 0
    region: str = ""
    topic: str = ""
    tags: str = ""
    keys: str = ""
    broker: str = ""
    host: str = ""
    body_bytes: int | None = None
    cost_ms: int | None = None
    message_type: int | None = None
    offset_message_id: str = ""
    succeeded: bool | None = None
    request_id: str = ""
    reconsume_times: int | None = None
    context_code: int | None = None
    transaction_id: str = ""
    state: str = ""
    by_check: bool | None = None


def trace_view(trace: Trace) -> TraceView:
    """Return a trace as JSON shows it."""
    return msgspec.convert({"kind": kind_of(trace), **msgspec.structs.asdict(trace)}, TraceView)


async def traces(admin: Admin, message_id: str, topic: str, limit: int) -> list[Trace]:
    """Return the traces of a message in a topic of traces. Raises `MissingError` if there is none."""
    try:
        found = await admin.message_trace(message_id, topic=topic, max_messages=limit)
    except NoRouteError as error:
        raise MissingError(str(error), _TRACE_HINT) from error
    if not found:
        raise MissingError(f"topic {topic!r} has no trace of message {message_id!r}", _TRACE_HINT)
    return found


def describe_event(trace: Trace) -> str:
    """Return what a trace tells, in a word or two."""
    match trace:
        case SendTrace(succeeded=True, message_type=kind) if kind == HALF_MESSAGE:
            return "begun"
        case SendTrace(succeeded=True, message_type=kind) if kind == DELAYED_MESSAGE:
            return "sent for later"
        case SendTrace(succeeded=succeeded):
            return "sent" if succeeded else "not sent"
        case RecallTrace(succeeded=succeeded):
            return "taken back" if succeeded else "not taken back"
        case EndTrace(state=state):
            return _END_STATES.get(state, "undecided")
        case DeliveryTrace():
            return "delivered"
        case HandlingTrace(succeeded=succeeded):
            return "handled" if succeeded else "failed"


def describe_details(trace: Trace) -> str:
    """Return the circumstances that a trace tells, "" without any."""
    match trace:
        case SendTrace():
            known = (f"to {trace.topic}", f"{trace.body_bytes} bytes", trace.broker and f"stored by {trace.broker}")
            return ", ".join(filter(None, known))
        case RecallTrace():
            return f"from {trace.topic}"
        case EndTrace(by_check=by_check):
            return "asked by a broker" if by_check else ""
        case DeliveryTrace(reconsume_times=times):
            return f"again, after {times} {'delivery' if times == 1 else 'deliveries'}" if times else ""
        case HandlingTrace(context_code=code, succeeded=succeeded):
            return "" if succeeded else f"code {code}"

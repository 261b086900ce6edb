"""Traces of a message as `dledger message trace` shows them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from dledger_remoting.traces import (
    DELAYED_MESSAGE,
    HALF_MESSAGE,
    DeliveryTrace,
    EndTrace,
    HandlingTrace,
    RecallTrace,
    SendTrace,
    Trace,
)

from ..output import columns, shown

_END_STATES = {"COMMIT_MESSAGE": "committed", "ROLLBACK_MESSAGE": "rolled back"}


def table(traces: Sequence[Trace]) -> str:
    """Return traces for people, one a line."""
    header = ("time", "what", "group", "took ms", "details")
    groups = {trace.request_id: trace.group for trace in traces if isinstance(trace, DeliveryTrace)}
    rows = []
    for trace in traces:
        group = trace.group
        if isinstance(trace, HandlingTrace):
            group = group or groups.get(trace.request_id, "")
        cost = trace.cost_ms if isinstance(trace, SendTrace | HandlingTrace) else None
        moment = _format_time(trace.timestamp_ms) if trace.timestamp_ms else None
        rows.append((moment, _describe_event(trace), shown(group) or None, cost, shown(_describe_details(trace))))
    return columns(header, rows)


def _describe_event(trace: Trace) -> str:
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


def _describe_details(trace: Trace) -> str:
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


def _format_time(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, tz=UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # a client may have written any number
        return f"{ms} ms since 1970"

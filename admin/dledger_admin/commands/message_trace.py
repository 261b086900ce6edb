"""Traces of a message as `dledger message trace` shows them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from dledger_remoting.traces import DeliveryTrace, HandlingTrace, SendTrace, Trace

from ..operations.traces import describe_details, describe_event
from ..output import columns, shown


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
        rows.append((moment, describe_event(trace), shown(group) or None, cost, shown(describe_details(trace))))
    return columns(header, rows)


def _format_time(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, tz=UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # a client may have written any number
        return f"{ms} ms since 1970"

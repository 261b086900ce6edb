"""Report of what a broker group keeps: disks above the watermark, and what retention takes next."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from .groups import GroupView
from .reports import Limits, Problem

_FULL_PERMILLE: Final = 1000


def disk_warnings(group: GroupView, limits: Limits) -> Iterator[Problem]:
    """Yield a warning for each node whose disk is above its watermark, unless that is a problem already."""
    for node_id, answer in sorted(group.answers.items()):
        report = answer.report
        if report is None or not report.disk_warning or report.refusal:
            continue
        if report.disk_used_permille < limits.disk_used * _FULL_PERMILLE:
            yield Problem(node_id, report.disk_warning)


def next_trim(group: GroupView) -> Problem | None:
    """Return what retention takes next of a group, and when; None if its leader does not tell."""
    answer = group.answers.get(group.leader.node_id) if group.leader is not None else None
    if answer is None or "retention_next_bytes" not in answer.gauges:
        return None
    size, due_s, growth, is_held = (
        answer.gauges.get(f"retention_next_{name}", 0.0) for name in ("bytes", "due_seconds", "growth_bytes", "held")
    )
    if not size:
        return Problem(group.name, "retention takes nothing: the log has one segment, which is being written")
    when = []
    if due_s:
        at = datetime.fromtimestamp(due_s).astimezone().isoformat(timespec="seconds")
        when.append(f"at {at} by retention_hours")
    if growth:
        when.append(f"once the log has grown by {_format_size(growth)} by retention_bytes")
    due = " or ".join(when) or "when they are too old by retention_hours"
    text = f"retention takes {_format_size(size)} next, {due}"
    return Problem(group.name, f"{text}; a pin or an open transaction keeps them until then" if is_held else text)


def _format_size(number: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("bytes", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"

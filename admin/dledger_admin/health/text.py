"""Text of a cluster's health for people: a table, what is wrong, and a verdict."""

from __future__ import annotations

from typing import Final

from ..output import columns
from .reports import ClusterHealth, NodeHealth

_HEADER: Final = (
    "broker group",
    "node",
    "address",
    "role",
    "term",
    "commit",
    "lag",
    "disk",
    "version",
    "uptime",
    "clock",
)
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def render(health: ClusterHealth) -> str:
    """Return the text, which ends with `healthy` or the number of problems."""
    table = [columns(_HEADER, [_make_row(node) for node in health.nodes])] if health.nodes else []
    problems = [f"{problem.subject}: {problem.text}" for problem in health.problems]
    warnings = [f"warning: {warning.subject}: {warning.text}" for warning in health.warnings]
    retention = [f"{line.subject}: {line.text}" for line in health.retention]
    survival = [f"{line.subject}: {line.text}" for line in health.survival]
    return "\n".join([*table, *survival, *retention, *problems, *warnings, _format_verdict(health)])


def _format_verdict(health: ClusterHealth) -> str:
    if not health.healthy:
        return f"not healthy: {len(health.problems)} {'problem' if len(health.problems) == 1 else 'problems'}"
    groups = len({node.broker_group for node in health.nodes})
    return f"healthy: {len(health.nodes)} nodes in {groups} {'group' if groups == 1 else 'groups'}"


def _make_row(node: NodeHealth) -> tuple[object, ...]:
    return (
        node.broker_group,
        node.node,
        node.address,
        node.role,
        node.term,
        node.commit,
        node.lag,
        None if node.disk_used is None else f"{node.disk_used:.0%}",
        node.version,
        None if node.uptime_s is None else duration(node.uptime_s),
        None if node.clock_ahead_ms is None else f"{node.clock_ahead_ms / 1000:+.1f}s",
    )


def duration(seconds: int) -> str:
    """Return a duration by its two largest units, as `3d4h` or `12s`."""
    parts: list[str] = []
    for size, unit in _UNITS:
        count, seconds = divmod(seconds, size)
        if count or parts:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"

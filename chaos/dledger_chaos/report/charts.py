"""The timeline of a run as SVG: throughput, latency, leaders and faults over one axis of time."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dledger_chaos.checkers.base import RunData

from .series import Interval, Stretch, intervals, nodes_of, stretches
from .summary import Fault, Summary

FAMILY_COLOURS: Final = {
    "process": "#d95f02",
    "network": "#1b6ca8",
    "disk": "#7a4fa3",
    "power": "#c2185b",
    "clock": "#5f7d1e",
    "membership": "#8a6d3b",
}
_OTHER_COLOUR: Final = "#777777"
_TERM_COLOURS: Final = ("#2a9d8f", "#e9a23b", "#4c78a8", "#b5657b", "#7f9f4d", "#9171b5")
_FOLLOWER_COLOUR: Final = "#d9dde2"
_CANDIDATE_COLOUR: Final = "#f2b8b5"
_STYLE: Final[dict[Any, object]] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "dledger",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e8eb",
    "axes.axisbelow": True,
}


def timeline(run: RunData, summary: Summary) -> str:
    """Return an `<svg>` element to be put into a page."""
    roles = stretches(run)
    nodes = nodes_of(roles)
    families = [family for family in FAMILY_COLOURS if family in summary.families]
    heights = [2.0, 1.6, 0.35 * max(1, len(nodes)) + 0.2, 0.3 * max(1, len(families)) + 0.2]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(11.5, sum(heights) + 1.2), layout="constrained")
        axes = figure.subplots(4, 1, sharex=True, height_ratios=heights)
        interval_figures = intervals(run)
        _draw_throughput(axes[0], interval_figures)
        _draw_latency(axes[1], interval_figures)
        _draw_leaders(axes[2], roles, nodes)
        _draw_faults(axes[3], summary.faults, families, summary.seconds)
        for each in axes[:2]:
            _draw_bands(each, summary.faults, summary.seconds)
        axes[0].set_xlim(0, shown_seconds(interval_figures, summary))
        axes[3].set_xlabel("seconds since the workloads began")
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    drawn = text.getvalue()
    return drawn[drawn.index("<svg") :]


def shown_seconds(interval_figures: Sequence[Interval], summary: Summary) -> float:
    """Return the end of the time axis in seconds: the last message or fault, without the final reads after them."""
    width = interval_figures[1].begin_s - interval_figures[0].begin_s if len(interval_figures) > 1 else 0.0
    busy = [each.begin_s + width for each in interval_figures if each.acknowledged_per_s or each.failed_per_s]
    faults = [fault.begin_s if fault.end_s is None else fault.end_s for fault in summary.faults]
    end = max([*busy, *faults], default=summary.seconds)
    return max(min(end, summary.seconds), 1.0)


def _draw_throughput(axes: Axes, interval_figures: Sequence[Interval]) -> None:
    times = [interval.begin_s for interval in interval_figures]
    acknowledged = [interval.acknowledged_per_s for interval in interval_figures]
    axes.fill_between(times, acknowledged, step="post", color="#2a9d8f", alpha=0.35, linewidth=0)
    axes.step(times, acknowledged, where="post", color="#1f7a6f", linewidth=1, label="acknowledged")
    failed = [interval.failed_per_s for interval in interval_figures]
    axes.step(times, failed, where="post", color="#c62828", linewidth=1, label="failed or unknown")
    axes.set_ylabel("per second")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper right", ncols=2, frameon=False)


def _draw_latency(axes: Axes, interval_figures: Sequence[Interval]) -> None:
    known = [interval for interval in interval_figures if interval.p50_ms is not None]
    times = [interval.begin_s for interval in known]
    axes.plot(times, [interval.p99_ms or 0 for interval in known], ".", color="#e9a23b", markersize=3, label="99 %")
    axes.plot(times, [interval.p50_ms or 0 for interval in known], ".", color="#4c78a8", markersize=3, label="median")
    axes.margins(y=0.25)
    if known:
        axes.set_yscale("log")
    axes.set_ylabel("latency, ms")
    axes.legend(loc="upper right", ncols=2, frameon=False)


def _draw_leaders(axes: Axes, roles: Sequence[Stretch], nodes: Sequence[str]) -> None:
    for stretch in roles:
        row, width = nodes.index(stretch.node), max(stretch.end_s - stretch.begin_s, 0.05)
        leads = stretch.role == "leader"
        colour = _TERM_COLOURS[stretch.term % len(_TERM_COLOURS)] if leads else _FOLLOWER_COLOUR
        if stretch.role not in {"leader", "follower", "learner"}:
            colour = _CANDIDATE_COLOUR
        axes.barh(row, width, left=stretch.begin_s, height=0.7, color=colour, linewidth=0)
        if leads:
            axes.text(stretch.begin_s, row, f" {stretch.term}", va="center", fontsize=7, color="black", clip_on=True)
    axes.set_yticks(range(len(nodes)), nodes)
    axes.set_ylim(max(len(nodes), 1) - 0.5, -0.5)
    axes.set_ylabel("leader, term")
    axes.grid(visible=False, axis="y")


def _draw_faults(axes: Axes, faults: Sequence[Fault], families: Sequence[str], end_s: float) -> None:
    for fault in faults:
        if fault.family in families:
            until = end_s if fault.end_s is None else fault.end_s
            width = max(until - fault.begin_s, 0.1)
            row = families.index(fault.family)
            axes.barh(
                row, width, left=fault.begin_s, height=0.7, color=_get_colour(fault.family), alpha=0.6, linewidth=0
            )
            axes.text(fault.begin_s, row, f" {fault.id}", va="center", fontsize=6, clip_on=True)
    axes.set_yticks(range(len(families)), families)
    axes.set_ylim(max(len(families), 1) - 0.5, -0.5)
    axes.set_ylabel("faults")
    axes.grid(visible=False, axis="y")


def _draw_bands(axes: Axes, faults: Sequence[Fault], end_s: float) -> None:
    """Draw the time of every fault as a band behind the curves."""
    for fault in faults:
        until = end_s if fault.end_s is None else fault.end_s
        axes.axvspan(
            fault.begin_s, max(until, fault.begin_s + 0.1), color=_get_colour(fault.family), alpha=0.12, linewidth=0
        )


def _get_colour(family: str) -> str:
    return FAMILY_COLOURS.get(family, _OTHER_COLOUR)

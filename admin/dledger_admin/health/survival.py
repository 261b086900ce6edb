"""Report of how many more failures a broker group survives."""

from __future__ import annotations

from .groups import GroupView
from .reports import Limits, Problem


def survival(group: GroupView, limits: Limits) -> Problem | None:
    """Return how many voters of a group work, and what the next failure does; None for a group without a leader."""
    if group.leader is None:
        return None
    working = sum(_is_working(group, voter, limits) for voter in group.voters)
    spare = working - (len(group.voters) // 2 + 1)
    counted = f"{working} of {len(group.voters)} voters"
    if spare <= 0:
        return Problem(group.name, f"{counted}: the next failure stops writes")
    return Problem(group.name, f"{counted}: {spare} more {'failure is' if spare == 1 else 'failures are'} survived")


def _is_working(group: GroupView, voter: str, limits: Limits) -> bool:
    """Return True if a voter would count for a majority: its leader hears from it, and the log lists it as a voter.

    A node that came back with an empty directory has the name of a voter, and is a blank learner.
    """
    report, peer = group.report(voter), group.peer(voter)
    if report is not None and (report.failure or not report.voter):
        return False
    if group.leader is not None and voter == group.leader.node_id:
        return True
    return peer is not None and peer.contact_ms <= limits.silence_ms

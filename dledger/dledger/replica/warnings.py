"""Warnings for operators about things on which nothing depends: clocks that differ, members that differ.

Each is logged once its reason has lasted `LASTING_S`, and again every `REPEAT_S` while the reason lasts.
"""

from __future__ import annotations

import logging

from dledger.consensus.engine import Engine
from dledger.replica.clocks import clock_ahead_ms

MAX_CLOCK_DIFFERENCE_MS = 5_000
LASTING_S = 3.0
"""Minimum seconds for which a reason must last.

A node that was stopped or replaced gives a false picture for a moment.
"""
REPEAT_S = 60.0

logger = logging.getLogger(__name__)


class Warnings:
    """Logs lasting differences. `configured` are the node ids of the configuration, including this node's."""

    def __init__(self, node_id: str, configured: frozenset[str]) -> None:
        self._node_id = node_id
        self._configured = configured
        self._lasting_since: dict[str, float] = {}
        self._logged_at: dict[str, float] = {}

    def log_due(self, engine: Engine, now: float) -> None:
        """Log the warnings that are due at `now`, in monotonic seconds."""
        warnings = self._clock_warnings(engine, now) | self._member_warnings(engine)
        self._lasting_since = {key: self._lasting_since.get(key, now) for key in warnings}
        for key, text in warnings.items():
            logged_at = self._logged_at.get(key)
            if now - self._lasting_since[key] >= LASTING_S and (logged_at is None or now - logged_at >= REPEAT_S):
                self._logged_at[key] = now
                logger.warning("node=%s %s", self._node_id, text)

    def _clock_warnings(self, engine: Engine, now: float) -> dict[str, str]:
        """Return a warning for each member whose clock is far off this leader's. A follower knows no clocks."""
        warnings: dict[str, str] = {}
        for peer, progress in engine.progress.items():
            ahead_ms = clock_ahead_ms(progress, now, engine.wall_ms)
            if ahead_ms is not None and abs(ahead_ms) > MAX_CLOCK_DIFFERENCE_MS:
                reason = (
                    f"its clock is {abs(ahead_ms)} ms "
                    f"{'ahead of' if ahead_ms > 0 else 'behind'} the clock of leader {self._node_id}, at most "
                    f"{MAX_CLOCK_DIFFERENCE_MS} ms expected; messages are stamped by the leader's clock: synchronise "
                    "the machines' clocks"
                )
                warnings[f"clock {peer.node_id}"] = f"event=clocks_differ peer={peer.node_id} reason={reason!r}"
        return warnings

    def _member_warnings(self, engine: Engine) -> dict[str, str]:
        members = frozenset(str(member.node_id) for member in engine.membership.members)
        if not members or members == self._configured or engine.leader is None:
            return {}
        reason = (
            f"the configuration of {self._node_id} names the nodes "
            f"{', '.join(sorted(self._configured))}, the group's members by its log are "
            f"{', '.join(sorted(members))}: the log counts; correct the peers of {self._node_id}, or start the "
            "missing node, which then joins"
        )
        return {f"members {sorted(members)}": f"event=members_differ reason={reason!r}"}

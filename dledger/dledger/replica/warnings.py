"""Warnings for operators about things on which nothing depends: clocks that differ, members that differ.

Each is logged when its reason has lasted `LASTING_S` and again every `REPEAT_S` while it lasts.
"""

from __future__ import annotations

import logging

from dledger.consensus.engine import Engine
from dledger.replica.clocks import clock_ahead_ms

MAX_CLOCK_DIFFERENCE_MS = 5_000
LASTING_S = 3.0
"""A node that was stopped or replaced gives a moment's false picture."""
REPEAT_S = 60.0

logger = logging.getLogger(__name__)


class Warnings:
    """`configured` are the node ids of the configuration, this node's included."""

    def __init__(self, node_id: str, configured: frozenset[str]) -> None:
        self._node_id = node_id
        self._configured = configured
        self._since: dict[str, float] = {}
        self._said_at: dict[str, float] = {}

    def look(self, engine: Engine, now: float) -> None:
        """Log what is to be logged at `now`, in monotonic seconds."""
        found = self._clocks(engine, now) | self._members(engine)
        self._since = {key: self._since.get(key, now) for key in found}
        for key, text in found.items():
            said_at = self._said_at.get(key)
            if now - self._since[key] >= LASTING_S and (said_at is None or now - said_at >= REPEAT_S):
                self._said_at[key] = now
                logger.warning("node=%s %s", self._node_id, text)

    def _clocks(self, engine: Engine, now: float) -> dict[str, str]:
        """Members whose clock is far off this leader's; a follower knows nobody's."""
        found: dict[str, str] = {}
        for peer, progress in engine.progress.items():
            ahead_ms = clock_ahead_ms(progress, now, engine.wall_ms)
            if ahead_ms is not None and abs(ahead_ms) > MAX_CLOCK_DIFFERENCE_MS:
                reason = (
                    f"its clock is {abs(ahead_ms)} ms "
                    f"{'ahead of' if ahead_ms > 0 else 'behind'} the clock of leader {self._node_id}, at most "
                    f"{MAX_CLOCK_DIFFERENCE_MS} ms expected; messages are stamped by the leader's clock: synchronise "
                    "the machines' clocks"
                )
                found[f"clock {peer.node_id}"] = f"event=clocks_differ peer={peer.node_id} reason={reason!r}"
        return found

    def _members(self, engine: Engine) -> dict[str, str]:
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

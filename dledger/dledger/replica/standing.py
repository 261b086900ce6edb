"""Tells the state machine who leads, and whether this replica is ready, whenever that changed."""

from __future__ import annotations

from collections.abc import Callable

from dledger.engines import Engine
from dledger.replica.completions import Completions
from dledger.replica.feed import MachineFeed
from dledger.statemachine import Leadership
from dledger.types import ReplicaId, Role


class StandingTeller:
    """`look` is called whenever something may have changed; what is told is told among the `completions`."""

    def __init__(
        self,
        completions: Completions,
        feed: MachineFeed,
        engine: Callable[[], Engine],
        *,
        is_ready: Callable[[], bool],
        is_stopped: Callable[[], bool],
    ) -> None:
        self._completions = completions
        self._feed = feed
        self._engine = engine
        self._is_ready = is_ready
        self._is_stopped = is_stopped
        self._told: tuple[int, ReplicaId | None, Role, bool] | None = None

    def look(self) -> bool:
        """Have it told what it was not told; returns whether there is something."""
        changed = self._standing() != self._told
        if changed:
            self._completions.add(self._tell)
        return changed

    def _standing(self) -> tuple[int, ReplicaId | None, Role, bool]:
        engine = self._engine()
        return engine.term, engine.leader, engine.role, self._is_ready()

    def _tell(self) -> None:
        standing = self._standing()
        if standing != self._told and not self._is_stopped():
            self._told = standing
            term, leader, role, ready = standing
            node_id = None if leader is None else leader.node_id
            self._feed.tell(Leadership(term, node_id, role is Role.LEADER, ready))

"""Standing of a replica: who leads, and whether it is ready.  The state machine is told, and whoever is refused."""

from __future__ import annotations

from dledger.consensus.engine import Engine
from dledger.errors import NotLeaderError
from dledger.replica.completions import Completions
from dledger.replica.driver import Driver
from dledger.replica.feed import MachineFeed
from dledger.statemachine import Leadership
from dledger.types import ReplicaId, Role


def not_leader(engine: Engine) -> NotLeaderError:
    """Why nothing can be proposed on the replica of this engine, nor read from it without going stale."""
    leader = None if engine.leader is None else engine.leader.node_id
    if engine.is_leader:
        return NotLeaderError(
            leader, engine.term, "it is handing over" if engine.transfer_to else "it is not ready yet"
        )
    return NotLeaderError(leader, engine.term)


class StandingTeller:
    """`look` is called whenever something may have changed; what is told is told among the `completions`."""

    def __init__(self, completions: Completions, feed: MachineFeed, engine: Engine, driver: Driver) -> None:
        self._completions = completions
        self._feed = feed
        self._engine = engine
        self._driver = driver
        self._told: tuple[int, ReplicaId | None, Role, bool] | None = None

    def look(self) -> bool:
        """Have it told what it was not told; returns whether there is something."""
        changed = self._standing() != self._told
        if changed:
            self._completions.add(self._tell)
        return changed

    def _standing(self) -> tuple[int, ReplicaId | None, Role, bool]:
        engine = self._engine
        return engine.term, engine.leader, engine.role, self._driver.is_ready

    def _tell(self) -> None:
        standing = self._standing()
        if standing != self._told and not self._driver.is_stopped:
            self._told = standing
            term, leader, role, ready = standing
            node_id = None if leader is None else leader.node_id
            self._feed.tell(Leadership(term, node_id, role is Role.LEADER, ready))

"""Standing of a replica: who leads, and whether it is ready. State machine and refused clients get it."""

from __future__ import annotations

from dledger.consensus.engine import Engine
from dledger.errors import NotLeaderError
from dledger.replica.completions import Completions
from dledger.replica.driver import Driver
from dledger.replica.feed import MachineFeed
from dledger.statemachine import Leadership
from dledger.types import ReplicaId, Role


def not_leader(engine: Engine) -> NotLeaderError:
    """Return the error that says why nothing can be proposed on this engine's replica, nor read without going stale."""
    leader = None if engine.leader is None else engine.leader.node_id
    if engine.is_leader:
        return NotLeaderError(
            leader, engine.term, "it is handing over" if engine.transfer_to else "it is not ready yet"
        )
    return NotLeaderError(leader, engine.term)


class LeadershipReporter:
    """Tells the state machine changed leadership, as a completion. Call `check` whenever something may have changed."""

    def __init__(self, completions: Completions, feed: MachineFeed, engine: Engine, driver: Driver) -> None:
        self._completions = completions
        self._feed = feed
        self._engine = engine
        self._driver = driver
        self._reported: tuple[int, ReplicaId | None, Role, bool] | None = None

    def check(self) -> bool:
        """Have changed leadership reported, and return whether it has changed."""
        engine = self._engine
        changed = (engine.term, engine.leader, engine.role, self._driver.renew_readiness()) != self._reported
        if changed:
            self._completions.add(self._report)
        return changed

    def _report(self) -> None:
        engine = self._engine
        leadership = engine.term, engine.leader, engine.role, self._driver.renew_readiness()
        if leadership != self._reported and not self._driver.is_stopped:
            self._reported = leadership
            term, leader, role, ready = leadership
            node_id = None if leader is None else leader.node_id
            self._feed.report_leadership(Leadership(term, node_id, role is Role.LEADER, ready))

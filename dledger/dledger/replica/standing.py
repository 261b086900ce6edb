"""Standing of a replica: facts that many parts ask for, each of them written by one part.

Whether it takes part, who leads, whether it is ready, what it has applied, and which peers it can send to.
"""

from __future__ import annotations

from collections.abc import Iterator

from dledger.consensus.engine import Engine
from dledger.errors import NotLeaderError
from dledger.replica.driver import Completions
from dledger.replica.feed import MachineFeed
from dledger.statemachine import Leadership
from dledger.types import ReplicaId, Role


class Standing:
    """Facts about a replica that many parts ask for, each of them written by one part.

    The state machine is told changed leadership, as a completion. Call `renew` whenever something may have changed,
    which is at the end of each work of the engine or applier.
    """

    def __init__(self, completions: Completions, feed: MachineFeed, engine: Engine) -> None:
        self._completions = completions
        self._feed = feed
        self._engine = engine
        self._reported: tuple[int, ReplicaId | None, Role, bool] | None = None
        self.is_stopped = False
        """True if the replica no longer takes part. It notifies nobody, and drops the results of workers."""
        self.is_ready = False
        """True if the replica leads, has applied the no-op of its term, and takes proposals. `renew` writes it."""
        self.successor: ReplicaId | None = None
        """The voter that is to lead once all entries that wait for space are written. `Leading` writes it."""
        self.applied_index = -1
        """The last applied entry. `Applier` writes it."""
        self.applied_position = 0
        """End of the last applied entry. `Applier` writes it."""

    def derive_readiness(self) -> bool:
        """Return whether the replica is ready now, by its role, handover and applied entries."""
        engine = self._engine
        return (
            engine.accepts_proposals
            and self.applied_index >= engine.term_start
            and self.successor is None
            and not self.is_stopped
        )

    def renew(self) -> bool:
        """Derive `is_ready` anew, have changed leadership reported, and return whether it has changed."""
        engine = self._engine
        self.is_ready = (  # as `derive_readiness`, without its call: a write comes here three times
            engine.accepts_proposals
            and self.applied_index >= engine.term_start
            and self.successor is None
            and not self.is_stopped
        )
        changed = (engine.term, engine.leader, engine.role, self.is_ready) != self._reported
        if changed:
            self._completions.add(self._report)
        return changed

    def stop(self) -> None:
        """Note that the replica no longer takes part."""
        self.is_stopped = True
        self.is_ready = False

    def _report(self) -> None:
        engine = self._engine
        self.is_ready = self.derive_readiness()
        leadership = engine.term, engine.leader, engine.role, self.is_ready
        if leadership != self._reported and not self.is_stopped:
            self._reported = leadership
            term, leader, role, ready = leadership
            node_id = None if leader is None else leader.node_id
            self._feed.report_leadership(Leadership(term, node_id, role is Role.LEADER, ready))


def not_leader(engine: Engine) -> NotLeaderError:
    """Return the error that says why nothing can be proposed on this engine's replica, nor read without going stale."""
    leader = None if engine.leader is None else engine.leader.node_id
    if engine.is_leader:
        return NotLeaderError(
            leader, engine.term, "it is handing over" if engine.transfer_to else "it is not ready yet"
        )
    return NotLeaderError(leader, engine.term)


class ConnectedPeers:
    """Keeps who is connected. The outbox notes changes, all other parts ask."""

    def __init__(self) -> None:
        self._by_node: dict[str, ReplicaId] = {}

    def __len__(self) -> int:
        return len(self._by_node)

    def __iter__(self) -> Iterator[ReplicaId]:
        """Iterate over the peers in the order in which they were first connected."""
        return iter(self._by_node.values())

    def __contains__(self, peer: ReplicaId) -> bool:
        return self._by_node.get(peer.node_id) == peer

    def has_node(self, node_id: str) -> bool:
        """Return whether any incarnation of a node is connected."""
        return node_id in self._by_node

    def note_connected(self, peer: ReplicaId) -> None:
        self._by_node[peer.node_id] = peer

    def note_lost(self, peer: ReplicaId) -> None:
        """Note that a link ended. Another incarnation of the node may be connected by now, and stays so."""
        if peer in self:
            del self._by_node[peer.node_id]

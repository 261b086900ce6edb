"""Judge of elections: a replica that hears a live leader does not vote for another (Ongaro's dissertation, 4.2.3).

A node that was cut off or paused comes back with expired timers. It must not depose a leader that a majority hears. So
it raises its term only once a majority would vote for it. A leadership transfer is exempt: the leader asked for it.
"""

from __future__ import annotations

from dledger.consensus.messages import Message
from dledger.core.messages import (
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    VoteReply,
    VoteRequest,
)
from dledger.replica.replica import Replica
from dledger.types import ReplicaId
from dledger_sim.log.environment import SimEnvironment
from dledger_sim.log.violation import require

SURE_SHARE = 0.9
"""Share of the minimum election time-out within which the leader certainly counts as heard."""


class Hearing:
    """Observer between the network and a replica. It knows when the replica last heard each member."""

    def __init__(self, replica: Replica, environment: SimEnvironment) -> None:
        self._replica = replica
        self._environment = environment
        self._certain_s = replica.config.election_min_ms / 1000 * SURE_SHARE
        self._heard_term = -1
        self._heard_at = 0.0
        self._contacts: dict[ReplicaId, float] = {}
        """Time of the last message from each member of the group that this replica leads."""
        self._contacts_term = -1
        self._forbidden_request: VoteRequest | None = None
        """The vote request that is being handled and that must not be granted, or None."""

    def on_message(self, sender: ReplicaId, message: Message, payload: bytes) -> None:
        """Pass a message to the replica, and check that a vote request deposes no leader that is heard."""
        replica = self._replica
        engine = replica.engine
        if not isinstance(message, VoteRequest):
            replica.on_message(sender, message, payload)
            self._note_message(sender, message)
            return
        if message.transfer or not self._hears_leader():
            replica.on_message(sender, message, payload)
            return
        before = (engine.term, engine.role)
        self._forbidden_request = message
        replica.on_message(sender, message, payload)
        self._forbidden_request = None
        require(
            replica.failure is not None or (engine.term, engine.role) == before,
            "a vote request deposes no leader that is heard",
            node=self._replica.me.node_id,
            candidate=sender,
            before=before,
            after=(engine.term, engine.role),
        )

    def sending(self, to: str, reply: VoteReply) -> None:
        """Check a vote that is about to be sent."""
        require(
            self._forbidden_request is None or not reply.granted,
            "no node votes while it hears a leader",
            node=self._replica.me.node_id,
            candidate=to,
            reply=reply,
        )

    def on_data(self, sender: ReplicaId, channel: int, data: bytes) -> None:
        """Pass channel data to the replica."""
        self._replica.on_data(sender, channel, data)

    def on_connected(self, peer: ReplicaId) -> None:
        """Report a new connection to the replica."""
        self._replica.on_connected(peer)

    def on_disconnected(self, peer: ReplicaId) -> None:
        """Report a lost connection to the replica."""
        self._replica.on_disconnected(peer)

    def _note_message(self, sender: ReplicaId, message: Message) -> None:
        engine, now = self._replica.engine, self._environment.clock
        if message.term != engine.term:
            return
        if isinstance(message, Heartbeat):
            # Only heartbeats count for sure. Messages with entries or snapshots may wait for space or be dropped.
            self._heard_term, self._heard_at = engine.term, now
        elif isinstance(message, HeartbeatReply | AppendReply) and engine.is_leader:
            if self._contacts_term != engine.term:
                self._contacts_term = engine.term
                self._contacts.clear()
            self._contacts[sender] = now

    def _hears_leader(self) -> bool:
        """Return whether a leader is alive beyond doubt. The leader may be this replica itself."""
        engine, since = self._replica.engine, self._environment.clock - self._certain_s
        if not engine.is_leader:
            return engine.leader is not None and self._heard_term == engine.term and self._heard_at > since
        if self._contacts_term != engine.term:
            return False
        membership = engine.membership
        heard = [voter for voter in membership.voters if self._contacts.get(voter, -1.0) > since]
        return len(heard) + (self._replica.me in membership.voters) >= membership.quorum


class PreVotes:
    """Record of pre-votes: which voter would vote for which candidate."""

    def __init__(self) -> None:
        self._voters_by_candidate: dict[tuple[int, str], set[ReplicaId]] = {}

    def granted(self, voter: ReplicaId, to: str, term: int) -> None:
        """Note that a voter would vote for a node in a term."""
        self._voters_by_candidate.setdefault((term, to), set()).add(voter)

    def check(self, replica: Replica, request: VoteRequest) -> None:
        """Check that a candidate that asks for votes in a new term had a majority of pre-votes."""
        membership = replica.engine.membership
        promised = {*self._voters_by_candidate.get((request.term, replica.me.node_id), ()), replica.me}
        require(
            request.transfer or len(promised.intersection(membership.voters)) >= membership.quorum,
            "no node begins a term without a majority that would vote for it",
            candidate=replica.me.node_id,
            term=request.term,
            promised=sorted(map(str, promised)),
        )

"""Judge of elections: who hears a live leader lets nobody else take its place (Ongaro's dissertation, 4.2.3).

A node that was cut off, or stood still, comes back with timers that have run out: it must not depose a leader that a
majority hears, so it raises its term only once a majority would vote for it.  A transfer, which the leader itself asked
for, may.
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
"""Of the least election time-out: within it there is no doubt that the leader was heard."""


class Hearing:
    """Between the network and one replica: knows when it last heard whom."""

    def __init__(self, replica: Replica, environment: SimEnvironment) -> None:
        self._replica = replica
        self._environment = environment
        self._sure_s = replica.config.election_min_ms / 1000 * SURE_SHARE
        self._heard_term = -1
        self._heard_at = 0.0
        self._contacts: dict[ReplicaId, float] = {}
        """When members of the group that this replica leads were last heard."""
        self._contacts_term = -1
        self._asked: VoteRequest | None = None
        """The request that is being answered, if no vote may come of it."""

    def on_message(self, sender: ReplicaId, message: Message, payload: bytes) -> None:
        """See `Receiver.on_message`."""
        replica = self._replica
        engine = replica.engine
        if not isinstance(message, VoteRequest):
            replica.on_message(sender, message, payload)
            self._note(sender, message)
            return
        if message.transfer or not self._hears():
            replica.on_message(sender, message, payload)
            return
        before = (engine.term, engine.role)
        self._asked = message
        replica.on_message(sender, message, payload)
        self._asked = None
        require(
            replica.failure is not None or (engine.term, engine.role) == before,
            "a vote request deposes no leader that is heard",
            node=self._replica.me.node_id,
            candidate=sender,
            before=before,
            after=(engine.term, engine.role),
        )

    def sending(self, to: str, reply: VoteReply) -> None:
        """A vote is about to leave."""
        require(
            self._asked is None or not reply.granted,
            "nobody votes while a leader is heard",
            node=self._replica.me.node_id,
            candidate=to,
            reply=reply,
        )

    def on_data(self, sender: ReplicaId, channel: int, data: bytes) -> None:
        """See `Receiver.on_data`."""
        self._replica.on_data(sender, channel, data)

    def on_connected(self, peer: ReplicaId) -> None:
        """See `Receiver.on_connected`."""
        self._replica.on_connected(peer)

    def on_disconnected(self, peer: ReplicaId) -> None:
        """See `Receiver.on_disconnected`."""
        self._replica.on_disconnected(peer)

    def _note(self, sender: ReplicaId, message: Message) -> None:
        engine, now = self._replica.engine, self._environment.clock
        if message.term != engine.term:
            return
        if isinstance(message, Heartbeat):
            # Nothing else counts for sure: what carries entries or a snapshot may wait for space, or be dropped.
            self._heard_term, self._heard_at = engine.term, now
        elif isinstance(message, HeartbeatReply | AppendReply) and engine.is_leader:
            if self._contacts_term != engine.term:
                self._contacts_term = engine.term
                self._contacts.clear()
            self._contacts[sender] = now

    def _hears(self) -> bool:
        """Whether a leader, perhaps this replica itself, is alive beyond doubt."""
        engine, since = self._replica.engine, self._environment.clock - self._sure_s
        if not engine.is_leader:
            return engine.leader is not None and self._heard_term == engine.term and self._heard_at > since
        if self._contacts_term != engine.term:
            return False
        membership = engine.membership
        heard = [voter for voter in membership.voters if self._contacts.get(voter, -1.0) > since]
        return len(heard) + (self._replica.me in membership.voters) >= membership.quorum


class PreVotes:
    """Who would vote for whom."""

    def __init__(self) -> None:
        self._granted: dict[tuple[int, str], set[ReplicaId]] = {}

    def granted(self, voter: ReplicaId, to: str, term: int) -> None:
        """A voter would vote for a node in a term."""
        self._granted.setdefault((term, to), set()).add(voter)

    def check(self, replica: Replica, request: VoteRequest) -> None:
        """A node asks for votes in a term that it has begun."""
        membership = replica.engine.membership
        promised = {*self._granted.get((request.term, replica.me.node_id), ()), replica.me}
        require(
            request.transfer or len(promised.intersection(membership.voters)) >= membership.quorum,
            "nobody begins a term without a majority that would vote for it",
            candidate=replica.me.node_id,
            term=request.term,
            promised=sorted(map(str, promised)),
        )

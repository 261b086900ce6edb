"""Views of a group's leadership and of a node's replica, as the broker's parts see them."""

from __future__ import annotations

from typing import Protocol

from dledger.log import Log
from dledger.statemachine import Leadership
from dledger_broker.kernel.events import Events
from dledger_broker.kernel.state import BrokerState
from dledger_remoting.errors import NotLeader


class LeadershipView:
    """The present leadership, and each node's client address, as far as the nodes have exchanged them.

    `ready` is true while this node leads and takes proposals. `events` tells of every change of `ready`, of the leader
    or of the leader's address (`leader_changed`, then `resume_waiting`).
    """

    def __init__(self, node_id: str, address: str, events: Events | None = None) -> None:
        self.events = events or Events()
        self.node_id = node_id
        self.term = 0
        self.leader_id: str | None = None
        self.ready = False
        self.is_leaving = False
        """True if this node hands over and leaves its group's route. The drain sets it."""
        self._addresses = {node_id: address}

    @property
    def leader_address(self) -> str | None:
        """The address at which clients reach the leader. None if the leader or its address is unknown."""
        return None if self.leader_id is None else self._addresses.get(self.leader_id)

    def address_of(self, node_id: str) -> str | None:
        """Return a node's client address, None if it is unknown."""
        return self._addresses.get(node_id)

    def on_leadership(self, leadership: Leadership) -> None:
        """Note a change of the leadership."""
        self.term = leadership.term
        self.leader_id = leadership.leader_id
        self.ready = leadership.is_leader and leadership.ready
        self._changed()

    def learn_address(self, node_id: str, address: str) -> None:
        """Note the client address that a node has sent."""
        if self._addresses.get(node_id) != address:
            self._addresses[node_id] = address
            if node_id == self.leader_id:
                self._changed()

    def not_leader(self, why: str) -> NotLeader:
        """Return the answer to a request that only the leader may take."""
        return NotLeader(why, leader_address=self.leader_address, term=self.term)

    def _changed(self) -> None:
        for tell in (*self.events.leader_changed, *self.events.resume_waiting):
            tell()


class Replica(Protocol):
    """The state and log that proposals are decided on, and that lookups answer from."""

    @property
    def state(self) -> BrokerState:
        """The present applied state. It is another object after a snapshot was installed."""

    @property
    def applied_position(self) -> int:
        """The position behind the last applied entry."""

    @property
    def log(self) -> Log:
        """The log, which takes proposals."""

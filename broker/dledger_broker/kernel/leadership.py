"""View of a group's leadership: the leader, its term, and the nodes' client addresses."""

from __future__ import annotations

from collections.abc import Callable

from dledger.statemachine import Leadership
from dledger_remoting.errors import NotLeader


class Group:
    """The present leadership, and each node's client address, as far as the nodes have exchanged them.

    `ready` is true while this node leads and takes proposals. `listeners` are called after every change of `ready`, of
    the leader or of the leader's address, in the order in which they were added. The `resumers` are called after all of
    them, when all other code knows. They handle requests that waited for the change.
    """

    def __init__(self, node_id: str, address: str) -> None:
        self.node_id = node_id
        self.term = 0
        self.leader_id: str | None = None
        self.ready = False
        self.is_leaving = False
        """True if this node hands over and leaves its group's route. The drain sets it."""
        self.listeners: list[Callable[[], None]] = []
        self.resumers: list[Callable[[], None]] = []
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
        for listener in (*self.listeners, *self.resumers):
            listener()

"""Peers that can be sent to now: node ids with the incarnation at the other end of the link."""

from __future__ import annotations

from collections.abc import Iterator

from dledger.types import ReplicaId


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

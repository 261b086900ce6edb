"""The boundary between a replica and the network.

A replica only ever says `send`; delivery is at most once, in order per (peer, lane), with losses whenever a connection
breaks.  A real transport is `dledger.net.links`; the simulator has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dledger.consensus.messages import Message
from dledger.types import Lane, ReplicaId

Buffer = bytes | bytearray | memoryview


class Receiver(Protocol):
    """What a transport calls, always on the event loop."""

    def on_message(self, sender: ReplicaId, message: Message, payload: bytes) -> None:
        """A consensus message; `payload` holds the raw entries that it brings, else it is empty."""

    def on_data(self, sender: ReplicaId, channel: int, data: bytes) -> None:
        """Opaque bytes of one of the numbered channels (snapshot chunks, forwarded requests, …)."""

    def on_connected(self, peer: ReplicaId) -> None:
        """The peer can be sent to; `peer.incarnation` is what it says of itself."""

    def on_disconnected(self, peer: ReplicaId) -> None:
        """Whatever was on its way to or from the peer may be lost."""


class Transport(Protocol):
    """Sends on the links that this node dialled, and on no others."""

    def send(self, to: str, lane: Lane, message: Message, payload: Sequence[Buffer] = ()) -> bool:
        """Queue a message for a node id; False (and dropped) if there is no connection or its queue is full."""

    def send_data(self, to: str, channel: int, data: Sequence[Buffer]) -> bool:
        """Queue opaque bytes on the bulk lane."""

    def queued_bytes(self, to: str, lane: Lane) -> int:
        """Bytes accepted but not yet handed to the kernel."""

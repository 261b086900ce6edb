"""Interface between a replica and the network, and the errors between two nodes.

A replica only calls `send`. Delivery is at most once, and in order per (peer, lane). Messages are lost whenever a
connection breaks. The real transport is `dledger.net.links`; the simulator has its own. All
errors are `LogError`s, and none of them ends the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dledger.consensus.messages import Message
from dledger.errors import LogError
from dledger.types import Lane, ReplicaId

Buffer = bytes | bytearray | memoryview


class Receiver(Protocol):
    """Receiver of a transport's calls, which are always made on the event loop."""

    def on_message(self, sender: ReplicaId, message: Message, payload: bytes) -> None:
        """Take a consensus message. `payload` holds the raw entries that the message carries; otherwise it is empty."""

    def on_data(self, sender: ReplicaId, channel: int, data: bytes) -> None:
        """Take opaque bytes of one of the numbered channels (snapshot chunks, forwarded requests, …)."""

    def on_connected(self, peer: ReplicaId) -> None:
        """Note that the peer can be sent to. `peer.incarnation` is the incarnation in the peer's hello."""

    def on_disconnected(self, peer: ReplicaId) -> None:
        """Note that everything on its way to or from the peer may be lost."""


class Transport(Protocol):
    """Sends only on the links that this node dialled."""

    def send(self, to: str, lane: Lane, message: Message, payload: Sequence[Buffer] = ()) -> bool:
        """Queue a message for a node id.

        Returns False, and drops it, if there is no connection or its queue is full.
        """

    def send_data(self, to: str, channel: int, data: Sequence[Buffer]) -> bool:
        """Queue opaque bytes on the bulk lane."""

    def queued_bytes(self, to: str, lane: Lane) -> int:
        """Return the number of bytes accepted but not yet handed to the kernel."""


class PeerError(LogError):
    """Base of the errors of peer links."""


class PeerProtocolError(PeerError):
    """A peer connection carried bytes that are not a frame, or a frame that is not allowed there.

    The connection is closed.
    """


class AuthenticationError(PeerError):
    """The other end does not know the group's secret."""


class HelloRejectedError(PeerError):
    """The other end knows the secret but is not the expected node.

    The text names what was found and what was expected.
    """


class PeerUnavailableError(PeerError):
    """A request was not sent, because the peer cannot be reached or too much waits for it. It had no effect there."""


class PeerGoneError(PeerError):
    """A link was lost after a request was sent; whether it had an effect is unknown."""


class PeerTimeoutError(PeerError):
    """A request was sent and not answered in time; whether it had an effect is unknown."""


class PeerFailedError(PeerError):
    """The peer's handler of a request raised an exception; whether it had an effect is unknown."""

"""Errors between two nodes. All are `LogError`s, and none of them ends the process."""

from __future__ import annotations

from dledger.errors import LogError


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

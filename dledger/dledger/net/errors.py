"""Errors between two nodes; all are `LogError`s and none of them ends the process."""

from __future__ import annotations

from dledger.errors import LogError


class PeerError(LogError):
    """Base of the errors of peer links."""


class PeerProtocolError(PeerError):
    """Bytes on a peer connection that are no frame, or a frame that has no place there; the connection is closed."""


class AuthenticationError(PeerError):
    """The other end does not know the group's secret."""


class HelloRejectedError(PeerError):
    """The other end knows the secret but is not who it should be; the text names what was found and expected."""


class PeerUnavailableError(PeerError):
    """A request was not sent: the peer cannot be reached, or too much is waiting for it.  It had no effect there."""


class PeerGoneError(PeerError):
    """A link was lost after a request was sent; whether it had an effect is unknown."""


class PeerTimeoutError(PeerError):
    """A request was sent and not answered in time; whether it had an effect is unknown."""


class PeerFailedError(PeerError):
    """The peer's handler of a request raised an exception; whether it had an effect is unknown."""

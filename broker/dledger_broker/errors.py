"""Errors of a broker process, and the only function that turns errors of the log into errors of the wire."""

from __future__ import annotations

from dledger.errors import (
    BusyError,
    LogError,
    LogFullError,
    NotLeaderError,
    OutcomeUnknownError,
    TooLargeError,
)
from dledger_remoting.errors import (
    InvalidParameter,
    MessageIllegal,
    NotLeader,
    OutcomeUnknown,
    RemotingError,
    ServerError,
    ServiceNotAvailable,
    SystemBusy,
)


class BrokerError(Exception):
    """A broker cannot start or continue. The text says what was found, what was expected and what to do."""


class ConfigError(BrokerError):
    """A key of the configuration is unknown, malformed or contradicts another key."""


class StartError(BrokerError):
    """An address, a port or a directory that the configuration names cannot be used."""


class NoSuchQueue(InvalidParameter):
    """A request names a queue that its topic does not have, as far as this node knows."""

    def __init__(self, topic: str, queue_id: int, queues: int) -> None:
        super().__init__(f"queueId {queue_id} is outside 0..{queues - 1} of topic {topic}: refresh the route")


def wire_error(error: Exception) -> RemotingError:
    """Return the error for the client that an error of the log becomes. An error of the wire is returned unchanged.

    A request that was refused before anything was proposed gets code 14, 2 or 13. Code 14 means that another node or
    time will help, 2 that only time will, 13 that nothing will. A proposal whose outcome is unknown gets code 1 with
    `outcome=unknown`. Every other error gets code 1.
    """
    if isinstance(error, RemotingError):
        return error
    if isinstance(error, NotLeaderError):
        return NotLeader(str(error), term=error.term)
    if isinstance(error, BusyError):
        return SystemBusy(f"[OVERLOAD]{error}")
    if isinstance(error, LogFullError):
        return ServiceNotAvailable(f"nothing was stored: {error}")
    if isinstance(error, TooLargeError):
        return MessageIllegal(str(error))
    if isinstance(error, OutcomeUnknownError):
        return OutcomeUnknown(str(error))
    if isinstance(error, LogError):
        return ServerError(str(error))
    return ServerError(f"{type(error).__name__}: {error}")

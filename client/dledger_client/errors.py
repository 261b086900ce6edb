"""Error tree of the client. Each error tells the caller how to react.

* `outcome`: `"not_sent"` = certainly not stored, sending again cannot duplicate it; `"unknown"` = it may have been
  stored, sending again may duplicate it.
* `retryable`: the same call may succeed a little later without a change by the caller.

All errors derive from `ClientError`. A broker's refusal is a `RefusedError` with the response code and its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from dledger_remoting.codes import ResponseCode
from dledger_remoting.errors import RemotingError
from dledger_remoting.speakers import CLOSES_UNHEARD, Speaker

from .results import SendResult

Outcome: TypeAlias = Literal["not_sent", "unknown"]

_MAX_SHOWN_MEMBERS: Final = 20
"""Maximum number of a group's members that a text names."""

TLS_HINT: Final = "if it is one, this client has to speak TLS, too (tls=, DLEDGER_TLS_CA)"


class ClientError(Exception):
    """Base of all errors that this package raises."""

    retryable: bool = False
    outcome: Outcome = "not_sent"


class ClientClosedError(ClientError):
    """The producer, consumer or admin was not started or has been closed."""


class InvalidArgumentError(ClientError, ValueError):
    """An argument is outside what the client or the protocol accepts. Nothing was sent."""


class ConcurrentUseError(ClientError):
    """A client was used in two ways at once that exclude each other.

    A task asked an iterated consumer for a message while it was already waiting for one. Or a callback called a
    blocking client on that client's own thread.
    """


class NoRouteError(ClientError):
    """The route of the topic is not known, or none of its queues can be written or read."""

    retryable = True

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"no route for topic {topic!r}: {reason}")
        self.topic = topic


class GroupInUseError(ClientError):
    """A consumer group has members, which would undo the requested change at once. Nothing was done."""

    def __init__(self, group: str, members: Sequence[str]) -> None:
        shown = [
            *members[:_MAX_SHOWN_MEMBERS],
            *([f"{rest} others"] if (rest := len(members) - _MAX_SHOWN_MEMBERS) > 0 else []),
        ]
        count = "1 member" if len(members) == 1 else f"{len(members)} members"
        super().__init__(f"consumer group {group!r} has {count}, stop them first: {', '.join(shown)}")
        self.group = group
        self.members = tuple(members)


class NoBrokerError(ClientError):
    """No node of a broker group, or of any group, is registered with the name server. No node could be asked."""

    retryable = True


class ConnectError(ClientError):
    """No connection could be opened, so nothing was sent."""

    retryable = True

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot connect to {address}: {reason}")
        self.address = address


class WrongServerError(ConnectError):
    """Another kind of server answered at the address of a name server or broker; `speaker` is its kind."""

    retryable = False

    def __init__(self, address: str, speaker: Speaker) -> None:
        expected = "name server" if speaker is Speaker.BROKER else "name server and no broker"
        hint = f"; {TLS_HINT}" if speaker is Speaker.TLS else ""
        ClientError.__init__(self, f"{address} is no {expected}: {speaker.value} answered there{hint}")
        self.address = address
        self.speaker = speaker


class TlsError(ConnectError):
    """TLS with a server failed: it has no TLS, its certificate is refused, or it refuses ours."""

    retryable = False


class SilentServerError(ConnectError):
    """A server at the address of a name server accepts connections and has never answered.

    `closes` says whether it closes connections when it is spoken to, as most TLS servers do.
    """

    def __init__(self, address: str, seconds: float, *, closes: bool = False) -> None:
        behaviour = CLOSES_UNHEARD if closes else "takes connections and says nothing"
        ClientError.__init__(self, f"{address} {behaviour}: no answer within {seconds:g} s")
        self.address = address


class ConnectionLostError(ClientError):
    """The connection closed before the answer came."""

    retryable = True
    outcome: Outcome = "unknown"

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"connection to {address} lost before the answer: {reason}")
        self.address = address


class RequestTimeoutError(ClientError):
    """No answer came in time."""

    retryable = True
    outcome: Outcome = "unknown"

    def __init__(self, address: str, seconds: float) -> None:
        super().__init__(f"no answer from {address} within {seconds:.3g} s")
        self.address = address


class DeadlineError(ClientError):
    """The call's deadline passed before an attempt succeeded. `__cause__` is the last attempt's error, if any."""

    retryable = True


class NoNameServerError(DeadlineError):
    """No name server answered before the call's deadline."""

    def __init__(self, addresses: Sequence[str], cause: ClientError) -> None:
        super().__init__(f"no name server of {';'.join(addresses)} answered: {cause}")
        self.addresses = tuple(addresses)


class RefusedError(ClientError):
    """A server answered with a code other than success; `code` is the response code, `remark` the server's text."""

    def __init__(self, error: RemotingError) -> None:
        super().__init__(f"{_code_name(error.code)}: {error.remark}")
        self.code = error.code
        self.remark = error.remark
        self.retryable = error.retryable
        self.outcome: Outcome = "unknown" if error.outcome_unknown else "not_sent"


class NotFoundError(RefusedError):
    """The requested topic, group, offset or message does not exist (codes 17, 22, 26)."""


class SendError(ClientError):
    """A send did not succeed before its deadline, or was permanently refused. `__cause__` is the last attempt's error.

    `attempts` counts requests that left this process. If any of them may have been stored, `outcome` is `"unknown"`.
    `stored` holds the results of a batch's messages that were acknowledged before the failure.
    """

    def __init__(
        self, topic: str, attempts: int, outcome: Outcome, cause: ClientError, stored: Sequence[SendResult] = ()
    ) -> None:
        super().__init__(f"message to {topic!r} failed after {attempts} attempts (outcome {outcome}): {cause}")
        self.topic = topic
        self.attempts = attempts
        self.outcome: Outcome = outcome
        self.retryable = cause.retryable
        self.stored = tuple(stored)

    @property
    def code(self) -> int | None:
        """The response code of the last attempt, None if it had no answer."""
        return self.__cause__.code if isinstance(self.__cause__, RefusedError) else None


_NOT_FOUND_CODES = frozenset(
    {ResponseCode.TOPIC_NOT_EXIST, ResponseCode.QUERY_NOT_FOUND, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST}
)


def refusal(error: RemotingError) -> RefusedError:
    """Return the client's error for a wire error of a response."""
    return NotFoundError(error) if error.code in _NOT_FOUND_CODES else RefusedError(error)


def _code_name(code: int) -> str:
    try:
        return f"{ResponseCode(code).name} ({code})"
    except ValueError:
        return f"code {code}"

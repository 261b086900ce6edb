"""Codes of answers: RocketMQ 5's, with a text that says what to do.

| our client's error | code |
|---|---|
| no such topic, no such group | 40402, 40403 |
| no right | 40300 |
| busy, or a quota | 42900 |
| body or properties too long, name invalid | 41301, 43101, 40002 |
| an answer did not come in time, or no leader was found | 50400 |
| anything else | 50001 |
"""

from __future__ import annotations

from typing import Final

from dledger_client.errors import (
    ClientClosedError,
    ClientError,
    ConnectError,
    ConnectionLostError,
    DeadlineError,
    InvalidArgumentError,
    NoNameServerError,
    NoRouteError,
    RefusedError,
    RequestTimeoutError,
)
from dledger_remoting.codes import ResponseCode
from dledger_remoting.errors import RemotingError

from .definition import messaging_pb2 as pb

MAX_TEXT_CHARS: Final = 1_000
"""Maximum length of an answer's text in characters."""

_BY_CODE: Final = {
    int(ResponseCode.SYSTEM_BUSY): pb.TOO_MANY_REQUESTS,
    int(ResponseCode.NO_PERMISSION): pb.FORBIDDEN,
    int(ResponseCode.TOPIC_NOT_EXIST): pb.TOPIC_NOT_FOUND,
    int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST): pb.CONSUMER_GROUP_NOT_FOUND,
    int(ResponseCode.MESSAGE_ILLEGAL): pb.BAD_REQUEST,
    int(ResponseCode.SUBSCRIPTION_PARSE_FAILED): pb.ILLEGAL_FILTER_EXPRESSION,
    int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED): pb.NOT_IMPLEMENTED,
    int(ResponseCode.ILLEGAL_OPERATION): pb.BAD_REQUEST,
    int(ResponseCode.INVALID_PARAMETER): pb.BAD_REQUEST,
}


class Refusal(Exception):  # noqa: N818 - an answer, not a fault of the program
    """An answer with a code other than OK."""

    def __init__(self, code: pb.Code, text: str) -> None:
        super().__init__(text)
        self.code = code

    @property
    def status(self) -> pb.Status:
        """The answer's status."""
        return status(self.code, str(self))


def status(code: pb.Code, text: str = "") -> pb.Status:
    """Return a status. Without a text it has the code's name."""
    return pb.Status(code=code, message=text[:MAX_TEXT_CHARS] or pb.Code.Name(code))


def ok() -> pb.Status:
    """Return the status of success."""
    return status(pb.OK)


def refusal_of(error: ClientError | RemotingError) -> Refusal:
    """Return the answer to a request that failed with an error of our client."""
    cause = error.__cause__ if isinstance(error.__cause__, ClientError) else error
    text = str(error)
    if isinstance(cause, RefusedError):
        return Refusal(_BY_CODE.get(cause.code, pb.INTERNAL_SERVER_ERROR), cause.remark)
    if isinstance(cause, NoNameServerError):
        return Refusal(pb.PROXY_TIMEOUT, text)
    if isinstance(cause, NoRouteError):
        return Refusal(pb.TOPIC_NOT_FOUND, f"{cause}: create the topic first")
    if isinstance(cause, (InvalidArgumentError, RemotingError)):
        return Refusal(pb.BAD_REQUEST, text)
    if isinstance(cause, (DeadlineError, RequestTimeoutError, ConnectError, ConnectionLostError)):
        return Refusal(pb.PROXY_TIMEOUT, text)
    if isinstance(cause, ClientClosedError):
        return Refusal(pb.PROXY_TIMEOUT, "this proxy is stopping: connect to another one")
    return Refusal(pb.INTERNAL_SERVER_ERROR, text)

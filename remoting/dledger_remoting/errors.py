"""Error tree of the wire. Each error tells the caller how to react.

* `response_code`: the code that a server answers with, and that a client sees.
* `retryable`: the same request may be sent again, now or a little later, perhaps to another node.
* `outcome_unknown`: the request may have taken effect; a retry may do it twice.
* `refresh_route`: the caller's knowledge of topics and leaders is out of date.

A server raises these errors and answers with `response_code`, the text and `ext`. A client calls `error_from_response`.
Code 14 always means "not stored", code 2 "refused before it was proposed". A request whose outcome is unknown is always
answered with code 1 and the ext field `outcome=unknown`.
"""

# ruff: noqa: N818 -- the names are those of the protocol's response codes
from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from .codes import ResponseCode

OUTCOME_FIELD: Final = "outcome"
OUTCOME_UNKNOWN: Final = "unknown"
LEADER_ADDRESS_FIELD: Final = "leaderAddr"
TERM_FIELD: Final = "term"


class RemotingError(Exception):
    """Base of all errors of this package.

    `remark` is one line for the user; `ext` holds extra response fields. `code` is the response code of this error. It
    differs from the class's `response_code` for codes that have no class of their own.
    """

    response_code: ClassVar[int] = ResponseCode.SYSTEM_ERROR
    retryable: ClassVar[bool] = False
    outcome_unknown: ClassVar[bool] = False
    refresh_route: ClassVar[bool] = False

    def __init__(self, remark: str = "", *, ext: Mapping[str, str] | None = None, code: int | None = None) -> None:
        super().__init__(remark)
        self.remark = remark
        self.ext: dict[str, str] = dict(ext or {})
        self.code = self.response_code if code is None else code


class ProtocolError(RemotingError):
    """The peer's bytes break the protocol."""


class FrameError(ProtocolError):
    """A frame cannot be read. Nothing after it can be trusted, so the connection must be closed."""


class RecordError(ProtocolError):
    """Bytes that should be a message record cannot be read as a record."""


class BodyError(ProtocolError):
    """A request or response body cannot be read."""


class MissingCodecError(BodyError):
    """A compressed body needs the package of an algorithm that is not installed here."""


class HeaderFieldError(ProtocolError):
    """A header field is missing or holds a wrong value. The text names the field, the value and what was expected."""

    def __init__(self, header: str, field: str, value: str | None, expected: str) -> None:
        state = "is missing" if value is None else f"is {value!r}"
        super().__init__(f"the {header} field {field!r} {state}, expected {expected}")
        self.header = header
        self.field = field
        self.value = value
        self.expected = expected


class ServerError(RemotingError):
    """The server failed in a way that has no code of its own. The request took no effect."""

    retryable = True


class UnknownExpressionType(ServerError):
    """The server does not know the type of the subscription's expression."""


class OutcomeUnknown(RemotingError):
    """The request may or may not have taken effect: the link was lost, or no majority confirmed it in time."""

    retryable = True
    outcome_unknown = True

    def __init__(self, remark: str = "", *, ext: Mapping[str, str] | None = None, code: int | None = None) -> None:
        super().__init__(remark, ext={OUTCOME_FIELD: OUTCOME_UNKNOWN, **(ext or {})}, code=code)


class QuorumTimeout(OutcomeUnknown):
    """No majority confirmed the entry in time; it may still commit."""


class SystemBusy(RemotingError):
    """The request was refused before anything was proposed, because too much is under way. Try again a little later."""

    response_code = ResponseCode.SYSTEM_BUSY
    retryable = True


class RequestCodeNotSupported(RemotingError):
    """The server does not implement this request code."""

    response_code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED


class MessageIllegal(RemotingError):
    """The message breaks a limit or is malformed: size, properties, delay, batch layout."""

    response_code = ResponseCode.MESSAGE_ILLEGAL


class ServiceNotAvailable(RemotingError):
    """This node cannot take the request now: it is starting, stopping, or its disk is full. Nothing was stored."""

    response_code = ResponseCode.SERVICE_NOT_AVAILABLE
    retryable = True
    refresh_route = True


class NotLeader(ServiceNotAvailable):
    """This node does not lead its group. `leader_address` and `term` name the leader where it is known."""

    def __init__(
        self, remark: str = "", *, leader_address: str | None = None, term: int | None = None, code: int | None = None
    ) -> None:
        ext: dict[str, str] = {}
        if leader_address is not None:
            ext[LEADER_ADDRESS_FIELD] = leader_address
        if term is not None:
            ext[TERM_FIELD] = str(term)
        super().__init__(remark or "this node is not the leader of its group", ext=ext, code=code)
        self.leader_address = leader_address
        self.term = term


class NoPermission(RemotingError):
    """The request was refused by access control, or by the permission of a topic, group or broker."""

    response_code = ResponseCode.NO_PERMISSION


class TopicNotExist(RemotingError):
    """The topic does not exist here and cannot be created automatically."""

    response_code = ResponseCode.TOPIC_NOT_EXIST
    refresh_route = True


class QueryNotFound(RemotingError):
    """Nothing is stored under this key: no offset, no configuration value, no message."""

    response_code = ResponseCode.QUERY_NOT_FOUND


class SubscriptionParseFailed(RemotingError):
    """The subscription expression cannot be parsed."""

    response_code = ResponseCode.SUBSCRIPTION_PARSE_FAILED


class SubscriptionNotExist(RemotingError):
    """The consumer group has not registered this subscription; its next heartbeat will."""

    response_code = ResponseCode.SUBSCRIPTION_NOT_EXIST
    retryable = True


class SubscriptionNotLatest(RemotingError):
    """The request's subscription is newer than the registered one; the next heartbeat will register it."""

    response_code = ResponseCode.SUBSCRIPTION_NOT_LATEST
    retryable = True


class GroupNotExist(RemotingError):
    """The consumer group does not exist here and cannot be created automatically."""

    response_code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


class InvalidParameter(RemotingError):
    """A parameter is outside the accepted range, which the text names."""

    response_code = ResponseCode.INVALID_PARAMETER


class IllegalOperation(RemotingError):
    """The operation is not possible, or not any more: for example, the message to recall no longer waits."""

    response_code = ResponseCode.ILLEGAL_OPERATION


class ConsumerNotOnline(RemotingError):
    """No consumer of the group is connected."""

    response_code = ResponseCode.CONSUMER_NOT_ONLINE


class ConsumeMessageTimeout(RemotingError):
    """A client did not answer the server's request in time."""

    response_code = ResponseCode.CONSUME_MSG_TIMEOUT


class ReadRoleRefused(RemotingError):
    """The reader does not accept the node's present role. Another node of the group may have an accepted one."""

    response_code = ResponseCode.READ_ROLE_REFUSED
    refresh_route = True


class ReadBehind(RemotingError):
    """The node has not applied the log that far yet. Try another node, or this node a little later."""

    response_code = ResponseCode.READ_BEHIND
    retryable = True


class ReadTrimmed(RemotingError):
    """The node no longer keeps that part of the log."""

    response_code = ResponseCode.READ_TRIMMED


class UnexpectedResponse(RemotingError):
    """A response code without a class of its own; `code` holds it."""


_CLASS_BY_CODE: Final[Mapping[int, type[RemotingError]]] = {
    int(error.response_code): error
    for error in (
        ServerError,
        SystemBusy,
        RequestCodeNotSupported,
        MessageIllegal,
        ServiceNotAvailable,
        NoPermission,
        TopicNotExist,
        QueryNotFound,
        SubscriptionParseFailed,
        SubscriptionNotExist,
        SubscriptionNotLatest,
        GroupNotExist,
        InvalidParameter,
        IllegalOperation,
        ConsumerNotOnline,
        ConsumeMessageTimeout,
        ReadRoleRefused,
        ReadBehind,
        ReadTrimmed,
    )
}


def error_from_response(code: int, remark: str | None, ext: Mapping[str, str]) -> RemotingError:
    """Return the error that a response with a code other than SUCCESS stands for.

    Code 1 with `outcome=unknown` becomes `OutcomeUnknown`. Code 14 with a leader's address or term becomes `NotLeader`.
    A code without a class becomes `UnexpectedResponse`.
    """
    text = remark or f"the server answered code {code} without a text"
    if code == ResponseCode.SYSTEM_ERROR and ext.get(OUTCOME_FIELD) == OUTCOME_UNKNOWN:
        return OutcomeUnknown(text, ext=ext)
    if code == ResponseCode.SERVICE_NOT_AVAILABLE and (LEADER_ADDRESS_FIELD in ext or TERM_FIELD in ext):
        term = ext.get(TERM_FIELD, "")
        return NotLeader(
            text,
            leader_address=ext.get(LEADER_ADDRESS_FIELD),
            term=int(term) if term.isascii() and term.isdecimal() and len(term) < 20 else None,
        )
    error_class = _CLASS_BY_CODE.get(code)
    if error_class is None:
        return UnexpectedResponse(text, ext=ext, code=code)
    return error_class(text, ext=ext)

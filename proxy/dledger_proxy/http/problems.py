"""Errors of the front as problem details (RFC 9457), and the kind of problem that each error of our client is.

| error | status |
|---|---|
| an argument is wrong, also in the broker's eyes | 400 |
| no account, or a wrong secret | 401 |
| the account lacks the right | 403 |
| no such topic, group or message | 404 |
| the operation is not possible any more | 409 |
| busy, or a quota is used up | 429, with `Retry-After` |
| no leader, no broker, no name server | 503, with `Retry-After` |
| another refusal by a broker | 502 |
| the request may have taken effect | 504 |
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from http import HTTPStatus
from typing import Final

import msgspec
from msgspec import UNSET

from dledger_client import (
    ClientError,
    InvalidArgumentError,
    NoRouteError,
    NotFoundError,
    RefusedError,
    SendError,
    TlsError,
    WrongServerError,
)
from dledger_remoting.codes import ResponseCode

from .backend import BusyError
from .bodies import Outcome, Problem, Settled, StoredMessage

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 1
"""Value of `Retry-After`, in seconds. A failover takes about as long, and quotas are per second."""

_UNKNOWN_ACCOUNT = re.compile(r"username cannot be null|check signature failed|User:\S+ is (not found|disabled)")
"""Remarks of brokers about requests whose account is not proven. Rights are another matter."""
_BAD_ARGUMENT_CODES: Final = frozenset(
    {
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    }
)


class Kind(Enum):
    """A kind of problem: the last part of its `type`, its status and its title."""

    INVALID = "invalid-request", HTTPStatus.BAD_REQUEST, "The request cannot be used"
    UNAUTHORIZED = "unauthorized", HTTPStatus.UNAUTHORIZED, "The account is not proven"
    FORBIDDEN = "forbidden", HTTPStatus.FORBIDDEN, "The account has no right to this"
    NOT_FOUND = "not-found", HTTPStatus.NOT_FOUND, "There is no such thing"
    METHOD = "method-not-allowed", HTTPStatus.METHOD_NOT_ALLOWED, "The path has other methods"
    SLOW = "too-slow", HTTPStatus.REQUEST_TIMEOUT, "The body did not come in time"
    CONFLICT = "conflict", HTTPStatus.CONFLICT, "It is too late for this"
    TOO_LARGE = "too-large", HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The body is too large"
    MEDIA = "unsupported-media-type", HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "The body is in another form"
    BUSY = "busy", HTTPStatus.TOO_MANY_REQUESTS, "Too much is under way"
    INTERNAL = "internal", HTTPStatus.INTERNAL_SERVER_ERROR, "The proxy made a mistake"
    REFUSED = "refused", HTTPStatus.BAD_GATEWAY, "A broker refused it"
    UNAVAILABLE = "unavailable", HTTPStatus.SERVICE_UNAVAILABLE, "The cluster does not answer"
    UNKNOWN = "outcome-unknown", HTTPStatus.GATEWAY_TIMEOUT, "The outcome is not known"

    def __init__(self, name: str, status: HTTPStatus, title: str) -> None:
        self.type = f"urn:dledger:problem:{name}"
        self.status = status
        self.title = title

    @property
    def is_passing(self) -> bool:
        """True if the same request may succeed a little later."""
        return self in (Kind.BUSY, Kind.UNAVAILABLE)


class ProblemError(Exception):
    """An error that is answered with a problem."""

    def __init__(self, kind: Kind, detail: str, problem: Problem | None = None) -> None:
        super().__init__(detail)
        self.kind = kind
        outcome: Outcome = "unknown" if kind in (Kind.UNKNOWN, Kind.INTERNAL) else "not_stored"
        self.problem = problem or Problem(kind.type, kind.title, kind.status, detail, outcome)

    @property
    def headers(self) -> dict[str, str]:
        """The headers that belong to the status."""
        if self.kind.is_passing:
            return {"Retry-After": str(RETRY_AFTER_S)}
        if self.kind is Kind.UNAUTHORIZED:
            return {"WWW-Authenticate": 'Basic realm="accounts of the cluster", charset="UTF-8"'}
        return {}

    def with_stored(self, stored: list[StoredMessage]) -> ProblemError:
        """Return the error with the messages that were stored before the failure."""
        problem = msgspec.structs.replace(self.problem, stored=stored or UNSET)
        return ProblemError(self.kind, problem.detail, problem)

    def with_results(self, results: list[Settled]) -> ProblemError:
        """Return the error with the result of each receipt."""
        return ProblemError(self.kind, self.problem.detail, msgspec.structs.replace(self.problem, results=results))


def problem_of(error: ClientError | BusyError) -> ProblemError:
    """Return the problem that an error of our client is."""
    if isinstance(error, BusyError):
        return ProblemError(Kind.BUSY, str(error))
    kind, refusal = _kind_of(error), _refusal_in(error)
    problem = Problem(
        kind.type,
        kind.title,
        kind.status,
        str(error),
        "unknown" if error.outcome == "unknown" else "not_stored",
        UNSET if refusal is None else refusal.code,
    )
    return ProblemError(kind, str(error), problem)


def _kind_of(error: ClientError) -> Kind:
    if error.outcome == "unknown":
        return Kind.UNKNOWN
    cause = _first_cause(error)
    if isinstance(cause, InvalidArgumentError):
        return Kind.INVALID
    if isinstance(cause, TlsError | WrongServerError):
        return Kind.UNAVAILABLE
    refusal = _refusal_in(error)
    if refusal is not None:
        return _kind_of_refusal(refusal)
    if isinstance(cause, NoRouteError):
        return Kind.NOT_FOUND
    return Kind.UNAVAILABLE


def _kind_of_refusal(refusal: RefusedError) -> Kind:
    if refusal.code == ResponseCode.SYSTEM_BUSY:
        return Kind.BUSY
    if refusal.code == ResponseCode.NO_PERMISSION:
        return Kind.UNAUTHORIZED if _UNKNOWN_ACCOUNT.match(refusal.remark) else Kind.FORBIDDEN
    if isinstance(refusal, NotFoundError):
        return Kind.NOT_FOUND
    if refusal.code in _BAD_ARGUMENT_CODES:
        return Kind.INVALID
    if refusal.code == ResponseCode.ILLEGAL_OPERATION:
        return Kind.CONFLICT
    return Kind.UNAVAILABLE if refusal.retryable else Kind.REFUSED


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _first_cause(error: ClientError) -> ClientError:
    """Return what a `SendError` wraps, else the error itself."""
    cause = error.__cause__
    return cause if isinstance(error, SendError) and isinstance(cause, ClientError) else error


def _refusal_in(error: ClientError) -> RefusedError | None:
    """Return the refusal that an error stands for, None if no broker has refused anything.

    A call that was refused until its deadline raises another error, whose cause is the refusal.
    """
    return next((cause for cause in _causes(error) if isinstance(cause, RefusedError)), None)

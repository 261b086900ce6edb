"""Problems of requests: the status and the words for each error of a client, an operation or a form."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from aiohttp import web

from dledger_admin.operations.access import is_right_refused
from dledger_admin.operations.errors import MissingError, OperationError
from dledger_client import (
    ClientError,
    GroupInUseError,
    InvalidArgumentError,
    NoRouteError,
    NotFoundError,
    SendError,
)

from .binding import BindingError

MEDIA_TYPE = "application/problem+json"
_OVERVIEW_HINT = "The overview says which nodes answer."


class LoginNeededError(Exception):
    """A request of nobody, to a cluster that answers people with accounts only."""


class RefusedRequestError(Exception):
    """A request that the console itself refuses, with the status and the reason."""

    def __init__(self, status: HTTPStatus, text: str, *, retry_after_s: int = 0) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after_s = retry_after_s


class Problem(msgspec.Struct, frozen=True):
    """Answer to a request that failed, in the form of RFC 9457."""

    status: int
    title: str
    detail: str


def problem_of(error: Exception) -> Problem | None:
    """Return the problem that an error is, None for a fault of the program."""
    match error:
        case RefusedRequestError():
            return _make(error.status, str(error))
        case LoginNeededError():
            return _make(HTTPStatus.UNAUTHORIZED, "Log in with an account of the cluster.")
        case BindingError():
            return _make(HTTPStatus.BAD_REQUEST, f"The request does not fit: {error}.")
        case MissingError():
            return _make(HTTPStatus.NOT_FOUND, error.text)
        case OperationError():
            return _make(HTTPStatus.CONFLICT, error.text)
        case web.HTTPException():
            return _make(HTTPStatus(error.status), error.text or error.reason)
        case ClientError():
            return _problem_of_client(error)
        case _:
            return None


def _problem_of_client(error: ClientError) -> Problem:
    if is_right_refused(error):
        return _make(HTTPStatus.FORBIDDEN, f"Your account may not do this. {error}")
    match error:
        case NotFoundError():
            return _make(HTTPStatus.NOT_FOUND, error.remark)
        case NoRouteError():
            return _make(HTTPStatus.NOT_FOUND, str(error))
        case InvalidArgumentError():
            return _make(HTTPStatus.BAD_REQUEST, str(error))
        case GroupInUseError():
            return _make(HTTPStatus.CONFLICT, str(error))
        case SendError() if error.outcome == "unknown":
            return _make(HTTPStatus.BAD_GATEWAY, f"Perhaps the message is stored, perhaps not. {error}")
        case _ if error.retryable:
            return _make(
                HTTPStatus.SERVICE_UNAVAILABLE, f"The cluster cannot answer this now: {error}. {_OVERVIEW_HINT}"
            )
        case _:
            return _make(HTTPStatus.CONFLICT, str(error))


def _make(status: HTTPStatus, detail: str) -> Problem:
    return Problem(int(status), status.phrase, detail)

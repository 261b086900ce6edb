"""Each error of our client has a status, an outcome, and headers that say when to try again."""

from __future__ import annotations

import logging

import pytest
from http_fronts import serving

from dledger_client import (
    ClientClosedError,
    ConnectionLostError,
    DeadlineError,
    InvalidArgumentError,
    NoBrokerError,
    NoNameServerError,
    NoRouteError,
    RefusedError,
    RequestTimeoutError,
    SendError,
)
from dledger_client.errors import refusal
from dledger_proxy.http.backend import BusyError
from dledger_remoting.errors import (
    IllegalOperation,
    InvalidParameter,
    MessageIllegal,
    NoPermission,
    NotLeader,
    OutcomeUnknown,
    RemotingError,
    RequestCodeNotSupported,
    SubscriptionParseFailed,
    SystemBusy,
    TopicNotExist,
)
from dledger_remoting.signatures import NOT_SIGNED


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def refused(error: RemotingError) -> RefusedError:
    return refusal(error)


TOO_LONG = InvalidArgumentError("too long")
BUSY = refused(SystemBusy("quota of account bob is used up"))
ERRORS = {
    "an argument": (InvalidArgumentError("too long"), 400, "not_stored"),
    "an argument of a send": (
        caused(SendError("T", 0, "not_sent", TOO_LONG), TOO_LONG),
        400,
        "not_stored",
    ),
    "a message that breaks a limit": (refused(MessageIllegal("too large")), 400, "not_stored"),
    "a parameter": (refused(InvalidParameter("no such queue")), 400, "not_stored"),
    "a filter": (refused(SubscriptionParseFailed("what?")), 400, "not_stored"),
    "no account": (refused(NoPermission(NOT_SIGNED)), 401, "not_stored"),
    "a wrong secret": (refused(NoPermission("check signature failed. (User:bob)")), 401, "not_stored"),
    "an unknown account": (refused(NoPermission("User:bob is not found.")), 401, "not_stored"),
    "a disabled account": (refused(NoPermission("User:bob is disabled.")), 401, "not_stored"),
    "no right": (refused(NoPermission("User:bob has no permission to access Topic:T")), 403, "not_stored"),
    "a topic that cannot be written": (refused(NoPermission("the topic is read-only")), 403, "not_stored"),
    "no route": (NoRouteError("T", "no registered broker has it"), 404, "not_stored"),
    "no topic": (refused(TopicNotExist("no topic T")), 404, "not_stored"),
    "too late": (refused(IllegalOperation("it is delivered")), 409, "not_stored"),
    "busy": (BUSY, 429, "not_stored"),
    "busy until the deadline": (caused(DeadlineError("refused it until the deadline"), BUSY), 429, "not_stored"),
    "a send that was busy": (caused(SendError("T", 3, "not_sent", BUSY), BUSY), 429, "not_stored"),
    "a full proxy": (BusyError("256 clients are in use"), 429, "not_stored"),
    "another refusal": (refused(RequestCodeNotSupported("no such code")), 502, "not_stored"),
    "no leader": (caused(DeadlineError("no leader"), refused(NotLeader("not me"))), 503, "not_stored"),
    "no broker": (NoBrokerError("none is registered"), 503, "not_stored"),
    "no name server": (NoNameServerError(["a:1"], DeadlineError("none")), 503, "not_stored"),
    "a closed client": (ClientClosedError("closed"), 503, "not_stored"),
    "a lost connection": (ConnectionLostError("a:1", "reset"), 504, "unknown"),
    "no answer": (RequestTimeoutError("a:1", 3), 504, "unknown"),
    "an unknown outcome": (refused(OutcomeUnknown("no majority")), 504, "unknown"),
    "a send of unknown outcome": (
        caused(SendError("T", 3, "unknown", BUSY), BUSY),
        504,
        "unknown",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
async def test_an_error_has_its_status_and_says_whether_anything_was_stored(name):
    error, status, outcome = ERRORS[name]
    async with serving() as started:
        started.backend.failure = error
        answer = await started.caller.post("/v1/topics/T/messages", {"text": "x"})
    assert (answer.status, answer.json["outcome"]) == (status, outcome)
    assert answer.json["detail"] == str(error)


async def test_a_mistake_of_the_proxy_is_logged_with_its_trace_and_told_without_it(caplog):
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with serving() as started:
        started.backend.failure = KeyError("a secret of the code")
        answer = await started.caller.post("/v1/topics/T/messages", {"text": "x"}, headers={"traceparent": parent})
        for _ in range(3):
            await started.caller.post("/v1/topics/T/messages", {"text": "x"})
    assert (answer.status, answer.json["outcome"]) == (500, "unknown")
    assert "secret" not in answer.json["detail"]
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert f"event=http_failed operation=send status=500 client=127.0.0.1 traceparent={parent}" in line.getMessage()
    assert line.exc_info is not None


async def test_a_refusal_of_a_broker_is_in_the_answer_with_its_code():
    async with serving() as started:
        started.backend.failure = BUSY
        answer = await started.caller.get("/v1/topics")
    assert (answer.json["code"], answer.json["type"]) == (2, "urn:dledger:problem:busy")

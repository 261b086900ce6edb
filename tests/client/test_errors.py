"""Every error says whether sending again is safe."""

from __future__ import annotations

import pytest

from dledger_client import (
    ClientError,
    ConnectError,
    ConnectionLostError,
    NotFoundError,
    RefusedError,
    RequestTimeoutError,
    SendError,
)
from dledger_client.errors import refusal
from dledger_remoting.codes import ResponseCode
from dledger_remoting.errors import error_from_response


@pytest.mark.parametrize(
    ("code", "ext", "outcome", "retryable"),
    [
        (ResponseCode.SERVICE_NOT_AVAILABLE, {}, "not_sent", True),
        (ResponseCode.SERVICE_NOT_AVAILABLE, {"leaderAddr": "a:1", "term": "4"}, "not_sent", True),
        (ResponseCode.SYSTEM_BUSY, {}, "not_sent", True),
        (ResponseCode.SYSTEM_ERROR, {"outcome": "unknown"}, "unknown", True),
        (ResponseCode.SYSTEM_ERROR, {}, "not_sent", True),
        (ResponseCode.NO_PERMISSION, {}, "not_sent", False),
        (ResponseCode.MESSAGE_ILLEGAL, {}, "not_sent", False),
        (777, {}, "not_sent", False),
    ],
)
def test_a_refusal_tells_whether_the_request_may_have_taken_effect(code, ext, outcome, retryable):
    error = refusal(error_from_response(code, "why", ext))
    assert isinstance(error, RefusedError)
    assert (error.code, error.remark, error.outcome, error.retryable) == (code, "why", outcome, retryable)
    assert str(int(code)) in str(error)
    assert "why" in str(error)


@pytest.mark.parametrize(
    "code",
    [ResponseCode.TOPIC_NOT_EXIST, ResponseCode.QUERY_NOT_FOUND, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST],
)
def test_what_does_not_exist_has_an_error_of_its_own(code):
    assert isinstance(refusal(error_from_response(code, "no", {})), NotFoundError)


def test_only_what_may_have_left_this_process_is_unknown():
    assert ConnectError("a:1", "refused").outcome == "not_sent"
    assert ConnectionLostError("a:1", "reset").outcome == "unknown"
    assert RequestTimeoutError("a:1", 3.0).outcome == "unknown"


def test_a_send_error_names_topic_attempts_outcome_and_cause():
    cause = refusal(error_from_response(ResponseCode.NO_PERMISSION, "read only", {}))
    error = SendError("orders", 2, "unknown", cause)
    assert isinstance(error, ClientError)
    for part in ("'orders'", "2 attempts", "unknown", "read only"):
        assert part in str(error)

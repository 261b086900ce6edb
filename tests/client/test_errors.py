"""Every error says whether sending again is safe."""

from __future__ import annotations

import pytest

from dledger_client import RefusedError
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

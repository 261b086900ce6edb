"""Each error states how a client should react."""

import pytest

from dledger_remoting import errors
from dledger_remoting.codes import ResponseCode
from dledger_remoting.errors import NotLeader, OutcomeUnknown, QuorumTimeout, RemotingError, error_from_response


@pytest.mark.parametrize(
    ("code", "name", "retryable", "refresh_route"),
    [
        *((1, "ServerError", True, False), (2, "SystemBusy", True, False), (13, "MessageIllegal", False, False)),
        *((14, "ServiceNotAvailable", True, True), (16, "NoPermission", False, False)),
        *((17, "TopicNotExist", False, True), (29, "InvalidParameter", False, False)),
        *((code, "UnexpectedResponse", False, False) for code in (209, -7)),
    ],
)
def test_a_response_code_becomes_an_error_with_its_policy(code, name, retryable, refresh_route):
    error = error_from_response(code, "text", {"k": "v"})
    assert type(error).__name__ == name
    assert error.code == code
    assert (error.retryable, error.refresh_route, error.outcome_unknown) == (retryable, refresh_route, False)
    assert (error.remark, error.ext) == ("text", {"k": "v"})


def test_an_unknown_outcome_is_told_by_its_ext_field():
    sent = QuorumTimeout("no majority in 3000 ms")
    assert (sent.code, sent.ext) == (ResponseCode.SYSTEM_ERROR, {"outcome": "unknown"})
    seen = error_from_response(sent.code, sent.remark, sent.ext)
    assert type(seen) is OutcomeUnknown
    assert seen.outcome_unknown
    assert seen.retryable


@pytest.mark.parametrize(("term", "expected"), [("5", 5), ("", None), ("x", None), ("9" * 30, None)])
def test_a_refusal_names_the_leader_where_it_is_known(term, expected):
    error = error_from_response(14, None, {"leaderAddr": "127.0.0.1:10911", "term": term})
    assert isinstance(error, NotLeader)
    assert (error.leader_address, error.term) == ("127.0.0.1:10911", expected)
    assert "14" in error.remark
    sent = NotLeader(leader_address="a:1", term=7)
    assert (sent.code, sent.ext) == (14, {"leaderAddr": "a:1", "term": "7"})


def test_no_error_that_stored_nothing_claims_an_unknown_outcome():
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, RemotingError)]
    assert {c.__name__ for c in classes if c.outcome_unknown} == {"OutcomeUnknown", "QuorumTimeout"}
    assert all(c.response_code == ResponseCode.SYSTEM_ERROR for c in classes if c.outcome_unknown)

"""Dispatch of requests: unknown codes, handlers that raise, responses from clients, and answers beyond a frame."""

from __future__ import annotations

import pytest
from served_broker import FakeClient, MakeBroker, pull_ext

from dledger_broker.features.pulling.reads import QueueReads
from dledger_broker.frontend import dispatch
from dledger_broker.frontend.dispatch import LARGE_BYTES
from dledger_broker.kernel.held_memory import REQUEST_BYTES
from dledger_broker.kernel.requests import Request
from dledger_remoting.codes import RequestCode, request_code_name
from dledger_remoting.command import RemotingCommand, encode_command
from dledger_remoting.errors import MessageIllegal
from dledger_remoting.frame import MAX_FRAME_BYTES


def test_an_answer_beyond_the_frame_limit_of_the_protocol_is_refused(make_broker: MakeBroker) -> None:
    broker = make_broker(max_frame_bytes=64 << 20, max_partial_bytes=128 << 20)
    request = Request(broker.client(), 21, 1, 0, 0, b'{"code":21}', b"", 0.0)
    with pytest.raises(MessageIllegal, match="ask for less"):
        broker.service.requests.respond(request, bytes(MAX_FRAME_BYTES - 100))


@pytest.mark.parametrize("code", [RequestCode.CONTROLLER_ELECT_MASTER, 31_999])
def test_unknown_request_codes_are_answered_with_code_3_and_their_name(client: FakeClient, code: int) -> None:
    answer = client.call(code)
    assert answer.code == 3
    assert (answer.remark or "").startswith(f" request type {code} not supported")
    assert request_code_name(code) in (answer.remark or "")


def test_an_internal_error_is_one_line_and_counted(make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = make_broker()
    monkeypatch.setattr(QueueReads, "get_messages", lambda *_: 1 / 0)
    answer = broker.client().pull("T1")
    assert answer.code == 1
    assert "\n" not in (answer.remark or "")
    assert broker.counters.errors >= 1


def test_a_response_is_ignored(client: FakeClient) -> None:
    client.feed(encode_command(RemotingCommand(0, opaque=9, flag=1)))
    assert (client.answers, client.in_flight) == ([], 0)


def test_large_requests_that_wait_for_their_turns_are_bounded_in_sum(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection has 4,096 requests in flight, and each may have a header of 256 KiB."""
    broker = make_broker()
    client = broker.client()
    ext = pull_ext("T1", suspendTimeoutMillis="0", more="x" * LARGE_BYTES)
    frame = encode_command(RemotingCommand(11, 1, ext=ext))
    monkeypatch.setattr(dispatch, "MAX_WAITING_BYTES", 3 * (REQUEST_BYTES + 2 * len(frame)))
    client.feed(frame * 5)
    broker.settle()
    assert [answer.code for answer in client.answers] == [2, 2, 19, 19, 19]
    client.feed(frame * 3)
    broker.settle()
    assert [answer.code for answer in client.answers[5:]] == [19, 19, 19]
    assert client.call_from_disk(33, {"offset": "0", "more": "x" * LARGE_BYTES}).code == 1
    monkeypatch.setattr(dispatch, "MAX_WAITING_BYTES", LARGE_BYTES)
    assert client.call_from_disk(33, {"offset": "0", "more": "x" * LARGE_BYTES}).code == 2
    assert broker.service.requests._waiting_bytes == 0

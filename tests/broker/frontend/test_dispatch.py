"""Requests that no handler answers, and answers that no handler makes."""

from __future__ import annotations

import pytest
from served_broker import FakeClient, MakeBroker

from dledger_broker.features.pulling.reads import QueueReads
from dledger_broker.kernel.requests import Request
from dledger_remoting.codes import RequestCode, request_code_name
from dledger_remoting.command import RemotingCommand, encode_command
from dledger_remoting.errors import MessageIllegal
from dledger_remoting.frame import MAX_FRAME_BYTES


def test_an_answer_fits_a_frame_of_the_protocol_whatever_frames_a_node_takes(make_broker: MakeBroker) -> None:
    broker = make_broker(max_frame_bytes=64 << 20, max_partial_bytes=128 << 20)
    request = Request(broker.client(), 21, 1, 0, 0, b'{"code":21}', b"", 0.0)
    with pytest.raises(MessageIllegal, match="ask for less"):
        broker.service.requests.respond(request, bytes(MAX_FRAME_BYTES - 100))


@pytest.mark.parametrize("code", [RequestCode.CONTROLLER_ELECT_MASTER, 31_999])
def test_other_codes_are_answered_three_and_named(client: FakeClient, code: int) -> None:
    answer = client.call(code)
    assert answer.code == 3
    assert (answer.remark or "").startswith(f" request type {code} not supported")
    assert request_code_name(code) in (answer.remark or "")


def test_a_request_that_breaks_the_broker_is_answered_in_one_line(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_broker()
    monkeypatch.setattr(QueueReads, "get_messages", lambda *_: 1 / 0)
    answer = broker.client().pull("T1")
    assert answer.code == 1
    assert "\n" not in (answer.remark or "")
    assert broker.counters.errors >= 1


def test_a_response_is_ignored(client: FakeClient) -> None:
    client.feed(encode_command(RemotingCommand(0, opaque=9, flag=1)))
    assert (client.answers, client.in_flight) == ([], 0)

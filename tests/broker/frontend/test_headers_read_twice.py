"""Headers that the fast path of reading passes over, and texts that no answer can repeat, only cause errors."""

from __future__ import annotations

from collections.abc import Callable
from struct import pack

import pytest
from served_broker import FakeClient, ServedBroker, pull_ext, send_ext

from dledger.errors import BusyError
from dledger_broker.kernel.requests import MAX_REMARK_CHARS
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand, encode_json_header
from dledger_remoting.frame import SerializeType, join_frame

OPAQUE = 7

Spoil = Callable[[bytes], bytes]

UNREADABLE: dict[str, Spoil] = {
    "a field that is an object": lambda header: header.replace(b'"extFields":{', b'"extFields":{"zz":{"a":1},'),
    "a field that is a list": lambda header: header.replace(b'"extFields":{', b'"extFields":{"zz":[],'),
    "a field that is no UTF-8": lambda header: header.replace(b'"extFields":{', b'"extFields":{"zz":"\xff",'),
    "a remark that is a number": lambda header: header.replace(b'"flag":', b'"remark":5,"flag":'),
}


@pytest.fixture(params=UNREADABLE.values(), ids=UNREADABLE.keys())
def spoil(request: pytest.FixtureRequest) -> Spoil:
    """Return what puts something into a header that only the general path of reading looks at."""
    found: Spoil = request.param
    return found


def feed(client: FakeClient, spoil: Spoil, code: int, ext: dict[str, str], body: bytes = b"") -> None:
    """Have a client send request 7, with a spoilt header."""
    header = encode_json_header(RemotingCommand(code, opaque=OPAQUE, ext=ext))
    assert spoil(header) != header
    client.feed(join_frame(SerializeType.JSON, spoil(header), body))
    client.broker.settle()


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
def test_a_pull_with_an_unreadable_header_is_answered(
    broker: ServedBroker, client: FakeClient, spoil: Spoil, *, leads: bool
) -> None:
    if not leads:
        broker.memory.node.step_down()
    feed(client, spoil, RequestCode.PULL_MESSAGE, pull_ext("Missing"))
    assert client.answered(OPAQUE).code == ResponseCode.SYSTEM_ERROR
    assert client.in_flight == 0
    assert broker.service.forwarder.waiting == 0, "a follower does not forward what it cannot decode"


def test_a_pull_that_fails_at_once_is_answered(client: FakeClient, spoil: Spoil) -> None:
    feed(client, spoil, RequestCode.PULL_MESSAGE, pull_ext("T1", 99, sysFlag="0"))
    assert client.answered(OPAQUE).code != ResponseCode.SUCCESS


@pytest.mark.parametrize("in_time", [True, False])
def test_a_send_whose_outcome_is_unknown_is_answered(
    broker: ServedBroker, client: FakeClient, spoil: Spoil, monkeypatch: pytest.MonkeyPatch, *, in_time: bool
) -> None:
    client.send_message("T1")  # from now on sends to the topic take the fast path
    monkeypatch.setattr(broker.memory.node, "commit", lambda: None)
    feed(client, spoil, RequestCode.SEND_MESSAGE_V2, send_ext("T1"), b"hello")
    if in_time:
        broker.memory.node.step_down()
    else:
        broker.advance(broker.config.quorum_timeout_ms / 1000 + 1)
    assert client.answered(OPAQUE).ext["outcome"] == "unknown"


def test_a_send_that_is_refused_is_answered(broker: ServedBroker, client: FakeClient, spoil: Spoil) -> None:
    client.send_message("T1")
    broker.memory.node.stage_error = BusyError("64 MiB wait for a majority")
    feed(client, spoil, RequestCode.SEND_MESSAGE_V2, send_ext("T1"), b"hello")
    assert client.answered(OPAQUE).code == ResponseCode.SYSTEM_BUSY


@pytest.mark.parametrize("code", [RequestCode.GET_TOPIC_CONFIG, RequestCode.PULL_MESSAGE])
def test_an_answer_that_quotes_a_client_has_a_limited_length(
    broker: ServedBroker, client: FakeClient, code: int
) -> None:
    """Bytes that are not UTF-8 take three times their space when an answer repeats them."""
    fields = {name: value.encode() for name, value in pull_ext("").items()} | {"topic": b"\xff" * (6 << 20)}
    ext = b"".join(
        pack(">h", len(name)) + name.encode() + pack(">i", len(value)) + value for name, value in fields.items()
    )
    header = pack(">hbhiiii", code, 0, 0, OPAQUE, 0, 0, len(ext)) + ext
    client.feed(join_frame(SerializeType.ROCKETMQ, header))
    broker.settle()
    answer = client.answered(OPAQUE)
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark is not None
    assert len(answer.remark) <= MAX_REMARK_CHARS

"""Accounts of requests that another node passed on: what the envelope says of them, and what the leader believes."""

from __future__ import annotations

import msgspec
import pytest
from guarded_broker import allow, as_root, call, credentials, guarded_broker, make_account
from served_broker import pull_ext, send_ext

from dledger.statemachine import Leadership
from dledger_broker.frontend.forwarding import Envelope, ForwardedOrigin, Forwarder, _encode_envelope, _vouched
from dledger_broker.kernel.requests import Principal, Request
from dledger_remoting.command import RemotingCommand, decode_command, encode_json_header
from dledger_remoting.frame import Frame, FrameDecoder
from dledger_remoting.signatures import signed

BY_ADDRESS = Principal("app", 7, by_address=True)
OF_NODE = Principal("app", is_node=True)


class OlderEnvelope(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The envelope of builds without access control."""

    channel: str
    ip: str
    port: int
    client_ids: tuple[str, ...]
    age_ms: int
    serialize_type: int
    header: bytes
    body: bytes
    epoch: int = 0


def envelope(header: bytes = b"", principal: Principal | None = None, body: bytes = b"") -> Envelope:
    return Envelope("n1/1", "10.0.0.9", 40_000, ("a",), 0, 0, header, body, 3, principal)


def test_what_says_nothing_of_an_account_is_as_older_nodes_write_it() -> None:
    older = OlderEnvelope(*msgspec.structs.astuple(envelope())[:-1])
    assert _encode_envelope(envelope()) == msgspec.msgpack.encode(older)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(older), type=Envelope) == envelope()


@pytest.mark.parametrize("principal", [BY_ADDRESS, OF_NODE])
def test_older_nodes_read_over_an_account(principal: Principal) -> None:
    data = _encode_envelope(envelope(principal=principal))
    assert msgspec.msgpack.decode(data, type=OlderEnvelope).epoch == 3
    assert msgspec.msgpack.decode(data, type=Envelope).principal == principal


def test_the_leader_is_told_only_what_it_cannot_see_by_itself() -> None:
    assert [_vouched(one) for one in (None, Principal("app", 7), BY_ADDRESS, OF_NODE)] == [
        None,
        None,
        BY_ADDRESS,
        OF_NODE,
    ]


def answer_to(
    ext: dict[str, str], principal: Principal | None = None, *, allowed: bool = True, listed: str = ""
) -> RemotingCommand:
    """What the leader answers to a send that another node passed on."""
    broker = guarded_broker()
    make_account(broker, "app")
    if listed:
        as_root(broker, 50, {"accessKey": "app", "whiteRemoteAddress": listed})
    if allowed:
        allow(broker, "app", "Topic:T1", "Pub")
    replies: list[bytes] = []
    passed_on = envelope(encode_json_header(RemotingCommand(310, opaque=7, ext=ext)), principal)
    origin = ForwardedOrigin(passed_on, replies.append)
    broker.service.requests.receive_forwarded(origin, Frame(0, passed_on.header, b""), 0.0, passed_on.principal)
    broker.settle()
    [reply] = replies
    decoder = FrameDecoder()
    decoder.receive_data(reply[1:])
    frame = decoder.next_frame()
    assert frame is not None
    return decode_command(frame)


def test_the_leader_judges_by_the_signature_itself() -> None:
    ext = signed(send_ext("T1"), b"", credentials("app"))
    assert answer_to(ext).code == 0
    assert answer_to(ext, allowed=False).code == 16
    assert answer_to({**ext, "b": "T2"}).code == 16
    assert answer_to(send_ext("T1")).code == 16


def test_the_leader_believes_the_first_node_of_an_address_and_gives_it_what_its_own_white_list_does() -> None:
    ext = {**send_ext("T1"), "AccessKey": "app"}
    assert answer_to(ext, listed="10.0.0.9").code == 16
    assert answer_to(ext, BY_ADDRESS, listed="10.0.0.9").code == 0
    assert answer_to(ext, BY_ADDRESS, allowed=False, listed="10.0.0.9").code == 16
    assert answer_to(ext, BY_ADDRESS, listed="10.0.0.8").code == 16, "withdrawn since"
    assert answer_to(send_ext("T1"), Principal("", by_address=True)).code == 16, "withdrawn since"


def test_a_commit_that_comes_with_a_pull_at_a_follower_is_of_the_pulls_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has signed it; the leader would refuse it, and nobody would be told."""
    passed: list[Request] = []
    monkeypatch.setattr(Forwarder, "pass_on", lambda _, request: passed.append(request))
    broker = guarded_broker()
    who, client = make_account(broker, "app"), broker.client()
    allow(broker, "app", "Topic:T1", "Sub", "Pub")
    allow(broker, "app", "Group:CG", "Sub")
    assert call(client, who, 310, send_ext("T1")).code == 0
    assert call(client, who, 11, pull_ext("T1")).code == 0
    node = broker.memory.node
    node.step_down()
    broker.memory.machine.on_leadership(Leadership(node.term + 1, "broker-a-n1", is_leader=False, ready=False))
    broker.settle()
    assert call(client, who, 11, pull_ext("T1", sysFlag="5", commitOffset="1")).code == 0
    assert [(request.code, request.principal) for request in passed] == [(15, Principal("app", is_node=True))]

"""Accounts of requests that another node forwarded: what the envelope says of them, and what the leader believes."""

import msgspec
import pytest
from guarded_broker import account, as_root, call, credentials, guarded_broker, lose_leadership, only_frame
from served_broker import pull_ext, send_ext

from dledger_broker.frontend.forwarding import (
    Envelope,
    ForwardedOrigin,
    Forwarder,
    SentPrincipal,
    _encode_envelope,
    _principal_to_send,
)
from dledger_broker.kernel.requests import Principal, Request
from dledger_remoting.command import RemotingCommand, decode_command, encode_json_header
from dledger_remoting.frame import Frame
from dledger_remoting.signatures import signed

BY_ADDRESS = Principal("app", 7, by_address=True)
OF_NODE = Principal("app", is_node=True)


class OlderEnvelope(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Envelope of builds without access control."""

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
    return Envelope("n1/1", "10.0.0.9", 40_000, ("a",), 0, 0, header, body, 3, _principal_to_send(principal))


@pytest.mark.parametrize("principal", [BY_ADDRESS, OF_NODE])
def test_older_nodes_ignore_the_account_of_an_envelope(principal: Principal) -> None:
    data = _encode_envelope(envelope(principal=principal))
    assert msgspec.msgpack.decode(data, type=OlderEnvelope).epoch == 3
    assert msgspec.msgpack.decode(data, type=Envelope).principal == principal[:4]
    assert msgspec.msgpack.decode(data)[-1] == list(principal[:4]), "an older leader decodes four fields"


def test_a_follower_vouches_only_for_principals_without_a_signature() -> None:
    principals = (None, Principal("app", 7), BY_ADDRESS, OF_NODE)
    assert [_principal_to_send(one) for one in principals] == [
        *(None, None),
        *(SentPrincipal(*principal[:4]) for principal in (BY_ADDRESS, OF_NODE)),
    ]


def answer_to(
    ext: dict[str, str], principal: Principal | None = None, *, allowed: bool = True, listed: str = ""
) -> RemotingCommand:
    """Return the leader's answer to a send that another node forwarded."""
    broker = guarded_broker()
    account(broker, "app", *(["Topic:T1 Pub"] if allowed else []))
    if listed:
        as_root(broker, 50, {"accessKey": "app", "whiteRemoteAddress": listed})
    replies: list[bytes] = []
    passed_on = envelope(encode_json_header(RemotingCommand(310, opaque=7, ext=ext)), principal)
    origin = ForwardedOrigin(passed_on, replies.append)
    broker.service.requests.receive_forwarded(origin, Frame(0, passed_on.header, b""), 0.0, principal)
    broker.settle()
    [reply] = replies
    return decode_command(only_frame(reply[1:]))


def test_the_leader_verifies_the_signature_of_a_forwarded_request() -> None:
    ext = signed(send_ext("T1"), b"", credentials("app"))
    assert answer_to(ext).code == 0
    assert answer_to(ext, allowed=False).code == 16
    assert answer_to({**ext, "b": "T2"}).code == 16
    assert answer_to(send_ext("T1")).code == 16


def test_a_forwarded_address_gets_the_rights_of_the_leaders_own_white_list() -> None:
    ext = {**send_ext("T1"), "AccessKey": "app"}
    assert answer_to(ext, listed="10.0.0.9").code == 16
    assert answer_to(ext, BY_ADDRESS, listed="10.0.0.9").code == 0
    assert answer_to(ext, BY_ADDRESS, allowed=False, listed="10.0.0.9").code == 16
    assert answer_to(ext, BY_ADDRESS, listed="10.0.0.8").code == 16, "withdrawn since"
    assert answer_to(send_ext("T1"), Principal("", by_address=True)).code == 16, "withdrawn since"


def test_a_forwarded_commit_of_a_pull_carries_the_account_of_the_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has signed the commit. Without the account, the leader would refuse it, and nobody would be told."""
    passed: list[Request] = []
    monkeypatch.setattr(Forwarder, "pass_on", lambda _, request: passed.append(request))
    broker = guarded_broker()
    who, client = account(broker, "app", "Topic:T1 Sub Pub", "Group:CG Sub"), broker.client()
    assert call(client, who, 310, send_ext("T1")).code == 0
    assert call(client, who, 11, pull_ext("T1")).code == 0
    lose_leadership(broker)
    assert call(client, who, 11, pull_ext("T1", sysFlag="5", commitOffset="1")).code == 0
    assert [(request.code, request.principal) for request in passed] == [(15, Principal("app", is_node=True))]

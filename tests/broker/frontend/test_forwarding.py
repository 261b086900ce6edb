"""Requests that need the leader, on a node that is not it: held, passed on in order, never twice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import msgspec
import pytest

from dledger.net.errors import PeerError, PeerGoneError
from dledger.statemachine import Leadership
from dledger.types import ReplicaId
from dledger_broker.config import BrokerConfig
from dledger_broker.features.pins.requests import _own_request
from dledger_broker.features.pulling.passed_on import passed_on
from dledger_broker.features.pulling.placement import Placement
from dledger_broker.features.sending.send import STORES
from dledger_broker.frontend import forwarding
from dledger_broker.frontend.forwarding import Envelope, ForwardedOrigin, Forwarder
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.leadership import Group
from dledger_broker.kernel.requests import Buffer, Principal, Request, WaitsCounted, read_request
from dledger_broker.kernel.routes import CHANGES, NO_EFFECT, Needs, Route
from dledger_broker.testing import FakeEnvironment
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, decode_command, encode_command, encode_json_header
from dledger_remoting.errors import SystemBusy
from dledger_remoting.frame import Frame, FrameDecoder
from dledger_remoting.headers import PinHeader
from dledger_remoting.hosts import HostAddress
from dledger_remoting.record import SYS_TRANSACTION_PREPARED

OnReply = Callable[[bytes | PeerError], None]


def decoded(parts: Sequence[Buffer]) -> RemotingCommand:
    decoder = FrameDecoder()
    decoder.receive_data(b"".join(parts))
    frame = decoder.next_frame()
    assert frame is not None
    return decode_command(frame)


class Client(WaitsCounted):
    """An `Origin` that keeps its answers."""

    is_forwarded = False
    is_open = True

    def __init__(self, key: str = "n1/1") -> None:
        self.address = HostAddress("10.0.0.9", 40000)
        self.born_host = b"\x0a\x00\x00\x09\x00\x00\x9c\x40"
        self.key = key
        self.held = self.in_flight = self.forwards = self.forward_refused = self.forward_epoch = 0
        self.forwards_sent: set[int] = set()
        self.forward_target: str | None = None
        self.client_ids = {"c1"}
        self.answers: list[RemotingCommand] = []
        self.settled = 0

    def answer(self, parts: Sequence[Buffer]) -> None:
        self.answers.append(decoded(parts))

    def answer_frame(self, frame: bytes) -> None:
        self.answer((frame,))

    def settle(self) -> None:
        self.settled += 1

    def refuse(self, term: int) -> None:
        raise AssertionError(term)

    def request(self, opaque: int, received: float, code: int = 310, flag: int = 0, **ext: str) -> Request:
        command = RemotingCommand(code, opaque=opaque, flag=flag, ext=ext)
        request = read_request(self, 0, encode_json_header(command), b"body", received)
        assert request is not None
        return request


class FakeChannel:
    """Keeps what is sent; nodes in `unreachable` take nothing."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes, OnReply]] = []
        self.timeouts_s: list[float] = []
        self.unreachable: set[str] = set()

    def submit(self, to: str, data: bytes, on_reply: OnReply, timeout_s: float) -> bool:
        if to in self.unreachable:
            return False
        self.sent.append((to, data, on_reply))
        self.timeouts_s.append(timeout_s)
        return True


OWN_ID = 3
"""The broker id at which the node serves readers."""


class Node:
    """One node's forwarder, with everything around it faked."""

    def __init__(self, node_id: str = "n1", **limits: int) -> None:
        self.env = FakeEnvironment()
        self.group = Group(node_id, f"10.0.0.1:{node_id[1:]}")
        self.counters = BrokerCounters()
        self.channel = FakeChannel()
        self.ran: list[Request] = []
        self.received: list[tuple[ForwardedOrigin, bytes, float]] = []
        self.principals: list[Principal | None] = []
        config = BrokerConfig(
            broker_group="b",
            node_id=node_id,
            data_dir=Path("unused"),
            **limits,  # type: ignore[arg-type]
        )
        self.forwarder = Forwarder(self.env, self.group, config, self.counters, self)
        self.forwarder.attach(self.channel)
        self.client = Client()
        self._term = 0

    def route(self, code: int) -> Route:
        reads, changes = Route(self.run, Needs.LEADER, NO_EFFECT), Route(self.run, Needs.LEADER, CHANGES)
        if code == RequestCode.SEND_BATCH_MESSAGE:
            return Route(self.run, Needs.LEADER, STORES)
        held = passed_on(cast(Placement, self))
        pulls, local = Route(self.run, Needs.NOTHING, held), Route(self.run, Needs.NOTHING, NO_EFFECT, forwarded=False)
        known = {RequestCode.GET_MAX_OFFSET: reads, RequestCode.PULL_MESSAGE: pulls, RequestCode.READ_PLAN: local}
        return known.get(RequestCode(code), changes)

    def receive_forwarded(
        self,
        origin: ForwardedOrigin,
        frame: Frame,
        received: float,
        principal: Principal | None,
    ) -> None:
        self.received.append((origin, frame.header, received))
        self.principals.append(principal)

    def id_without_leader(self) -> int:
        return OWN_ID

    def run(self, request: Request) -> None:
        self.ran.append(request)

    def require_understood(self, code: int, leader: str) -> None:
        """Everybody understands everything."""

    def leader_is(self, leader: str | None, *, ready: bool = True) -> None:
        self._term += 1
        own = leader == self.group.node_id
        self.group.on_leadership(Leadership(self._term, leader, is_leader=own, ready=own and ready))

    def pass_on(self, opaque: int, client: Client | None = None, **fields: str) -> None:
        self.forwarder.pass_on((client or self.client).request(opaque, self.env.now(), **fields))

    def sent_opaques(self) -> list[int]:
        return [opaque_of(data) for _, data, _ in self.channel.sent]

    def answer(self, place: int, frame: bytes) -> None:
        self.channel.sent[place][2](b"\x00" + frame)


def opaque_of(data: bytes) -> int:
    envelope = msgspec.msgpack.decode(data, type=Envelope)
    return decode_command_header(envelope.header).opaque


def decode_command_header(header: bytes) -> RemotingCommand:
    return decode_command(Frame(0, header, b""))


def success(opaque: int) -> bytes:
    return encode_command(RemotingCommand(0, opaque=opaque, flag=1))


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_request_goes_to_the_leader_and_its_answer_to_the_client(node: Node) -> None:
    node.leader_is("n2")
    node.pass_on(7)
    assert [to for to, _, _ in node.channel.sent] == ["n2"]
    node.answer(0, success(7))
    assert [answer.opaque for answer in node.client.answers] == [7]
    assert (node.client.forwards, node.client.forwards_sent) == (0, set())


def test_a_request_that_no_frame_between_nodes_can_carry_is_refused(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "MAX_DATA_BYTES", 64)
    node.leader_is("n2")
    node.pass_on(1)
    assert node.channel.sent == []
    (answer,) = node.client.answers
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "too large to be passed on" in (answer.remark or "")
    assert (node.client.forwards, node.forwarder.waiting) == (0, 0)


def test_a_request_waits_for_a_leader_and_goes_on_at_once(node: Node) -> None:
    node.pass_on(1)
    node.env.advance(1.5)
    assert node.channel.sent == []
    node.leader_is("n2")
    assert node.sent_opaques() == [1]


def test_a_request_that_waits_when_this_node_becomes_the_leader_is_handled_here(node: Node) -> None:
    node.pass_on(1)
    node.leader_is("n1")
    assert [request.opaque for request in node.ran] == [1]
    assert node.client.forwards == 0


def test_after_two_seconds_without_a_leader_the_answer_is_fourteen(node: Node) -> None:
    node.leader_is("n2")
    node.group.learn_address("n2", "10.0.0.2:10911")
    node.channel.unreachable.add("n2")
    node.pass_on(1)
    node.env.advance(1.9)
    assert node.client.answers == []
    node.env.advance(0.2)
    (answer,) = node.client.answers
    assert (answer.code, answer.ext) == (14, {"leaderAddr": "10.0.0.2:10911", "term": "1"})
    assert node.forwarder.waiting == 0


def test_the_time_counts_from_when_the_request_was_received(node: Node) -> None:
    node.env.advance(10)
    node.forwarder.pass_on(node.client.request(1, received=node.env.now() - 1.95))
    node.env.advance(0.1)
    assert [answer.code for answer in node.client.answers] == [14]


def test_a_request_refused_before_proposing_is_sent_again(node: Node) -> None:
    node.leader_is("n2")
    node.pass_on(1)
    node.channel.sent[0][2](b"\x01" + bytes(8))
    node.leader_is("n3")
    assert [to for to, _, _ in node.channel.sent] == ["n2", "n3"]
    node.answer(1, success(1))
    assert len(node.client.answers) == 1


def test_a_leader_that_refuses_is_asked_by_one_request_until_it_answers(node: Node) -> None:
    refused = b"\x01" + bytes(8)
    node.leader_is("n2")
    clients = [Client(f"n1/{number}") for number in range(100)]
    for opaque, client in enumerate(clients):
        node.pass_on(opaque, client)
    for _, _, on_reply in list(node.channel.sent):
        on_reply(refused)
    for again in range(10):
        node.env.advance(forwarding.RETRY_S)
        assert node.sent_opaques()[100:] == [0] * (again + 1)
        node.channel.sent[-1][2](refused)
    node.leader_is("n3")
    node.answer(-1, success(0))
    node.env.run_ready()
    assert node.sent_opaques()[111:] == list(range(1, 100))
    assert {to for to, _, _ in node.channel.sent[110:]} == {"n3"}


def test_a_leader_that_says_nothing_is_asked_by_twice_as_many_each_time(node: Node) -> None:
    node.leader_is("n2")
    clients = [Client(f"n1/{number}") for number in range(20)]
    for opaque, client in enumerate(clients):
        node.pass_on(opaque, client)
    for _, _, on_reply in list(node.channel.sent):
        on_reply(b"\x01" + bytes(8))
    found = []
    for _ in range(5):
        node.env.advance(forwarding.RETRY_S)
        found.append(node.sent_opaques()[20:])
    assert found == [list(range(count)) for count in (1, 3, 7, 15, 20)]


def test_a_request_without_an_answer_is_never_sent_again(node: Node) -> None:
    node.leader_is("n2")
    node.pass_on(1)
    node.channel.sent[0][2](PeerGoneError("the link was lost"))
    node.leader_is("n3")
    node.env.advance(5)
    assert len(node.channel.sent) == 1
    (answer,) = node.client.answers
    assert (answer.code, answer.ext["outcome"]) == (1, "unknown")
    assert node.counters.outcomes_unknown == 1


def test_a_read_without_an_answer_is_not_of_unknown_outcome(node: Node) -> None:
    node.leader_is("n2")
    node.pass_on(1, code=RequestCode.GET_MAX_OFFSET)
    node.pass_on(2, code=RequestCode.PULL_MESSAGE, queueOffset="17")
    for _, _, on_reply in list(node.channel.sent):
        on_reply(PeerGoneError("the link was lost"))
    maximum, pull = node.client.answers
    assert (maximum.code, "outcome" in maximum.ext) == (14, False)
    assert (pull.code, pull.ext["nextBeginOffset"]) == (20, "17")


def test_what_a_node_answers_by_itself_is_never_passed_on(node: Node) -> None:
    node.leader_is("n2")
    node.pass_on(1, code=RequestCode.READ_PLAN)
    assert node.channel.sent == []
    (answer,) = node.client.answers
    assert answer.code == 14


def test_no_request_overtakes_an_earlier_one_of_its_channel(node: Node) -> None:
    node.leader_is("n2")
    node.pass_on(1)
    node.pass_on(2)
    node.leader_is("n3")
    node.pass_on(3)
    assert node.sent_opaques() == [1, 2]
    other = Client("n1/2")
    node.pass_on(4, other)
    node.env.advance(0.1)
    assert node.sent_opaques() == [1, 2, 4]
    node.channel.sent[1][2](b"\x01" + bytes(8))
    node.channel.sent[0][2](b"\x01" + bytes(8))
    node.env.advance(0.1)
    assert node.sent_opaques() == [1, 2, 4, 1, 2, 3]


def test_a_new_leader_handles_its_own_clients_requests_in_order_too(node: Node) -> None:
    node.leader_is("n2")
    node.pass_on(1)
    node.leader_is("n1")
    assert node.client.forwards == 1
    node.pass_on(2)
    assert node.ran == []
    node.channel.sent[0][2](b"\x01" + bytes(8))
    node.env.advance(0.1)
    assert [request.opaque for request in node.ran] == [1, 2]


def test_a_pull_that_the_leader_does_not_answer_is_to_be_repeated_at_the_node_that_passed_it_on(node: Node) -> None:
    """By the route that its client has, id 0 is the leader that has died."""
    node.leader_is("n2")
    node.pass_on(1, code=RequestCode.PULL_MESSAGE, queueOffset="7")
    node.channel.sent[0][2](PeerGoneError("the link was lost"))
    (answer,) = node.client.answers
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "7")
    assert answer.ext["suggestWhichBrokerId"] == str(OWN_ID)


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.GET_MAX_OFFSET])
@pytest.mark.parametrize("next_leader", ["n1", "n3"])
def test_what_takes_no_effect_holds_nothing_back(node: Node, code: int, next_leader: str) -> None:
    """A leader that stands still does not answer a pull for more than a minute; meanwhile another one leads."""
    node.leader_is("n2")
    node.pass_on(1, code=code)
    node.leader_is(next_leader)
    node.pass_on(2)
    node.env.advance(0.1)
    if next_leader == "n1":
        assert [request.opaque for request in node.ran] == [2]
    else:
        assert [(to, opaque_of(data)) for to, data, _ in node.channel.sent] == [("n2", 1), ("n3", 2)]


def test_our_own_client_is_told_who_leads_instead(node: Node) -> None:
    node.leader_is("n2")
    node.group.learn_address("n2", "10.0.0.2:10911")
    node.pass_on(1, noForward="true")
    (answer,) = node.client.answers
    assert (answer.code, answer.ext) == (14, {"leaderAddr": "10.0.0.2:10911", "term": "1"})
    assert node.channel.sent == []


def test_max_forward_bytes_refuses_with_two(node: Node) -> None:
    node = Node(max_forward_bytes=1024)
    for opaque in range(1, 20):
        node.pass_on(opaque, padding="x" * 100)
    codes = {answer.code for answer in node.client.answers}
    assert codes == {2}
    assert node.counters.max_forward_bytes == len(node.client.answers) > 0
    node.leader_is("n2")
    assert node.sent_opaques() == list(range(1, 20 - len(node.client.answers)))


def test_what_waits_when_the_node_stops_was_not_stored(node: Node) -> None:
    node.pass_on(1)
    node.forwarder.close()
    assert [answer.code for answer in node.client.answers] == [14]


def test_a_oneway_request_is_passed_on_and_settled(node: Node) -> None:
    node.leader_is("n2")
    node.forwarder.pass_on(node.client.request(1, node.env.now(), flag=FLAG_ONEWAY))
    node.channel.sent[0][2](b"\x02")
    assert (node.client.answers, node.client.settled, node.client.forwards) == ([], 1, 0)


# ---- the leader's side


def envelope_to(node: Node, opaque: int = 5) -> tuple[bytes, list[bytes]]:
    """What another node sends on for a client, and where replies arrive."""
    sender = Node("n3")
    sender.leader_is(node.group.node_id)
    sender.pass_on(opaque)
    return sender.channel.sent[0][1], []


def test_the_leader_handles_an_envelope_as_if_it_came_from_the_client(node: Node) -> None:
    node.leader_is("n1")
    node.env.advance(3)
    data, replies = envelope_to(node)
    node.forwarder.on_request(ReplicaId("n3", "i"), data, replies.append)
    ((origin, header, received),) = node.received
    assert (str(origin.address), origin.key, origin.client_ids) == ("10.0.0.9:40000", "n1/1", {"c1"})
    assert origin.born_host == b"\x0a\x00\x00\x09\x00\x00\x9c\x40"
    assert decode_command_header(header).opaque == 5
    assert received == node.env.now()
    origin.answer_frame(success(5))
    assert replies == [b"\x00" + success(5)]


def test_a_leader_that_is_about_to_end_leaves_what_others_pass_on_to_the_next_one(node: Node) -> None:
    node.leader_is("n1")
    data, replies = envelope_to(node)
    node.forwarder.refuse()
    node.forwarder.on_request(ReplicaId("n3", "i"), data, replies.append)
    assert replies == [b"\x01" + (1).to_bytes(8, "big")]
    assert node.received == []


def test_a_node_that_does_not_lead_refuses_and_does_not_pass_on_a_second_time(node: Node) -> None:
    node.leader_is("n2")
    data, replies = envelope_to(node)
    node.forwarder.on_request(ReplicaId("n3", "i"), data, replies.append)
    assert replies == [b"\x01" + (1).to_bytes(8, "big")]
    assert node.received == []
    assert node.channel.sent == []


def test_a_leader_deposed_while_it_handles_an_envelope_refuses_it(node: Node) -> None:
    node.leader_is("n1")
    data, replies = envelope_to(node)
    node.forwarder.on_request(ReplicaId("n3", "i"), data, replies.append)
    ((origin, header, received),) = node.received
    node.leader_is("n2")
    request = read_request(origin, 0, header, b"", received)
    assert request is not None
    node.forwarder.pass_on(request)
    assert replies == [b"\x01" + (2).to_bytes(8, "big")]
    assert node.channel.sent == []


# ---- both sides


def deliver(sender: Node, place: int, leader: Node) -> None:
    """Have `leader` handle what `sender` sent; a refusal arrives at once, other answers when they are given."""
    _, data, on_reply = sender.channel.sent[place]
    leader.forwarder.on_request(ReplicaId(sender.group.node_id, "i"), data, on_reply)


def handled(leader: Node) -> list[int]:
    return [decode_command_header(header).opaque for _, header, _ in leader.received]


def test_what_was_sent_behind_a_refused_request_is_refused_too(node: Node) -> None:
    """1. The next leader is not ready and refuses 1; 2. it becomes ready; 3. 2 arrives, which was sent behind 1."""
    leader = Node("n2")
    leader.leader_is("n2", ready=False)
    node.leader_is("n2")
    node.pass_on(1)
    node.pass_on(2)
    deliver(node, 0, leader)
    leader.leader_is("n2")
    node.pass_on(3)
    node.env.advance(0.1)
    assert node.sent_opaques() == [1, 2]
    deliver(node, 1, leader)
    node.env.advance(0.1)
    for place in range(2, 5):
        deliver(node, place, leader)
    assert handled(leader) == [1, 2, 3]


def test_a_request_that_is_refused_late_holds_back_those_behind_it_only(node: Node) -> None:
    """What was sent before it, perhaps a pull that is held for long, says nothing about the order any more."""
    leader = Node("n2")
    leader.leader_is("n2")
    node.leader_is("n2")
    node.pass_on(1)
    deliver(node, 0, leader)
    leader.leader_is("n2", ready=False)
    node.pass_on(2)
    deliver(node, 1, leader)
    leader.leader_is("n2")
    node.env.advance(0.1)
    deliver(node, 2, leader)
    assert handled(leader) == [1, 2]


def test_other_channels_do_not_pay_for_a_refusal_and_it_is_forgotten(node: Node) -> None:
    leader = Node("n2")
    leader.leader_is("n2", ready=False)
    node.leader_is("n2")
    for opaque in (1, 2):
        node.pass_on(opaque)
    deliver(node, 0, leader)
    leader.leader_is("n2")
    node.pass_on(3, Client("n1/2"))
    node.env.advance(0.1)
    assert node.sent_opaques() == [1, 2, 3]
    deliver(node, 2, leader)
    assert handled(leader) == [3]
    leader.env.advance(forwarding.REFUSALS_KEPT_S + 1)
    leader.leader_is("n3")
    node.pass_on(4, Client("n1/3"))
    node.env.advance(0.1)
    deliver(node, 3, leader)
    assert list(leader.forwarder._refusals) == ["n1/3"]


def renewal(node: Node) -> Request:
    return _own_request(node.group.node_id, PinHeader("job", 0, 60_000, renewal=True), node.env.now())


def test_a_nodes_own_renewals_do_not_pay_for_each_others_refusals(node: Node) -> None:
    """1. The next leader, which is not ready for long, refuses a renewal again and again; 2. it is ready; 3. the next
    renewal, which comes with an origin of its own, goes through, and holds nothing else up.
    """
    leader = Node("n2")
    leader.leader_is("n2", ready=False)
    node.leader_is("n2")
    node.forwarder.pass_on(renewal(node))
    place = 0
    while node.env.now() < 1:
        while place < len(node.channel.sent):
            deliver(node, place, leader)
            place += 1
        node.env.advance(forwarding.RETRY_S)
    leader.leader_is("n2")
    while place < len(node.channel.sent):
        deliver(node, place, leader)
        place += 1
    assert len(leader.received) <= 1
    leader.received.clear()
    node.env.advance(60)
    node.forwarder.pass_on(renewal(node))
    deliver(node, place, leader)
    assert len(leader.received) == 1


def test_a_channel_has_no_key_of_an_earlier_process_of_its_node() -> None:
    """Other nodes remember refusals of a channel by its key."""
    program = "from dledger_broker.kernel.requests import channel_key; print(*(channel_key('n1') for _ in range(9)))"
    keys = [subprocess.check_output([sys.executable, "-c", program], text=True).split() for _ in range(2)]
    assert len({*keys[0], *keys[1]}) == 18


ALIAS_SEND = {
    "writeAlias": "1",
    "a": "PG",
    "b": "T1",
    "c": "TBW102",
    **dict.fromkeys("defgh", "0"),
}


def pass_on_alias_send(node: Node, opaque: int, **fields: str) -> None:
    request = node.client.request(opaque, node.env.now(), RequestCode.SEND_BATCH_MESSAGE, **(ALIAS_SEND | fields))
    node.forwarder.pass_on(request)


def test_a_send_to_an_alias_goes_to_the_next_leader_if_the_first_one_does_not_answer(node: Node) -> None:
    node.leader_is("n2")
    pass_on_alias_send(node, 1)
    node.leader_is(None)
    node.channel.sent[0][2](PeerGoneError("n2"))
    assert node.client.answers == []
    node.env.advance(1.0)
    node.leader_is("n3")
    assert [to for to, _, _ in node.channel.sent] == ["n2", "n3"]
    node.answer(1, success(1))
    assert [answer.code for answer in node.client.answers] == [0]
    assert (node.client.forwards, node.client.forwards_sent, node.counters.forward_repeats) == (0, set(), 1)


def test_a_send_to_an_alias_that_waits_when_this_node_becomes_the_leader_is_handled_here(node: Node) -> None:
    node.leader_is("n2")
    pass_on_alias_send(node, 1)
    node.channel.sent[0][2](PeerGoneError("n2"))
    node.leader_is("n1")
    assert [request.opaque for request in node.ran] == [1]
    node.ran[0].fail(SystemBusy("no room"))
    assert node.client.answers[0].ext["outcome"] == "unknown"


def test_what_a_leader_may_have_stored_is_never_answered_14(node: Node) -> None:
    """Neither when no leader comes, nor when the next one refuses."""
    node.leader_is("n2")
    for opaque in (1, 2):
        pass_on_alias_send(node, opaque)
    node.leader_is(None)
    for place in (0, 1):
        node.channel.sent[place][2](PeerGoneError("n2"))
    node.env.advance(1.0)
    node.leader_is("n3")
    node.answer(2, encode_command(RemotingCommand(ResponseCode.SYSTEM_BUSY, opaque=1, flag=1, remark="[OVERLOAD]")))
    node.channel.sent[3][2](PeerGoneError("n3"))
    node.leader_is(None)
    node.env.advance(5.0)
    assert {answer.opaque: (answer.code, answer.ext.get("outcome")) for answer in node.client.answers} == {
        1: (1, "unknown"),
        2: (1, "unknown"),
    }
    assert "[OVERLOAD]" in (node.client.answers[0].remark or "")


@pytest.mark.parametrize("fields", [{"f": str(SYS_TRANSACTION_PREPARED)}, {"f": "x"}, {"b": ""}])
def test_half_messages_and_what_cannot_be_read_are_not_sent_again(node: Node, fields: dict[str, str]) -> None:
    node.leader_is("n2")
    if fields.get("b") == "":
        node.forwarder.pass_on(node.client.request(1, node.env.now(), RequestCode.SEND_BATCH_MESSAGE, writeAlias="1"))
    else:
        pass_on_alias_send(node, 1, **fields)
    node.channel.sent[0][2](PeerGoneError("n2"))
    assert node.client.answers[0].ext["outcome"] == "unknown"
    assert node.counters.forward_repeats == 0


def test_a_send_to_the_nodes_own_port_is_not_sent_again(node: Node) -> None:
    node.leader_is("n2")
    ext = {name: value for name, value in ALIAS_SEND.items() if name != "writeAlias"}
    node.forwarder.pass_on(node.client.request(1, node.env.now(), RequestCode.SEND_BATCH_MESSAGE, **ext))
    node.channel.sent[0][2](PeerGoneError("n2"))
    assert node.client.answers[0].ext["outcome"] == "unknown"


def test_sends_of_unknown_outcome_count_as_failed(node: Node) -> None:
    """Whether the first leader says nothing, or none comes after it, or the next one refuses, or this node does."""
    node.leader_is("n2")
    node.forwarder.pass_on(node.client.request(1, node.env.now(), code=RequestCode.SEND_MESSAGE_V2))
    node.forwarder.pass_on(node.client.request(2, node.env.now(), code=RequestCode.UPDATE_CONSUMER_OFFSET))
    for opaque in (3, 4):
        pass_on_alias_send(node, opaque)
    node.leader_is(None)
    for place in range(4):
        node.channel.sent[place][2](PeerGoneError("n2"))
    assert (node.counters.outcomes_unknown, node.counters.sends_failed) == (2, 1)
    node.env.advance(1.0)
    node.leader_is("n3")
    node.answer(4, encode_command(RemotingCommand(ResponseCode.SYSTEM_BUSY, opaque=3, flag=1, remark="[OVERLOAD]")))
    node.channel.sent[5][2](PeerGoneError("n3"))
    node.leader_is(None)
    node.env.advance(5.0)
    assert [answer.ext["outcome"] for answer in node.client.answers] == ["unknown"] * 4
    assert (node.counters.outcomes_unknown, node.counters.sends_failed) == (4, 3)


def test_a_send_that_was_stored_at_the_second_attempt_or_never_handed_on_is_of_no_unknown_outcome(node: Node) -> None:
    node.leader_is("n2")
    pass_on_alias_send(node, 1)
    node.leader_is(None)
    node.channel.sent[0][2](PeerGoneError("n2"))
    node.leader_is("n3")
    node.answer(1, success(1))
    node.leader_is(None)
    pass_on_alias_send(node, 2)
    node.env.advance(5.0)
    assert [answer.code for answer in node.client.answers] == [0, 14]
    assert (node.counters.outcomes_unknown, node.counters.sends_failed) == (0, 0)

"""Requests that need the leader, on a node that does not lead: held, forwarded in order, never sent twice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from served_broker import FakeClient, ServedBroker

from dledger.net.transport import PeerError, PeerGoneError
from dledger.statemachine import Leadership
from dledger.types import ReplicaId
from dledger_broker.config import BrokerConfig
from dledger_broker.features.offsets.recent_commits import MAX_COMMIT_HOLD_S
from dledger_broker.features.pins.requests import _own_request
from dledger_broker.features.pulling.placement import Placement, passed_on
from dledger_broker.features.sending.effects import STORES
from dledger_broker.frontend import forwarding
from dledger_broker.frontend.forwarding import Envelope, ForwardedOrigin, Forwarder
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.requests import Principal, Request, read_request
from dledger_broker.kernel.routes import CHANGES, NO_EFFECT, Needs, Route
from dledger_broker.testing import FakeEnvironment
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, decode_command, encode_command, encode_json_header
from dledger_remoting.errors import SystemBusy
from dledger_remoting.frame import Frame
from dledger_remoting.headers import PinHeader
from dledger_remoting.record import SYS_TRANSACTION_PREPARED

OnReply = Callable[[bytes | PeerError], None]


class Client(FakeClient):
    """An `Origin` whose requests a test hands to a forwarder."""

    def __init__(self, key: str = "n1/1") -> None:
        super().__init__(cast("ServedBroker", None), key)
        self.client_ids = {"c1"}

    def request(self, opaque: int, received: float, code: int = 310, flag: int = 0, **ext: str) -> Request:
        command = RemotingCommand(code, opaque=opaque, flag=flag, ext=ext)
        request = read_request(self, 0, encode_json_header(command), b"body", received)
        assert request is not None
        return request


class FakeChannel:
    """Channel that keeps what is sent. Nodes in `unreachable` take nothing."""

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

    def __init__(self, node_id: str = "n1", leader: str | None = None, *, ready: bool = True, **limits: int) -> None:
        self.env = FakeEnvironment()
        self.group = LeadershipView(node_id, f"10.0.0.1:{node_id[1:]}")
        self.counters = BrokerCounters()
        self.channel = FakeChannel()
        self.ran: list[Request] = []
        self.received: list[tuple[ForwardedOrigin, bytes, float]] = []
        config = BrokerConfig(broker_group="b", node_id=node_id, data_dir=Path("unused"), **limits)  # type: ignore[arg-type]
        self.forwarder = Forwarder(self.env, self.group, config, self.counters, self)
        self.group.events.add(self.forwarder)
        self.forwarder.attach(self.channel)
        self.client = Client()
        self._term = 0
        if leader is not None:
            self.leader_is(leader, ready=ready)

    def route(self, code: int) -> Route:
        reads, changes = Route(self.run, Needs.LEADER, NO_EFFECT), Route(self.run, Needs.LEADER, CHANGES)
        if code == RequestCode.SEND_BATCH_MESSAGE:
            return Route(self.run, Needs.LEADER, STORES)
        held = passed_on(cast(Placement, self))
        pulls, local = Route(self.run, Needs.NOTHING, held), Route(self.run, Needs.NOTHING, NO_EFFECT, forwarded=False)
        known = {RequestCode.GET_MAX_OFFSET: reads, RequestCode.PULL_MESSAGE: pulls, RequestCode.READ_PLAN: local}
        return known.get(RequestCode(code), changes)

    def receive_forwarded(
        self, origin: ForwardedOrigin, frame: Frame, received: float, principal: Principal | None
    ) -> None:
        self.received.append((origin, frame.header, received))

    def id_without_leader(self) -> int:
        return OWN_ID

    def run(self, request: Request) -> None:
        self.ran.append(request)

    def require_understood(self, code: int, leader: str) -> None:
        """Accept every code: all members understand all codes."""

    def leader_is(self, leader: str | None, *, ready: bool = True) -> None:
        self._term += 1
        own = leader == self.group.node_id
        self.group.on_leadership(Leadership(self._term, leader, is_leader=own, ready=own and ready))

    def pass_on(self, opaque: int, client: Client | None = None, **fields: Any) -> None:
        self.forwarder.pass_on((client or self.client).request(opaque, self.env.now(), **fields))

    def sent_opaques(self) -> list[int]:
        return [opaque_of(data) for _, data, _ in self.channel.sent]

    def codes(self) -> list[int]:
        """Return the codes of the answers that the client has."""
        return [answer.code for answer in self.client.answers]

    def answer(self, place: int, frame: bytes) -> None:
        self.channel.sent[place][2](b"\x00" + frame)

    def refuse(self, place: int) -> None:
        self.channel.sent[place][2](b"\x01" + bytes(8))

    def lose(self, place: int, error: type[PeerError] = PeerGoneError) -> None:
        self.channel.sent[place][2](error("the link was lost"))


def opaque_of(data: bytes) -> int:
    envelope = msgspec.msgpack.decode(data, type=Envelope)
    return decode_command_header(envelope.header).opaque


def decode_command_header(header: bytes) -> RemotingCommand:
    return decode_command(Frame(0, header, b""))


def success(opaque: int) -> bytes:
    return encode_command(RemotingCommand(0, opaque=opaque, flag=1))


@pytest.fixture
def node() -> Node:
    """Return a node that follows n2."""
    return Node(leader="n2")


def test_a_request_that_no_frame_of_nodes_can_carry_is_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "MAX_DATA_BYTES", 64)
    node.pass_on(1)
    (answer,) = node.client.answers
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "too large to be passed on" in (answer.remark or "")
    assert (node.channel.sent, node.client.forwards, node.forwarder.waiting) == ([], 0, 0)


@pytest.mark.parametrize("stops", [False, True])
def test_a_waiting_request_is_handled_once_this_node_leads_and_refused_when_it_stops(*, stops: bool) -> None:
    node = Node()
    node.pass_on(1)
    if stops:
        node.forwarder.close()
    else:
        node.leader_is("n1")
    assert (len(node.ran), node.codes()) == ((0, [14]) if stops else (1, []))
    assert node.client.forwards == 0


def test_a_request_without_a_leader_is_answered_with_code_14_two_seconds_after_its_arrival(node: Node) -> None:
    node.group.learn_address("n2", "10.0.0.2:10911")
    node.channel.unreachable.add("n2")
    earlier = Client("n1/2")
    node.env.advance(10)
    node.pass_on(1)
    node.forwarder.pass_on(earlier.request(1, received=node.env.now() - 1.95))
    node.env.advance(0.1)
    assert [answer.code for answer in earlier.answers] == [14]
    node.env.advance(1.8)
    assert node.client.answers == []
    node.env.advance(0.2)
    (answer,) = node.client.answers
    assert (answer.code, answer.ext) == (14, {"leaderAddr": "10.0.0.2:10911", "term": "1"})
    assert node.forwarder.waiting == 0


@pytest.mark.parametrize("code", [11, 15, 361])
def test_a_commit_waits_for_a_leader_no_longer_than_newer_commits_are_remembered(code: int) -> None:
    node = Node(forward_hold_ms=60_000)
    node.pass_on(1)
    node.pass_on(2, code=code)
    node.env.advance(MAX_COMMIT_HOLD_S - 0.1)
    assert node.codes() == []
    node.env.advance(0.2)
    assert [(answer.opaque, answer.code) for answer in node.client.answers] == [(2, 14)]
    assert node.forwarder.waiting == 1


def test_a_request_refused_before_proposing_is_sent_again(node: Node) -> None:
    node.pass_on(1)
    node.refuse(0)
    node.leader_is("n3")
    assert [to for to, _, _ in node.channel.sent] == ["n2", "n3"]
    node.answer(1, success(1))
    assert len(node.client.answers) == 1


def test_a_refusing_leader_is_asked_by_one_request_at_a_time(node: Node) -> None:
    for opaque in range(100):
        node.pass_on(opaque, Client(f"n1/{opaque}"))
    for place in range(100):
        node.refuse(place)
    for again in range(10):
        node.env.advance(forwarding.RETRY_S)
        assert node.sent_opaques()[100:] == [0] * (again + 1)
        node.refuse(-1)
    node.leader_is("n3")
    node.answer(-1, success(0))
    node.env.run_ready()
    assert node.sent_opaques()[111:] == list(range(1, 100))
    assert {to for to, _, _ in node.channel.sent[110:]} == {"n3"}


def test_requests_to_a_silent_leader_are_retried_in_doubling_numbers(node: Node) -> None:
    for opaque in range(20):
        node.pass_on(opaque, Client(f"n1/{opaque}"))
    for place in range(20):
        node.refuse(place)
    found = []
    for _ in range(5):
        node.env.advance(forwarding.RETRY_S)
        found.append(node.sent_opaques()[20:])
    assert found == [list(range(count)) for count in (1, 3, 7, 15, 20)]


@pytest.mark.parametrize("error", PeerError.__subclasses__(), ids=lambda error: error.__name__)
def test_a_request_without_an_answer_is_never_sent_again(node: Node, error: type[PeerError]) -> None:
    node.pass_on(1)
    node.lose(0, error)
    node.leader_is("n3")
    node.env.advance(5)
    assert len(node.channel.sent) == 1
    (answer,) = node.client.answers
    assert (answer.code, answer.ext["outcome"]) == (1, "unknown")
    assert node.counters.outcomes_unknown == 1


def test_a_forwarded_read_without_an_answer_has_no_unknown_outcome(node: Node) -> None:
    """A pull is to be repeated at the node that forwarded it: broker id 0 of its client's route has died."""
    node.pass_on(1, code=RequestCode.GET_MAX_OFFSET)
    node.pass_on(2, code=RequestCode.PULL_MESSAGE, queueOffset="17")
    for place in range(2):
        node.lose(place)
    maximum, pull = node.client.answers
    assert (maximum.code, "outcome" in maximum.ext) == (14, False)
    assert (pull.code, pull.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "17")
    assert pull.ext["suggestWhichBrokerId"] == str(OWN_ID)


def test_requests_that_every_node_answers_and_requests_of_our_client_are_never_forwarded(node: Node) -> None:
    """Our client is told the leader's address instead."""
    node.group.learn_address("n2", "10.0.0.2:10911")
    node.pass_on(1, code=RequestCode.READ_PLAN)
    node.pass_on(2, noForward="true")
    assert (node.channel.sent, node.codes()) == ([], [14, 14])
    assert node.client.answers[1].ext == {"leaderAddr": "10.0.0.2:10911", "term": "1"}


def test_no_request_overtakes_an_earlier_one_of_its_channel(node: Node) -> None:
    node.pass_on(1)
    node.pass_on(2)
    node.leader_is("n3")
    node.pass_on(3)
    assert node.sent_opaques() == [1, 2]
    node.pass_on(4, Client("n1/2"))
    node.env.advance(0.1)
    assert node.sent_opaques() == [1, 2, 4]
    node.refuse(1)
    node.refuse(0)
    node.env.advance(0.1)
    assert node.sent_opaques() == [1, 2, 4, 1, 2, 3]


def test_a_new_leader_handles_requests_of_its_own_clients_in_order(node: Node) -> None:
    node.pass_on(1)
    node.leader_is("n1")
    assert node.client.forwards == 1
    node.pass_on(2)
    assert node.ran == []
    node.refuse(0)
    node.env.advance(0.1)
    assert [request.opaque for request in node.ran] == [1, 2]


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.GET_MAX_OFFSET])
@pytest.mark.parametrize("next_leader", ["n1", "n3"])
def test_a_forwarded_request_without_effect_holds_back_no_other(node: Node, code: int, next_leader: str) -> None:
    """A leader that stands still leaves a pull unanswered for over a minute, while another leader takes over."""
    node.pass_on(1, code=code)
    node.leader_is(next_leader)
    node.pass_on(2)
    node.env.advance(0.1)
    if next_leader == "n1":
        assert [request.opaque for request in node.ran] == [2]
    else:
        assert [(to, opaque_of(data)) for to, data, _ in node.channel.sent] == [("n2", 1), ("n3", 2)]


def test_requests_beyond_max_forward_bytes_are_refused_and_counted() -> None:
    node = Node(max_forward_bytes=1024)
    for opaque in range(1, 20):
        node.pass_on(opaque, padding="x" * 100)
    assert set(node.codes()) == {2}
    assert node.counters.max_forward_bytes == len(node.client.answers) > 0
    node.leader_is("n2")
    assert node.sent_opaques() == list(range(1, 20 - len(node.client.answers)))


def test_a_oneway_request_is_passed_on_and_settled(node: Node) -> None:
    node.pass_on(1, flag=FLAG_ONEWAY)
    node.channel.sent[0][2](b"\x02")
    assert (node.client.answers, node.client.settled, node.client.forwards) == ([], 1, 0)


# ---- the leader's side


def receive(node: Node) -> list[bytes]:
    """Have a node receive request 5 of a client of another node, and return the list for its replies."""
    sender, replies = Node("n3", leader=node.group.node_id), list[bytes]()
    sender.pass_on(5)
    node.forwarder.on_request(ReplicaId("n3", "i"), sender.channel.sent[0][1], replies.append)
    return replies


def test_the_leader_handles_an_envelope_like_a_request_of_the_client() -> None:
    node = Node(leader="n1")
    node.env.advance(3)
    replies = receive(node)
    ((origin, header, received),) = node.received
    assert (str(origin.address), origin.key, origin.client_ids) == ("10.0.0.9:40000", "n1/1", {"c1"})
    assert origin.born_host == b"\x0a\x00\x00\x09\x00\x00\x9c\x40"
    assert decode_command_header(header).opaque == 5
    assert received == node.env.now()
    origin.answer_frame(success(5))
    assert replies == [b"\x00" + success(5)]


@pytest.mark.parametrize("leader", ["n1", "n2"], ids=["ending leader", "follower"])
def test_an_ending_leader_and_a_follower_refuse_forwarded_requests_and_forward_none(leader: str) -> None:
    node = Node(leader=leader)
    if leader == "n1":
        node.forwarder.refuse()
    assert receive(node) == [b"\x01" + (1).to_bytes(8, "big")]
    assert (node.received, node.channel.sent) == ([], [])


def test_a_leader_deposed_during_an_envelope_refuses_the_envelope() -> None:
    node = Node(leader="n1")
    replies = receive(node)
    ((origin, header, received),) = node.received
    node.leader_is("n2")
    request = read_request(origin, 0, header, b"", received)
    assert request is not None
    node.forwarder.pass_on(request)
    assert replies == [b"\x01" + (2).to_bytes(8, "big")]
    assert node.channel.sent == []


# ---- both sides


def deliver(sender: Node, place: int, leader: Node) -> None:
    """Have `leader` handle what `sender` sent. A refusal arrives at once, another answer when it is given."""
    _, data, on_reply = sender.channel.sent[place]
    leader.forwarder.on_request(ReplicaId(sender.group.node_id, "i"), data, on_reply)


@pytest.fixture
def leader() -> Node:
    """Return the leader n2, which is not ready."""
    return Node("n2", leader="n2", ready=False)


def handled(leader: Node) -> list[int]:
    return [decode_command_header(header).opaque for _, header, _ in leader.received]


def test_a_request_sent_behind_a_refused_request_is_refused_too(node: Node, leader: Node) -> None:
    """A request that was sent behind a refused request is refused too.

    1. The next leader is not ready, and refuses request 1.
    2. It becomes ready.
    3. Request 2 arrives, which was sent behind request 1.
    """
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


def test_a_late_refusal_holds_back_only_later_requests(node: Node) -> None:
    """A request before the refused one, perhaps a pull that is held for long, no longer matters for the order."""
    leader = Node("n2", leader="n2")
    node.pass_on(1)
    deliver(node, 0, leader)
    leader.leader_is("n2", ready=False)
    node.pass_on(2)
    deliver(node, 1, leader)
    leader.leader_is("n2")
    node.env.advance(0.1)
    deliver(node, 2, leader)
    assert handled(leader) == [1, 2]


def test_a_refusal_holds_back_only_its_own_channel_and_is_forgotten(node: Node, leader: Node) -> None:
    node.pass_on(1)
    node.pass_on(2)
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


def test_a_refused_renewal_of_a_node_does_not_block_the_next_renewal(node: Node, leader: Node) -> None:
    """Refusals of a node's own renewals hold nothing else up.

    1. The next leader is not ready for long, and refuses a renewal again and again.
    2. It becomes ready.
    3. The next renewal, which has an origin of its own, goes through.
    """
    delivered = 0

    def renew() -> None:
        node.forwarder.pass_on(_own_request("n1", PinHeader("job", 0, 60_000, renewal=True), node.env.now()))

    def deliver_all() -> None:
        nonlocal delivered
        while delivered < len(node.channel.sent):
            deliver(node, delivered, leader)
            delivered += 1

    renew()
    while node.env.now() < 1:
        deliver_all()
        node.env.advance(forwarding.RETRY_S)
    leader.leader_is("n2")
    deliver_all()
    assert len(leader.received) <= 1
    leader.received.clear()
    node.env.advance(60)
    renew()
    deliver_all()
    assert len(leader.received) == 1


def test_channel_keys_differ_between_processes_of_a_node() -> None:
    """Other nodes remember refusals of a channel by its key."""
    program = "from dledger_broker.kernel.requests import channel_key; print(*(channel_key('n1') for _ in range(9)))"
    keys = [subprocess.check_output([sys.executable, "-c", program], text=True).split() for _ in range(2)]
    assert len({*keys[0], *keys[1]}) == 18


SEND = {"a": "PG", "b": "T1", "c": "TBW102", **dict.fromkeys("defgh", "0")}


def pass_on_alias_send(node: Node, opaque: int) -> None:
    node.pass_on(opaque, code=RequestCode.SEND_BATCH_MESSAGE, writeAlias="1", **SEND)


def test_a_send_to_an_alias_goes_to_the_next_leader_if_the_first_one_does_not_answer(node: Node) -> None:
    pass_on_alias_send(node, 1)
    node.leader_is(None)
    node.lose(0)
    assert node.client.answers == []
    node.env.advance(1.0)
    node.leader_is("n3")
    assert [to for to, _, _ in node.channel.sent] == ["n2", "n3"]
    node.answer(1, success(1))
    assert node.codes() == [0]
    assert (node.client.forwards, node.client.forwards_sent, node.counters.forward_repeats) == (0, set(), 1)
    node.leader_is(None)
    pass_on_alias_send(node, 2)
    node.env.advance(5.0)
    assert node.codes() == [0, 14], "it was never forwarded"
    assert (node.counters.outcomes_unknown, node.counters.sends_failed) == (0, 0)


def test_a_send_to_an_alias_that_waits_when_this_node_becomes_the_leader_is_handled_here(node: Node) -> None:
    pass_on_alias_send(node, 1)
    node.lose(0)
    node.leader_is("n1")
    assert [request.opaque for request in node.ran] == [1]
    node.ran[0].fail(SystemBusy("no room"))
    assert node.client.answers[0].ext["outcome"] == "unknown"


@pytest.mark.parametrize(
    "fields",
    [
        SEND,
        {**SEND, "writeAlias": "1", "f": str(SYS_TRANSACTION_PREPARED)},
        {**SEND, "writeAlias": "1", "f": "x"},
        {"writeAlias": "1"},
    ],
    ids=["own port", "half", "unreadable flag", "no topic"],
)
def test_sends_to_the_own_port_halves_and_unreadable_sends_go_once(node: Node, fields: dict[str, str]) -> None:
    node.pass_on(1, code=RequestCode.SEND_BATCH_MESSAGE, **fields)
    node.lose(0)
    assert node.client.answers[0].ext["outcome"] == "unknown"
    assert node.counters.forward_repeats == 0


def test_sends_of_unknown_outcome_count_as_failed(node: Node) -> None:
    """The first leader says nothing, no leader follows, the next leader refuses, or this node refuses."""
    node.pass_on(1, code=RequestCode.SEND_MESSAGE_V2)
    node.pass_on(2, code=RequestCode.UPDATE_CONSUMER_OFFSET)
    for opaque in (3, 4):
        pass_on_alias_send(node, opaque)
    node.leader_is(None)
    for place in range(4):
        node.lose(place)
    assert (node.counters.outcomes_unknown, node.counters.sends_failed) == (2, 1)
    node.env.advance(1.0)
    node.leader_is("n3")
    node.answer(4, encode_command(RemotingCommand(ResponseCode.SYSTEM_BUSY, opaque=3, flag=1, remark="[OVERLOAD]")))
    node.lose(5)
    node.leader_is(None)
    node.env.advance(5.0)
    assert [answer.ext["outcome"] for answer in node.client.answers] == ["unknown"] * 4
    assert any("[OVERLOAD]" in (answer.remark or "") for answer in node.client.answers)
    assert (node.counters.outcomes_unknown, node.counters.sends_failed) == (4, 3)

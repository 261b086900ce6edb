"""Pops whose clients have gone take no message, wherever they wait."""

from typing import Any, cast

from served_broker import ServedBroker

from dledger.statemachine import Leadership
from dledger_broker.features.pop.requests import PopRequests
from dledger_remoting.codes import RequestCode
from tests.broker.features.pop.pop_calls import POP, Popper, pop_ext
from tests.broker.frontend.test_forwarding import FakeChannel, opaque_of

GONE = RequestCode.CHANNEL_GONE


def elsewhere(broker: ServedBroker) -> Popper:
    """Return a client of another node, which forwards its requests."""
    client = Popper(broker, "n3/1")
    client.is_forwarded = True
    return client


def held(client: Popper) -> tuple[int, int]:
    """Return how many pops wait, and how many requests of the client are in flight."""
    return len(client.broker.service.parts[PopRequests].held), client.in_flight


def lose(client: Popper) -> None:
    """Close the connection of a client."""
    client.is_open = False
    client.broker.service.channel_lost(cast("Any", client))


def test_a_waiting_pop_ends_when_another_node_reports_its_client_as_gone(broker: ServedBroker, client: Popper) -> None:
    gone = elsewhere(broker)
    gone.begin_pop()
    assert held(gone)[0] == 1
    gone.send(GONE, oneway=True)
    broker.settle()
    assert held(gone) == (0, 0)
    client.store(b"one")
    assert client.pop_bodies() == [b"one"]
    gone.begin_pop()
    assert held(gone) == (0, 0), "a pop that was read meanwhile"


def test_a_client_cannot_end_the_waiting_pops_of_another_client(broker: ServedBroker) -> None:
    client = elsewhere(broker)
    client.send(POP, pop_ext(pollTime="15000"))
    assert broker.client("n3/1").call(GONE).code == 0
    assert held(client)[0] == 1


def test_a_pop_of_this_node_ends_with_its_client(broker: ServedBroker, client: Popper) -> None:
    gone = Popper(broker, "n1/1")
    gone.begin_pop()
    lose(gone)
    assert held(gone) == (0, 0)
    client.store(b"one")
    gone.begin_pop(pollTime="0")
    assert client.pop_bodies() == [b"one"]


def test_the_leader_is_told_of_a_gone_client_and_gets_no_further_pop_of_that_client(client: Popper) -> None:
    leader, forwarder = FakeChannel(), client.broker.service.forwarder
    client.broker.memory.node.step_down()
    forwarder.attach(cast("Any", leader))
    group = forwarder._group
    group.on_leadership(Leadership(group.term + 1, "n2", is_leader=False, ready=False))
    asked = client.send(POP, pop_ext(pollTime="15000"))
    assert [opaque_of(data) for _, data, _ in leader.sent] == [asked]
    leader.unreachable.add("n2")
    client.send(POP, pop_ext(pollTime="15000"))
    lose(client)
    leader.unreachable.clear()
    client.broker.advance(0.1)
    assert len(leader.sent) == 2
    assert b'"code":20019' in leader.sent[1][1]

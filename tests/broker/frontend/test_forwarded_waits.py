"""Requests that the leader may hold for long, on a node that passes them on: it waits longer than the leader does."""

from __future__ import annotations

from typing import Final

import pytest
from served_broker import ServedBroker

from dledger.net.errors import PeerGoneError
from dledger_broker.features.pulling.limits import MAX_SUSPEND_S
from dledger_broker.kernel.routes import Route
from dledger_remoting.codes import RequestCode, ResponseCode
from tests.broker.frontend.test_forwarding import Node

MARGIN_S: Final = 5.0
"""A leader that gives up needs so long at most for its own answer, with which the other node must not cross."""
POLLS: Final = [RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION]
PULLS: Final = [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE]


class NodeOfBroker(Node):
    """A node that knows its request codes as a broker does."""

    def __init__(self, broker: ServedBroker) -> None:
        self._routes = broker.service.requests._table
        super().__init__()
        self.leader_is("n2")

    def route(self, code: int) -> Route:
        return self._routes[code]

    def waits_s(self, code: int, **fields: str) -> float:
        """How long the answer to a request is waited for that it passes on now."""
        self.pass_on(len(self.channel.sent) + 1, code=code, **fields)
        return self.channel.timeouts_s[-1]


@pytest.fixture
def node(broker: ServedBroker) -> NodeOfBroker:
    return NodeOfBroker(broker)


@pytest.mark.parametrize("code", POLLS)
@pytest.mark.parametrize("poll_s", [0, 1, 15, 59, MAX_SUSPEND_S])
def test_the_time_out_of_a_forwarded_pop_or_question_exceeds_its_poll_time(
    node: NodeOfBroker, code: int, poll_s: float
) -> None:
    assert node.waits_s(code, pollTime=str(int(poll_s * 1000))) >= poll_s + MARGIN_S


@pytest.mark.parametrize("code", POLLS)
@pytest.mark.parametrize("asked", ["60001", "3600000", "9" * 19])
def test_the_time_out_of_a_poll_is_by_how_long_a_leader_holds_one_at_most(
    node: NodeOfBroker, code: int, asked: str
) -> None:
    longest_s = node.waits_s(code, pollTime=str(int(MAX_SUSPEND_S * 1000)))
    assert node.waits_s(code, pollTime=asked) == longest_s


@pytest.mark.parametrize("code", POLLS)
@pytest.mark.parametrize("asked", ["", "-5", "x", "1.5", "٣", "9" * 400])
def test_a_poll_time_that_cannot_be_read_is_none(node: NodeOfBroker, code: int, asked: str) -> None:
    assert node.waits_s(code, pollTime=asked) == node.waits_s(code)


@pytest.mark.parametrize("code", PULLS)
@pytest.mark.parametrize("asked_ms", ["15000", "3600000"])
def test_the_time_out_of_a_forwarded_pull_exceeds_what_a_leader_holds_it(
    node: NodeOfBroker, code: int, asked_ms: str
) -> None:
    fields = {"queueOffset": "7", "sysFlag": "2", "suspendTimeoutMillis": asked_ms}
    assert node.waits_s(code, **fields) >= MAX_SUSPEND_S + MARGIN_S


def test_what_no_leader_holds_has_no_such_time_out(node: NodeOfBroker) -> None:
    assert node.waits_s(RequestCode.GET_MAX_OFFSET, pollTime="15000") < MAX_SUSPEND_S


def test_polls_that_the_leader_does_not_answer_have_found_nothing(node: NodeOfBroker) -> None:
    """Their clients ask again; what a lost answer may have taken comes again by itself."""
    for code in POLLS:
        node.waits_s(code, pollTime="15000")
        node.channel.sent[-1][2](PeerGoneError("the link was lost"))
    popped, asked = node.client.answers
    assert (popped.code, asked.code) == (ResponseCode.POLLING_TIMEOUT, ResponseCode.SUCCESS)
    assert asked.ext["hasMsg"] == "false"

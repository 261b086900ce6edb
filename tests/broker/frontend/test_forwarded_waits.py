"""Requests that the leader may hold for long: a node that forwards them waits longer than the leader holds them."""

from __future__ import annotations

from typing import Final

import pytest
from served_broker import ServedBroker

from dledger_broker.features.pulling.limits import MAX_SUSPEND_S
from dledger_broker.kernel.routes import Route
from dledger_remoting.codes import RequestCode, ResponseCode
from tests.broker.frontend.test_forwarding import Node

MARGIN_S: Final = 5.0
"""Time limit in seconds for the answer of a leader that stops waiting. The forwarding node must not time out before."""
POLLS: Final = [RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION]
PULLS: Final = [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE]


class NodeOfBroker(Node):
    """Node that routes request codes as a broker does."""

    def __init__(self, broker: ServedBroker) -> None:
        self._routes = broker.service.requests._table
        super().__init__(leader="n2")

    def route(self, code: int) -> Route:
        return self._routes[code]

    def waits_s(self, code: int, **fields: str) -> float:
        """Pass a request on, and return how many seconds the node waits for its answer."""
        self.pass_on(len(self.channel.sent) + 1, code=code, **fields)
        return self.channel.timeouts_s[-1]


@pytest.fixture
def node(broker: ServedBroker) -> NodeOfBroker:
    return NodeOfBroker(broker)


@pytest.mark.parametrize("code", POLLS)
def test_a_forwarded_poll_times_out_after_its_poll_time_up_to_the_leaders_limit(node: NodeOfBroker, code: int) -> None:
    for poll_s in (0, 1, 15, 59, MAX_SUSPEND_S):
        longest_s = node.waits_s(code, pollTime=str(int(poll_s * 1000)))
        assert longest_s >= poll_s + MARGIN_S
    for asked in ("60001", "3600000", "9" * 19):
        assert node.waits_s(code, pollTime=asked) == longest_s
    for unreadable in ("", "-5", "x", "1.5", "٣", "9" * 400):
        assert node.waits_s(code, pollTime=unreadable) == node.waits_s(code)


@pytest.mark.parametrize("code", PULLS)
@pytest.mark.parametrize("asked_ms", ["15000", "3600000"])
def test_a_forwarded_pull_times_out_after_the_hold_time_of_the_leader(
    node: NodeOfBroker, code: int, asked_ms: str
) -> None:
    fields = {"queueOffset": "7", "sysFlag": "2", "suspendTimeoutMillis": asked_ms}
    assert node.waits_s(code, **fields) >= MAX_SUSPEND_S + MARGIN_S


def test_a_forwarded_request_that_no_leader_holds_ignores_its_poll_time(node: NodeOfBroker) -> None:
    assert node.waits_s(RequestCode.GET_MAX_OFFSET, pollTime="15000") < MAX_SUSPEND_S


def test_a_poll_that_the_leader_does_not_answer_is_answered_as_empty(node: NodeOfBroker) -> None:
    """Its client asks again. Messages that a lost answer has taken become visible again by themselves."""
    for place, code in enumerate(POLLS):
        node.waits_s(code, pollTime="15000")
        node.lose(place)
    popped, asked = node.client.answers
    assert (popped.code, asked.code) == (ResponseCode.POLLING_TIMEOUT, ResponseCode.SUCCESS)
    assert asked.ext["hasMsg"] == "false"

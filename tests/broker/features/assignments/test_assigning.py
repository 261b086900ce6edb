"""Queues that the broker assigns to the members of a group (400)."""

import pytest
from served_broker import FakeClient, MakeBroker

from dledger.statemachine import Leadership
from dledger_broker.clients.topic_routes import Found
from dledger_broker.features.assignments.requests import UNANSWERED_S
from dledger_remoting.route import TopicRouteData
from dledger_remoting.topics import TopicConfig
from tests.broker.features.assignments.assignment_calls import ask, assigned, join, question, queues, route, set_mode


def test_members_share_the_queues_in_equal_shares_contiguous_or_by_circle(client: FakeClient) -> None:
    join(client, "c", "a", "b")
    assert ask(client, "a") == [("broker-a", 0, "PULL"), ("broker-a", 1, "PULL")]
    assert [queues(client, member) for member in "bc"] == [[2], [3]]
    assert [queues(client, member, strategyName="AVG_BY_CIRCLE") for member in "abc"] == [[0, 3], [1], [2]]
    assert ask(client, "stranger") == []


def test_members_that_pop_have_all_queues_of_the_broker_group(client: FakeClient) -> None:
    join(client, "a", "b")
    assert set_mode(client) == 0
    assert [ask(client, member) for member in "ab"] == [[("broker-a", -1, "POP")]] * 2
    assert ask(client, "a", strategyName="CONSISTENT_HASH") == [("broker-a", -1, "POP")]
    assert set_mode(client, "PULL") == 0
    assert ask(client, "b") == [("broker-a", 2, "PULL"), ("broker-a", 3, "PULL")]


def test_popping_members_also_get_the_queues_of_the_configured_number_of_successors(client: FakeClient) -> None:
    join(client, *"abcd")
    set_mode(client, share=1)
    assert [queues(client, member) for member in "abcd"] == [[0, 1], [1, 2], [2, 3], [0, 3]]
    assert ask(client, "stranger") == []
    set_mode(client, share=3)
    assert queues(client, "d") == [-1]


def test_with_more_members_than_queues_each_popping_member_has_one_queue(client: FakeClient) -> None:
    join(client, *"abcdef")
    set_mode(client, share=1)
    assert [queues(client, member) for member in "abcdef"] == [[0], [1], [2], [3], [0], [1]]


def test_the_configured_default_mode_does_not_apply_to_retry_topics(make_broker: MakeBroker) -> None:
    client = make_broker(topics=("T1", "%RETRY%CG"), default_request_mode="pop").client()
    join(client, "a")
    assert ask(client) == [("broker-a", -1, "POP")]
    assert ask(client, topic="%RETRY%CG")[0][2] == "PULL"


def test_a_topic_that_may_not_be_read_has_no_queues(client: FakeClient) -> None:
    join(client, "a")
    client.broker.memory.machine.proposals.put_topic(TopicConfig("WRITE_ONLY", perm=2), lambda _: None)
    client.broker.settle()
    assert ask(client, topic="WRITE_ONLY") == []


class Asking:
    """Question of a member, which waits for name servers that answer when a test lets them."""

    def __init__(self, client: FakeClient) -> None:
        self.client, self._waiting = client, list[Found]()
        client.broker.service.topic_routes.attach(lambda _topic, found: self._waiting.append(found))
        join(client, "a", "b")
        self._opaque = client.send(400, body=question("b"))
        client.broker.settle()
        assert not client.has_answer(self._opaque)

    def told(self, found: TopicRouteData | None) -> list[tuple[str, int, str]] | None:
        """Have the name servers tell a route, and return what the member is answered."""
        self._waiting.pop()(found)
        self.client.broker.advance(5)
        return assigned(self.client.answered(self._opaque))


@pytest.fixture
def asking(client: FakeClient) -> Asking:
    return Asking(client)


def test_queues_of_other_broker_groups_are_assigned_as_the_name_servers_report(asking: Asking) -> None:
    answer = asking.told(route(("broker-b", 2, 6), ("broker-c", 8, 2)))
    assert answer == [("broker-a", 3, "PULL"), ("broker-b", 0, "PULL"), ("broker-b", 1, "PULL")]


def test_clients_keep_their_queues_while_other_broker_groups_are_unknown(asking: Asking) -> None:
    assert asking.told(None) is None


def test_clients_keep_their_queues_if_the_node_is_deposed_before_the_route_is_known(asking: Asking) -> None:
    asking.client.broker.group.on_leadership(Leadership(2, "n2", is_leader=False, ready=False))
    assert asking.told(route()) is None


@pytest.mark.parametrize("leader", [None, "n2"])
def test_a_node_without_a_leader_answers_assignment_queries_at_once(client: FakeClient, leader: str | None) -> None:
    join(client, "a")
    client.broker.group.on_leadership(Leadership(2, leader, is_leader=False, ready=False))
    opaque = client.send(400, body=question())
    client.broker.settle()
    assert client.has_answer(opaque) == (leader is None)
    if leader is None:
        assert assigned(client.answered(opaque)) is None
    assert UNANSWERED_S < 3


@pytest.mark.parametrize(
    "body",
    [
        *(
            b"",
            b"[]",
            b"{",
            question(""),
            question("x" * 1_025),
            question(messageModel="x"),
            question(consumerGroup=""),
        ),
        *(question(topic=topic) for topic in ("", "a b", "SCHEDULE_TOPIC_XXXX")),
    ],
)
def test_invalid_assignment_queries_are_refused_with_a_text(client: FakeClient, body: bytes) -> None:
    answer = client.call(400, body=body)
    assert answer.code != 0
    assert answer.remark

"""Queues that the broker assigns to the members of a group (400)."""

from __future__ import annotations

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker

from dledger.statemachine import Leadership
from dledger_broker.clients.topic_routes import Found
from dledger_broker.features.assignments.requests import UNANSWERED_S
from dledger_remoting.topics import TopicConfig
from tests.broker.features.assignments.assignment_calls import (
    QUERY,
    ask,
    assigned,
    join,
    question,
    queues,
    route,
    set_mode,
)


def test_members_share_the_queues_in_equal_contiguous_shares(client: FakeClient) -> None:
    join(client, "c", "a", "b")
    assert ask(client, "a") == [("broker-a", 0, "PULL"), ("broker-a", 1, "PULL")]
    assert [queues(client, member) for member in "bc"] == [[2], [3]]


def test_members_have_queues_dealt_out_if_they_ask_for_that(client: FakeClient) -> None:
    join(client, "a", "b")
    assert [queues(client, member, strategyName="AVG_BY_CIRCLE") for member in "ab"] == [[0, 2], [1, 3]]


def test_each_consumer_that_broadcasts_has_all_queues(client: FakeClient) -> None:
    assert queues(client, "a", messageModel="BROADCASTING", strategyName="MACHINE_ROOM") == [0, 1, 2, 3]


def test_who_is_no_member_is_to_consume_nothing(client: FakeClient) -> None:
    join(client, "a")
    assert ask(client, "stranger") == []


def test_a_group_without_members_or_a_topic_that_is_not_there_leaves_clients_what_they_have(client: FakeClient) -> None:
    assert ask(client, "a") is None
    join(client, "a")
    assert ask(client, "a", topic="ABSENT") is None


def test_a_strategy_that_only_clients_know_is_refused_so_that_they_share_by_themselves(client: FakeClient) -> None:
    join(client, "a")
    answer = client.call(QUERY, body=question(strategyName="CONSISTENT_HASH"))
    assert answer.code != 0
    assert "AVG, AVG_BY_CIRCLE" in answer.remark


def test_members_that_pop_have_all_queues_of_the_broker_group(client: FakeClient) -> None:
    join(client, "a", "b")
    assert set_mode(client) == 0
    assert [ask(client, member) for member in "ab"] == [[("broker-a", -1, "POP")]] * 2
    assert ask(client, "a", strategyName="CONSISTENT_HASH") == [("broker-a", -1, "POP")]
    assert set_mode(client, "PULL") == 0
    assert ask(client, "b") == [("broker-a", 2, "PULL"), ("broker-a", 3, "PULL")]


def test_members_that_pop_have_the_queues_of_as_many_behind_them_as_was_said(client: FakeClient) -> None:
    join(client, "a", "b", "c", "d")
    set_mode(client, share=1)
    assert [queues(client, member) for member in "abcd"] == [[0, 1], [1, 2], [2, 3], [0, 3]]
    assert ask(client, "stranger") == []
    set_mode(client, share=3)
    assert queues(client, "d") == [-1]


def test_with_more_members_than_queues_each_that_pops_has_one(client: FakeClient) -> None:
    join(client, *"abcdef")
    set_mode(client, share=1)
    assert [queues(client, member) for member in "abcdef"] == [[0], [1], [2], [3], [0], [1]]


def test_the_default_mode_is_configured_and_not_that_of_retry_topics(make_broker: MakeBroker) -> None:
    broker = make_broker(topics=("T1", "%RETRY%CG"), default_request_mode="pop")
    client = broker.client()
    join(client, "a")
    assert ask(client) == [("broker-a", -1, "POP")]
    assert ask(client, topic="%RETRY%CG")[0][2] == "PULL"


def test_a_topic_that_may_not_be_read_has_no_queues(client: FakeClient) -> None:
    join(client, "a")
    client.broker.memory.machine.proposals.put_topic(TopicConfig("WRITE_ONLY", perm=2), lambda _: None)
    client.broker.settle()
    assert ask(client, topic="WRITE_ONLY") == []


class Names:
    """Name servers that answer when a test has them answer."""

    def __init__(self, broker: ServedBroker) -> None:
        self.waiting: list[Found] = []
        broker.service.topic_routes.attach(lambda _topic, found: self.waiting.append(found))


def test_queues_of_other_broker_groups_count_as_name_servers_tell_and_own_ones_as_they_are(client: FakeClient) -> None:
    names = Names(client.broker)
    join(client, "a", "b")
    opaque = client.send(QUERY, body=question("b"))
    client.broker.settle()
    assert not client.has_answer(opaque)
    names.waiting.pop()(route(("broker-b", 2, 6), ("broker-c", 8, 2)))
    client.broker.settle()
    answer = assigned(client.answered(opaque))
    assert answer == [("broker-a", 3, "PULL"), ("broker-b", 0, "PULL"), ("broker-b", 1, "PULL")]


def test_while_other_broker_groups_are_not_known_clients_go_on_with_what_they_have(client: FakeClient) -> None:
    names = Names(client.broker)
    join(client, "a")
    opaque = client.send(QUERY, body=question())
    names.waiting.pop()(None)
    client.broker.settle()
    assert assigned(client.answered(opaque)) is None


def test_a_node_that_no_longer_leads_when_the_route_is_known_takes_no_queues_away(client: FakeClient) -> None:
    names = Names(client.broker)
    join(client, "a")
    opaque = client.send(QUERY, body=question())
    client.broker.group.on_leadership(Leadership(2, "n2", is_leader=False, ready=False))
    names.waiting.pop()(route())
    client.broker.advance(5)
    assert assigned(client.answered(opaque)) is None


@pytest.mark.parametrize("leader", [None, "n2"])
def test_a_node_that_does_not_lead_answers_before_clients_give_up(client: FakeClient, leader: str | None) -> None:
    join(client, "a")
    client.broker.group.on_leadership(Leadership(2, leader, is_leader=False, ready=False))
    opaque = client.send(QUERY, body=question())
    client.broker.settle()
    assert client.has_answer(opaque) == (leader is None)
    if leader is None:
        assert assigned(client.answered(opaque)) is None
    assert UNANSWERED_S < 3


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        question(topic=""),
        question(topic="a b"),
        question(topic="SCHEDULE_TOPIC_XXXX"),
        question(consumerGroup=""),
        question(messageModel="x"),
        question(""),
        question("x" * 1_025),
    ],
)
def test_questions_that_mean_nothing_are_refused_with_a_text(client: FakeClient, body: bytes) -> None:
    answer = client.call(QUERY, body=body)
    assert answer.code != 0
    assert answer.remark

"""Pops in order: a queue waits for what its group has of it, and gives that again first."""

from __future__ import annotations

import pytest
from served_broker import FakeClient, ServedBroker, pull_ext, records

from tests.broker.features.pop.pop_calls import (
    FOUND,
    HIDDEN_S,
    NOTHING,
    POP,
    Popped,
    ack,
    ask,
    committed,
    hide,
    messages,
    pop,
    pop_ext,
    table_of,
    wait,
    with_group,
    with_revivals,
)


@pytest.fixture
def broker(broker: ServedBroker) -> ServedBroker:
    return with_revivals(with_group(broker))


def in_order(client: FakeClient, count: int = 32, **fields: str) -> list[Popped]:
    return pop(client, order="true", maxMsgNums=str(count), **fields)


def bodies(popped: list[Popped]) -> list[bytes]:
    return [message.body for message in popped]


@pytest.fixture
def five(client: FakeClient) -> FakeClient:
    """A client, and five messages in one queue."""
    for number in range(5):
        client.send_message("T1", b"%d" % number)
    return client


def test_a_queue_is_blocked_until_all_that_was_popped_is_done_with(five: FakeClient) -> None:
    first = in_order(five, 2)
    assert (bodies(first), first[0].point.is_ordered) == ([b"0", b"1"], True)
    assert in_order(five) == []
    assert ack(five, first[0]) == FOUND
    assert in_order(five) == []
    assert ack(five, first[1]) == FOUND
    assert bodies(in_order(five)) == [b"2", b"3", b"4"]


def test_other_queues_are_not_blocked(five: FakeClient) -> None:
    in_order(five, 2)
    five.send_message("T1", b"other", 1)
    assert bodies(in_order(five)) == [b"other"]


def test_what_is_not_done_with_comes_again_in_its_queue_before_what_follows(
    broker: ServedBroker, five: FakeClient
) -> None:
    first = in_order(five, 3)
    assert ack(five, first[1]) == FOUND
    wait(broker, HIDDEN_S + 1)
    answer = ask(five, POP, pop_ext(order="true", maxMsgNums="1"))
    again = messages(answer)
    assert bodies(again) == [b"0", b"2"]
    assert answer.ext["orderCountInfo"] == "0 0 1"
    assert in_order(five) == []
    assert [ack(five, message) for message in again] == [FOUND, FOUND]
    assert committed(broker) == 3
    assert bodies(in_order(five)) == [b"3", b"4"]


def test_a_pop_that_is_repeated_because_its_answer_was_lost_gets_the_same(five: FakeClient) -> None:
    first = in_order(five, 2, attemptId="attempt-1")
    again = in_order(five, 2, attemptId="attempt-1")
    assert bodies(again) == bodies(first) == [b"0", b"1"]
    assert ack(five, first[0]) != FOUND
    assert [ack(five, message) for message in again] == [FOUND, FOUND]


def test_a_waiting_pop_gets_what_follows_once_the_queue_is_free(five: FakeClient) -> None:
    first = in_order(five, 4)
    waiting = five.send(POP, pop_ext(order="true", pollTime="15000"))
    for message in first:
        assert not five.has_answer(waiting)
        ack(five, message)
    assert bodies(messages(five.answered(waiting))) == [b"4"]


def test_a_waiting_pop_gets_what_comes_again(broker: ServedBroker, five: FakeClient) -> None:
    in_order(five, 2, invisibleTime="5000")
    waiting = five.send(POP, pop_ext(order="true", pollTime="15000"))
    wait(broker, 4.5)
    assert not five.has_answer(waiting)
    wait(broker, 1.5)
    assert bodies(messages(five.answered(waiting))) == [b"0", b"1"]


def test_a_message_that_is_hidden_anew_blocks_the_queue_for_so_long(broker: ServedBroker, five: FakeClient) -> None:
    first, second = in_order(five, 2)
    hide(five, first, 5)
    ack(five, second)
    assert in_order(five) == []
    wait(broker, 6)
    assert bodies(in_order(five)) == [b"0"]


def test_what_came_too_often_is_a_dead_letter_and_blocks_nothing(broker: ServedBroker, five: FakeClient) -> None:
    with_group(broker, retry_max_times=1)
    for _ in range(2):
        assert bodies(in_order(five, 1)) == [b"0"]
        wait(broker, HIDDEN_S + 1)
    assert bodies(in_order(five, 1)) == [b"1"]
    assert [record.body for record in records(ask(five, 11, pull_ext("%DLQ%CG")))] == [b"0"]
    assert table_of(broker).open_count == 1


def test_a_pop_takes_nothing_of_a_queue_while_another_one_is_in_flight(five: FakeClient) -> None:
    """1. Both come in one turn. 2. The second is chosen before the first is applied: it would get what follows."""
    asked = [five.send(POP, pop_ext(order="true", maxMsgNums="2")) for _ in range(2)]
    five.broker.settle()
    first, second = map(five.answered, asked)
    assert (bodies(messages(first)), second.code) == ([b"0", b"1"], NOTHING)

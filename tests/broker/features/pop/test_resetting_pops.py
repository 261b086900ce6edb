"""Resets of popped queues: commits (15) that say so."""

from __future__ import annotations

import pytest
from served_broker import FakeClient, ServedBroker

from tests.broker.features.pop.pop_calls import (
    ACK,
    FOUND,
    NO_MESSAGE,
    POP,
    ack,
    ack_ext,
    committed,
    messages,
    pop,
    pop_ext,
    table_of,
    with_group,
)

COMMIT = 15


@pytest.fixture
def broker(broker: ServedBroker) -> ServedBroker:
    return with_group(broker)


def _ext(offset: int) -> dict[str, str]:
    return {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": str(offset), "reset": "true"}


def reset(client: FakeClient, offset: int) -> int:
    return client.call(COMMIT, _ext(offset)).code


@pytest.fixture
def four(client: FakeClient) -> FakeClient:
    for number in range(4):
        client.send_message("T1", b"%d" % number)
    return client


def test_a_group_goes_on_at_another_offset_and_what_it_has_popped_is_over(
    broker: ServedBroker, four: FakeClient
) -> None:
    popped = pop(four)
    assert ack(four, popped[0]) == FOUND
    assert (reset(four, 2), committed(broker), table_of(broker).ended) == (FOUND, 2, 3)
    assert [ack(four, message) for message in popped] == [NO_MESSAGE] * 4
    assert [message.body for message in pop(four)] == [b"2", b"3"]


def test_a_waiting_pop_gets_what_there_is_again(four: FakeClient) -> None:
    pop(four)
    waiting = four.send(POP, pop_ext(pollTime="15000"))
    assert reset(four, 3) == FOUND
    assert [message.body for message in messages(four.answered(waiting))] == [b"3"]


def test_acknowledgements_of_the_same_turn_count_before_it(broker: ServedBroker, four: FakeClient) -> None:
    popped = pop(four, maxMsgNums="1")
    acked = four.send(ACK, ack_ext(popped[0]))
    assert reset(four, 0) == FOUND
    assert four.answered(acked).code == FOUND
    assert table_of(broker).ended == 0
    assert next(message.body for message in pop(four)) == b"0"


def test_in_a_queue_that_the_group_does_not_pop_it_is_a_commit(broker: ServedBroker, four: FakeClient) -> None:
    commit = four.send(COMMIT, _ext(2))
    broker.advance(1)
    assert (four.answered(commit).code, committed(broker)) == (FOUND, 2)


def test_a_commit_that_does_not_say_so_resets_nothing(broker: ServedBroker, four: FakeClient) -> None:
    pop(four)
    commit = four.send(COMMIT, _ext(2) | {"reset": "false"})
    broker.advance(1)
    assert (four.answered(commit).code, committed(broker), table_of(broker).ended) == (FOUND, 0, 0)

"""Pops in order: a queue waits until its group is done with what it has, and gives that again first."""

import pytest

from dledger.errors import NotLeaderError
from dledger_broker.features.pop import counts as order_counts
from dledger_broker.features.pop.commands import PopQueueKey
from dledger_broker.features.pop.counts import OrderedCounts
from dledger_broker.features.pop.requests import PopRequests
from tests.broker.features.pop.pop_calls import FOUND, NOTHING, POP, Popped, Popper, bodies, messages, numbers, pop_ext


class OrderedPopper(Popper):
    """Client that pops in order."""

    def in_order(self, count: int = 32, **fields: str) -> list[Popped]:
        return self.pop(order="true", maxMsgNums=str(count), **fields)

    def in_order_bodies(self, count: int = 32) -> list[bytes]:
        return bodies(self.in_order(count))

    def counts(self, count: int, **fields: str) -> dict[int, int]:
        """Pop in order; how often each message was delivered before, by its offset, as Java's client reads it."""
        answer = self.ask_pop(order="true", maxMsgNums=str(count), **fields)
        told = [text.split(" ") for text in answer.ext.get("orderCountInfo", "").split(";") if text]
        by_key = {key: int(number) for _, key, number in told}
        offsets = [message.point.queue_offset for message in messages(answer)]
        return {offset: by_key.get(f"qo0%{offset}", by_key.get("0", 0)) for offset in offsets}

    def ack_all(self, *popped: Popped) -> None:
        """Acknowledge messages of current deliveries."""
        assert [self.ack(message) for message in popped] == [FOUND] * len(popped)

    def forget_counts(self) -> None:
        """Have the node forget what only a leader knows, as the next leader does not know it."""
        for forget in self.broker.memory.machine.events.unready:
            forget(NotLeaderError(None, 1))

    def dead_bodies(self) -> list[bytes]:
        return [letter.body for letter in self.dead_letters()]


@pytest.fixture
def five(client: Popper) -> OrderedPopper:
    """Store five messages in one queue, and return a client."""
    client.store(*numbers(5))
    return OrderedPopper(client.broker)


def test_an_ordered_queue_is_blocked_until_all_popped_messages_are_acknowledged(five: OrderedPopper) -> None:
    first = five.in_order(2)
    assert (bodies(first), first[0].point.is_ordered) == ([b"0", b"1"], True)
    for message in first:
        assert five.in_order() == []
        five.ack_all(message)
    assert five.in_order_bodies() == numbers(3, 2)


def test_an_ordered_pop_continues_in_memory_behind_the_messages_in_files(five: OrderedPopper) -> None:
    """Otherwise those in memory would wait until the first are done with (`BatchAckIT#testBatchAckOrderly`)."""
    five.wait(6)
    five.store(*numbers(3, 5))
    assert five.in_order_bodies() == numbers(8)


def test_each_message_counts_its_own_ordered_deliveries(five: OrderedPopper) -> None:
    """A message behind a redelivered message has its own count, as in RocketMQ's `ConsumerOrderInfoManager`."""
    counted = []
    for count in (3, 4, 5, 5):
        counted.append(five.counts(count))
        five.wait()
    assert counted == [
        {0: 0, 1: 0, 2: 0},
        {0: 1, 1: 1, 2: 1, 3: 0},
        {0: 2, 1: 2, 2: 2, 3: 1, 4: 0},
        {0: 3, 1: 3, 2: 3, 3: 2, 4: 1},
    ]


def test_old_clients_that_read_the_count_of_a_queue_get_the_lowest_count(five: OrderedPopper) -> None:
    five.in_order(3)
    five.wait()
    answer = five.ask_pop(order="true", maxMsgNums="4")
    assert answer.ext["orderCountInfo"] == "0 0 0;0 qo0%0 1;0 qo0%1 1;0 qo0%2 1"


def test_what_was_acknowledged_and_comes_again_was_given_before(five: OrderedPopper) -> None:
    """The second of three messages comes again, and the last, which was acknowledged, behind it."""
    first = five.in_order(3)
    five.ack_all(first[0], first[2])
    five.wait()
    assert five.counts(3) == {1: 1, 2: 1, 3: 0}


def test_what_the_pop_before_did_not_give_is_counted_anew(five: OrderedPopper) -> None:
    five.in_order(3)
    five.wait()
    assert five.counts(1) == {0: 1}
    five.wait()
    assert five.counts(3) == {0: 2, 1: 0, 2: 0}


def test_a_message_that_is_hidden_anew_is_counted_with_the_others(five: OrderedPopper) -> None:
    five.in_order(2)
    five.wait()
    again = five.in_order(3)
    five.hide(again[1], 5)
    five.ack_all(again[0], again[2])
    five.wait(6)
    assert five.counts(4) == {1: 2, 2: 1, 3: 0, 4: 0}


def test_a_pop_that_is_repeated_counts_as_no_delivery(five: OrderedPopper) -> None:
    five.in_order(2)
    five.wait()
    assert five.counts(3, attemptId="a") == {0: 1, 1: 1, 2: 0}
    assert five.counts(4, attemptId="a") == {0: 1, 1: 1, 2: 0, 3: 0}


def test_a_new_leader_counts_no_message_too_often(five: OrderedPopper) -> None:
    for _ in range(2):
        five.in_order(2)
        five.wait()
    five.forget_counts()
    assert five.counts(3) == {0: 1, 1: 1, 2: 0}
    five.wait()
    assert five.counts(3) == {0: 2, 1: 2, 2: 1}


def test_a_new_leader_does_not_count_the_attempts_of_another_message(five: OrderedPopper) -> None:
    """A message that is hidden anew keeps the attempts of the first message of its delivery."""
    five.in_order(1)
    five.wait()
    first, second = five.in_order(2)
    five.hide(second, 5)
    five.ack_all(first)
    five.wait(6)
    five.forget_counts()
    assert five.counts(2) == {1: 1, 2: 0}


def test_what_is_done_with_is_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch, five: OrderedPopper) -> None:
    monkeypatch.setattr(order_counts, "FEW_QUEUES", 1)
    told = OrderedCounts(five.broker.service.parts[PopRequests].changes)
    told.note(PopQueueKey("CG", "T1", 7), (3,), (1,))
    five.in_order(2)
    told.note(PopQueueKey("CG", "T1", 0), (0, 1), (1, 1))
    assert list(told._last_counts) == [PopQueueKey("CG", "T1", 0)]


def test_other_queues_are_not_blocked(five: OrderedPopper) -> None:
    five.in_order(2)
    five.store(b"other", queue_id=1)
    assert five.in_order_bodies() == [b"other"]


def test_an_ordered_pop_redelivers_from_the_first_unacknowledged_message(five: OrderedPopper) -> None:
    """RocketMQ 5.3.3's `BatchAckIT#testBatchAckOrderly`: a pop in order begins again at the committed offset."""
    first = five.in_order(3)
    five.ack_all(first[0], first[2])
    assert five.committed() == 1
    five.wait()
    again = five.in_order(3)
    assert bodies(again) == numbers(3, 1), "2 although it was acknowledged, 3 although it was not popped before"
    assert five.in_order() == []
    five.ack_all(*again)
    assert five.committed() == 4
    assert five.in_order_bodies() == [b"4"]


def test_a_smaller_ordered_redelivery_leaves_the_other_messages_for_the_next_pop(five: OrderedPopper) -> None:
    five.in_order(3)
    five.wait()
    [head] = five.in_order(1)
    assert (head.body, five.in_order()) == (b"0", [])
    five.ack_all(head)
    assert five.in_order_bodies() == numbers(4, 1)


def test_nothing_behind_a_hidden_message_is_shown(five: OrderedPopper) -> None:
    """RocketMQ 5.3.3 tests this in `PopOrderlyIT#testPopMessageOrderlyThenChangeInvisibleTimeMidMessage`."""
    first = five.in_order(3, invisibleTime="5000")
    five.ack_all(first[0])
    _, middle = five.hide(first[1], 30)
    five.wait(6)
    assert five.in_order() == [], "2 is visible, and 1 before it is not"
    five.wait(25)
    again = five.in_order()
    assert bodies(again) == numbers(4, 1)
    assert five.ack(middle) != FOUND
    five.ack_all(*again)
    assert (five.committed(), five.table.open_count) == (5, 0)
    five.wait()
    assert five.in_order() == [], "nothing is left of the deliveries before"


def test_an_ordered_pop_repeated_with_its_attempt_id_gets_the_same_messages(five: OrderedPopper) -> None:
    first, again = (five.in_order(2, attemptId="attempt-1") for _ in range(2))
    assert bodies(again) == bodies(first) == [b"0", b"1"]
    assert five.ack(first[0]) != FOUND
    five.ack_all(*again)


def test_a_repeated_attempt_gets_its_messages_of_all_queues_whatever_has_arrived_since(client: Popper) -> None:
    """The repetition comes from another connection, and new messages lie in all queues."""
    for queue_id in range(3):
        client.store(b"a%d" % queue_id, b"b%d" % queue_id, queue_id=queue_id)
    first = OrderedPopper(client.broker).in_order(4, attemptId="attempt-1")
    assert len(first) == 4
    for queue_id in range(4):
        client.store(b"new", queue_id=queue_id)
    for _ in range(5):
        again = OrderedPopper(client.broker, "client/9").in_order(4, attemptId="attempt-1")
        assert sorted(bodies(again)) == sorted(bodies(first))
    other = OrderedPopper(client.broker).in_order(attemptId="attempt-2")
    assert not set(bodies(first)) & set(bodies(other))


def test_a_waiting_ordered_pop_gets_the_next_messages_once_the_queue_is_free(five: OrderedPopper) -> None:
    first = five.in_order(4)
    waiting = five.begin_pop(order="true")
    for message in first:
        assert not five.has_answer(waiting)
        five.ack(message)
    assert five.popped(waiting) == [b"4"]


def test_a_waiting_pop_gets_redelivered_messages(five: OrderedPopper) -> None:
    five.in_order(2, invisibleTime="5000")
    waiting = five.begin_pop(order="true")
    five.wait(4.5)
    assert not five.has_answer(waiting)
    five.wait(1.5)
    assert five.popped(waiting) == numbers(5)


@pytest.mark.parametrize("hidden_anew", [False, True])
def test_an_ordered_message_out_of_retries_becomes_a_dead_letter_and_blocks_nothing(
    five: OrderedPopper, hidden_anew: bool
) -> None:
    five.broker.put_group(retry_max_times=1)
    for _ in range(2):
        (popped,) = five.in_order(1)
        assert popped.body == b"0"
        if hidden_anew:
            five.hide(popped, 5)
        five.wait()
    assert five.in_order_bodies(1) == [b"1"]
    assert five.dead_bodies() == [b"0"]
    assert five.table.open_count == 1


def test_messages_behind_a_dead_letter_get_their_full_number_of_attempts(five: OrderedPopper) -> None:
    five.broker.put_group(retry_max_times=1)
    for expected in (numbers(3), numbers(3), numbers(2, 1), numbers(2, 1)):
        assert five.in_order_bodies(len(expected)) == expected
        five.wait()
    assert five.in_order_bodies() == numbers(3, 2)
    assert five.dead_bodies() == [b"0", b"1"]


def test_an_ordered_pop_takes_nothing_while_another_pop_of_the_queue_is_in_flight(five: OrderedPopper) -> None:
    """The second of two pops in one turn is chosen before the first is applied, and would get what follows."""
    asked = [five.send(POP, pop_ext(order="true", maxMsgNums="2")) for _ in range(2)]
    five.broker.settle()
    assert (five.popped(asked[0]), five.answered(asked[1]).code) == ([b"0", b"1"], NOTHING)

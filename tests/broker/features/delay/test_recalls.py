"""Recalls (370): a delayed message is taken back and never delivered, or the answer says that it is too late."""

from collections.abc import Callable

import pytest
from served_broker import FakeClient, ServedBroker

from dledger.errors import NotLeaderError
from dledger_broker.features.delay.recalls import Recalls
from dledger_broker.testing.environment import START_MS
from dledger_remoting.codes import ResponseCode
from dledger_remoting.recalls import RecallHandle
from dledger_sim.brokers.schedules.pops import codes
from tests.broker.features.delay.delayed_brokers import Delayed, pending, recall, trim

DUE_MS = START_MS + 60_000
DELAYED = f"UNIQ_KEY\x01K1\x02TIMER_DELIVER_MS\x01{DUE_MS}\x02"


@pytest.fixture
def handle(client: FakeClient) -> str:
    """Return the recall handle of a message that waits, whose key is K1."""
    return client.send_message("T1", b"later", i=DELAYED).ext["recallHandle"]


def test_a_message_without_a_key_is_recalled_by_the_key_of_the_broker(broker: ServedBroker, client: FakeClient) -> None:
    sent = client.send_message("T1", b"later", i="TIMER_DELAY_MS\x0160000\x02")
    answer = recall(client, sent.ext["recallHandle"])
    assert (answer.code, answer.ext["msgId"]) == (0, sent.ext["transactionId"])
    assert pending(broker) == 0


def test_a_recall_removes_every_pending_message_with_its_key(client: FakeClient, handle: str) -> None:
    """A send of unknown outcome may be repeated."""
    assert client.send_message("T1", b"later", i=DELAYED).ext["recallHandle"] == handle
    client.send_message("T1", b"another", i=DELAYED.replace("K1", "K2"))
    assert recall(client, handle).code == 0
    assert pending(client.broker) == 1


def test_a_recall_handle_of_another_topic_is_refused(client: FakeClient, handle: str) -> None:
    answer = recall(client, RecallHandle.decode(handle)._replace(topic="T2").encode())
    assert (answer.code, "topic not match" in (answer.remark or "")) == (ResponseCode.ILLEGAL_OPERATION, True)
    assert pending(client.broker) == 1


def test_only_a_confirmed_leader_answers_that_no_message_is_pending(
    client: FakeClient, handle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that was deposed unknowingly may lack the send."""
    monkeypatch.setattr(client.broker.memory.node, "read_index", lambda told: told(NotLeaderError(None, 2)))
    answer = recall(client, RecallHandle.decode(handle)._replace(unique_key="K9").encode())
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_message_in_a_retry_topic_cannot_be_recalled(broker: ServedBroker, client: FakeClient) -> None:
    client.send_message("%RETRY%G", b"again", i=DELAYED)
    handle = RecallHandle("%RETRY%G", broker.config.broker_group, DUE_MS, "K1").encode()
    assert recall(client, handle, "%RETRY%G").code == ResponseCode.ILLEGAL_OPERATION
    assert pending(broker) == 1


def test_a_message_recalled_through_any_node_is_never_delivered(delayed: Delayed) -> None:
    nodes = list(delayed.group.nodes)
    recalled = [delayed.send_with_handle(2_000, node) for node in nodes]
    kept, _ = delayed.send_with_handle(2_000)
    answers = [delayed.begin_recall(*one, node) for one, node in zip(recalled, nodes, strict=True)]
    delayed.run(4.0)
    assert [codes(one) for one in answers] == [[0], [0], [0]]
    assert delayed.is_delivered(kept)
    assert delayed.delivered(*(operation for operation, _ in recalled)) == {False}
    assert delayed.waiting == [0, 0, 0]


def test_delivered_messages_cannot_be_recalled_as_the_next_leader_knows_too(delayed: Delayed) -> None:
    recalled, delivered = delayed.send_with_handle(60_000), delayed.send_with_handle(1_000)
    assert delayed.recall(*recalled, wait_s=2.0) == 0
    assert delayed.is_delivered(delivered[0])
    assert delayed.recall(*delivered) == ResponseCode.ILLEGAL_OPERATION
    delayed.kill_leader()
    delayed.run(3.0)
    assert [delayed.recall(*recalled), delayed.recall(*delivered)] == [0, ResponseCode.ILLEGAL_OPERATION]


def test_a_recall_that_meets_the_delivery_is_too_late(delayed: Delayed) -> None:
    """The message is due, and its copy is in flight to slow followers."""
    operation, handle = delayed.send_with_handle(1_000)
    delayed.slow_followers()
    delayed.run(0.75)
    assert not delayed.is_delivered(operation)
    assert delayed.recall(operation, handle, wait_s=0.2) == ResponseCode.ILLEGAL_OPERATION
    delayed.run(5.0)
    assert delayed.is_delivered(operation)


def test_a_recall_that_meets_a_move_waits_and_finds_the_message_at_its_new_place(delayed: Delayed) -> None:
    """The recall finds the message at its old place, and the move is applied then."""
    operation, handle = delayed.send_with_handle(30_000)
    delayed.fill_log()
    trim(delayed)
    delayed.slow_followers(0.4)
    while not delayed.in_flight.moves:
        delayed.run(0.01)
    answers = delayed.begin_recall(operation, handle)
    delayed.run(0.1)
    assert answers == []
    delayed.run(3.0)
    assert codes(answers) == [0]
    assert delayed.happened["row moved"] == 1
    delayed.run(30.0)
    assert not delayed.is_delivered(operation)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Return the looks at what waits that recalls begin once they have found a record. A test lets them go on."""
    held: list[Callable[[], None]] = []
    look = Recalls._check_pending
    monkeypatch.setattr(Recalls, "_check_pending", lambda *args: held.append(lambda: look(*args)))
    return held


def test_a_recall_finds_a_message_moved_during_the_search(delayed: Delayed, looks: list[Callable[[], None]]) -> None:
    """Twice, nothing waits any more where the record was found: a confirmed leader looks again."""
    operation, handle = delayed.send_with_handle(60_000)
    answers = delayed.begin_recall(operation, handle, timeout_s=60.0)
    for moves in (1, 2):
        delayed.fill_log()
        trim(delayed)
        delayed.run(3.0)
        assert delayed.happened["row moved"] == moves
        looks.pop()()
        delayed.run(0.5)
    assert answers == []
    looks.pop()()
    delayed.run(1.0)
    assert codes(answers) == [0]
    delayed.run(60.0)
    assert not delayed.is_delivered(operation)


def test_a_recall_of_a_delivered_message_trimmed_during_the_search_is_refused(
    delayed: Delayed, looks: list[Callable[[], None]]
) -> None:
    """A trim takes the record and its copy, and no copy is found in the topic. The message was not taken back."""
    operation, handle = delayed.send_with_handle(1_000)
    delayed.run(2.0)
    assert delayed.is_delivered(operation)
    answers = delayed.begin_recall(operation, handle, timeout_s=60.0)
    delayed.run(0.5)
    looks.pop()()  # the leader is confirmed before it believes that nothing waits, and looks once more
    delayed.run(0.5)
    delayed.fill_log()
    position = trim(delayed)
    delayed.run(3.0)
    assert delayed.first_position >= position
    looks.pop()()
    delayed.run(1.0)
    assert codes(answers) == [ResponseCode.ILLEGAL_OPERATION]


def test_a_recall_of_unknown_outcome_may_be_repeated(delayed: Delayed) -> None:
    operation, handle = delayed.send_with_handle(20_000)
    delayed.slow_followers(0.2)
    answers = delayed.begin_recall(operation, handle)
    delayed.run(0.05)
    assert answers == []
    delayed.kill_leader()
    delayed.run(4.0)
    assert delayed.recall(operation, handle, wait_s=4.0) == 0
    delayed.run(16.0)
    assert not delayed.is_delivered(operation)

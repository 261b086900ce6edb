"""Recalls (370): a delayed message is taken back, and then never delivered, or it is too late and says so."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable

import pytest
from served_broker import FakeClient, ServedBroker

from dledger.errors import NotLeaderError
from dledger_broker.features.delay.messages import DueMessages
from dledger_broker.features.delay.recalls import Recalls
from dledger_broker.features.delay.table import TIMERS
from dledger_broker.testing.environment import START_MS
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.recalls import RecallHandle
from dledger_sim.brokers.connection import Answer
from dledger_sim.log.registers import leading
from tests.broker.features.delay.delayed_brokers import Delayed
from tests.broker.features.delay.test_moved_messages import trim

DUE_MS = START_MS + 60_000
DELAYED = f"UNIQ_KEY\x01K1\x02TIMER_DELIVER_MS\x01{DUE_MS}\x02"


def recall(client: FakeClient, handle: str, topic: str = "T1") -> RemotingCommand:
    """Ask for a message back, once the time index has what is applied; nothing else runs here."""
    broker = client.broker
    follower = broker.service.parts[DueMessages].index.rows.follower
    asyncio.run(broker.memory.env.finish(follower.fold()))
    return client.call_from_disk(RequestCode.RECALL_MESSAGE, {"topic": topic, "recallHandle": handle})


def pending(broker: ServedBroker) -> int:
    return broker.memory.machine.state.table(TIMERS).total.rows


def code(answers: list[Answer | None]) -> int:
    (answer,) = answers
    assert answer is not None
    return answer.code


# ---------------------------------------------------------------- handles


def test_the_answer_to_a_delayed_send_has_the_handle_that_rocketmqs_has(
    broker: ServedBroker, client: FakeClient
) -> None:
    handle = client.send_message("T1", b"later", i=DELAYED).ext["recallHandle"]
    group = broker.config.broker_group
    assert base64.urlsafe_b64decode(handle).decode() == f"v1 T1 {group} {DUE_MS + 1} K1"


@pytest.mark.parametrize("properties", ["", "DELAY\x013\x02"])
def test_what_rocketmq_gives_no_handle_for_gets_none(client: FakeClient, properties: str) -> None:
    assert "recallHandle" not in client.send_message("T1", b"now", i=properties).ext


def test_a_message_without_a_key_is_recalled_by_the_one_that_the_broker_made(
    broker: ServedBroker, client: FakeClient
) -> None:
    sent = client.send_message("T1", b"later", i="TIMER_DELAY_MS\x0160000\x02")
    answer = recall(client, sent.ext["recallHandle"])
    assert (answer.code, answer.ext["msgId"]) == (0, sent.ext["transactionId"])
    assert pending(broker) == 0


# ---------------------------------------------------------------- answers


def test_what_is_taken_back_waits_no_more_and_may_be_asked_for_again(broker: ServedBroker, client: FakeClient) -> None:
    handle = client.send_message("T1", b"later", i=DELAYED).ext["recallHandle"]
    for _ in range(2):
        answer = recall(client, handle)
        assert (answer.code, answer.ext["msgId"]) == (0, "K1")
        assert pending(broker) == 0


def test_all_that_waits_under_the_key_is_taken_back(broker: ServedBroker, client: FakeClient) -> None:
    """An attempt of unknown outcome was repeated."""
    first, second = (client.send_message("T1", b"later", i=DELAYED).ext["recallHandle"] for _ in range(2))
    assert first == second
    client.send_message("T1", b"another", i=DELAYED.replace("K1", "K2"))
    assert recall(client, first).code == 0
    assert pending(broker) == 1


@pytest.mark.parametrize(
    ("change", "topic", "expected", "text"),
    [
        ({"topic": "T2"}, "T1", ResponseCode.ILLEGAL_OPERATION, "topic not match"),
        ({"broker_group": "other"}, "T1", ResponseCode.ILLEGAL_OPERATION, "broker service not available"),
        ({"unique_key": "K9"}, "T1", ResponseCode.ILLEGAL_OPERATION, "no message with the unique key K9 waits here"),
        ({}, "T9", ResponseCode.TOPIC_NOT_EXIST, "topic[T9] not exist"),
    ],
)
def test_a_handle_of_something_else_is_refused_with_a_text(
    broker: ServedBroker, client: FakeClient, change: dict[str, str], topic: str, expected: int, text: str
) -> None:
    handle = RecallHandle.decode(client.send_message("T1", b"later", i=DELAYED).ext["recallHandle"])
    answer = recall(client, handle._replace(**change).encode(), topic)
    assert answer.code == expected
    assert text in (answer.remark or "")
    assert pending(broker) == 1


def test_that_nothing_waits_is_said_by_a_confirmed_leader_only(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that was deposed unknowingly may lack the send."""
    handle = RecallHandle.decode(client.send_message("T1", b"later", i=DELAYED).ext["recallHandle"])
    monkeypatch.setattr(broker.memory.node, "read_index", lambda told: told(NotLeaderError(None, 2)))
    answer = recall(client, handle._replace(unique_key="K9").encode())
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_what_was_sent_back_is_not_taken_back(broker: ServedBroker, client: FakeClient) -> None:
    client.send_message("%RETRY%G", b"again", i=DELAYED)
    handle = RecallHandle("%RETRY%G", broker.config.broker_group, DUE_MS, "K1").encode()
    assert recall(client, handle, "%RETRY%G").code == ResponseCode.ILLEGAL_OPERATION
    assert pending(broker) == 1


# ---------------------------------------------------------------- groups


def test_a_recalled_message_is_never_delivered_whichever_node_is_asked() -> None:
    delayed = Delayed()
    brokers = delayed.brokers
    recalled = [delayed.send_with_handle(2_000) for _ in range(3)]
    kept, _ = delayed.send_with_handle(2_000)
    answers = [delayed.recall(*one, name) for one, name in zip(recalled, brokers.group.nodes, strict=True)]
    brokers.run(4.0)
    assert [code(one) for one in answers] == [0, 0, 0]
    assert delayed.is_delivered(kept)
    assert not any(delayed.is_delivered(operation) for operation, _ in recalled)
    assert [table.total.rows for table in delayed.tables()] == [0, 0, 0]


def test_it_is_too_late_for_a_message_that_was_delivered() -> None:
    delayed = Delayed()
    operation, handle = delayed.send_with_handle(1_000)
    delayed.brokers.run(2.0)
    assert delayed.is_delivered(operation)
    answers = delayed.recall(operation, handle)
    delayed.brokers.run(1.0)
    assert code(answers) == ResponseCode.ILLEGAL_OPERATION


def test_the_next_leader_knows_what_was_taken_back_and_what_was_delivered() -> None:
    delayed = Delayed()
    brokers = delayed.brokers
    gone, gone_handle = delayed.send_with_handle(60_000)
    done, done_handle = delayed.send_with_handle(1_000)
    first = delayed.recall(gone, gone_handle)
    brokers.run(2.0)
    assert code(first) == 0
    brokers.group.kill(brokers.leader)
    brokers.run(3.0)
    answers = [delayed.recall(gone, gone_handle), delayed.recall(done, done_handle)]
    brokers.run(1.0)
    assert [code(one) for one in answers] == [0, ResponseCode.ILLEGAL_OPERATION]


def test_a_recall_that_meets_the_delivery_is_too_late() -> None:
    """1. The message is due, its copy is on its way to slow followers. 2. Its producer asks for it back."""
    delayed = Delayed()
    brokers = delayed.brokers
    operation, handle = delayed.send_with_handle(1_000)
    for name in brokers.group.nodes:
        if name != brokers.leader:
            brokers.slow_down_disk(name)
    brokers.run(0.75)
    assert not delayed.is_delivered(operation)
    answers = delayed.recall(operation, handle)
    brokers.run(0.2)
    assert code(answers) == ResponseCode.ILLEGAL_OPERATION
    brokers.run(5.0)
    assert delayed.is_delivered(operation)


def test_a_recall_that_meets_a_move_waits_and_finds_the_message_at_its_new_place() -> None:
    """1. The message is about to be moved. 2. The recall finds it where it was. 3. The move is applied."""
    delayed = Delayed()
    brokers = delayed.brokers
    operation, handle = delayed.send_with_handle(30_000)
    delayed.fill_log()
    trim(delayed)
    for name in brokers.group.nodes:
        if name != brokers.leader:
            brokers.slow_down_disk(name, 0.4)
    while not delayed.in_flight.moves:
        brokers.run(0.01)
    answers = delayed.recall(operation, handle)
    brokers.run(0.1)
    assert answers == []
    brokers.run(3.0)
    assert code(answers) == 0
    assert delayed.truth.happened["row moved"] == 1
    brokers.run(30.0)
    assert not delayed.is_delivered(operation)


def test_a_message_that_is_moved_while_it_is_looked_for_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """1. The recall finds the record by its key. 2. The message is moved. 3. Nothing waits where it was found.

    Twice: the leader has itself confirmed before it says that nothing waits, and looks again then.
    """
    delayed = Delayed()
    brokers = delayed.brokers
    operation, handle = delayed.send_with_handle(60_000)
    held: list[Callable[[], None]] = []
    real = Recalls._take_back
    monkeypatch.setattr(Recalls, "_take_back", lambda *args: held.append(lambda: real(*args)))
    answers = delayed.recall(operation, handle, timeout_s=60.0)
    for moves in (1, 2):
        delayed.fill_log()
        trim(delayed)
        brokers.run(3.0)
        assert delayed.truth.happened["row moved"] == moves
        held.pop()()
        brokers.run(0.5)
    assert answers == []
    monkeypatch.setattr(Recalls, "_take_back", real)
    held.pop()()
    brokers.run(1.0)
    assert code(answers) == 0
    brokers.run(60.0)
    assert not delayed.is_delivered(operation)


def test_a_delivered_message_that_is_trimmed_while_it_is_looked_for_was_not_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. The record is found by its key. 2. A trim takes it, and its copy. 3. No copy is found in its topic."""
    delayed = Delayed()
    brokers = delayed.brokers
    operation, handle = delayed.send_with_handle(1_000)
    brokers.run(2.0)
    assert delayed.is_delivered(operation)
    held: list[Callable[[], None]] = []
    real = Recalls._take_back
    monkeypatch.setattr(Recalls, "_take_back", lambda *args: held.append(lambda: real(*args)))
    answers = delayed.recall(operation, handle, timeout_s=60.0)
    brokers.run(0.5)
    held.pop()()  # that nothing waits is confirmed before it is believed, and looked for once more
    brokers.run(0.5)
    delayed.fill_log()
    position = trim(delayed)
    brokers.run(3.0)
    assert leading(brokers.group).replica.store.first_position >= position
    held.pop()()
    brokers.run(1.0)
    assert code(answers) == ResponseCode.ILLEGAL_OPERATION


def test_a_recall_of_unknown_outcome_may_be_repeated() -> None:
    delayed = Delayed()
    brokers = delayed.brokers
    operation, handle = delayed.send_with_handle(20_000)
    for name in brokers.group.nodes:
        if name != brokers.leader:
            brokers.slow_down_disk(name, 0.2)
    answers = delayed.recall(operation, handle)
    brokers.run(0.05)
    assert answers == []
    brokers.group.kill(brokers.leader)
    brokers.run(4.0)
    again = delayed.recall(operation, handle)
    brokers.run(4.0)
    assert code(again) == 0
    brokers.run(16.0)
    assert not delayed.is_delivered(operation)

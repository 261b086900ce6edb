"""Acknowledgements (200051, 200151), changes of invisible times (200053), and resets of popped queues (15)."""

import msgspec
import pytest

from dledger.errors import BusyError
from dledger_broker.features.pop.commands import Ack, PopQueueKey
from dledger_broker.features.pop.requests import PopRequests
from dledger_remoting.codes import ResponseCode
from tests.broker.features.pop.pop_calls import ACK, BATCH_ACK, FOUND, HIDDEN_S, NO_MESSAGE, QUEUE_0, Popper, ack_ext


def test_acknowledgements_of_one_turn_are_one_command(client: Popper) -> None:
    popped, commands = client.store_and_pop(20), client.broker.keep_commands()
    opaques = [client.begin_ack(message) for message in popped]
    client.broker.settle()
    assert [client.answered(opaque).code for opaque in opaques] == [FOUND] * 20
    assert [len(command.rows) for command in commands if isinstance(command, Ack)] == [20]


def test_repeated_acknowledgements_of_a_message_succeed(client: Popper) -> None:
    first, _ = client.store_and_pop(2)
    again = [client.begin_ack(first) for _ in range(3)]
    client.broker.settle()
    assert [client.answered(opaque).code for opaque in again] == [FOUND] * 3
    assert client.ack(first) == FOUND


def test_an_acknowledgement_of_an_ended_delivery_finds_no_message(client: Popper) -> None:
    (message,) = client.store_and_pop(1)
    assert [client.ack(message), client.ack(message)] == [FOUND, NO_MESSAGE]
    other = msgspec.structs.replace(message.point, pop_time_ms=message.point.pop_time_ms + 1)
    assert client.ack(msgspec.structs.replace(message, point=other)) == NO_MESSAGE


def test_a_message_that_is_about_to_come_again_is_not_acknowledged(client: Popper) -> None:
    """Its copy and the end of its delivery are proposed. After an answer 0, it would be delivered all the same."""
    (message,) = client.store_and_pop(1)
    closing = [(PopQueueKey("CG", "T1", 0), message.point.pop_time_ms, 1)]
    changes = client.broker.service.parts[PopRequests].changes
    changes.begin_closing(closing)
    assert (client.ack(message), client.hide(message, 30)[0]) == (NO_MESSAGE, NO_MESSAGE)
    changes.end_closing(closing)
    assert client.ack(message) == FOUND


def test_hiding_a_message_again_replaces_its_check_point(client: Popper) -> None:
    first, second = client.store_and_pop(2)
    code, hidden = client.hide(first, 5 * HIDDEN_S)
    assert (code, hidden.point.pop_time_ms > first.point.pop_time_ms) == (FOUND, True)
    assert (client.ack(first), client.hide(first, 10)[0]) == (NO_MESSAGE, NO_MESSAGE)
    assert client.ack(second) == FOUND
    client.wait(2 * HIDDEN_S)
    assert (client.pop(), client.committed()) == ([], 0)
    assert client.ack(hidden) == FOUND
    assert (client.committed(), client.table.has_deliveries) == (2, False)


def test_a_message_that_is_hidden_for_less_comes_again_sooner(client: Popper) -> None:
    (message,) = client.store_and_pop(1)
    assert client.hide(message, 0)[1].point.invisible_ms == 1_000
    client.wait(2)
    assert [again.reconsume_times for again in client.pop()] == [1]


def test_changes_of_one_turn_have_different_pop_times(client: Popper) -> None:
    popped = client.store_and_pop(3)
    opaques = [client.begin_hide(message, 30) for message in popped]
    client.broker.settle()
    assert len({client.answered(opaque).ext["popTime"] for opaque in opaques}) == 3
    assert client.queue().open_count == 3


def test_a_batch_acknowledges_messages_of_a_delivery(client: Popper) -> None:
    popped = client.store_and_pop(5)
    assert client.batch_ack(popped[0], popped[1], popped[3]) == FOUND
    assert (client.committed(), client.queue().open_count) == (2, 2)
    client.hide(popped[2], 30)
    assert client.batch_ack(popped[0], popped[2], popped[4]) == NO_MESSAGE
    assert (client.committed(), client.queue().open_count) == (2, 1)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", ResponseCode.SYSTEM_ERROR),
        (b"{}", NO_MESSAGE),
        (b'{"acks":[{"c":"CG"}]}', ResponseCode.SYSTEM_ERROR),
        (b'{"acks":[{"c":"CG","t":"T1","r":"7","so":0,"q":0,"pt":1,"b":"AQ=="}]}', ResponseCode.SYSTEM_ERROR),
        (b'{"acks":[{"c":"CG","t":"T1","r":"0","so":0,"q":0,"pt":1,"b":"%%"}]}', ResponseCode.SYSTEM_ERROR),
        (b'{"acks":[{"c":"CG","t":"ABSENT","r":"0","so":0,"q":0,"pt":1,"b":"AQ=="}]}', NO_MESSAGE),
    ],
)
def test_a_batch_that_cannot_be_read_is_refused(client: Popper, body: bytes, code: int) -> None:
    answer = client.call(BATCH_ACK, body=body)
    assert (answer.code, bool(answer.remark)) == (code, True)


def test_a_batch_may_have_the_long_names_of_its_fields(client: Popper) -> None:
    (message,) = client.store_and_pop(1)
    point = message.point
    place = {"consumerGroup": "CG", "topic": "T1", "retry": "0", "startOffset": point.start_offset, "queueId": 0}
    when = {"reviveQueueId": 0, "popTime": point.pop_time_ms, "invisibleTime": point.invisible_ms, "bitSet": "AQ=="}
    body = msgspec.json.encode({"brokerName": "broker-a", "acks": [{**place, **when}]})
    assert client.call(BATCH_ACK, body=body).code == FOUND
    assert client.committed() == 1


@pytest.mark.parametrize("text", ["", "x", "0 0 0 0 0 broker-a 0", "0 -1 0 0 0 broker-a 0 0", "0 1 2 3 9 b 0 0"])
def test_an_invalid_check_point_is_refused(client: Popper, text: str) -> None:
    (message,) = client.store_and_pop(1)
    answer = client.call(ACK, {**ack_ext(message), "extraInfo": text})
    assert answer.code == ResponseCode.INVALID_PARAMETER


def test_acknowledgements_refused_by_a_busy_log_change_nothing(client: Popper, monkeypatch: pytest.MonkeyPatch) -> None:
    (message,) = client.store_and_pop(1)
    with monkeypatch.context() as patch:
        patch.setattr(
            client.broker.memory.machine, "stage_command", lambda _command, done, **_: done(BusyError("busy"))
        )
        assert client.ack(message) == client.hide(message, 30)[0] == ResponseCode.SYSTEM_BUSY
        assert client.pop() == []
    assert client.ack(message) == FOUND


@pytest.fixture
def four(client: Popper) -> Popper:
    """Store four messages in one queue, and return the client."""
    client.store(b"0", b"1", b"2", b"3")
    return client


def reset(client: Popper, offset: int) -> int:
    return client.call(15, {**QUEUE_0, "commitOffset": str(offset), "reset": "true"}).code


def commit(client: Popper, offset: int, **fields: str) -> int:
    """Commit an offset, wait until the commit is applied, and return the code."""
    opaque = client.send(15, {**QUEUE_0, "commitOffset": str(offset), **fields})
    client.broker.advance(1)
    return client.answered(opaque).code


def test_a_reset_moves_a_popping_group_and_ends_its_open_deliveries(four: Popper) -> None:
    popped = four.pop()
    assert four.ack(popped[0]) == FOUND
    assert (reset(four, 2), four.committed(), four.table.ended) == (FOUND, 2, 3)
    assert [four.ack(message) for message in popped] == [NO_MESSAGE] * 4
    assert four.pop_bodies() == [b"2", b"3"]


def test_a_waiting_pop_gets_messages_after_a_reset(four: Popper) -> None:
    four.pop()
    waiting = four.begin_pop()
    assert reset(four, 3) == FOUND
    assert four.popped(waiting) == [b"3"]


def test_acknowledgements_of_the_same_turn_count_before_a_reset(four: Popper) -> None:
    (first,) = four.pop(maxMsgNums="1")
    acked = four.begin_ack(first)
    assert reset(four, 0) == FOUND
    assert four.answered(acked).code == FOUND
    assert four.table.ended == 0
    assert four.pop_bodies()[0] == b"0"


def test_a_reset_of_a_queue_without_pops_is_a_commit(four: Popper) -> None:
    assert (commit(four, 2, reset="true"), four.committed()) == (FOUND, 2)


@pytest.mark.parametrize("fields", [{}, {"reset": "false"}])
def test_a_commit_without_the_reset_flag_has_no_effect_in_a_popped_queue(four: Popper, fields: dict[str, str]) -> None:
    four.pop()
    assert (commit(four, 2, **fields), four.committed(), four.table.ended) == (FOUND, 0, 0)

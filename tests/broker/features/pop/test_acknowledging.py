"""Acknowledgements (200051, 200151) and changes of invisible times (200053)."""

from __future__ import annotations

import msgspec
import pytest
from served_broker import FakeClient, ServedBroker

from dledger.errors import BusyError
from dledger_broker.features.pop.commands import Ack, PopQueueKey
from dledger_broker.features.pop.requests import PopRequests
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.contexts import Done
from dledger_remoting.codes import ResponseCode
from tests.broker.features.pop.pop_calls import (
    ACK,
    BATCH_ACK,
    CHANGE,
    FOUND,
    HIDDEN_S,
    NO_MESSAGE,
    ack,
    ack_ext,
    batch_ack,
    committed,
    hide,
    pop,
    queue_of,
    table_of,
    wait,
    with_group,
    with_revivals,
)


@pytest.fixture
def broker(broker: ServedBroker) -> ServedBroker:
    return with_revivals(with_group(broker))


@pytest.fixture
def staged(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """The commands that are proposed."""
    commands: list[Command] = []
    machine = broker.memory.machine
    stage = machine.stage_command

    def keep(command: Command, done: Done, *, privileged: bool = False) -> None:
        commands.append(command)
        stage(command, done, privileged=privileged)

    monkeypatch.setattr(machine, "stage_command", keep)
    return commands


def send(client: FakeClient, count: int) -> None:
    for number in range(count):
        client.send_message("T1", b"%d" % number)


def test_acknowledgements_of_one_turn_are_one_command(client: FakeClient, staged: list[Command]) -> None:
    send(client, 20)
    popped = pop(client)
    opaques = [client.send(ACK, ack_ext(message)) for message in popped]
    client.broker.settle()
    assert [client.answered(opaque).code for opaque in opaques] == [FOUND] * 20
    assert [len(command.rows) for command in staged if isinstance(command, Ack)] == [20]


def test_an_acknowledged_message_stays_so_however_often_that_is_said(client: FakeClient) -> None:
    send(client, 2)
    popped = pop(client)
    again = [client.send(ACK, ack_ext(popped[0])) for _ in range(3)]
    client.broker.settle()
    assert [client.answered(opaque).code for opaque in again] == [FOUND] * 3
    assert ack(client, popped[0]) == FOUND


def test_nothing_is_known_of_a_delivery_that_is_over(client: FakeClient) -> None:
    send(client, 1)
    (message,) = pop(client)
    assert [ack(client, message), ack(client, message)] == [FOUND, NO_MESSAGE]
    other = msgspec.structs.replace(message.point, pop_time_ms=message.point.pop_time_ms + 1)
    assert ack(client, msgspec.structs.replace(message, point=other)) == NO_MESSAGE


def test_a_message_that_is_about_to_come_again_is_not_acknowledged(broker: ServedBroker, client: FakeClient) -> None:
    """1. Its copy and the end of its delivery are proposed. 2. The acknowledgement comes. Answered 0, the message would
    be delivered all the same.
    """
    send(client, 1)
    (message,) = pop(client)
    key = PopQueueKey("CG", "T1", 0)
    changes = broker.service.parts[PopRequests].changes
    changes.begin_closing([(key, message.point.pop_time_ms, 1)])
    assert ack(client, message) == NO_MESSAGE
    assert hide(client, message, 30)[0] == NO_MESSAGE
    changes.end_closing([(key, message.point.pop_time_ms, 1)])
    assert ack(client, message) == FOUND


def test_a_message_that_is_hidden_anew_has_another_check_point(broker: ServedBroker, client: FakeClient) -> None:
    send(client, 2)
    first, second = pop(client)
    code, hidden = hide(client, first, 5 * HIDDEN_S)
    assert (code, hidden.point.pop_time_ms > first.point.pop_time_ms) == (FOUND, True)
    assert (ack(client, first), hide(client, first, 10)[0]) == (NO_MESSAGE, NO_MESSAGE)
    assert ack(client, second) == FOUND
    wait(broker, 2 * HIDDEN_S)
    assert (pop(client), committed(broker)) == ([], 0)
    assert ack(client, hidden) == FOUND
    assert (committed(broker), table_of(broker).has_deliveries) == (2, False)


def test_a_message_that_is_hidden_for_less_comes_again_sooner(broker: ServedBroker, client: FakeClient) -> None:
    send(client, 1)
    (message,) = pop(client)
    assert hide(client, message, 0)[1].point.invisible_ms == 1_000
    wait(broker, 2)
    assert [again.reconsume_times for again in pop(client)] == [1]


def test_changes_of_one_turn_have_different_pop_times(client: FakeClient) -> None:
    send(client, 3)
    popped = pop(client)
    opaques = [client.send(CHANGE, {**ack_ext(message), "invisibleTime": "30000"}) for message in popped]
    client.broker.settle()
    times = {client.answered(opaque).ext["popTime"] for opaque in opaques}
    assert len(times) == 3
    assert queue_of(client.broker).open_count == 3


def test_a_batch_acknowledges_messages_of_a_delivery(broker: ServedBroker, client: FakeClient) -> None:
    send(client, 5)
    popped = pop(client)
    assert batch_ack(client, popped[0], popped[1], popped[3]) == FOUND
    assert (committed(broker), queue_of(broker).open_count) == (2, 2)
    hide(client, popped[2], 30)
    assert batch_ack(client, popped[0], popped[2], popped[4]) == NO_MESSAGE
    assert (committed(broker), queue_of(broker).open_count) == (2, 1)


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
def test_a_batch_that_cannot_be_read_is_refused(client: FakeClient, body: bytes, code: int) -> None:
    answer = client.call(BATCH_ACK, body=body)
    assert (answer.code, bool(answer.remark)) == (code, True)


def test_a_batch_may_have_the_long_names_of_its_fields(broker: ServedBroker, client: FakeClient) -> None:
    send(client, 1)
    (message,) = pop(client)
    row = {
        "consumerGroup": "CG",
        "topic": "T1",
        "retry": "0",
        "startOffset": message.point.start_offset,
        "queueId": 0,
        "reviveQueueId": 0,
        "popTime": message.point.pop_time_ms,
        "invisibleTime": message.point.invisible_ms,
        "bitSet": "AQ==",
    }
    body = msgspec.json.encode({"brokerName": "broker-a", "acks": [row]})
    assert client.call(BATCH_ACK, body=body).code == FOUND
    assert committed(broker) == 1


@pytest.mark.parametrize("text", ["", "x", "0 0 0 0 0 broker-a 0", "0 -1 0 0 0 broker-a 0 0", "0 1 2 3 9 b 0 0"])
def test_a_check_point_that_is_none_is_refused(client: FakeClient, text: str) -> None:
    send(client, 1)
    (message,) = pop(client)
    answer = client.call(ACK, {**ack_ext(message), "extraInfo": text})
    assert answer.code == ResponseCode.INVALID_PARAMETER


def test_acknowledgements_that_a_busy_log_does_not_take_leave_everything_as_it_was(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(client, 1)
    (message,) = pop(client)
    machine = broker.memory.machine
    with monkeypatch.context() as patch:
        patch.setattr(machine, "stage_command", lambda _command, done, **_: done(BusyError("busy")))
        assert ack(client, message) == ResponseCode.SYSTEM_BUSY
        assert hide(client, message, 30)[0] == ResponseCode.SYSTEM_BUSY
        assert pop(client) == []
    assert ack(client, message) == FOUND

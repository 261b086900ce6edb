"""Units of halves: those of one turn are stored together, gather while others are on their way, are all answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, send_ext

from dledger.errors import BusyError, TooLargeError
from dledger.format import COMMAND_HEADER_BYTES
from dledger_broker.features.group_settings.settings import GroupSettings
from dledger_broker.features.sending.on_their_way import MAX_GATHER_S, MAX_UNIT_BYTES
from dledger_broker.features.transactions.requests import Transactions
from dledger_broker.features.transactions.table import HALVES, HalfTable, OpenHalf
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.ids import parse_offset_message_id
from dledger_remoting.topics import HALF_TOPIC

HALF = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02"
ROLLBACK = 12


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    served = make_broker(max_open_halves=20)
    GroupSettings(served.memory.machine, served.memory.env, served.config)
    served.settle()
    served.memory.machine.learn_kinds(served.config.node_id, served.memory.machine.commands.kinds)
    served.memory.create_topic("T1")
    return served


@pytest.fixture
def client(broker: ServedBroker) -> FakeClient:
    return broker.client()


class Majority:
    """Keeps what is staged from being committed until told; `units`: how many halves each staged unit opens."""

    def __init__(self, broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.units: list[int] = []
        node = broker.memory.node
        self.has_it: Callable[[], None] = node.commit
        stage: Callable[..., int] = node.stage

        def counted(size: int, *arguments: Any, commands: bytes = b"", **keywords: Any) -> int:
            position = stage(size, *arguments, commands=commands, **keywords)
            if size:
                self.units.append(len(OpenHalf.from_payload(commands[COMMAND_HEADER_BYTES:]).halves))
            return position

        monkeypatch.setattr(node, "stage", counted)
        monkeypatch.setattr(node, "commit", lambda: None)


@pytest.fixture
def majority(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> Majority:
    return Majority(broker, monkeypatch)


def table(broker: ServedBroker) -> HalfTable:
    return broker.memory.machine.state.table(HALVES)


def send(client: FakeClient, count: int, body: bytes = b"half") -> list[int]:
    """Halves of one turn; returns their opaques."""
    opaques = [client.send(310, send_ext("T1", number % 4, HALF, f="4"), body) for number in range(count)]
    client.broker.settle()
    return opaques


def test_halves_of_one_turn_are_one_unit_in_which_each_has_its_place(
    broker: ServedBroker, client: FakeClient, majority: Majority
) -> None:
    other = broker.client("client/2")
    first = client.send(310, send_ext("T1", 1, HALF, f="4"), b"1")
    second = other.send(310, send_ext("T1", 2, HALF + "CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02", f="4"), b"2" * 50)
    third = client.send(310, send_ext("T1", 3, HALF.replace("PG\x02", "PH\x02"), f="4"), b"3")
    broker.settle()
    assert majority.units == [3]
    assert not client.answers
    majority.has_it()
    broker.settle()
    answers = [client.answered(first), other.answered(second), client.answered(third)]
    assert [(answer.ext["queueId"], answer.ext["queueOffset"]) for answer in answers] == [
        ("1", "0"),
        ("2", "1"),
        ("3", "2"),
    ]
    positions = [parse_offset_message_id(answer.ext["msgId"])[1] for answer in answers]
    halves = table(broker).open
    assert [(half.queue_offset, half.group) for half in halves.values()] == [(0, "PG"), (1, "PG"), (2, "PH")]
    assert list(halves) == positions
    assert len({half.next_check_ms for half in halves.values()}) == 2
    for position, body in zip(positions, (b"1", b"2" * 50, b"3"), strict=True):
        found = broker.memory.run(broker.memory.machine.lookup.record_at(position))
        assert found is not None
        assert found[1].body == body


def test_halves_gather_while_others_are_on_their_way_and_none_waits_long(
    broker: ServedBroker, client: FakeClient, majority: Majority
) -> None:
    send(client, 8)
    for _ in range(3):
        send(client, 1)
    assert majority.units == [8]
    send(client, 1)
    assert majority.units == [8, 4]
    send(client, 1)
    broker.advance(MAX_GATHER_S)
    assert majority.units == [8, 4, 1]
    send(client, 1)
    majority.has_it()
    broker.settle()
    assert majority.units == [8, 4, 1, 1], "what was on its way is stored"


def test_large_halves_are_units_of_their_own(broker: ServedBroker, client: FakeClient, majority: Majority) -> None:
    opaques = send(client, 3, bytes(MAX_UNIT_BYTES // 2))
    assert majority.units == [1, 1, 1]
    majority.has_it()
    broker.settle()
    assert [client.answered(opaque).code for opaque in opaques] == [0, 0, 0]


def test_a_half_that_no_majority_takes_is_answered_and_counts_until_its_fate_is_known(
    broker: ServedBroker, client: FakeClient, majority: Majority
) -> None:
    opaques = send(client, 20)
    broker.advance(broker.config.quorum_timeout_ms / 1000 + 1)
    for opaque in opaques:
        assert client.answered(opaque).ext["outcome"] == "unknown"
        assert "no majority stored the message" in (client.answered(opaque).remark or "")
    assert client.answered(send(client, 1)[0]).code == ResponseCode.SYSTEM_BUSY
    majority.has_it()
    broker.settle()
    assert len(client.answers) == 21, "each is answered once"
    assert len(table(broker).open) == 20


def test_what_gathers_counts_for_the_limit(broker: ServedBroker, client: FakeClient, majority: Majority) -> None:
    send(client, 16)
    send(client, 4)
    assert majority.units == [16]
    assert client.answered(send(client, 1)[0]).code == ResponseCode.SYSTEM_BUSY


def test_what_the_log_refuses_is_answered_and_counts_no_more(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, code in (
        (BusyError("full"), ResponseCode.SYSTEM_BUSY),
        (TooLargeError("x"), ResponseCode.MESSAGE_ILLEGAL),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(broker.memory.node, "stage", _raising(error))
            opaques = send(client, 20)
        assert {client.answered(opaque).code for opaque in opaques} == {code}
    assert {client.answered(opaque).code for opaque in send(client, 20)} == {0}


def test_what_gathers_when_leadership_is_lost_is_neither_stored_nor_of_unknown_outcome(
    broker: ServedBroker, client: FakeClient, majority: Majority
) -> None:
    sent = send(client, 8)
    (waiting,) = send(client, 1)
    broker.memory.node.step_down()
    broker.settle()
    assert {client.answered(opaque).ext["outcome"] for opaque in sent} == {"unknown"}
    broker.memory.node.lead()
    broker.advance(MAX_GATHER_S)
    majority.has_it()
    broker.settle()
    assert client.answered(waiting).ext["queueOffset"] == "0"


def test_what_is_on_its_way_or_gathers_when_the_node_stops_is_answered(
    broker: ServedBroker, client: FakeClient, majority: Majority
) -> None:
    opaques = [*send(client, 8), *send(client, 1)]
    broker.service.parts[Transactions].close()
    broker.advance(1)
    assert {client.answered(opaque).ext["outcome"] for opaque in opaques} == {"unknown"}


def test_a_half_whose_topic_goes_while_it_gathers_is_refused(
    broker: ServedBroker, client: FakeClient, majority: Majority
) -> None:
    send(client, 8)
    (waiting,) = send(client, 1)
    broker.memory.machine.proposals.delete_topic(HALF_TOPIC, lambda _: None)
    broker.advance(MAX_GATHER_S)
    assert client.answered(waiting).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_oneway_halves_in_a_unit_are_settled(broker: ServedBroker, client: FakeClient) -> None:
    asked = client.send(310, send_ext("T1", 0, HALF, f="4"), b"asked")
    client.send(310, send_ext("T1", 0, HALF, f="4"), b"told nothing", oneway=True)
    broker.settle()
    assert (client.answered(asked).code, client.settled, len(client.answers)) == (0, 1, 1)
    assert len(table(broker).open) == 2
    for position, half in table(broker).open.items():
        ext = {"producerGroup": "PG", "tranStateTableOffset": str(half.queue_offset), "commitLogOffset": str(position)}
        client.send(RequestCode.END_TRANSACTION, {**ext, "commitOrRollback": str(ROLLBACK)})
    broker.settle()
    assert not table(broker).open


def _raising(error: Exception) -> Callable[..., int]:
    def stage(*_: object, **__: object) -> int:
        raise error

    return stage

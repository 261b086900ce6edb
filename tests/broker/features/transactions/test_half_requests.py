"""Transactions at their ports: halves that no client sees, commits that are seen once, and what is refused."""

from __future__ import annotations

import asyncio
import json

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, assert_refused, records, send_ext
from served_broker import founded as found

from dledger.statemachine import Leadership
from dledger_broker.features.transactions.messages import SPARE_BYTES
from dledger_broker.features.transactions.requests import Transactions
from dledger_broker.features.transactions.table import HALVES, EndHalf, HalfOutcome, HalfTable
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.ids import parse_offset_message_id
from dledger_remoting.properties import parse_properties
from dledger_remoting.record import MAX_PROPERTIES_BYTES
from dledger_remoting.topics import HALF_TOPIC, TopicConfig

HALF = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01K1\x02"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"


def founded(served: ServedBroker) -> ServedBroker:
    """Have a leader found its group, which understands all commands."""
    found(served)
    served.memory.machine.learn_kinds(served.config.node_id, served.memory.machine.commands.kinds)
    served.settle()
    return served


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    return founded(make_broker())


def table(broker: ServedBroker) -> HalfTable:
    return broker.memory.machine.state.table(HALVES)


def send_half(
    client: FakeClient, body: bytes = b"half", queue_id: int = 2, properties: str = HALF, **letters: str
) -> RemotingCommand:
    return client.send_message("T1", body, queue_id, properties, **{"f": "4", **letters})


def end_ext(sent: RemotingCommand, what: int = COMMIT, **fields: str) -> dict[str, str]:
    return {
        "producerGroup": "PG",
        "tranStateTableOffset": sent.ext["queueOffset"],
        "commitLogOffset": str(parse_offset_message_id(sent.ext["msgId"])[1]),
        "commitOrRollback": str(what),
        "msgId": "K1",
        **fields,
    }


def end(client: FakeClient, sent: RemotingCommand, what: int = COMMIT, **fields: str) -> RemotingCommand:
    return client.call_from_disk(RequestCode.END_TRANSACTION, end_ext(sent, what, **fields))


def end_many(client: FakeClient, *exts: dict[str, str]) -> list[RemotingCommand]:
    """Send ends that arrive together, and return their answers in the order of the requests."""

    async def scenario() -> list[int]:
        opaques = [client.send(RequestCode.END_TRANSACTION, ext) for ext in exts]
        while not all(map(client.has_answer, opaques)):
            client.broker.settle()
            await asyncio.sleep(0)
        return opaques

    return [client.answered(opaque) for opaque in asyncio.run(scenario())]


def bodies(broker: ServedBroker, queue_id: int = 2) -> list[bytes]:
    return broker.memory.bodies("T1", queue_id)


def test_a_half_is_delivered_once_after_its_commit_and_not_before(broker: ServedBroker, client: FakeClient) -> None:
    sent = send_half(client)
    assert (sent.code, sent.ext["queueId"], sent.ext["transactionId"]) == (0, "2", "K1")
    assert end(client, sent, UNKNOWN).code == 0, "leaves it open"
    assert bodies(broker) == []
    assert [half.group for half in table(broker).open.values()] == ["PG"]
    for _ in range(3):
        assert end(client, sent).code == 0
        assert (bodies(broker), len(table(broker).open)) == ([b"half"], 0)
    assert_refused(end(client, sent, ROLLBACK), ResponseCode.SYSTEM_ERROR, "is committed")
    assert bodies(broker) == [b"half"]


def test_a_committed_message_keeps_the_transaction_properties_of_its_half(client: FakeClient) -> None:
    delays = "DELAY\x013\x02TIMER_DELAY_MS\x015\x02"
    sent = send_half(client, properties=f"{HALF}{delays}REAL_TOPIC\x01X\x02TAGS\x01t", h="7")
    end(client, sent)
    (record,) = records(client.pull("T1", 2))
    assert (record.topic, record.queue_id, record.queue_offset, record.flag) == ("T1", 2, 0, 7)
    assert (record.sys_flag, record.born_timestamp) == (COMMIT, 1700000000000)
    assert record.prepared_transaction_offset == int(end_ext(sent)["commitLogOffset"])
    own = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": "K1", "TAGS": "t"}
    added = {"CLUSTER": "DefaultCluster", "REAL_TOPIC": "T1", "REAL_QID": "2"}
    assert parse_properties(record.properties) == own | added


def test_a_half_without_group_or_key_gets_a_group_and_a_key(client: FakeClient) -> None:
    sent = send_half(client, properties="TRAN_MSG\x01true\x02")
    assert end(client, sent).code == 0
    (record,) = records(client.pull("T1", 2))
    properties = parse_properties(record.properties)
    assert (properties["PGROUP"], properties["UNIQ_KEY"]) == ("PG", sent.ext["transactionId"])
    assert sent.ext["transactionId"]


def test_a_rolled_back_message_is_never_delivered(broker: ServedBroker, client: FakeClient) -> None:
    sent = send_half(client)
    assert [end(client, sent, ROLLBACK).code for _ in range(2)] == [0, 0]
    assert_refused(end(client, sent, COMMIT), ResponseCode.SYSTEM_ERROR, "is rolled back")
    assert bodies(broker) == []


def test_a_committed_half_is_not_rolled_back_and_a_repeated_commit_stores_nothing(
    broker: ServedBroker, client: FakeClient
) -> None:
    sent = send_half(client)
    assert [end(client, sent, COMMIT).code for _ in range(2)] == [0, 0]
    assert_refused(end(client, sent, ROLLBACK), ResponseCode.SYSTEM_ERROR, "is committed")
    assert bodies(broker) == [b"half"]


def test_only_one_of_several_simultaneous_ends_of_a_half_counts(broker: ServedBroker, client: FakeClient) -> None:
    sent = send_half(client)
    first, second, third = end_many(client, end_ext(sent), end_ext(sent), end_ext(sent, ROLLBACK))
    # The rollback is staged before the commits have read the half.
    assert [first.code, second.code, third.code] == [1, 1, 0]
    assert bodies(broker) == []
    sent = send_half(client, properties=HALF.replace("K1", "K2"))
    assert [answer.code for answer in end_many(client, end_ext(sent), end_ext(sent))] == [0, 0]
    assert bodies(broker) == [b"half"]
    assert list(table(broker).ended.values()) == [HalfOutcome.ROLLED_BACK, HalfOutcome.COMMITTED]


@pytest.mark.parametrize("gone", ["topic", "queue"])
def test_a_half_whose_topic_is_gone_ends_and_that_of_a_removed_queue_goes_to_another_queue(
    broker: ServedBroker, client: FakeClient, gone: str
) -> None:
    sent = send_half(client, queue_id=3)
    if gone == "queue":
        broker.memory.machine.proposals.put_topic(TopicConfig("T1", 2, 2), lambda _: None)
        broker.settle()
        assert end(client, sent).code == 0
        assert bodies(broker, 1) == [b"half"]
    else:
        broker.memory.delete_topic("T1")
        assert [end(client, sent).code for _ in range(2)] == [ResponseCode.TOPIC_NOT_EXIST] * 2
        assert table(broker).ended == {int(end_ext(sent)["commitLogOffset"]): HalfOutcome.NO_TOPIC}


@pytest.mark.parametrize(
    ("letters", "properties", "code"),
    [
        ({}, "", ResponseCode.MESSAGE_ILLEGAL),
        ({"f": "8"}, HALF, ResponseCode.MESSAGE_ILLEGAL),
        ({"m": "true"}, HALF, ResponseCode.MESSAGE_ILLEGAL),
        ({"b": "%RETRY%CG", "e": "0"}, HALF, ResponseCode.MESSAGE_ILLEGAL),
        ({"b": HALF_TOPIC, "e": "0"}, HALF, ResponseCode.NO_PERMISSION),
        ({"e": "9"}, HALF, ResponseCode.INVALID_PARAMETER),
        ({}, f"{HALF}{IMMUNITY}\x013601\x02", ResponseCode.MESSAGE_ILLEGAL),
        ({}, f"{HALF}{IMMUNITY}\x01soon\x02", ResponseCode.MESSAGE_ILLEGAL),
        ({}, f"{HALF}{IMMUNITY}\x0100000000009999\x02", ResponseCode.MESSAGE_ILLEGAL),
        ({}, f"{HALF}a\x01{'x' * (MAX_PROPERTIES_BYTES - SPARE_BYTES)}\x02", ResponseCode.MESSAGE_ILLEGAL),
        ({}, "TRAN_MSG\x01true\x02PGROUP\x01no group\x02", ResponseCode.INVALID_PARAMETER),
    ],
)
def test_an_invalid_half_is_refused(client: FakeClient, letters: dict[str, str], properties: str, code: int) -> None:
    refused = send_half(client, properties=properties, **letters)
    assert (refused.code, bool(refused.remark)) == (code, True)
    assert not table(client.broker).open


def test_a_half_beyond_max_open_halves_is_refused_and_counted(make_broker: MakeBroker) -> None:
    broker = founded(make_broker(max_open_halves=2))
    client = broker.client()
    opaques = [client.send(310, send_ext("T1", 0, HALF, f="4"), b"half") for _ in range(3)]
    broker.settle()
    assert [client.answered(opaque).code for opaque in opaques] == [0, 0, ResponseCode.SYSTEM_BUSY]
    assert broker.counters.max_open_halves == 1
    assert end(client, client.answered(opaques[0]), ROLLBACK).code == 0
    assert send_half(client).code == 0


def test_halves_are_refused_until_the_transactions_feature_is_active(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = found(make_broker())
    kinds = tuple(kind for kind in broker.memory.machine.commands.kinds if kind < 38)
    monkeypatch.setattr(broker.memory.machine.state.activation, "since", {})
    broker.memory.machine.learn_kinds(broker.config.node_id, kinds)
    broker.settle()
    for refused in (send_half(broker.client()), broker.client().call(RequestCode.END_TRANSACTION, {})):
        assert_refused(refused, ResponseCode.SYSTEM_BUSY, "'transactions' is not active")


def test_a_half_is_checked_after_its_immunity(broker: ServedBroker, client: FakeClient) -> None:
    now_ms = broker.memory.env.wall_ms()
    for immunity in ("", f"{IMMUNITY}\x0160\x02", f"{IMMUNITY}\x01-1\x02"):
        send_half(client, properties=HALF + immunity)
    assert [half.next_check_ms - now_ms for half in table(broker).open.values()] == [6_000, 60_000, 6_000]


def test_a_oneway_half_and_a_oneway_end_take_effect(broker: ServedBroker, client: FakeClient) -> None:
    for oneway in (False, True):  # one unit
        client.send(310, send_ext("T1", 0, HALF, f="4"), b"half", oneway=oneway)
    broker.settle()
    assert ([answer.code for answer in client.answers], client.settled, len(table(broker).open)) == ([0], 1, 2)
    for position, half in table(broker).open.items():
        ext = {"producerGroup": "PG", "tranStateTableOffset": str(half.queue_offset), "commitOrRollback": "12"}
        client.send(RequestCode.END_TRANSACTION, {**ext, "commitLogOffset": str(position)}, oneway=True)
    broker.settle()
    assert not table(broker).open
    assert (client.settled, len(client.answers)) == (3, 1)


@pytest.mark.parametrize(("first_position", "is_gone"), [(1 << 40, True), (0, False), (-1, False)])
def test_a_half_below_the_beginning_of_every_nodes_log_holds_no_trim_up(
    broker: ServedBroker, client: FakeClient, caplog: pytest.LogCaptureFixture, first_position: int, is_gone: bool
) -> None:
    send_half(client)
    log, part = broker.memory.log, broker.service.parts[Transactions]
    lowest = part.needs_from
    assert lowest == table(broker).lowest
    log.first_position = log.end
    broker.see_peer(first_position)
    assert part.needs_from == (None if is_gone else lowest)
    part.trims_below(log.end)
    assert "event=halves_lost" in caplog.text
    assert "no node has this part" in caplog.text


def test_the_refusal_of_an_end_names_the_outcome_of_its_half(broker: ServedBroker, client: FakeClient) -> None:
    for outcome, text in ((HalfOutcome.UNDECIDED, "no producer"), (HalfOutcome.REOPENED, "open again")):
        sent = send_half(client)
        ended = EndHalf(int(end_ext(sent)["commitLogOffset"]), outcome)
        broker.memory.machine.stage_command(ended, lambda _: None)
        broker.settle()
        assert_refused(end(client, sent), ResponseCode.SYSTEM_ERROR, text)
    sent, state = send_half(client), broker.memory.machine.state
    state.trims.raise_to(broker.memory.log.end)
    assert end(client, sent).code == ResponseCode.SYSTEM_BUSY, "a trim below which the half lies is under way"
    state.table(HALVES).on_log_trimmed(broker.memory.log.end)
    assert_refused(end(client, sent), ResponseCode.SYSTEM_ERROR, "lost")


def test_a_leader_that_is_deposed_says_that_the_outcome_of_an_end_is_unknown(client: FakeClient) -> None:
    sent = send_half(client)
    rollback = client.send(RequestCode.END_TRANSACTION, end_ext(sent, ROLLBACK))
    client.broker.memory.node.commit = lambda: None  # a majority is gone
    client.broker.settle()
    waiting = client.send(RequestCode.END_TRANSACTION, end_ext(sent, ROLLBACK))
    client.broker.memory.node.step_down()
    client.broker.advance(5)
    assert client.answered(rollback).ext.get("outcome") == "unknown"
    assert client.answered(waiting).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_message_is_found_by_its_key_once_committed_and_its_half_never_by_its_position(client: FakeClient) -> None:
    sent = send_half(client)
    query = {"topic": "T1", "key": "K1", "maxNum": "9", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
    view = {"offset": end_ext(sent)["commitLogOffset"], "topic": "T1"}
    for code in (ResponseCode.QUERY_NOT_FOUND, ResponseCode.SUCCESS):
        assert client.call_from_disk(RequestCode.QUERY_MESSAGE, query).code == code
        assert client.call_from_disk(RequestCode.VIEW_MESSAGE_BY_ID, view).code == ResponseCode.SYSTEM_ERROR
        end(client, sent)


def test_a_half_that_arrives_during_a_step_down_is_not_stored(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine, and with it the clock, knows before the requests do that the node does not lead."""
    machine = broker.memory.machine
    monkeypatch.setattr(machine, "leadership", Leadership(1, None, is_leader=False, ready=False))
    opaque = client.send(310, send_ext("T1", 0, HALF, f="4"), b"half")
    broker.memory.node.step_down()
    broker.advance(5)
    assert client.answered(opaque).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_open_halves_are_listed_with_their_producer_group_until_they_end(broker: ServedBroker) -> None:
    client = broker.client()

    def listed(**ext: str) -> list[tuple[str, str, str, int]]:
        answer = client.call_from_disk(RequestCode.LIST_HALVES, ext)
        assert answer.code == 0, answer.remark
        rows = json.loads(answer.body)["rows"]
        return [(row["uniqueKey"], row["topic"], row["group"], row["checks"]) for row in rows]

    assert listed() == []
    first = send_half(client)
    send_half(client, properties=HALF.replace("K1", "K2"))
    assert listed() == [("K1", "T1", "PG", 0), ("K2", "T1", "PG", 0)]
    assert listed(maxRows="1") == [("K1", "T1", "PG", 0)]
    position = str(parse_offset_message_id(first.ext["msgId"])[1])
    assert listed(afterPosition=position) == [("K2", "T1", "PG", 0)]
    assert end(client, first, ROLLBACK).code == 0
    assert listed() == [("K2", "T1", "PG", 0)]
    assert_refused(client.call(RequestCode.LIST_HALVES, {"maxRows": "101"}), 29, "outside 1..100")

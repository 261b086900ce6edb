"""Transactions at their ports: halves that nobody sees, commits that are seen once, and what is refused."""

from __future__ import annotations

import asyncio

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, records, send_ext

from dledger.errors import LogFullError
from dledger.statemachine import Leadership
from dledger_broker.features.group_settings.settings import GroupSettings
from dledger_broker.features.transactions.messages import SPARE_BYTES
from dledger_broker.features.transactions.table import HALVES, EndHalf, HalfOutcome, HalfTable
from dledger_broker.testing.environment import START_MS
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.ids import parse_offset_message_id
from dledger_remoting.properties import parse_properties
from dledger_remoting.record import MAX_PROPERTIES_BYTES
from dledger_remoting.topics import HALF_TOPIC, TopicConfig

HALF = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01K1\x02"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


def founded(served: ServedBroker) -> ServedBroker:
    GroupSettings(served.memory.machine, served.memory.env, served.config)
    served.settle()
    served.memory.machine.learn_kinds(served.config.node_id, served.memory.machine.commands.kinds)
    served.settle()
    return served


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    return founded(make_broker())


@pytest.fixture
def client(broker: ServedBroker) -> FakeClient:
    return broker.client()


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
    """Ends that arrive together; their answers, in the order of the requests."""

    async def scenario() -> list[int]:
        opaques = [client.send(RequestCode.END_TRANSACTION, ext) for ext in exts]
        while not all(map(client.has_answer, opaques)):
            client.broker.settle()
            await asyncio.sleep(0)
        return opaques

    return [client.answered(opaque) for opaque in asyncio.run(scenario())]


def bodies(broker: ServedBroker, queue_id: int = 2) -> list[bytes]:
    return broker.memory.bodies("T1", queue_id)


def test_a_half_is_in_no_queue_before_its_commit_and_in_its_own_once_after(
    broker: ServedBroker, client: FakeClient
) -> None:
    sent = send_half(client)
    assert (sent.code, sent.ext["queueId"], sent.ext["transactionId"]) == (0, "2", "K1")
    assert bodies(broker) == []
    assert [half.group for half in table(broker).open.values()] == ["PG"]
    assert end(client, sent).code == 0
    assert bodies(broker) == [b"half"]
    assert not table(broker).open
    for _ in range(2):
        assert end(client, sent).code == 0
    refused = end(client, sent, ROLLBACK)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "is committed" in (refused.remark or "")
    assert bodies(broker) == [b"half"]


def test_a_committed_message_says_what_it_was(broker: ServedBroker, client: FakeClient) -> None:
    sent = send_half(
        client, properties=HALF + "DELAY\x013\x02TIMER_DELAY_MS\x015\x02REAL_TOPIC\x01X\x02TAGS\x01t", h="7"
    )
    end(client, sent)
    (record,) = records(client.pull("T1", 2))
    assert (record.topic, record.queue_id, record.queue_offset, record.flag) == ("T1", 2, 0, 7)
    assert (record.sys_flag, record.born_timestamp) == (COMMIT, 1700000000000)
    assert record.prepared_transaction_offset == int(end_ext(sent)["commitLogOffset"])
    assert parse_properties(record.properties) == {
        "TRAN_MSG": "true",
        "PGROUP": "PG",
        "UNIQ_KEY": "K1",
        "TAGS": "t",
        "CLUSTER": "DefaultCluster",
        "REAL_TOPIC": "T1",
        "REAL_QID": "2",
    }


def test_a_half_without_group_or_key_gets_them(broker: ServedBroker, client: FakeClient) -> None:
    sent = send_half(client, properties="TRAN_MSG\x01true\x02")
    assert sent.ext["transactionId"]
    assert end(client, sent).code == 0
    (record,) = records(client.pull("T1", 2))
    properties = parse_properties(record.properties)
    assert (properties["PGROUP"], properties["UNIQ_KEY"]) == ("PG", sent.ext["transactionId"])


def test_what_is_rolled_back_is_never_seen(broker: ServedBroker, client: FakeClient) -> None:
    sent = send_half(client)
    assert end(client, sent, ROLLBACK).code == 0
    assert end(client, sent, ROLLBACK).code == 0
    refused = end(client, sent, COMMIT)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "is rolled back" in (refused.remark or "")
    assert bodies(broker) == []


def test_a_producer_that_does_not_know_leaves_its_half_open(broker: ServedBroker, client: FakeClient) -> None:
    sent = send_half(client)
    assert end(client, sent, UNKNOWN).code == 0
    assert len(table(broker).open) == 1
    assert end(client, sent).code == 0


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"producerGroup": "strangers"}, "producer group PG"),
        ({"tranStateTableOffset": "5"}, "queue offset 0"),
        ({"commitLogOffset": "5"}, "no transaction is open at 5"),
        ({"commitOrRollback": "3"}, "8 commits"),
    ],
)
def test_an_end_must_fit_its_half(broker: ServedBroker, client: FakeClient, fields: dict[str, str], text: str) -> None:
    sent = send_half(client)
    for what in (COMMIT, ROLLBACK):
        refused = end(client, sent, what, **fields)
        assert refused.code != 0
        assert text in (refused.remark or "")
    assert len(table(broker).open) == 1
    assert bodies(broker) == []


def test_of_ends_that_come_together_one_counts(broker: ServedBroker, client: FakeClient) -> None:
    sent = send_half(client)
    first, second, third = end_many(client, end_ext(sent), end_ext(sent), end_ext(sent, ROLLBACK))
    # The rollback is staged before the commits have read the half.
    assert [first.code, second.code, third.code] == [1, 1, 0]
    assert bodies(broker) == []
    sent = send_half(client, properties=HALF.replace("K1", "K2"))
    assert [answer.code for answer in end_many(client, end_ext(sent), end_ext(sent))] == [0, 0]
    assert bodies(broker) == [b"half"]
    assert list(table(broker).ended.values()) == [HalfOutcome.ROLLED_BACK, HalfOutcome.COMMITTED]


def test_a_half_whose_topic_is_gone_ends(broker: ServedBroker, client: FakeClient) -> None:
    sent = send_half(client)
    broker.memory.delete_topic("T1")
    for _ in range(2):
        gone = end(client, sent)
        assert gone.code == ResponseCode.TOPIC_NOT_EXIST
    assert table(broker).ended == {int(end_ext(sent)["commitLogOffset"]): HalfOutcome.NO_TOPIC}


def test_a_queue_that_is_gone_is_replaced_by_one_that_consumers_read(broker: ServedBroker, client: FakeClient) -> None:
    sent = send_half(client, queue_id=3)
    broker.memory.machine.proposals.put_topic(TopicConfig("T1", 2, 2), lambda _: None)
    broker.settle()
    assert end(client, sent).code == 0
    assert bodies(broker, 1) == [b"half"]


@pytest.mark.parametrize(
    ("letters", "properties", "code"),
    [
        ({"f": "4"}, "", ResponseCode.MESSAGE_ILLEGAL),
        ({"f": "8"}, HALF, ResponseCode.MESSAGE_ILLEGAL),
        ({"f": "4", "m": "true"}, HALF, ResponseCode.MESSAGE_ILLEGAL),
        ({"f": "4", "b": "%RETRY%CG", "e": "0"}, HALF, ResponseCode.MESSAGE_ILLEGAL),
        ({"f": "4", "b": HALF_TOPIC, "e": "0"}, HALF, ResponseCode.NO_PERMISSION),
        ({"f": "4", "e": "9"}, HALF, ResponseCode.INVALID_PARAMETER),
        ({"f": "4"}, HALF + "CHECK_IMMUNITY_TIME_IN_SECONDS\x013601\x02", ResponseCode.MESSAGE_ILLEGAL),
        ({"f": "4"}, HALF + "CHECK_IMMUNITY_TIME_IN_SECONDS\x01soon\x02", ResponseCode.MESSAGE_ILLEGAL),
        ({"f": "4"}, HALF + "CHECK_IMMUNITY_TIME_IN_SECONDS\x0100000000009999\x02", ResponseCode.MESSAGE_ILLEGAL),
        (
            {"f": "4"},
            HALF + "a\x01" + "x" * (MAX_PROPERTIES_BYTES - SPARE_BYTES) + "\x02",
            ResponseCode.MESSAGE_ILLEGAL,
        ),
        ({"f": "4"}, "TRAN_MSG\x01true\x02PGROUP\x01no group\x02", ResponseCode.INVALID_PARAMETER),
    ],
)
def test_what_is_no_half_is_refused(
    broker: ServedBroker, client: FakeClient, letters: dict[str, str], properties: str, code: int
) -> None:
    refused = send_half(client, properties=properties, **letters)
    assert (refused.code, bool(refused.remark)) == (code, True)
    assert not table(broker).open


def test_max_open_halves_refuses_with_two(make_broker: MakeBroker) -> None:
    broker = founded(make_broker(max_open_halves=2))
    client = broker.client()
    opaques = [client.send(310, send_ext("T1", 0, HALF, f="4"), b"half") for _ in range(3)]
    broker.settle()
    assert [client.answered(opaque).code for opaque in opaques] == [0, 0, ResponseCode.SYSTEM_BUSY]
    assert broker.counters.max_open_halves == 1
    assert end(client, client.answered(opaques[0]), ROLLBACK).code == 0
    assert send_half(client).code == 0


def test_halves_are_refused_until_all_members_understand_them(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_broker()
    GroupSettings(broker.memory.machine, broker.memory.env, broker.config)
    broker.settle()
    kinds = tuple(kind for kind in broker.memory.machine.commands.kinds if kind < 38)
    monkeypatch.setattr(broker.memory.machine.state.activation, "since", {})
    broker.memory.machine.learn_kinds(broker.config.node_id, kinds)
    broker.settle()
    for refused in (send_half(broker.client()), broker.client().call(RequestCode.END_TRANSACTION, {})):
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert "'transactions' is not active" in (refused.remark or "")


def test_a_half_is_checked_after_its_immunity(broker: ServedBroker, client: FakeClient) -> None:
    now_ms = broker.memory.env.wall_ms()
    assert now_ms >= START_MS
    send_half(client)
    send_half(client, properties=HALF + "CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02")
    send_half(client, properties=HALF + "CHECK_IMMUNITY_TIME_IN_SECONDS\x01-1\x02")
    checks = [half.next_check_ms - now_ms for half in table(broker).open.values()]
    assert checks == [6_000, 60_000, 6_000]


def test_a_full_disk_lets_a_half_be_rolled_back_and_refuses_its_commit(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = send_half(client)
    stage = broker.memory.node.stage

    def full(*arguments: object, privileged: bool = False, **keywords: object) -> int:
        if not privileged:
            raise LogFullError("the disk is full")
        return stage(*arguments, privileged=privileged, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(broker.memory.node, "stage", full)
    assert end(client, sent).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert len(table(broker).open) == 1
    assert end(client, sent, ROLLBACK).code == 0


def test_a_oneway_half_and_a_oneway_end_take_effect(broker: ServedBroker, client: FakeClient) -> None:
    client.send(310, send_ext("T1", 0, HALF, f="4"), b"half", oneway=True)
    broker.settle()
    (half,) = table(broker).open.values()
    ext = {"producerGroup": "PG", "tranStateTableOffset": "0", "commitOrRollback": "12"}
    client.send(RequestCode.END_TRANSACTION, {**ext, "commitLogOffset": str(half.position)}, oneway=True)
    broker.settle()
    assert not table(broker).open
    assert client.settled == 2
    assert client.answers == []


def test_a_half_below_a_trim_that_is_under_way_is_not_committed(broker: ServedBroker, client: FakeClient) -> None:
    sent = send_half(client)
    state = broker.memory.machine.state
    state.trims.raise_to(broker.memory.log.end)
    assert end(client, sent).code == ResponseCode.SYSTEM_BUSY
    state.table(HALVES).on_log_trimmed(broker.memory.log.end)
    refused = end(client, sent)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "lost" in (refused.remark or "")


def test_ends_are_told_by_outcome(broker: ServedBroker, client: FakeClient) -> None:
    for outcome, text in ((HalfOutcome.UNDECIDED, "no producer"), (HalfOutcome.REOPENED, "open again")):
        sent = send_half(client)
        position = int(end_ext(sent)["commitLogOffset"])
        broker.memory.machine.stage_command(EndHalf(position, outcome), lambda _: None)
        broker.settle()
        refused = end(client, sent)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert text in (refused.remark or "")


def test_a_leader_that_is_deposed_says_that_the_outcome_of_an_end_is_unknown(
    broker: ServedBroker, client: FakeClient
) -> None:
    sent = send_half(client)
    rollback = client.send(RequestCode.END_TRANSACTION, end_ext(sent, ROLLBACK))
    broker.memory.node.commit = lambda: None  # a majority is gone
    broker.settle()
    waiting = client.send(RequestCode.END_TRANSACTION, end_ext(sent, ROLLBACK))
    broker.memory.node.step_down()
    broker.advance(5)
    assert client.answered(rollback).ext.get("outcome") == "unknown"
    assert client.answered(waiting).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_nobody_reads_halves(broker: ServedBroker, client: FakeClient) -> None:
    sent = send_half(client)
    position = end_ext(sent)["commitLogOffset"]
    assert client.pull(HALF_TOPIC).code == ResponseCode.NO_PERMISSION
    for topic, code in (("T1", ResponseCode.QUERY_NOT_FOUND), (HALF_TOPIC, ResponseCode.NO_PERMISSION)):
        ext = {"topic": topic, "key": "K1", "maxNum": "9", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
        assert client.call_from_disk(RequestCode.QUERY_MESSAGE, ext).code == code
    view = {"offset": position, "topic": "T1"}
    assert client.call_from_disk(RequestCode.VIEW_MESSAGE_BY_ID, view).code == ResponseCode.SYSTEM_ERROR
    end(client, sent)
    assert client.call_from_disk(RequestCode.VIEW_MESSAGE_BY_ID, view).code == ResponseCode.SYSTEM_ERROR
    ext = {"topic": "T1", "key": "K1", "maxNum": "9", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
    assert client.call_from_disk(RequestCode.QUERY_MESSAGE, ext).code == 0


def test_a_half_that_comes_while_the_node_ceases_to_lead_is_passed_on(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine knows before the requests do that it does not lead, and with it the clock."""
    machine = broker.memory.machine
    monkeypatch.setattr(machine, "leadership", Leadership(1, None, is_leader=False, ready=False))
    opaque = client.send(310, send_ext("T1", 0, HALF, f="4"), b"half")
    broker.memory.node.step_down()
    broker.advance(5)
    assert client.answered(opaque).code == ResponseCode.SERVICE_NOT_AVAILABLE

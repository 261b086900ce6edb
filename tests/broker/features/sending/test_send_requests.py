"""Promises to a producer."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from served_broker import (
    LONG_SEND,
    STORE_HOST,
    FakeClient,
    MakeBroker,
    ServedBroker,
    assert_refused,
    bodies,
    make_group,
    make_served_broker,
    records,
    send_ext,
    submit,
)

from dledger.errors import BusyError, LogFullError
from dledger_broker.config import BrokerConfig
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.features.sending.native_sends import NativeSendUnit
from dledger_broker.features.sending.on_their_way import MAX_GATHER_S, MAX_GATHERED_BYTES
from dledger_broker.features.sending.send import SendRequests
from dledger_broker.features.sending.unit import SendUnit
from dledger_broker.testing import START_MS, BrokerInMemory
from dledger_remoting.batch import BatchMessage, encode_batch
from dledger_remoting.codes import LanguageCode, RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand, encode_command, encode_json_header
from dledger_remoting.filters.tags import tag_code
from dledger_remoting.frame import SerializeType, join_frame
from dledger_remoting.ids import offset_message_id
from dledger_remoting.properties import parse_properties
from dledger_remoting.topics import HALF_TOPIC, TRACE_TOPIC, TopicConfig
from tests.broker.features.quotas.quota_calls import send_many
from tests.broker.features.sending.dedup.remembering import keyed, remembering
from tests.broker.features.sending.majority import Majority


def test_a_stored_message_is_pulled_back_as_it_was_sent(client: FakeClient) -> None:
    sent = client.send_message("T1", b"hello", 2, "TAGS\x01TagA\x02KEYS\x01k0\x02UNIQ_KEY\x01U1\x02", h="7")
    (record,) = records(client.pull("T1", 2))
    assert (sent.code, sent.ext["queueId"], sent.ext["queueOffset"]) == (0, "2", "0")
    assert sent.ext["transactionId"] == "U1"
    assert sent.ext["msgId"] == offset_message_id(STORE_HOST, record.physical_offset)
    assert (record.topic, record.queue_id, record.queue_offset, record.body, record.flag) == ("T1", 2, 0, b"hello", 7)
    assert (record.born_timestamp, record.store_timestamp) == (1_700_000_000_000, START_MS)
    assert (record.born_host, record.store_host) == (client.address, STORE_HOST)
    properties = {"TAGS": "TagA", "KEYS": "k0", "UNIQ_KEY": "U1", "CLUSTER": "DefaultCluster"}
    assert parse_properties(record.properties) == properties


def test_a_key_with_a_lone_surrogate_is_stored_as_by_java(client: FakeClient) -> None:
    ext = send_ext("T1", properties="KEYS\x01CUT\x02")
    header = encode_json_header(RemotingCommand(310, opaque=77, ext=ext)).replace(b"CUT", b"cut \\ud83d")
    client.feed(join_frame(0, header, b"body"))
    client.broker.settle()
    assert client.answered(77).code == 0
    (record,) = records(client.pull("T1"))
    assert parse_properties(record.properties)["KEYS"] == "cut ?"


@pytest.mark.parametrize("properties", ["", "WAIT\x01true", "WAIT\x01true\x02", "MY_UNIQ_KEY\x01x\x02"])
def test_a_message_without_a_unique_key_gets_one(client: FakeClient, properties: str) -> None:
    sent = client.send_message("T1", properties=properties)
    (record,) = records(client.pull("T1"))
    stored = parse_properties(record.properties)
    assert stored["UNIQ_KEY"] == sent.ext["transactionId"]
    assert parse_properties(properties).items() <= stored.items()


@pytest.mark.parametrize(("code", "ext"), [(RequestCode.SEND_MESSAGE, LONG_SEND), (310, send_ext("T1"))])
@pytest.mark.parametrize("serialize_type", [0, 1])
def test_both_codes_and_serializers_store_the_same(
    client: FakeClient, code: int, ext: dict[str, str], serialize_type: int
) -> None:
    sent = client.call(code, ext, b"x", serialize_type=serialize_type)
    assert (sent.code, sent.serialize_type) == (0, serialize_type)
    assert bodies(client.pull("T1")) == [b"x"]


def test_a_oneway_send_is_stored_and_not_answered(client: FakeClient) -> None:
    client.send(310, send_ext("T1"), b"quiet", oneway=True)
    client.broker.settle()
    assert (client.answers, client.in_flight) == ([], 0)
    assert bodies(client.pull("T1")) == [b"quiet"]


def test_a_negative_queue_id_lets_the_broker_choose(client: FakeClient) -> None:
    chosen = {client.send_message("T1", queue_id=-1).ext["queueId"] for _ in range(64)}
    assert len(chosen) > 1
    assert chosen <= {"0", "1", "2", "3"}


@given(st.lists(st.tuples(st.binary(max_size=40), st.sampled_from([b"", b"TAGS\x01a", b"TAGS\x01b\x02"])), min_size=1))
def test_a_batch_becomes_ordinary_messages(messages: list[tuple[bytes, bytes]]) -> None:
    config = BrokerConfig(broker_group="broker-a", node_id="fake-n0", data_dir=Path("unused"))
    broker = make_served_broker(config, BrokerInMemory())
    broker.memory.create_topic("T1")
    client = broker.client()
    body = encode_batch([BatchMessage(3, content, properties) for content, properties in messages])
    sent = client.call(320, send_ext("T1", m="true"), body)
    assert (sent.code, sent.ext["queueOffset"]) == (0, "0")
    found = records(client.pull("T1", maxMsgNums="1000"))
    assert [(record.body, record.flag) for record in found] == [(content, 3) for content, _ in messages]
    assert sent.ext["msgId"].split(",") == [offset_message_id(STORE_HOST, r.physical_offset) for r in found]
    tagged = records(client.pull("T1", maxMsgNums="1000", subscription="a"))
    assert len(tagged) == sum(properties == b"TAGS\x01a" for _, properties in messages)


def test_a_send_to_an_unknown_topic_creates_the_topic_after_the_default_topic(client: FakeClient) -> None:
    sent = send_many(client, 2, "New")
    assert [client.answered(opaque).ext["queueOffset"] for opaque in sent] == ["0", "1"]
    config = client.broker.memory.machine.state.topics["New"].config
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (4, 4, 6)


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ("DELAY\x01soon\x02", "DELAY = soon"),
        ("DELAY\x013\x02TIMER_DELAY_MS\x015\x02", "keep one"),
        ("TIMER_DELAY_SEC\x01259201\x02", "the limit is 259200 s"),
        ("__STARTDELIVERTIME\x01" + "9" * 15 + "\x02", "asks for a delay of"),
    ],
)
def test_a_send_with_a_bad_delay_is_refused_and_stores_nothing(client: FakeClient, properties: str, text: str) -> None:
    entries = len(client.broker.memory.log.entries)
    assert_refused(client.send_message("T1", properties=properties), 13, text)
    assert len(client.broker.memory.log.entries) == entries


@pytest.mark.parametrize(
    ("error", "code"), [(BusyError("64 MiB wait for a majority"), 2), (LogFullError("no space left"), 14)]
)
def test_a_send_that_the_log_refuses_is_not_stored(client: FakeClient, error: Exception, code: int) -> None:
    client.broker.memory.node.stage_error = error
    refused = client.send_message("T1")
    client.broker.memory.node.stage_error = None
    assert (refused.code, "outcome" in refused.ext) == (code, False)
    assert client.send_message("T1").ext["queueOffset"] == "0"


def test_a_send_in_flight_when_leadership_is_lost_has_an_unknown_outcome(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    Majority(broker, monkeypatch)
    opaque = submit(client, 310, send_ext("T1"), b"x")
    broker.memory.node.step_down()
    broker.settle()
    answer = client.answered(opaque)
    assert (answer.code, answer.ext["outcome"], broker.counters.outcomes_unknown) == (1, "unknown", 1)


def test_a_send_without_a_majority_has_an_unknown_outcome_and_one_answer(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    majority = Majority(broker, monkeypatch)
    opaque = client.send(310, send_ext("T1"), b"x")
    broker.advance(broker.config.quorum_timeout_ms / 1000 + 1)
    answer = client.answered(opaque)
    assert (answer.code, answer.ext["outcome"]) == (1, "unknown")
    majority.has_it()
    assert client.answered(opaque) is answer


def test_a_retry_message_that_was_delivered_too_often_goes_to_the_dead_letter_topic(client: FakeClient) -> None:
    kept = client.send_message("%RETRY%CG", b"again", j="2", l="2")
    dead = client.send_message("%RETRY%CG", b"enough", j="3", l="2", i="DELAY\x013\x02")
    assert (kept.code, dead.code) == (0, 0)
    memory = client.broker.memory
    assert (memory.bodies("%RETRY%CG"), memory.bodies("%DLQ%CG")) == ([b"again"], [b"enough"])
    assert "CG" in memory.machine.state.table(GROUPS).by_name


@pytest.mark.parametrize(("group", "code"), [("CG", 26), ("", 29), ("g" * 121, 29)])
def test_a_send_to_a_retry_topic_of_a_group_that_cannot_be_made_is_refused(
    make_broker: MakeBroker, group: str, code: int
) -> None:
    for creates in (False, True) if code == 29 else (False,):
        client = make_broker(auto_create_group=creates).client()
        assert client.send_message(f"%RETRY%{group}").code == code
        assert not client.broker.memory.machine.state.table(GROUPS).by_name


def test_the_leader_lists_the_tag_codes_that_followers_compute(broker: ServedBroker, client: FakeClient) -> None:
    for properties in ("TAGS\x01a\x02", "x\x01y\x02TAGS\x01b", "MYTAGS\x01a\x02", "TAGS\x01a\x02TAGS\x01c\x02", ""):
        client.send_message("T1", properties=properties)
    follower = broker.memory.restart(lead=False)
    for machine in (broker.memory.machine, follower.machine):
        queue = machine.queue("T1", 0)
        assert queue is not None
        units = machine.queues.read(queue.view, 0, 5)
        assert units is not None
        codes = [int.from_bytes(units[at + 12 : at + 20], "big", signed=True) for at in range(0, len(units), 20)]
        assert codes == [tag_code("a"), tag_code("b"), 0, tag_code("c"), 0]


def test_groups_of_retry_topics_keep_their_settings(broker: ServedBroker, client: FakeClient) -> None:
    make_group(broker, retry_queue_nums=3, retry_max_times=1)
    for times, topic, queues in (("2", "%DLQ%CG", 1), ("1", "%RETRY%CG", 3)):
        client.send_message("%RETRY%CG", j=times)
        assert broker.memory.machine.state.topics[topic].config.write_queue_nums == queues


# ---- sends to a topic while it is deleted


def test_a_send_behind_a_deletion_in_flight_goes_to_the_next_topic_of_that_name(client: FakeClient) -> None:
    client.send_message("T1", b"old")
    client.broker.memory.machine.proposals.delete_topic("T1", lambda _: None)
    sent = client.send_message("T1", b"new")
    assert (sent.code, sent.ext["queueOffset"], bodies(client.pull("T1"))) == (0, "0", [b"new"])


def test_a_send_overtaken_by_a_deletion_goes_to_the_next_topic_of_that_name(client: FakeClient) -> None:
    memory = client.broker.memory
    client.send_message("T1", b"old")
    late = client.send(310, send_ext("T1"), b"late")
    memory.machine.proposals.delete_topic("T1", lambda _: None)
    memory.machine.proposals.put_topic(TopicConfig("T1", 4, 4), lambda _: None)
    memory.node.commit()
    memory.node.commit()
    client.broker.settle()
    answer = client.answered(late)
    assert (answer.code, answer.ext["queueOffset"], bodies(client.pull("T1"))) == (0, "0", [b"late"])
    assert memory.restart(lead=False).queue("T1").next_offset == 1


# ---- RocketMQ's Go client traces a send only if the answer says TRACE_ON

SWITCH = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
BATCH = encode_batch([BatchMessage(0, b"1", b""), BatchMessage(0, b"2", b"")])
SENDS = {
    "a message": (RequestCode.SEND_MESSAGE, "UNIQ_KEY\x01K1\x02", b"1", {}),
    "a batch": (RequestCode.SEND_BATCH_MESSAGE, "", BATCH, {}),
    "a message for later": (RequestCode.SEND_MESSAGE, "UNIQ_KEY\x01K1\x02TIMER_DELAY_MS\x0160000\x02", b"1", {}),
    "half of a transaction": (RequestCode.SEND_MESSAGE, "TRAN_MSG\x01true\x02PGROUP\x01PG\x02", b"1", {"f": "4"}),
}


@pytest.mark.parametrize("serialize_type", [SerializeType.JSON, SerializeType.ROCKETMQ])
def test_only_go_clients_are_told_to_trace(broker: ServedBroker, serialize_type: int) -> None:
    broker.memory.create_topic(HALF_TOPIC)
    for name, (code, properties, body, more) in SENDS.items():
        told = []
        for language in (LanguageCode.GO, LanguageCode.CPP):
            client, ext = broker.client(), send_ext("T1", properties=properties, **more)
            fields = {"ext": ext, "body": body, "language": language, "serialize_type": serialize_type}
            client.feed(encode_command(RemotingCommand(code, opaque=7, **fields)))
            broker.settle()
            assert client.answered(7).code == 0, name
            told.append(client.answered(7).ext)
        assert SWITCH.items() <= told[0].items(), name
        assert not SWITCH.keys() & told[1].keys(), name
        assert told[0].keys() - SWITCH.keys() == told[1].keys(), name


def test_a_repeated_idempotent_send_is_answered_with_the_trace_switch(broker: ServedBroker) -> None:
    client, ext = remembering(broker).client(), send_ext("T1", properties=keyed("K1"), idempotent="true")
    for _ in range(2):
        command = RemotingCommand(RequestCode.SEND_MESSAGE, ext=ext, body=b"1", language=LanguageCode.GO)
        client.feed(encode_command(command))
        broker.settle()
    first, again = (answer.ext for answer in client.answers)
    assert SWITCH.items() <= first.items()
    assert again == {**first, "repeated": "true"}


def test_the_trace_topic_takes_sends_and_other_system_topics_refuse_sends(client: FakeClient) -> None:
    client.broker.memory.create_topic(TRACE_TOPIC)
    client.send_message(TRACE_TOPIC, properties="KEYS\x01ID\x02")
    client.send_message("SELF_TEST_TOPIC")
    assert [answer.code for answer in client.answers] == [0, 16]


# ---- sends gather into units while other units are in flight to a majority


def requests_of(_commands: bytes, context: object) -> int:
    return context.requests if isinstance(context, SendUnit | NativeSendUnit) else 0


@pytest.fixture
def majority(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> Majority:
    return Majority(broker, monkeypatch, requests_of)


def test_sends_gather_until_half_as_many_as_the_sends_in_flight(client: FakeClient, majority: Majority) -> None:
    for count, units in ((8, [8]), (1, [8]), (1, [8]), (1, [8]), (1, [8, 4]), (5, [8, 4])):
        send_many(client, count)
        assert majority.units == units
    majority.has_it()
    assert [answer.ext["queueOffset"] for answer in client.answers] == [str(offset) for offset in range(12)]


def test_no_send_gathers_longer_than_the_time_limit(client: FakeClient, majority: Majority) -> None:
    send_many(client, 8)
    for more, units in ((1, [8]), (1, [8, 2]), (1, [8, 2]), (0, [8, 2, 1])):  # the time begins anew with the next unit
        send_many(client, more)
        client.broker.advance(MAX_GATHER_S / 2)
        assert majority.units == units


def test_the_gathering_time_restarts_after_an_early_staging(client: FakeClient, majority: Majority) -> None:
    send_many(client, 8)
    send_many(client, 1)
    client.broker.advance(MAX_GATHER_S / 2)
    majority.has_it()
    send_many(client, 7)
    send_many(client, 1)
    client.broker.advance(MAX_GATHER_S * 0.7)
    assert majority.units == [8, 1, 7]
    client.broker.advance(MAX_GATHER_S * 0.3)
    assert majority.units == [8, 1, 7, 1]


def test_gathered_sends_are_staged_at_max_gathered_bytes(client: FakeClient, majority: Majority) -> None:
    send_many(client, 8)
    for units in ([8], [8, 2]):
        send_many(client, 1, body=bytes(MAX_GATHERED_BYTES // 2))
        assert majority.units == units


def test_sends_given_up_for_lack_of_a_majority_hold_back_no_later_send(client: FakeClient, majority: Majority) -> None:
    send_many(client, 8)
    client.broker.advance(client.broker.config.quorum_timeout_ms / 1000 + 1)
    assert len(client.answers) == 8
    send_many(client, 1)
    assert majority.units == [8, 1]


def test_sends_gathered_when_leadership_is_lost_wait_for_the_next_leader(
    client: FakeClient, majority: Majority
) -> None:
    broker, sent = client.broker, send_many(client, 8)
    (waiting,) = send_many(client, 1)
    broker.memory.node.step_down()
    broker.settle()
    assert {client.answered(opaque).ext["outcome"] for opaque in sent} == {"unknown"}
    broker.memory.node.lead()
    broker.advance(MAX_GATHER_S)
    majority.has_it()
    assert client.answered(waiting).ext["queueOffset"] == "0"


def test_gathered_sends_are_answered_when_the_node_stops(client: FakeClient, majority: Majority) -> None:
    opaques = [*send_many(client, 8), *send_many(client, 1)]
    client.broker.service.parts[SendRequests].close()
    client.broker.advance(1)
    assert all(client.has_answer(opaque) for opaque in opaques)


def test_gathered_sends_are_answered_when_a_deposed_node_stops(client: FakeClient, majority: Majority) -> None:
    send_many(client, 8)
    (waiting,) = send_many(client, 1)
    client.broker.memory.node.step_down()
    client.broker.service.forwarder.close()
    client.broker.service.parts[SendRequests].close()
    client.broker.advance(1)
    assert client.answered(waiting).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "outcome" not in client.answered(waiting).ext

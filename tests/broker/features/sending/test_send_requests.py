"""Promises to a producer."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from served_broker import STORE_HOST, FakeClient, MakeBroker, ServedBroker, make_served_broker, records, send_ext

from dledger.errors import BusyError, LogFullError
from dledger_broker.config import BrokerConfig
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.testing import START_MS, BrokerInMemory
from dledger_remoting.batch import BatchMessage, encode_batch
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand, encode_command, encode_json_header
from dledger_remoting.filters.tags import tag_code
from dledger_remoting.frame import join_frame
from dledger_remoting.ids import offset_message_id
from dledger_remoting.properties import parse_properties
from dledger_remoting.topics import SubscriptionGroupConfig, TopicConfig


def test_a_stored_message_is_pulled_back_as_it_was_sent(client: FakeClient) -> None:
    sent = client.send_message("T1", b"hello", 2, "TAGS\x01TagA\x02KEYS\x01k0\x02UNIQ_KEY\x01U1\x02", h="7")
    (record,) = records(client.pull("T1", 2))
    assert (sent.code, sent.ext["queueId"], sent.ext["queueOffset"]) == (0, "2", "0")
    assert sent.ext["transactionId"] == "U1"
    assert sent.ext["msgId"] == offset_message_id(STORE_HOST, record.physical_offset)
    assert (record.topic, record.queue_id, record.queue_offset, record.body, record.flag) == ("T1", 2, 0, b"hello", 7)
    assert (record.born_timestamp, record.store_timestamp) == (1_700_000_000_000, START_MS)
    assert (record.born_host, record.store_host) == (client.address, STORE_HOST)
    assert parse_properties(record.properties) == {
        "TAGS": "TagA",
        "KEYS": "k0",
        "UNIQ_KEY": "U1",
        "CLUSTER": "DefaultCluster",
    }


def test_a_key_that_javascript_cut_within_an_emoji_is_stored_as_java_stores_it(client: FakeClient) -> None:
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


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
@pytest.mark.parametrize("serialize_type", [0, 1])
def test_both_codes_and_serializers_store_the_same(client: FakeClient, code: int, serialize_type: int) -> None:
    ext = send_ext("T1")
    if code == RequestCode.SEND_MESSAGE:
        ext = {
            "producerGroup": "PG",
            "topic": "T1",
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": "0",
            "sysFlag": "0",
            "bornTimestamp": "1700000000000",
            "flag": "0",
        }
    sent = client.call(code, ext, b"x", serialize_type=serialize_type)
    assert (sent.code, sent.serialize_type) == (0, serialize_type)
    assert [record.body for record in records(client.pull("T1"))] == [b"x"]


def test_sends_of_one_read_are_stored_in_order_as_one_unit(broker: ServedBroker, client: FakeClient) -> None:
    entries = len(broker.memory.log.entries)
    frames = [
        encode_command(RemotingCommand(310, opaque=1_000 + number, ext=send_ext("T1"), body=b"%d" % number))
        for number in range(1, 65)
    ]
    client.feed(b"".join(frames))
    assert client.answers == []
    broker.settle()
    assert len(broker.memory.log.entries) == entries + 1
    assert [answer.ext["queueOffset"] for answer in client.answers] == [str(offset) for offset in range(64)]
    assert [record.body for record in records(client.pull("T1", maxMsgNums="64"))] == [b"%d" % n for n in range(1, 65)]


def test_a_oneway_send_is_stored_and_not_answered(broker: ServedBroker, client: FakeClient) -> None:
    client.send(310, send_ext("T1"), b"quiet", oneway=True)
    broker.settle()
    assert (client.answers, client.in_flight) == ([], 0)
    assert len(records(client.pull("T1"))) == 1


def test_a_negative_queue_id_lets_the_broker_choose(client: FakeClient) -> None:
    chosen = {client.send_message("T1", queue_id=-1).ext["queueId"] for _ in range(64)}
    assert chosen <= {"0", "1", "2", "3"}
    assert len(chosen) > 1


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


def test_a_send_to_an_unknown_topic_creates_it_after_the_default_topic(
    broker: ServedBroker, client: FakeClient
) -> None:
    first, second = client.send(310, send_ext("New"), b"1"), client.send(310, send_ext("New"), b"2")
    broker.settle()
    assert [client.answered(opaque).ext["queueOffset"] for opaque in (first, second)] == ["0", "1"]
    config = broker.memory.machine.state.topics["New"].config
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (4, 4, 6)


@pytest.mark.parametrize(
    ("topic", "letters", "body", "code", "text"),
    [
        ("T 1", {}, b"x", 29, "may only contain"),
        ("", {}, b"x", 29, "empty"),
        ("SCHEDULE_TOPIC_XXXX", {}, b"x", 16, "broker itself"),
        ("Unknown", {"c": "T1"}, b"x", 17, "create it"),
        ("T1", {"e": "4"}, b"x", 29, "0..3"),
        ("ReadOnly", {}, b"x", 16, "writing"),
        ("T1", {}, b"x" * 1025, 13, "1024"),
        ("T1", {"i": "p\x01" + "x" * 32_767}, b"x", 13, "32767"),
        ("T1", {"i": "DELAY\x01soon\x02"}, b"x", 13, "DELAY = soon"),
        ("T1", {"i": "DELAY\x013\x02TIMER_DELAY_MS\x015\x02"}, b"x", 13, "keep one"),
        ("T1", {"i": "TIMER_DELAY_SEC\x01259201\x02"}, b"x", 13, "the limit is 259200 s"),
        ("T1", {"i": "__STARTDELIVERTIME\x01" + "9" * 15 + "\x02"}, b"x", 13, "asks for a delay of"),
        ("T1", {"f": "4"}, b"x", 13, "transaction"),
        ("T1", {"m": "true"}, b"\x00\x00", 13, "cut off"),
        ("T1", {"e": "many"}, b"x", 1, "queueId"),
    ],
)
def test_a_bad_send_is_refused_with_rocketmqs_code_and_stores_nothing(
    make_broker: MakeBroker, topic: str, letters: dict[str, str], body: bytes, code: int, text: str
) -> None:
    broker = make_broker(max_message_bytes=1024)
    broker.memory.machine.proposals.put_topic(TopicConfig("ReadOnly", 4, 4, perm=4), lambda _: None)
    broker.settle()
    entries = len(broker.memory.log.entries)
    client = broker.client()
    answer = client.call(310, {**send_ext(topic), **letters}, body)
    assert answer.code == code
    assert text in (answer.remark or "")
    assert "\n" not in (answer.remark or "")
    assert len(broker.memory.log.entries) == entries


@pytest.mark.parametrize(
    ("error", "code"), [(BusyError("64 MiB wait for a majority"), 2), (LogFullError("no space left"), 14)]
)
def test_what_the_log_refuses_was_not_stored(
    broker: ServedBroker, client: FakeClient, error: Exception, code: int
) -> None:
    broker.memory.node.stage_error = error
    refused = client.send_message("T1")
    broker.memory.node.stage_error = None
    assert refused.code == code
    assert "outcome" not in refused.ext
    assert client.send_message("T1").ext["queueOffset"] == "0"


def test_a_message_that_leadership_was_lost_over_has_an_unknown_outcome(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker.memory.node, "commit", lambda: None)
    opaque = client.send(310, send_ext("T1"), b"x")
    broker.settle()
    broker.memory.node.step_down()
    broker.settle()
    answer = client.answered(opaque)
    assert (answer.code, answer.ext["outcome"]) == (1, "unknown")
    assert broker.counters.outcomes_unknown == 1


def test_a_message_that_no_majority_takes_has_an_unknown_outcome_and_one_answer(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = broker.memory.node.commit
    monkeypatch.setattr(broker.memory.node, "commit", lambda: None)
    opaque = client.send(310, send_ext("T1"), b"x")
    broker.advance(broker.config.quorum_timeout_ms / 1000 + 1)
    answer = client.answered(opaque)
    assert (answer.code, answer.ext["outcome"]) == (1, "unknown")
    commit()
    broker.settle()
    assert client.answered(opaque) is answer


def test_a_retry_message_that_was_delivered_too_often_goes_to_the_dead_letter_topic(
    broker: ServedBroker, client: FakeClient
) -> None:
    kept = client.send_message("%RETRY%CG", b"again", j="2", l="2")
    dead = client.send_message("%RETRY%CG", b"enough", j="3", l="2", i="DELAY\x013\x02")
    assert (kept.code, dead.code) == (0, 0)
    assert broker.memory.bodies("%RETRY%CG") == [b"again"]
    assert broker.memory.bodies("%DLQ%CG") == [b"enough"]
    assert "CG" in broker.memory.machine.state.table(GROUPS).by_name


def test_a_retry_topic_of_an_unknown_group_is_refused_where_groups_are_not_created(make_broker: MakeBroker) -> None:
    client = make_broker(auto_create_group=False).client()
    assert client.send_message("%RETRY%CG").code == 26


@pytest.mark.parametrize("group", ["", "g" * 121])
def test_a_retry_topic_creates_no_group_that_could_not_have_its_name(
    broker: ServedBroker, client: FakeClient, group: str
) -> None:
    assert client.send_message("%RETRY%" + group).code == 29
    assert not broker.memory.machine.state.table(GROUPS).by_name


def test_a_deleted_and_recreated_topic_starts_at_offset_zero(broker: ServedBroker, client: FakeClient) -> None:
    client.send_message("T1")
    client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T1"})
    broker.memory.create_topic("T1")
    assert client.send_message("T1", b"fresh").ext["queueOffset"] == "0"
    assert [record.body for record in records(client.pull("T1"))] == [b"fresh"]


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
    config = SubscriptionGroupConfig("CG", retry_queue_nums=3, retry_max_times=1)
    broker.groups.put_group(config, lambda _: None)
    broker.settle()
    client.send_message("%RETRY%CG", j="2")
    assert broker.memory.machine.state.topics["%DLQ%CG"].config.write_queue_nums == 1
    client.send_message("%RETRY%CG", j="1")
    assert broker.memory.machine.state.topics["%RETRY%CG"].config.write_queue_nums == 3

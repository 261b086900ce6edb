"""Topics, groups, single messages, and codes that this broker does not know."""

from __future__ import annotations

import msgspec
import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, json_body, records

from dledger_broker.kernel.requests import Request
from dledger_broker.state.offsets import OFFSETS
from dledger_remoting.codes import RequestCode, request_code_name
from dledger_remoting.command import RemotingCommand, encode_command
from dledger_remoting.errors import MessageIllegal
from dledger_remoting.frame import MAX_FRAME_BYTES

TOPIC = {
    "topic": "T2",
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "2",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "attributes": "+message.type=FIFO",
}


def test_a_topic_is_created_shown_changed_and_deleted(broker: ServedBroker, client: FakeClient) -> None:
    assert client.call(17, TOPIC).code == 0
    shown = json_body(client.call(351, {"topic": "T2"}))
    assert shown == {
        "topicName": "T2",
        "readQueueNums": 4,
        "writeQueueNums": 2,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
        "attributes": {"message.type": "FIFO"},
    }
    assert client.call(17, {**TOPIC, "perm": "4", "attributes": "-message.type,+a=b"}).code == 0
    config = broker.memory.machine.state.topics["T2"].config
    assert (config.perm, config.attributes) == (4, {"a": "b"})
    assert client.call(215, {"topic": "T2"}).code == 0
    assert client.call(351, {"topic": "T2"}).code == 17
    assert client.call(215, {"topic": "T2"}).code == 0


def test_several_topics_are_created_at_once(client: FakeClient) -> None:
    body = b'{"topicConfigList":[{"topicName":"A"},{"topicName":"B","perm":4}]}'
    assert client.call(18, {}, body).code == 0
    table = json_body(client.call(21))
    assert isinstance(table, dict)
    assert {"A", "B", "T1"} <= set(table["topicConfigTable"])
    assert table["dataVersion"]["stateVersion"] == 1


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"topic": ""}, 29, "empty"),
        ({"topic": "TBW102"}, 29, "system topic"),
        ({"topic": "x" * 128}, 29, "127"),
        ({"readQueueNums": "0"}, 29, "readQueueNums 0"),
        ({"writeQueueNums": "65537"}, 29, "65536"),
        ({"perm": "8"}, 29, "perm 8"),
        ({"perm": "rw"}, 1, "perm"),
        ({"attributes": "message.type"}, 29, "+key=value"),
        ({"attributes": "+a=" + "x" * 4096}, 29, "attributes have 4097 bytes"),
        ({"topicFilterType": "x" * 1_000_000}, 29, "SINGLE_TAG, MULTI_TAG"),
    ],
)
def test_a_bad_topic_is_refused(client: FakeClient, fields: dict[str, str], code: int, text: str) -> None:
    answer = client.call(17, {**TOPIC, **fields})
    assert answer.code == code
    assert text in (answer.remark or "")


def test_of_a_topic_that_a_list_names_twice_the_last_form_counts(broker: ServedBroker, client: FakeClient) -> None:
    configs = [{"topicName": "T2", "readQueueNums": number, "writeQueueNums": number} for number in range(1, 9)]
    entries = len(broker.memory.log.entries)
    assert client.call(18, {}, msgspec.json.encode({"topicConfigList": configs})).code == 0
    assert broker.memory.machine.state.topics["T2"].queue_count == 8
    assert len(broker.memory.log.entries) == entries + 1


def test_a_text_of_attributes_that_no_topic_can_hold_is_not_even_read(client: FakeClient) -> None:
    """Each change of a few bytes takes hundreds, and a request may be of 16 MB."""
    assert client.call(17, {**TOPIC, "attributes": "+a=b,-a," * 3_000}).code == 0
    answer = client.call(17, {**TOPIC, "attributes": "+a=b,-a," * 30_000})
    assert answer.code == 29
    assert "240000 characters" in (answer.remark or "")


def test_attributes_do_not_grow_from_change_to_change(client: FakeClient) -> None:
    assert client.call(17, {**TOPIC, "attributes": "+a=" + "x" * 4000}).code == 0
    assert client.call(17, {**TOPIC, "attributes": "+b=" + "x" * 4000}).code == 29
    assert client.call(17, {**TOPIC, "attributes": "-a,+b=" + "x" * 4000}).code == 0


@pytest.mark.parametrize(("topic", "code"), [("", 29), (" ", 29), ("SCHEDULE_TOPIC_XXXX", 29)])
def test_a_system_topic_is_not_deleted(client: FakeClient, topic: str, code: int) -> None:
    assert client.call(215, {"topic": topic}).code == code


def test_a_group_is_created_shown_and_deleted(broker: ServedBroker, client: FakeClient) -> None:
    assert client.call(200, {}, b'{"groupName":"CG","retryMaxTimes":3}').code == 0
    shown = json_body(client.call(352, {"group": "CG"}))
    assert isinstance(shown, dict)
    assert (shown["groupName"], shown["retryMaxTimes"], shown["consumeEnable"]) == ("CG", 3, True)
    listed = json_body(client.call(201))
    assert isinstance(listed, dict)
    assert list(listed["subscriptionGroupTable"]) == ["CG"]
    client.pull("T1", sysFlag="5", commitOffset="4")
    broker.advance(1)
    assert client.call(207, {"groupName": "CG", "cleanOffset": "true"}).code == 0
    assert client.call(352, {"group": "CG"}).code == 26
    assert broker.memory.machine.state.table(OFFSETS).get("CG", "T1", 0) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"groupName":"a b"}',
        b'{"groupName":"g","retryMaxTimes":-1}',
        b"\xff",
        b'{"groupName":"g","attributes":{"a":"%b"}}' % (b"x" * 4096),
    ],
)
def test_a_bad_group_is_refused_with_a_text(client: FakeClient, body: bytes) -> None:
    answer = client.call(200, {}, body)
    assert answer.code in {1, 29}
    assert answer.remark


def test_an_answer_fits_a_frame_of_the_protocol_whatever_frames_a_node_takes(make_broker: MakeBroker) -> None:
    broker = make_broker(max_frame_bytes=64 << 20, max_partial_bytes=128 << 20)
    request = Request(broker.client(), 21, 1, 0, 0, b'{"code":21}', b"", 0.0)
    with pytest.raises(MessageIllegal, match="ask for less"):
        broker.parts.requests.respond(request, bytes(MAX_FRAME_BYTES - 100))


def test_messages_are_found_by_key_and_by_offset(client: FakeClient) -> None:
    client.send_message("T1", b"one", properties="KEYS\x01k1 k2\x02UNIQ_KEY\x01U1\x02")
    client.send_message("T1", b"two", properties="KEYS\x01k2\x02UNIQ_KEY\x01U2\x02")
    times = {"topic": "T1", "maxNum": "10", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    both = client.call_from_disk(12, {**times, "key": "k2"})
    assert [record.body for record in records(both)] == [b"two", b"one"]
    assert set(both.ext) == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}
    one = client.call_from_disk(12, {**times, "key": "U1", "_UNIQUE_KEY_QUERY": "true"})
    assert [record.body for record in records(one)] == [b"one"]
    assert client.call_from_disk(12, {**times, "key": "k9"}).code == 22
    position = records(one)[0].physical_offset
    assert records(client.call_from_disk(33, {"offset": str(position)})) == records(one)
    missing = client.call_from_disk(33, {"offset": str(position + 1)})
    assert (missing.code, missing.remark) == (1, f"can not find message by the offset, {position + 1}")


@pytest.mark.parametrize("code", [RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.POP_MESSAGE, 31_999])
def test_other_codes_are_answered_three_and_named(client: FakeClient, code: int) -> None:
    answer = client.call(code)
    assert answer.code == 3
    assert (answer.remark or "").startswith(f" request type {code} not supported")
    assert request_code_name(code) in (answer.remark or "")


def test_a_request_that_breaks_the_broker_is_answered_in_one_line(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_broker()
    monkeypatch.setattr(broker.memory.machine, "get_messages", lambda *_: 1 / 0)
    answer = broker.client().pull("T1")
    assert answer.code == 1
    assert "\n" not in (answer.remark or "")
    assert broker.counters.errors >= 1


def test_a_response_is_ignored(client: FakeClient) -> None:
    client.feed(encode_command(RemotingCommand(0, opaque=9, flag=1)))
    assert (client.answers, client.in_flight) == ([], 0)

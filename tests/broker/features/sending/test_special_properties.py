"""Properties of the broker's own are removed from messages in all forms, and unsupported ones refuse a message."""

from __future__ import annotations

from typing import Final

import pytest
from served_broker import LONG_SEND, FakeClient, MakeBroker, ServedBroker, assert_refused, send_ext

from dledger_remoting.batch import BatchMessage, encode_batch
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.properties import BROKER_OWNED_NAMES
from dledger_remoting.record import iter_records
from dledger_remoting.topics import HALF_TOPIC

OWNED: Final = sorted(name.decode() for name in BROKER_OWNED_NAMES)
KEPT: Final = "KEYS\x01K\x02TAGS\x01A\x02MY_REAL_TOPIC\x01v\x02PGROUP\x01PG\x02UNIQ_KEY\x01U1\x02"
ADDED: Final = "CLUSTER\x01DefaultCluster\x02"


def with_owned(properties: str = KEPT) -> str:
    """Return properties with all those that the broker owns before, between and behind others."""
    first, *others = (f"{name}\x017\x02" for name in OWNED)
    pairs = properties.split("\x02")
    return first + "\x02".join(pairs[:2]) + "\x02" + "".join(others) + "\x02".join(pairs[2:])


def stored(client: FakeClient) -> list[str]:
    """Return the properties of the messages that are stored in T1."""
    memory = client.broker.memory
    found: list[str] = []
    for queue in memory.machine.state.topics["T1"].queues.values():
        for position, size in memory.reads.get_messages(queue, 0, 100, 1 << 20).runs:
            found += [record.properties.decode() for record in iter_records(bytes(memory.log.data[position:][:size]))]
    return found


@pytest.mark.parametrize("name", OWNED)
def test_each_broker_owned_property_is_removed_from_a_send(client: FakeClient, name: str) -> None:
    assert client.send_message("T1", properties=f"{KEPT}{name}\x017\x02").code == ResponseCode.SUCCESS
    assert stored(client) == [KEPT + ADDED]


def test_broker_owned_properties_are_removed_from_single_sends_of_any_form(client: FakeClient) -> None:
    answers = [
        client.send_message("T1", properties=with_owned()),
        client.send_message("T1", properties=KEPT),  # of the form that the fast path knows from now on
        client.send_message("T1", properties=with_owned(KEPT.removesuffix("\x02"))),
        client.call(RequestCode.SEND_MESSAGE, LONG_SEND | {"properties": with_owned()}, b"x"),
        client.call(RequestCode.SEND_MESSAGE_V2, send_ext("T1", 0, with_owned()), b"x", serialize_type=1),
        client.send_message("T1", properties=with_owned()),
    ]
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    assert {answer.ext["transactionId"] for answer in answers} == {"U1"}
    assert stored(client) == [KEPT + ADDED] * 6


@pytest.mark.parametrize("first", [KEPT, ""], ids=["all alike", "of several forms"])
def test_broker_owned_properties_are_removed_from_each_message_of_a_batch(client: FakeClient, first: str) -> None:
    batch = [BatchMessage(0, b"x", text.encode()) for text in (first, with_owned(), KEPT)]
    ext = send_ext("T1", 0, "", m="true")
    client.send_message("T1", properties=KEPT)
    assert client.call(RequestCode.SEND_BATCH_MESSAGE, ext, encode_batch(batch)).code == ResponseCode.SUCCESS
    assert stored(client)[2:] == [KEPT + ADDED] * 2


def test_properties_with_similar_names_are_kept(client: FakeClient) -> None:
    alike = "REAL_TOPICS\x01a\x02_POP_CK\x01b\x02TIMER_MS\x01c\x02REAL_QID\x02KEYS\x01REAL_TOPIC\x02UNIQ_KEY\x01U\x02"
    client.send_message("T1", properties=alike)
    assert stored(client) == [alike + ADDED]


NAMES: Final = ("INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "INNER_NUM", "INNER_BASE", "TIMER_DEL_UNIQKEY")


def send_as(client: FakeClient, form: str, properties: str) -> RemotingCommand:
    """Send a message in one of the forms of `FORMS`."""
    match form:
        case "in long names":  # as the C++ client sends
            return client.call(RequestCode.SEND_MESSAGE, LONG_SEND | {"properties": properties}, b"body")
        case "in a batch":
            parts = [BatchMessage(0, b"first", b"UNIQ_KEY\x01U1\x02"), BatchMessage(0, b"second", properties.encode())]
            return client.call(RequestCode.SEND_BATCH_MESSAGE, send_ext("T1"), encode_batch(parts))
        case "delayed":
            return client.send_message("T1", properties=f"DELAY\x013\x02{properties}")
        case "a half":
            return client.send_message("T1", properties=f"TRAN_MSG\x01true\x02PGROUP\x01PG\x02{properties}", f="4")
        case _:
            return client.send_message("T1", properties=properties)


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    """Return a broker that also has a topic for halves."""
    return make_broker(topics=("T1", HALF_TOPIC))


FORMS: Final = ("plain", "in long names", "in a batch", "delayed", "a half")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", FORMS)
def test_a_property_of_an_unsupported_feature_is_refused(client: FakeClient, form: str, name: str) -> None:
    assert send_as(client, form, "UNIQ_KEY\x01U0\x02").code == ResponseCode.SUCCESS
    stored = len(client.broker.memory.log.data)
    answer = send_as(client, form, f"KEYS\x01K\x02{name}\x01%LMQ%a,%LMQ%b\x02UNIQ_KEY\x01U1\x02")
    assert (answer.code, (answer.remark or "").startswith(f"property {name} ")) == (ResponseCode.MESSAGE_ILLEGAL, True)
    assert len(client.broker.memory.log.data) == stored


@pytest.mark.parametrize("name", NAMES)
def test_unsupported_properties_without_a_value_and_similar_names_are_accepted(client: FakeClient, name: str) -> None:
    assert send_as(client, "plain", f"{name}\x01\x02MY_{name}\x01v\x02").code == ResponseCode.SUCCESS


@pytest.mark.parametrize("flag", [0x40, 0x80, 0xC0, 0x84])
def test_a_flag_for_several_messages_in_one_record_is_refused(client: FakeClient, flag: int) -> None:
    client.send_message("T1")
    stored = len(client.broker.memory.log.data)
    assert_refused(client.send_message("T1", f=str(flag)), ResponseCode.MESSAGE_ILLEGAL, f"sysFlag {flag} ")
    assert len(client.broker.memory.log.data) == stored


def test_a_send_to_a_light_message_queue_is_refused_and_creates_no_topic(client: FakeClient) -> None:
    assert_refused(client.send_message("%LMQ%a"), ResponseCode.INVALID_PARAMETER, "light message queue")
    assert "%LMQ%a" not in client.broker.memory.machine.state.topics

"""Properties that say what the broker has decided are taken off whatever a client sends, however it sends it."""

from __future__ import annotations

from typing import Final

import pytest
from served_broker import FakeClient, ServedBroker, send_ext

from dledger_remoting.batch import BatchMessage, encode_batch
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.properties import BROKER_OWNED_NAMES
from dledger_remoting.record import iter_records

OWNED: Final = sorted(name.decode() for name in BROKER_OWNED_NAMES)
KEPT: Final = "KEYS\x01K\x02TAGS\x01A\x02MY_REAL_TOPIC\x01v\x02PGROUP\x01PG\x02UNIQ_KEY\x01U1\x02"
ADDED: Final = "CLUSTER\x01DefaultCluster\x02"


@pytest.fixture
def client(broker: ServedBroker) -> FakeClient:
    """A client of a broker that has topic T1."""
    return broker.client()


def with_owned(properties: str = KEPT) -> str:
    """All that the broker owns, before, between and behind others."""
    first, *others = (f"{name}\x017\x02" for name in OWNED)
    pairs = properties.split("\x02")
    return first + "\x02".join(pairs[:2]) + "\x02" + "".join(others) + "\x02".join(pairs[2:])


def stored(client: FakeClient) -> list[str]:
    """The properties of what is stored in T1."""
    memory = client.broker.memory
    found: list[str] = []
    for queue in memory.machine.state.topics["T1"].queues.values():
        for position, size in memory.reads.get_messages(queue, 0, 100, 1 << 20).runs:
            found += [record.properties.decode() for record in iter_records(bytes(memory.log.data[position:][:size]))]
    return found


@pytest.mark.parametrize("name", OWNED)
def test_each_of_them_is_taken_off(client: FakeClient, name: str) -> None:
    assert client.send_message("T1", properties=f"{KEPT}{name}\x017\x02").code == ResponseCode.SUCCESS
    assert stored(client) == [KEPT + ADDED]


def test_they_are_taken_off_single_messages_of_any_form(client: FakeClient) -> None:
    long_names = {
        "producerGroup": "PG",
        "topic": "T1",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "0",
        "flag": "0",
        "properties": with_owned(),
    }
    answers = [
        client.send_message("T1", properties=with_owned()),
        client.send_message("T1", properties=KEPT),  # of the form of messages that a short way knows from now on
        client.send_message("T1", properties=with_owned(KEPT.removesuffix("\x02"))),
        client.call(RequestCode.SEND_MESSAGE, long_names, b"x"),
        client.call(RequestCode.SEND_MESSAGE_V2, send_ext("T1", 0, with_owned()), b"x", serialize_type=1),
        client.send_message("T1", properties=with_owned()),
    ]
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    assert {answer.ext["transactionId"] for answer in answers} == {"U1"}
    assert stored(client) == [KEPT + ADDED] * 6


@pytest.mark.parametrize("first", [KEPT, ""], ids=["all alike", "of several forms"])
def test_they_are_taken_off_each_message_of_a_batch(client: FakeClient, first: str) -> None:
    batch = [BatchMessage(0, b"x", text.encode()) for text in (first, with_owned(), KEPT)]
    ext = send_ext("T1", 0, "", m="true")
    client.send_message("T1", properties=KEPT)
    assert client.call(RequestCode.SEND_BATCH_MESSAGE, ext, encode_batch(batch)).code == ResponseCode.SUCCESS
    assert stored(client)[2:] == [KEPT + ADDED] * 2


def test_names_that_only_look_alike_stay(client: FakeClient) -> None:
    alike = "REAL_TOPICS\x01a\x02_POP_CK\x01b\x02TIMER_MS\x01c\x02REAL_QID\x02KEYS\x01REAL_TOPIC\x02UNIQ_KEY\x01U\x02"
    client.send_message("T1", properties=alike)
    assert stored(client) == [alike + ADDED]

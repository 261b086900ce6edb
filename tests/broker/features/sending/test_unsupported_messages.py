"""A message that asks for a store which this broker does not have is refused in each form, and not stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, send_ext

from dledger_remoting.batch import BatchMessage, encode_batch
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.topics import HALF_TOPIC

NAMES: Final = (
    "INNER_MULTI_DISPATCH",
    "INNER_MULTI_QUEUE_OFFSET",
    "INNER_NUM",
    "INNER_BASE",
    "TIMER_DEL_UNIQKEY",
)
Send = Callable[[FakeClient, str], RemotingCommand]


def plain(client: FakeClient, properties: str) -> RemotingCommand:
    """A message alone, with one-letter names."""
    return client.send_message("T1", properties=properties)


def in_long_names(client: FakeClient, properties: str) -> RemotingCommand:
    """A message as the C++ client sends it."""
    fields = {"producerGroup": "PG", "topic": "T1", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4"}
    numbers = {"queueId": "0", "sysFlag": "0", "bornTimestamp": "0", "flag": "0"}
    return client.call(RequestCode.SEND_MESSAGE, {**fields, **numbers, "properties": properties}, b"body")


def in_a_batch(client: FakeClient, properties: str) -> RemotingCommand:
    """The second message of a batch."""
    parts = [BatchMessage(0, b"first", b"UNIQ_KEY\x01U1\x02"), BatchMessage(0, b"second", properties.encode())]
    return client.call(RequestCode.SEND_BATCH_MESSAGE, send_ext("T1"), encode_batch(parts))


def delayed(client: FakeClient, properties: str) -> RemotingCommand:
    """A message that is due later."""
    return client.send_message("T1", properties=f"DELAY\x013\x02{properties}")


def in_a_transaction(client: FakeClient, properties: str) -> RemotingCommand:
    """A half."""
    return client.send_message("T1", properties=f"TRAN_MSG\x01true\x02PGROUP\x01PG\x02{properties}", f="4")


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    """A broker that has a topic for halves too."""
    return make_broker(topics=("T1", HALF_TOPIC))


FORMS: Final = (plain, in_long_names, in_a_batch, delayed, in_a_transaction)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("send", FORMS)
def test_a_property_that_asks_for_it_is_refused(
    broker: ServedBroker, client: FakeClient, send: Send, name: str
) -> None:
    assert send(client, "UNIQ_KEY\x01U0\x02").code == ResponseCode.SUCCESS
    stored = len(broker.memory.log.data)
    answer = send(client, f"KEYS\x01K\x02{name}\x01%LMQ%a,%LMQ%b\x02UNIQ_KEY\x01U1\x02")
    assert (answer.code, (answer.remark or "").startswith(f"property {name} ")) == (ResponseCode.MESSAGE_ILLEGAL, True)
    assert len(broker.memory.log.data) == stored


@pytest.mark.parametrize("name", NAMES)
def test_one_without_a_value_asks_for_nothing_and_so_does_a_name_that_is_like_it(client: FakeClient, name: str) -> None:
    assert plain(client, f"{name}\x01\x02MY_{name}\x01v\x02").code == ResponseCode.SUCCESS


@pytest.mark.parametrize("flag", [0x40, 0x80, 0xC0, 0x84])
def test_a_flag_that_says_that_one_record_is_several_messages_is_refused(
    broker: ServedBroker, client: FakeClient, flag: int
) -> None:
    client.send_message("T1")
    stored = len(broker.memory.log.data)
    answer = client.send_message("T1", f=str(flag))
    assert (answer.code, f"sysFlag {flag} " in (answer.remark or "")) == (ResponseCode.MESSAGE_ILLEGAL, True)
    assert len(broker.memory.log.data) == stored


def test_a_light_message_queue_takes_no_message_and_is_not_made_by_one(
    broker: ServedBroker, client: FakeClient
) -> None:
    answer = client.send_message("%LMQ%a")
    assert (answer.code, "light message queue" in (answer.remark or "")) == (ResponseCode.INVALID_PARAMETER, True)
    assert "%LMQ%a" not in broker.memory.machine.state.topics

"""Questions to one consumer: it is asked through its connection, and what it says is passed through."""

from __future__ import annotations

from functools import partial

import pytest
from served_broker import FakeClient, ServedBroker, send_ext

from dledger_broker.features.consumer_questions.requests import ANSWERED_WITHIN_S
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import FLAG_RESPONSE, RemotingCommand
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, SubscriptionData, encode_heartbeat
from dledger_remoting.record import decode_record

ASKED = {"consumerGroup": "CG", "clientId": "c1"}
SIGNED = {"AccessKey": "boss", "Signature": "c2ln", "SecurityToken": "t"}
SAID = b'{"mqTable":{{"brokerName":"broker-a","queueId":0,"topic":"T1"}:{"commitOffset":5}}}'
"""A map with objects as keys, which is no JSON: only its sender and who asked understand it."""


@pytest.fixture
def consumer(broker: ServedBroker) -> FakeClient:
    """A member of CG."""
    client = broker.client("consumer")
    members = [ConsumerData("CG", subscription_data_set=[SubscriptionData("T1", "*", sub_version=1)])]
    heartbeat = encode_heartbeat(HeartbeatData("c1", consumer_data_set=members))
    assert client.call(RequestCode.HEART_BEAT, {}, heartbeat).code == ResponseCode.SUCCESS
    return client


def say(consumer: FakeClient, code: int = 0, remark: str | None = None, body: bytes = SAID) -> None:
    answer = RemotingCommand(code, opaque=len(consumer.pushed), flag=FLAG_RESPONSE, remark=remark, body=body)
    consumer.broker.service.relay.take_answer(consumer.key, answer)


def test_what_a_consumer_is_doing_is_passed_through(broker: ServedBroker, consumer: FakeClient) -> None:
    asker, ext = broker.client("asker"), {**ASKED, "jstackEnable": "true"}
    opaque = asker.send(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
    broker.settle()
    assert consumer.pushed[-1] == (RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
    assert not asker.has_answer(opaque)
    say(consumer)
    assert (asker.answered(opaque).code, asker.answered(opaque).body) == (ResponseCode.SUCCESS, SAID)


def test_no_signature_reaches_a_consumer(broker: ServedBroker, consumer: FakeClient) -> None:
    """1. An administrator asks a consumer, whose id it has chosen itself. 2. It sends the values that were signed as
    another request, such as that which makes an administrator: what is signed does not say which request it is.
    """
    broker.client("asker").send(RequestCode.GET_CONSUMER_RUNNING_INFO, {**ASKED, **SIGNED})
    broker.settle()
    assert consumer.pushed[-1] == (RequestCode.GET_CONSUMER_RUNNING_INFO, ASKED)


def test_a_consumer_consumes_a_message_at_an_operators_wish(
    broker: ServedBroker, consumer: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asker, result, ask = broker.client("asker"), b'{"consumeResult":"CR_SUCCESS"}', consumer.push

    def push(code: int, ext: dict[str, str], body: bytes = b"", *, oneway: bool = True) -> int:
        broker.memory.env.call_soon(partial(say, consumer, body=result))
        return ask(code, ext, body, oneway=oneway)

    sent = asker.call(RequestCode.SEND_MESSAGE_V2, send_ext("T1", 0), b"hello")
    monkeypatch.setattr(consumer, "push", push)
    wish = {**ASKED, "msgId": sent.ext["msgId"]}
    told = asker.call_from_disk(RequestCode.CONSUME_MESSAGE_DIRECTLY, {**wish, **SIGNED})
    assert (told.code, told.body) == (ResponseCode.SUCCESS, result)
    assert consumer.pushed[-1] == (RequestCode.CONSUME_MESSAGE_DIRECTLY, {**wish, "brokerName": "broker-a"})
    assert decode_record(consumer.pushed_bodies[-1]).body == b"hello"


def test_a_consumer_that_is_not_there_or_says_nothing_is_named(broker: ServedBroker, consumer: FakeClient) -> None:
    asker = broker.client("asker")
    gone = asker.call(RequestCode.GET_CONSUMER_RUNNING_INFO, {**ASKED, "clientId": "c9"})
    assert (gone.code, gone.remark) == (ResponseCode.SYSTEM_ERROR, "The Consumer <CG> <c9> not online")
    other = asker.call(RequestCode.GET_CONSUMER_RUNNING_INFO, {**ASKED, "consumerGroup": "OTHER"})
    assert other.remark == "The Consumer <OTHER> <c1> not online"
    opaque = asker.send(RequestCode.GET_CONSUMER_RUNNING_INFO, ASKED)
    broker.advance(ANSWERED_WITHIN_S + 0.1)
    late = asker.answered(opaque)
    assert late.code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert consumer.pushed

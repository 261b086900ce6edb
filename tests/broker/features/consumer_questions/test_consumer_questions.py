"""Questions to one consumer: the broker asks through the consumer's connection, and passes the answer through."""

import pytest
from served_broker import FakeClient, ServedBroker, join, send_ext

from dledger_broker.features.consumer_questions.requests import ANSWERED_WITHIN_S
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import FLAG_RESPONSE, RemotingCommand
from dledger_remoting.heartbeat import SubscriptionData
from dledger_remoting.record import decode_record

ASKED = {"consumerGroup": "CG", "clientId": "c1"}
SIGNED = {"AccessKey": "boss", "Signature": "c2ln", "SecurityToken": "t"}


@pytest.fixture
def consumer(broker: ServedBroker) -> FakeClient:
    """Return a member of CG."""
    client = broker.client("consumer")
    join(client, "c1", SubscriptionData("T1"))
    return client


def test_no_signature_reaches_a_consumer(broker: ServedBroker, consumer: FakeClient) -> None:
    """A consumer could send an administrator's signed values as another request: a signature does not name it."""
    broker.client("asker").send(RequestCode.GET_CONSUMER_RUNNING_INFO, {**ASKED, **SIGNED})
    broker.settle()
    assert consumer.pushed[-1] == (RequestCode.GET_CONSUMER_RUNNING_INFO, ASKED)


def test_an_operator_can_have_a_consumer_consume_a_message(
    broker: ServedBroker, consumer: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asker, result, ask = broker.client("asker"), b'{"consumeResult":"CR_SUCCESS"}', consumer.push

    def answer() -> None:
        said = RemotingCommand(0, opaque=len(consumer.pushed), flag=FLAG_RESPONSE, body=result)
        broker.service.relay.take_answer(consumer.key, said)

    def push(code: int, ext: dict[str, str], body: bytes = b"", *, oneway: bool = True) -> int:
        broker.memory.env.call_soon(answer)
        return ask(code, ext, body, oneway=oneway)

    sent = asker.call(RequestCode.SEND_MESSAGE_V2, send_ext("T1", 0), b"hello")
    monkeypatch.setattr(consumer, "push", push)
    wish = {**ASKED, "msgId": sent.ext["msgId"]}
    told = asker.call_from_disk(RequestCode.CONSUME_MESSAGE_DIRECTLY, {**wish, **SIGNED})
    assert (told.code, told.body) == (ResponseCode.SUCCESS, result)
    assert consumer.pushed[-1] == (RequestCode.CONSUME_MESSAGE_DIRECTLY, {**wish, "brokerName": "broker-a"})
    assert decode_record(consumer.pushed_bodies[-1]).body == b"hello"


def test_questions_to_an_absent_or_silent_consumer_are_answered_with_an_error(consumer: FakeClient) -> None:
    asker = consumer.broker.client("asker")
    other = asker.call(RequestCode.GET_CONSUMER_RUNNING_INFO, {**ASKED, "consumerGroup": "OTHER"})
    assert (other.code, other.remark) == (ResponseCode.SYSTEM_ERROR, "The Consumer <OTHER> <c1> not online")
    opaque = asker.send(RequestCode.GET_CONSUMER_RUNNING_INFO, ASKED)
    consumer.broker.advance(ANSWERED_WITHIN_S + 0.1)
    assert asker.answered(opaque).code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert consumer.pushed

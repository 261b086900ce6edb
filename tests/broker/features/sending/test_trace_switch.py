"""The switch of traces in answers to sends: RocketMQ's Go client traces a send only if the answer says TRACE_ON."""

from __future__ import annotations

import pytest
from served_broker import ServedBroker, send_ext

from dledger_remoting.batch import BatchMessage, encode_batch
from dledger_remoting.codes import LanguageCode, RequestCode
from dledger_remoting.command import RemotingCommand, encode_command
from dledger_remoting.frame import SerializeType
from dledger_remoting.topics import HALF_TOPIC, TRACE_TOPIC

SWITCH = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
BATCH = encode_batch([BatchMessage(0, b"1", b""), BatchMessage(0, b"2", b"")])
SENDS = {
    "a message": (RequestCode.SEND_MESSAGE, "UNIQ_KEY\x01K1\x02", b"1", {}),
    "a batch": (RequestCode.SEND_BATCH_MESSAGE, "", BATCH, {}),
    "a message for later": (RequestCode.SEND_MESSAGE, "UNIQ_KEY\x01K1\x02TIMER_DELAY_MS\x0160000\x02", b"1", {}),
    "half of a transaction": (RequestCode.SEND_MESSAGE, "TRAN_MSG\x01true\x02PGROUP\x01PG\x02", b"1", {"f": "4"}),
}


def answer_to(broker: ServedBroker, language: LanguageCode, name: str, serialize_type: int) -> RemotingCommand:
    code, properties, body, more = SENDS[name]
    client = broker.client(f"{language.name}/{name}/{serialize_type}")
    ext = {**send_ext("T1", properties=properties), **more}
    command = RemotingCommand(code, opaque=7, ext=ext, body=body, language=language, serialize_type=serialize_type)
    client.feed(encode_command(command))
    broker.settle()
    (answer,) = client.answers
    assert answer.code == 0, answer.remark
    return answer


@pytest.mark.parametrize("name", SENDS)
@pytest.mark.parametrize("serialize_type", [SerializeType.JSON, SerializeType.ROCKETMQ])
def test_only_go_is_told_that_it_may_trace(broker: ServedBroker, name: str, serialize_type: int) -> None:
    broker.memory.create_topic(HALF_TOPIC)
    told = answer_to(broker, LanguageCode.GO, name, serialize_type).ext
    untold = answer_to(broker, LanguageCode.CPP, name, serialize_type).ext
    assert SWITCH.items() <= told.items()
    assert not SWITCH.keys() & untold.keys()
    assert told.keys() - SWITCH.keys() == untold.keys()


def test_a_repeated_idempotent_send_is_answered_with_it_too(broker: ServedBroker) -> None:
    ext = {**send_ext("T1", properties="UNIQ_KEY\x01K1\x02"), "idempotent": "true"}
    command = RemotingCommand(RequestCode.SEND_MESSAGE, ext=ext, body=b"1", language=LanguageCode.GO)
    client = broker.client()
    for _ in range(2):
        client.feed(encode_command(command))
        broker.settle()
    assert [{name: answer.ext[name] for name in SWITCH} for answer in client.answers] == [SWITCH] * 2


def test_the_topic_of_traces_takes_what_clients_send_and_topics_of_the_broker_nothing(broker: ServedBroker) -> None:
    broker.memory.create_topic(TRACE_TOPIC)
    client = broker.client()
    client.send_message(TRACE_TOPIC, properties="KEYS\x01ID\x02")
    client.send_message("SELF_TEST_TOPIC")
    assert [answer.code for answer in client.answers] == [0, 16]

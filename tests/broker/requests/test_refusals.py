"""Requests of every code with fields and bodies of all kinds: a refusal gives a reason and has changed nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served_broker import (
    LONG_SEND,
    STORE_HOST,
    FakeClient,
    ServedBroker,
    make_group,
    make_served_broker,
    pull_ext,
    records,
    send_ext,
    topic_ext,
)

from dledger_broker.config import BrokerConfig
from dledger_broker.features import FEATURES
from dledger_broker.features.delay.messages import DueMessages
from dledger_broker.features.locks.table import LOCKS
from dledger_broker.features.pop.table import POPPED
from dledger_broker.features.transactions.messages import undecided
from dledger_broker.features.transactions.table import HALVES, EndHalf, HalfOutcome
from dledger_broker.testing import BrokerInMemory
from dledger_broker.testing.environment import START_MS
from dledger_broker.testing.node import NODE_ID
from dledger_remoting.batch import BatchMessage, encode_batch
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.ids import offset_message_id
from dledger_remoting.recalls import RecallHandle
from dledger_remoting.topics import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    dead_letter_topic,
    retry_topic,
)
from tests.broker.features.locks.lock_bodies import lock_body
from tests.broker.requests.node_waits import NodeWaits
from tests.broker.toy import FEATURE

CONFIG: Final = BrokerConfig(
    broker_group="broker-a",
    node_id=NODE_ID,
    data_dir=Path("unused"),
    max_message_bytes=64 << 10,
    auto_create_topic=False,
)
"""Configuration in which sends make no topic.

As in RocketMQ, a send makes its topic before the rest of the send is checked.
"""
QUEUE: Final = {"topic": "T1", "queueId": "0"}
OFFSET: Final = {"consumerGroup": "CG", **QUEUE}
PIN: Final = {"name": "job", "position": "0", "leaseMillis": "60000"}
TOPIC: Final = {name: value for name, value in topic_ext("T2").items() if name != "attributes"}
LEAVES: Final = {"clientID": "c", "consumerGroup": "CG", "producerGroup": "PG"}
TIMES: Final = {"invisibleTime": "60000", "pollTime": "0", "bornTime": "0"}
POP: Final = OFFSET | TIMES | {"queueId": "-1", "maxMsgNums": "1", "initMode": "0"}
FIELDS: Final[dict[int, dict[str, str]]] = {
    RequestCode.POP_MESSAGE: POP | {"order": "true", "exp": "a || b", "expType": "TAG", "attemptId": "a"},
    RequestCode.PEEK_MESSAGE: POP,
    RequestCode.NOTIFICATION: POP,
    RequestCode.POLLING_INFO: POP,
    RequestCode.SEND_MESSAGE: LONG_SEND,
    RequestCode.SEND_MESSAGE_V2: send_ext("T1"),
    RequestCode.SEND_BATCH_MESSAGE: send_ext("T1", m="true"),
    RequestCode.SEND_REPLY_MESSAGE: LONG_SEND | {"properties": "REPLY_TO_CLIENT\x01nobody\x02"},
    RequestCode.SEND_REPLY_MESSAGE_V2: send_ext("T1", 0, "REPLY_TO_CLIENT\x01nobody\x02"),
    RequestCode.PULL_MESSAGE: pull_ext("T1"),
    RequestCode.LITE_PULL_MESSAGE: pull_ext("T1"),
    RequestCode.QUERY_MESSAGE: {"topic": "T1", "key": "K", "maxNum": "3", "beginTimestamp": "0", "endTimestamp": "9"},
    RequestCode.VIEW_MESSAGE_BY_ID: {"offset": "0"},
    RequestCode.QUERY_CONSUMER_OFFSET: OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET: {**OFFSET, "commitOffset": "1"},
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: {**QUEUE, "timestamp": "0"},
    RequestCode.UPDATE_AND_CREATE_TOPIC: TOPIC,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: {"consumerGroup": "CG"},
    RequestCode.DELETE_SUBSCRIPTION_GROUP: {"groupName": "CG"},
    RequestCode.GET_SUBSCRIPTION_GROUP_CONFIG: {"group": "CG"},
    RequestCode.UNREGISTER_CLIENT: LEAVES,
    RequestCode.RELEASE_LOCKS: LEAVES,
    RequestCode.PIN_LOG: PIN,
    RequestCode.UNPIN_LOG: PIN,
    RequestCode.READ_PLAN: {"roles": "leader"},
    RequestCode.READ_RANGE: {"roles": "leader", "start": "0", "end": "100", "pin": "job"},
}
"""Fields of a well-formed request, by code. All other codes get the fields of a request about a queue."""
WAITS: Final = RecallHandle("T1", "broker-a", 1_700_000_100_000, "K5")
"""Recall handle of a message that waits until it is due."""
HANDLES: Final = (
    WAITS,
    WAITS._replace(topic="absent"),
    WAITS._replace(topic="%RETRY%CG"),
    WAITS._replace(broker_group="broker-b"),
    WAITS._replace(due_ms=-2),
    WAITS._replace(unique_key="K\x01\x02 9"),
)
HALF: Final = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01K2\x02"
SENDS: Final[dict[str, dict[str, str]]] = {
    "a level": send_ext("T1", 0, "DELAY\x013\x02UNIQ_KEY\x01K1\x02"),
    "a time": send_ext("T1", 0, f"TIMER_DELIVER_MS\x01{WAITS.due_ms}\x02UNIQ_KEY\x01{WAITS.unique_key}\x02"),
    "a half": send_ext("T1", 0, HALF, f="4"),
    "a retry": send_ext(retry_topic("CG"), 0, "DELAY\x013\x02RETRY_TOPIC\x01T1\x02", j="2", l="3"),
}
"""Sends other than plain ones, by name."""
NAMES: Final = sorted(
    {name for fields in FIELDS.values() for name in fields}
    | {"properties", "subscription", "i", "j", "l", "maxReconsumeTimes", "commitOrRollback", "msgId"}
    | {"recallHandle", "delayTimeMillis", "extraInfo", "offset", "reset"}
)
VALUES: Final = st.one_of(
    st.sampled_from(["", " ", "0", "-1", "1", "2147483648", "-9223372036854775809", "NaN", "1e3", "true", "null"]),
    st.sampled_from(["T1", "absent", "CG", "%RETRY%CG", "%DLQ%CG", "TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x"]),
    st.sampled_from(
        ["DELAY\x01-1\x02", "DELAY\x01x\x02", "TIMER_DELAY_SEC\x019999999\x02", "DELAY\x011\x02TIMER_DELAY_MS\x015\x02"]
    ),
    st.sampled_from(["0 1 2 0 0 broker-a 0 0", "0 1700000000000 60000 999 2 b 0 0", "SQL92", "n > 1 AND", "33"]),
    st.sampled_from(["TRAN_MSG\x01true\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x01x\x02", "4", "8", "12", "2147483647"]),
    st.sampled_from(["DELAY\x013\x02", "REAL_TOPIC\x01T9\x02POP_CK\x01x", "\x01", "\x02", "x" * 40_000, "a b||c"]),
    st.integers(-(1 << 66), 1 << 66).map(str),
    st.sampled_from([handle.encode() for handle in HANDLES]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)
BATCH: Final = encode_batch([BatchMessage(0, b"x", b"TAGS\x01t\x02"), BatchMessage(1, b"", b"")])
BODIES: Final = st.one_of(
    st.sampled_from([b"", b"{}", b"[]", b"null", b"{" * 3000, b"x" * 70_000, BATCH, BATCH[:-1]]),
    st.sampled_from([b'{"topicConfigList":[{"topicName":"T3"}]}', b'{"groupName":"CG"}', b'{"clientID":"c"}']),
    st.sampled_from([b'{"groupName":1}', b'{"clientID":"c","consumerDataSet":[{}]}', b'{"topicConfigList":[{}]}']),
    st.sampled_from([lock_body("c", ("T1", 0)), lock_body("", ("T1", 0)), lock_body("c", ("T1", -1), group="a b")]),
    st.sampled_from([lock_body("c" * 2000, ("T1", 0)), lock_body("c", *(("T1", number) for number in range(5000)))]),
    st.sampled_from(
        [b'{"groupName":"CG","groupRetryPolicy":{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[]}}}']
    ),
    st.sampled_from(
        [
            b'{"acks":[{"c":"CG","t":"T1","r":"0","so":0,"q":0,"rq":0,"pt":1700000000000,"it":60000,"b":"AQ=="}]}',
            b'{"acks":[{"c":"CG","t":"T1","r":"9","so":0,"q":0,"pt":-1,"b":"AQ=="},{"c":1}]}',
            b'{"acks":[{"c":"CG","t":"T1","r":"1","so":9223372036854775807,"q":-1,"pt":1,"b":"////"}]}',
        ]
    ),
    st.binary(max_size=60),
)
NOTHING_FOUND: Final = ("PULL_NOT_FOUND", "PULL_RETRY_IMMEDIATELY", "PULL_OFFSET_MOVED", "POLLING_TIMEOUT")
ANSWERS: Final = frozenset({ResponseCode.SUCCESS, *(ResponseCode[name] for name in NOTHING_FOUND)})
"""Codes of answers that refuse nothing."""


def served() -> ServedBroker:
    """Return a broker in which each request can find what it is about.

    It has topic T1 with messages, one of them popped, and a consumer group with its topics and a locked queue. It also
    has an open half, a half that was given up, and messages that wait.
    """
    broker = make_served_broker(CONFIG, BrokerInMemory(features=(*FEATURES, FEATURE)))
    for topic in ("T1", retry_topic("CG"), dead_letter_topic("CG"), HALF_TOPIC, CHECK_MAX_TIME_TOPIC, TIMER_TOPIC):
        broker.memory.create_topic(topic, 1)
    broker.memory.create_topic(SCHEDULE_TOPIC, 18)
    make_group(broker)
    client = broker.client()
    for number in range(3):
        client.send_message("T1", b"%d" % number, properties="KEYS\x01K\x02")
    give_up_a_half(broker)
    for ext in SENDS.values():
        assert client.call(RequestCode.SEND_MESSAGE_V2, ext, b"waits").code == 0
    assert client.call(RequestCode.POP_MESSAGE, POP).code == 0
    assert client.call(RequestCode.LOCK_BATCH_MQ, body=lock_body("c", ("T1", 0))).code == 0
    broker.settle()
    assert len(broker.memory.machine.state.table(LOCKS)) == 1
    return broker


def give_up_a_half(broker: ServedBroker) -> None:
    """Open a half, and end it as the check-back job does. The job itself would need time to pass."""
    memory = broker.memory
    ext = send_ext("T1", 0, HALF.replace("K2", "K3"), f="4")
    assert broker.client().call(RequestCode.SEND_MESSAGE_V2, ext, b"given up").code == 0
    [half] = memory.machine.state.table(HALVES).open
    found = memory.run(memory.machine.lookup.record_at(half))
    assert found is not None
    ended = EndHalf(half, HalfOutcome.UNDECIDED)
    memory.writer.write([undecided(found[1])], [ended], done=lambda _: None)
    broker.settle()
    assert memory.bodies(CHECK_MAX_TIME_TOPIC) == [b"given up"]


def read_log(broker: ServedBroker) -> None:
    """Have the time index read what is applied. Nothing else does so here."""
    follower = broker.service.parts[DueMessages].index.rows.follower
    asyncio.run(broker.memory.env.finish(follower.fold()))


async def answered(
    client: FakeClient, code: int, ext: dict[str, str], body: bytes, serialize_type: int
) -> RemotingCommand:
    """Return the answer to a request, which may wait for the disk or for a message that does not come."""
    broker = client.broker
    opaque = client.send(code, ext, body, serialize_type=serialize_type)
    for _ in range(200):
        broker.settle()
        await asyncio.sleep(0)
        if client.has_answer(opaque):
            return client.answered(opaque)
        broker.advance(0.5)
    raise AssertionError(f"{code} {ext} is not answered")


def requests() -> dict[str, tuple[int, dict[str, str]]]:
    """Return a well-formed request of every code, and the sends that are not plain, by name."""
    broker = served()
    message = records(broker.client().pull("T1"))[0].physical_offset
    [(half, facts)] = broker.memory.machine.state.table(HALVES).open.items()
    end = {"producerGroup": "PG", "tranStateTableOffset": str(facts.queue_offset), "commitLogOffset": str(half)}
    [delivery] = [delivery for queue in broker.memory.machine.state.table(POPPED) for delivery in queue]
    point = f"0 {delivery.pop_time_ms} 60000 0 0 broker-a 0 0"
    popped = {**OFFSET, "extraInfo": point, "offset": "0"}
    kept = broker.memory.queue(CHECK_MAX_TIME_TOPIC)
    [(given_up, _)] = broker.memory.reads.get_messages(kept, 0, 1, 1 << 20).runs
    fields = FIELDS | {
        RequestCode.CONSUMER_SEND_MSG_BACK: {"offset": str(message), "group": "CG", "delayLevel": "0"},
        RequestCode.END_TRANSACTION: {**end, "commitOrRollback": "8"},
        RequestCode.RECALL_MESSAGE: {"topic": "T1", "recallHandle": WAITS.encode(), "producerGroup": "PG"},
        RequestCode.ACK_MESSAGE: popped,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME: {**popped, "invisibleTime": "60000"},
        RequestCode.RESUME_CHECK_HALF_MESSAGE: {"msgId": offset_message_id(STORE_HOST, given_up), "topic": "T1"},
    }
    others = {**QUEUE, "consumerGroup": "CG"}
    by_code = {str(code): (code, fields.get(code, others)) for code in sorted(broker.service.parts.routes())}
    return by_code | {name: (int(RequestCode.SEND_MESSAGE_V2), ext) for name, ext in SENDS.items()}


REQUESTS: Final = requests()


@pytest.mark.long
@pytest.mark.parametrize("request_name", REQUESTS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_refusal_has_an_explanation_and_changes_nothing(request_name: str, data: st.DataObject) -> None:
    broker = served()
    client, machine = broker.client(), broker.memory.machine
    code, fields = REQUESTS[request_name]
    ext = dict(fields)
    names = st.sampled_from(sorted(ext))
    for name in data.draw(st.lists(names, max_size=1), "taken out"):
        del ext[name]
    ext |= data.draw(st.dictionaries(st.one_of(names, st.sampled_from(NAMES)), VALUES, max_size=3), "put in")
    body, serialize_type = data.draw(BODIES, "body"), data.draw(st.sampled_from([0, 1]), "serializer")
    made, waits = set(machine.state.topics), NodeWaits(broker, client)
    if code in {RequestCode.RECALL_MESSAGE, RequestCode.LIST_DELAYED}:
        read_log(broker)
    before = (machine.digest(), broker.memory.log.end)
    answer = asyncio.run(answered(client, code, ext, body, serialize_type))
    after = (machine.digest(), broker.memory.log.end)
    assert_explained(answer)
    assert answer.code in ANSWERS or after == before, (answer, set(machine.state.topics) - made)
    broker.settle()
    assert waits.counts() == {}, "nothing waits for it or is on its way for it"


def assert_explained(answer: RemotingCommand) -> None:
    """Check that a refusal has a code of RocketMQ's and says in words what is wrong."""
    if answer.code in ANSWERS:
        return
    assert answer.remark
    assert answer.body == b""
    assert answer.code in set(ResponseCode)
    assert "Traceback" not in answer.remark
    assert "Error(" not in answer.remark


ASKING: Final = ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "__STARTDELIVERTIME")
MARKS: Final = (
    *("TRAN_MSG", "PGROUP", "CHECK_IMMUNITY_TIME_IN_SECONDS", "UNIQ_KEY", "REAL_TOPIC", "TIMER_OUT_MS", "TAGS"),
)
ZEROS: Final = ("0" * 17, "0" * 18 + "3", "0" * 12 + "9999999")
NUMBERS: Final = st.one_of(
    st.integers(-3, 20).map(str),
    st.integers(-(1 << 70), 1 << 70).map(str),
    st.sampled_from(["", " 3 ", "+3", "3.0", "0x3", "1_000", "\u0663", "true", "\x00", *ZEROS]),
)
PROPERTIES: Final = st.lists(
    st.tuples(st.one_of(st.sampled_from((*ASKING, *MARKS)), st.text(max_size=3)), st.one_of(NUMBERS, VALUES)),
    max_size=4,
)


@pytest.mark.parametrize("topic", ["T1", retry_topic("CG"), dead_letter_topic("CG")])
@settings(max_examples=100, deadline=None)
@given(pairs=PROPERTIES, sys_flag=st.sampled_from([0, 1, 4, 8, 12]), ended=st.booleans(), times=NUMBERS)
def test_a_send_with_any_properties_is_stored_or_refused_with_an_explanation(
    topic: str, pairs: list[tuple[str, str]], sys_flag: int, ended: bool, times: str
) -> None:
    broker = served()
    machine, mark = broker.memory.machine, "TRAN_MSG\x01true\x02" if sys_flag & 4 else ""
    text = mark + "\x02".join(f"{name}\x01{value}" for name, value in pairs) + "\x02" * ended
    ext = send_ext(topic, 0, text, f=str(sys_flag), j=times)
    before = (machine.digest(), broker.memory.log.end)
    answer = asyncio.run(answered(broker.client(), RequestCode.SEND_MESSAGE_V2, ext, b"body", 0))
    assert_explained(answer)
    assert answer.code == ResponseCode.SUCCESS or (machine.digest(), broker.memory.log.end) == before
    assert all(half.next_check_ms <= START_MS + 3_700_000 for half in machine.state.table(HALVES).open.values())

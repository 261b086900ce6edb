"""Records that clients must not reach, by a physical offset or in topics that only the broker writes and reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
import pytest
from served_broker import (
    STORE_HOST,
    FakeClient,
    MakeBroker,
    ServedBroker,
    assert_refused,
    make_group,
    pull_ext,
    records,
    send_ext,
    topic_ext,
)

from dledger_broker.features.transactions.table import HALVES, EndHalf, HalfOutcome
from dledger_broker.kernel.units import NewRecord
from dledger_broker.testing.environment import START_MS
from dledger_remoting.batch import BatchMessage, encode_batch
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.ids import offset_message_id, parse_offset_message_id
from dledger_remoting.integers import MAX_INT64
from dledger_remoting.record import RECORD_HEAD_BYTES, MessageRecord, encode_record
from dledger_remoting.topics import CHECK_MAX_TIME_TOPIC, TopicConfig

HALF: Final = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01K1\x02"
READ_BY_CONSUMERS: Final = ("message", "retried", "dead letter", "committed")
OF_THE_BROKER: Final = ("half", "given up", "level", "timer", "system")
NO_RECORD: Final = ("inside", "imitation", "of a deleted topic", "entry", "end", "negative", "highest")


@dataclass
class Places:
    """Physical offsets by the name of what lies there, and the client that asks."""

    broker: ServedBroker
    client: FakeClient
    by_name: dict[str, int]

    def ask(self, code: int, place: str, **fields: str) -> RemotingCommand:
        """Send a request that names the record at a place, and return the answer."""
        position = self.by_name[place]
        ext = {
            RequestCode.VIEW_MESSAGE_BY_ID: {"offset": str(position)},
            RequestCode.CONSUMER_SEND_MSG_BACK: {"offset": str(position), "group": "CG", "delayLevel": "0"},
            RequestCode.END_TRANSACTION: {
                "producerGroup": "PG",
                "tranStateTableOffset": "0",
                "commitLogOffset": str(position),
            },
            RequestCode.RESUME_CHECK_HALF_MESSAGE: {"msgId": offset_message_id(STORE_HOST, position % (1 << 63))},
        }[RequestCode(code)]
        return self.client.call_from_disk(code, ext | fields)

    def refuse(self, code: int, place: str, *, names_place: bool = True, **fields: str) -> str:
        """Check that a request is refused, changes nothing and names the position. Return the remark."""
        end = self.broker.memory.log.end
        answer = self.ask(code, place, **fields)
        assert (answer.code, answer.body) == (ResponseCode.SYSTEM_ERROR, b"")
        assert self.broker.memory.log.end == end
        remark = answer.remark or ""
        assert not names_place or str(self.by_name[place]) in remark
        return remark


def position_of(answer: RemotingCommand) -> int:
    """Return the position at which a send was stored."""
    assert answer.code == 0, answer.remark
    return parse_offset_message_id(answer.ext["msgId"])[1]


def written(broker: ServedBroker, topic: str, properties: bytes = b"") -> int:
    """Have the broker write a record of its own, and return the record's position."""
    broker.memory.create_topic(topic, 1)
    now_ms, host = START_MS, bytes(8)
    record = NewRecord(topic=topic, queue_id=0, body=b"own", properties=properties, born_ms=now_ms, born_host=host)
    start = broker.memory.log.end
    broker.memory.writer.write([record], done=lambda _: None)
    broker.settle()
    return broker.memory.log.data.index(b"own", start) - RECORD_HEAD_BYTES


def imitated(broker: ServedBroker, client: FakeClient, record: MessageRecord) -> int:
    """Send a message whose body imitates this record at the position where the body will lie; return that position."""
    end = broker.memory.log.end
    position = position_of(client.send_message("T1", b"")) - end + broker.memory.log.end + RECORD_HEAD_BYTES
    body = encode_record(msgspec.structs.replace(record, physical_offset=position))
    assert position_of(client.send_message("T1", body)) + RECORD_HEAD_BYTES == position
    return position


@pytest.fixture
def places(make_broker: MakeBroker) -> Places:
    broker = make_broker(topics=("T1", "GONE"))
    client = broker.client()
    make_group(broker)
    sent = {
        "message": position_of(client.send_message("T1", b"body")),
        "level": position_of(client.send_message("T1", b"body", properties="DELAY\x013\x02")),
        "timer": position_of(client.send_message("T1", b"body", properties="TIMER_DELAY_SEC\x0160\x02")),
        "retried": position_of(client.send_message("%RETRY%CG", b"body", j="1")),
        "dead letter": position_of(client.send_message("%RETRY%CG", b"body", j="17")),
        "of a deleted topic": position_of(client.send_message("GONE", b"body")),
        "system": written(broker, "rmq_sys_SYNC_BROKER_MEMBER_broker-a"),
        "given up": written(broker, CHECK_MAX_TIME_TOPIC),
    }
    assert client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "GONE"}).code == 0
    broker.memory.create_topic("RMQ_SYS_TRANS_HALF_TOPIC", 1)
    first = client.send_message("T1", b"half", properties=HALF, f="4")
    committed = {"tranStateTableOffset": "0", "commitLogOffset": str(position_of(first)), "commitOrRollback": "8"}
    assert client.call_from_disk(RequestCode.END_TRANSACTION, {"producerGroup": "PG", **committed}).code == 0
    [message] = records(client.pull("T1", offset=1))
    imitation = imitated(broker, client, msgspec.structs.replace(message, queue_offset=0))
    others = {
        "committed": message.physical_offset,
        "half": position_of(client.send_message("T1", b"half", properties=HALF, f="4")),
        "inside": sent["message"] + 1,
        "imitation": imitation,
        "entry": 0,
        "end": broker.memory.log.end,
        "negative": -1,
        "highest": MAX_INT64,
    }
    return Places(broker, client, sent | others)


@pytest.mark.parametrize("place", READ_BY_CONSUMERS)
def test_messages_readable_by_consumers_can_be_viewed_and_sent_back(places: Places, place: str) -> None:
    found = places.ask(RequestCode.VIEW_MESSAGE_BY_ID, place)
    assert [record.physical_offset for record in records(found)] == [places.by_name[place]]
    assert places.ask(RequestCode.CONSUMER_SEND_MSG_BACK, place).code == 0


def test_the_listed_places_are_all_places(places: Places) -> None:
    assert {*READ_BY_CONSUMERS, *OF_THE_BROKER, *NO_RECORD} == set(places.by_name)


@pytest.mark.parametrize("place", [*OF_THE_BROKER, *NO_RECORD])
@pytest.mark.parametrize("code", [RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.CONSUMER_SEND_MSG_BACK])
def test_places_without_a_readable_message_cannot_be_viewed_or_sent_back(places: Places, code: int, place: str) -> None:
    places.refuse(code, place)
    if place == "inside" and code == RequestCode.CONSUMER_SEND_MSG_BACK:
        places.refuse(code, place, group="NEW")  # makes no group


@pytest.mark.parametrize("what", ["0", "8", "12"])
@pytest.mark.parametrize("place", [*READ_BY_CONSUMERS, *OF_THE_BROKER, *NO_RECORD])
def test_only_an_open_half_can_be_ended(places: Places, place: str, what: str) -> None:
    offset = "0" if place != "half" else "2"  # the queue offset of the half is 1
    places.refuse(RequestCode.END_TRANSACTION, place, commitOrRollback=what, tranStateTableOffset=offset)


@pytest.mark.parametrize("place", [*READ_BY_CONSUMERS, *OF_THE_BROKER, *NO_RECORD])
def test_only_a_half_that_was_given_up_can_be_opened_again(places: Places, place: str) -> None:
    remark = places.refuse(RequestCode.RESUME_CHECK_HALF_MESSAGE, place, names_place=False)
    assert "cannot be opened again" in remark if place == "given up" else remark


def test_a_message_that_imitates_a_given_up_half_opens_no_transaction(places: Places) -> None:
    """The half that the body names has ended in that way. If the body were believed, it would be committed instead."""
    broker, client, half = places.broker, places.client, places.by_name["half"]
    [message] = records(client.pull("T1", offset=1, maxMsgNums="1"))
    broker.memory.machine.stage_command(EndHalf(half, HalfOutcome.UNDECIDED), lambda _: None)
    broker.settle()
    false = msgspec.structs.replace(
        message, topic=CHECK_MAX_TIME_TOPIC, queue_id=0, queue_offset=0, prepared_transaction_offset=half
    )
    places.by_name["imitation"] = imitated(broker, client, false)
    answer = places.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, "imitation")
    assert "no transaction that was given up is kept" in (answer.remark or "")
    assert not broker.memory.machine.state.table(HALVES).open


def test_request_codes_for_clients_are_refused_by_a_broker(places: Places) -> None:
    for code in (
        *(RequestCode.CHECK_TRANSACTION_STATE, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED),
        *(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT),
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
    ):
        answer = places.client.call(code, {"commitLogOffset": "0", "topic": "T1", "group": "CG"})
        assert (answer.code, bool(answer.remark)) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, True), code


# ---- topics that only the broker writes and reads: clients can store, change or see nothing there


TOPICS: Final = (
    *("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "rmq_sys_anything", "TRANS_CHECK_MAX_TIME_TOPIC"),
    *("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "RMQ_SYS_TRANS_anything"),
)
QUEUE: Final = {"queueId": "0"}
PULL: Final = pull_ext("T1", consumerGroup="TOOLS_CONSUMER")
READS: Final = {
    RequestCode.PULL_MESSAGE: PULL,
    RequestCode.LITE_PULL_MESSAGE: PULL,
    RequestCode.QUERY_MESSAGE: {"key": "K", "maxNum": "3", "beginTimestamp": "0", "endTimestamp": str(1 << 60)},
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: {**QUEUE, "timestamp": "0"},
}
HIDDEN: Final = b"KEYS\x01K\x02UNIQ_KEY\x01U\x02"


@pytest.fixture
def broker(broker: ServedBroker) -> ServedBroker:
    """Return a broker that has these topics, with a record of its own in each."""
    for topic in TOPICS:
        written(broker, topic, HIDDEN)
        assert broker.memory.bodies(topic) == [b"own"]
    return broker


def test_broker_written_topics_can_be_neither_read_nor_searched(broker: ServedBroker) -> None:
    client = broker.client()
    for topic in TOPICS:
        for code, fields in READS.items():
            answer = client.call(code, {**fields, "topic": topic})
            assert (answer.code, answer.body) == (ResponseCode.NO_PERMISSION, b""), (topic, code)
            assert f"topic {topic} is the broker's own" in (answer.remark or "")


def test_offsets_of_broker_written_topics_can_be_queried(client: FakeClient) -> None:
    for topic in TOPICS:
        where = {"topic": topic, **QUEUE}
        bounds = [client.call(code, where).ext for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)]
        assert [ext["offset"] for ext in bounds] == ["0", "1"]


def test_sends_to_broker_written_topics_are_refused(broker: ServedBroker) -> None:
    client, end = broker.client(), broker.memory.log.end
    batch = encode_batch([BatchMessage(0, b"x", b"")])
    for topic in TOPICS:
        sent = client.call(RequestCode.SEND_BATCH_MESSAGE, send_ext(topic, m="true"), batch)
        for answer in (client.send_message(topic), sent):
            assert_refused(answer, ResponseCode.NO_PERMISSION, "written by the broker itself")
    assert broker.memory.log.end == end


def test_broker_written_topics_cannot_be_created_changed_or_deleted(broker: ServedBroker) -> None:
    client, end = broker.client(), broker.memory.log.end
    for topic in (*TOPICS, "rmq_sys_new", "RMQ_SYS_TRANS_new"):
        several = msgspec.json.encode({"topicConfigList": [TopicConfig("passes"), TopicConfig(topic)]})
        answers = [
            client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext(topic)),
            client.call(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, several),
            client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}),
        ]
        assert [answer.code for answer in answers] == [ResponseCode.INVALID_PARAMETER] * 3
        assert all("conflict with system topic" in (answer.remark or "") for answer in answers)
    assert broker.memory.log.end == end

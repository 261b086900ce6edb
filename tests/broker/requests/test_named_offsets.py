"""Requests that name a record by its physical offset: only what a consumer can have is found there, by its queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
import pytest
from served_broker import STORE_HOST, FakeClient, MakeBroker, ServedBroker, records

from dledger_broker.features.transactions.table import HALVES, EndHalf, HalfOutcome
from dledger_broker.kernel.units import NewRecord
from dledger_broker.testing.environment import START_MS
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.ids import offset_message_id, parse_offset_message_id
from dledger_remoting.integers import MAX_INT64
from dledger_remoting.record import RECORD_HEAD_BYTES, MessageRecord, encode_record
from dledger_remoting.topics import CHECK_MAX_TIME_TOPIC, SubscriptionGroupConfig

HALF: Final = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01K1\x02"
READ_BY_CONSUMERS: Final = ("message", "retried", "dead letter", "committed")
OF_THE_BROKER: Final = ("half", "given up", "level", "timer", "system")
NO_RECORD: Final = ("inside", "imitation", "of a deleted topic", "entry", "end", "negative", "highest")


@dataclass
class Places:
    """Physical offsets by what is there, and who asks."""

    broker: ServedBroker
    client: FakeClient
    by_name: dict[str, int]

    def ask(self, code: int, place: str, **fields: str) -> RemotingCommand:
        """A request that names what is at a place."""
        position = self.by_name[place]
        ext = {
            RequestCode.VIEW_MESSAGE_BY_ID: {"offset": str(position)},
            RequestCode.CONSUMER_SEND_MSG_BACK: {"offset": str(position), "group": "CG", "delayLevel": "0"},
            RequestCode.END_TRANSACTION: {
                "producerGroup": "PG",
                "tranStateTableOffset": "0",
                "commitLogOffset": str(position),
            },
            RequestCode.RESUME_CHECK_HALF_MESSAGE: {
                "msgId": offset_message_id(STORE_HOST, position % (1 << 63)),
            },
        }[RequestCode(code)]
        return self.client.call_from_disk(code, ext | fields)


def position_of(answer: RemotingCommand) -> int:
    """Where a send was stored."""
    assert answer.code == 0, answer.remark
    return parse_offset_message_id(answer.ext["msgId"])[1]


def written(broker: ServedBroker, topic: str) -> int:
    """Have the broker write a record of its own."""
    broker.memory.create_topic(topic, 1)
    record = NewRecord(topic=topic, queue_id=0, body=b"own", properties=b"", born_ms=START_MS, born_host=bytes(8))
    start = broker.memory.log.end
    broker.memory.writer.write([record], done=lambda _: None)
    broker.settle()
    return broker.memory.log.data.index(b"own", start) - RECORD_HEAD_BYTES


def imitated(broker: ServedBroker, client: FakeClient, record: MessageRecord) -> int:
    """Send a message whose body is this record, as it would be where it stands; returns where that is."""
    end = broker.memory.log.end
    position = position_of(client.send_message("T1", b"")) - end + broker.memory.log.end + RECORD_HEAD_BYTES
    body = encode_record(msgspec.structs.replace(record, physical_offset=position))
    assert position_of(client.send_message("T1", body)) + RECORD_HEAD_BYTES == position
    return position


@pytest.fixture
def places(make_broker: MakeBroker) -> Places:
    broker = make_broker(topics=("T1", "GONE"))
    client = broker.client()
    broker.groups.put_group(SubscriptionGroupConfig("CG"), lambda _: None)
    broker.settle()
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
def test_what_a_consumer_can_have_is_found_and_taken_back(places: Places, place: str) -> None:
    found = places.ask(RequestCode.VIEW_MESSAGE_BY_ID, place)
    assert [record.physical_offset for record in records(found)] == [places.by_name[place]]
    assert places.ask(RequestCode.CONSUMER_SEND_MSG_BACK, place).code == 0


def test_every_place_is_there(places: Places) -> None:
    assert {*READ_BY_CONSUMERS, *OF_THE_BROKER, *NO_RECORD} == set(places.by_name)


@pytest.mark.parametrize("place", [*OF_THE_BROKER, *NO_RECORD])
@pytest.mark.parametrize("code", [RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.CONSUMER_SEND_MSG_BACK])
def test_anything_else_is_neither_found_nor_taken_back(places: Places, code: int, place: str) -> None:
    end = places.broker.memory.log.end
    answer = places.ask(code, place)
    assert (answer.code, answer.body) == (ResponseCode.SYSTEM_ERROR, b"")
    assert str(places.by_name[place]) in (answer.remark or "")
    assert places.broker.memory.log.end == end


@pytest.mark.parametrize("what", ["0", "8", "12"])
@pytest.mark.parametrize("place", [*READ_BY_CONSUMERS, *OF_THE_BROKER, *NO_RECORD])
def test_only_an_open_half_can_be_ended(places: Places, place: str, what: str) -> None:
    end = places.broker.memory.log.end
    offset = "0" if place != "half" else "2"  # its queue offset is 1
    answer = places.ask(RequestCode.END_TRANSACTION, place, commitOrRollback=what, tranStateTableOffset=offset)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert str(places.by_name[place]) in (answer.remark or "")
    assert places.broker.memory.log.end == end


@pytest.mark.parametrize("place", [*READ_BY_CONSUMERS, *OF_THE_BROKER, *NO_RECORD])
def test_only_a_half_that_was_given_up_can_be_opened_again(places: Places, place: str) -> None:
    end = places.broker.memory.log.end
    answer = places.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, place)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "cannot be opened again" in (answer.remark or "") if place == "given up" else answer.remark
    assert places.broker.memory.log.end == end


def test_a_body_that_imitates_what_was_given_up_opens_nothing(places: Places) -> None:
    """The half that it names has ended so, and what it says would be committed in its place."""
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


def test_a_group_is_not_made_for_a_message_that_is_not_there(places: Places) -> None:
    end = places.broker.memory.log.end
    answer = places.ask(RequestCode.CONSUMER_SEND_MSG_BACK, "inside", group="NEW")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert places.broker.memory.log.end == end


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.CHECK_TRANSACTION_STATE,
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
    ],
)
def test_a_client_that_asks_what_brokers_ask_clients_is_refused(places: Places, code: int) -> None:
    answer = places.client.call(code, {"commitLogOffset": "0", "topic": "T1", "group": "CG"})
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark

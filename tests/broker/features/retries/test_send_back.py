import asyncio
import struct
from pathlib import Path

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, json_body, make_served_broker, records, send_ext

from dledger_broker.config import BrokerConfig
from dledger_broker.features.delay.asked import Asked
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.features.retries.records import sent_back
from dledger_broker.features.retries.requests import RetryRequests
from dledger_broker.features.statistics.requests import Statistics
from dledger_broker.features.statistics.samples import PERIOD_S
from dledger_broker.testing import BrokerInMemory
from dledger_broker.testing.node import NODE_ID, FakeLog
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import RecordError
from dledger_remoting.ids import offset_message_id
from dledger_remoting.properties import DELAY, parse_properties
from dledger_remoting.record import MessageRecord, iter_records
from dledger_remoting.topics import SCHEDULE_TOPIC, TIMER_TOPIC, SubscriptionGroupConfig

DEAD_LETTERS, RETRIES = "%DLQ%CG", "%RETRY%CG"


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    broker = make_broker()
    create_group(broker)
    return broker


def create_group(broker: ServedBroker, name: str = "CG", **settings) -> None:
    broker.groups.put_group(SubscriptionGroupConfig(name, **settings), lambda _: None)
    broker.settle()


def stored(broker: ServedBroker, topic: str) -> list[MessageRecord]:
    """Every record of a topic in the log."""
    found: list[MessageRecord] = []
    log = broker.memory.node.log
    for entry in log.entries:
        data = bytes(log.data[entry.position + 48 : entry.end - entry.channel])
        try:
            found += [record for record in iter_records(data, verify_crc=True) if record.topic == topic]
        except RecordError:
            continue
    return found


def send(client: FakeClient, properties: str = "", **letters: str) -> MessageRecord:
    """A message that a consumer has pulled."""
    client.send_message("T1", b"body", properties=properties, **letters)
    return records(client.pull("T1"))[-1]


def send_back(client: FakeClient, record: MessageRecord, **fields: str) -> RemotingCommand:
    ext = {"offset": str(record.physical_offset), "group": "CG", "delayLevel": "0", **fields}
    return client.call_from_disk(RequestCode.CONSUMER_SEND_MSG_BACK, ext)


def test_a_retry_topic_that_is_no_text_ends_no_node(broker, client):
    """Within a batch properties are bytes that nobody looks at; what was sent back is counted while it is applied."""
    properties = b"RETRY_TOPIC\x01\xff\x02"
    message = struct.pack(">iiiii", 0, 0, 0, 0, 4) + b"body" + struct.pack(">h", len(properties)) + properties
    message = struct.pack(">i", len(message)) + message[4:]
    assert client.call(RequestCode.SEND_BATCH_MESSAGE, send_ext("T1", 0, m="true"), message).code == 0
    [record] = records(client.pull("T1"))
    assert b"\xff" in record.properties
    assert send_back(client, record).code == 0
    [waiting] = stored(broker, SCHEDULE_TOPIC)
    assert b"RETRY_TOPIC\x01\xff\x02" in waiting.properties


def test_a_message_that_is_sent_back_waits_for_the_groups_retry_topic(broker, client):
    message = send(client, "KEYS\x01k\x02TAGS\x01red\x02own\x01x\x02")
    answer = send_back(client, message)
    assert (answer.code, answer.body) == (0, b"")
    [waiting] = stored(broker, SCHEDULE_TOPIC)
    properties = parse_properties(waiting.properties)
    assert (waiting.queue_id, waiting.reconsume_times, waiting.body) == (2, 1, b"body")
    assert (waiting.born_timestamp, waiting.born_host) == (message.born_timestamp, message.born_host)
    assert properties["REAL_TOPIC"] == RETRIES
    assert properties["RETRY_TOPIC"] == "T1"
    assert properties["ORIGIN_MESSAGE_ID"] == offset_message_id(message.store_host, message.physical_offset)
    assert properties["DELAY"] == "3"
    assert (properties["KEYS"], properties["TAGS"], properties["own"]) == ("k", "red", "x")
    assert properties["UNIQ_KEY"] == parse_properties(message.properties)["UNIQ_KEY"]
    assert broker.memory.machine.state.topics[RETRIES].config.perm == 6


def retried(client: FakeClient, times: int, properties: str = "RETRY_TOPIC\x01T1\x02ORIGIN_MESSAGE_ID\x01first\x02"):
    """A message in the retry topic that was delivered again so many times, as a client stores it itself."""
    client.send_message(RETRIES, b"body", properties=properties, j=str(times), l="100")
    return records(client.pull(RETRIES))[-1]


@pytest.mark.parametrize(("times", "asked", "level"), [(1, 0, 4), (5, 0, 8), (5, 1, 1), (0, 99, 18)])
def test_each_delivery_is_later_than_the_one_before_unless_the_client_names_a_level(
    broker, client, times, asked, level
):
    send_back(client, retried(client, times), delayLevel=str(asked), maxReconsumeTimes="100")
    [waiting] = stored(broker, SCHEDULE_TOPIC)
    assert (waiting.queue_id, waiting.reconsume_times) == (level - 1, times + 1)


@pytest.mark.parametrize(("asked", "delay_ms"), [("2500", 2500), ("0", 1), ("999999999999", 259_200_000), ("-1", None)])
def test_a_client_of_ours_says_how_long_it_is_to_wait_to_the_millisecond(broker, client, asked, delay_ms):
    """Its level is for brokers that know levels only; more than may be asked for is cut, for no message may be lost."""
    send_back(client, send(client, "TIMER_DELAY_SEC\x010\x02"), delayLevel="5", delayTimeMillis=asked)
    exact, by_level = stored(broker, TIMER_TOPIC), stored(broker, SCHEDULE_TOPIC)
    assert (len(exact), len(by_level)) == ((0, 1) if delay_ms is None else (1, 0))
    properties = parse_properties((exact or by_level)[0].properties)
    assert properties.get("TIMER_DELAY_MS") == (None if delay_ms is None else str(delay_ms))
    assert properties.get("DELAY") == ("5" if delay_ms is None else None)


def test_where_a_message_came_from_stays_what_it_was_at_first(broker, client):
    send_back(client, retried(client, 2))
    properties = parse_properties(stored(broker, SCHEDULE_TOPIC)[0].properties)
    assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("T1", "first")


def test_what_an_earlier_delay_has_left_is_taken_off(broker, client):
    send_back(client, send(client))
    [waiting] = stored(broker, SCHEDULE_TOPIC)
    text = sent_back(waiting, RETRIES, 0, Asked(DELAY, 4)).properties
    assert [text.count(name) for name in (b"DELAY\x01", b"REAL_TOPIC\x01", b"TIMER_OUT_MS\x01")] == [1, 0, 0]
    assert parse_properties(text)["DELAY"] == "4"


@pytest.mark.parametrize(
    ("times", "fields", "dead"),
    [
        (15, {}, False),
        (16, {}, True),
        (2, {"maxReconsumeTimes": "2"}, True),
        (1, {"maxReconsumeTimes": "2"}, False),
        (0, {"delayLevel": "-1"}, True),
        (15, {"maxReconsumeTimes": "-1"}, False),
        (16, {"maxReconsumeTimes": "-1"}, True),
    ],
)
def test_a_message_that_came_too_often_becomes_a_dead_letter(broker, client, times, fields, dead):
    assert send_back(client, retried(client, times), **fields).code == 0
    assert len(stored(broker, DEAD_LETTERS)) == dead
    assert len(stored(broker, SCHEDULE_TOPIC)) == (not dead)


def test_a_dead_letter_says_whose_it_was_and_has_a_topic_of_one_queue(broker, client):
    send_back(client, retried(client, 16))
    [letter] = stored(broker, DEAD_LETTERS)
    properties = parse_properties(letter.properties)
    assert (letter.queue_id, letter.reconsume_times) == (0, 17)
    assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("T1", "first")
    assert not properties.keys() & {"DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "DELAY", "REAL_TOPIC"}
    config = broker.memory.machine.state.topics[DEAD_LETTERS].config
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)
    assert broker.service.parts[RetryRequests].dead_letters == 1


def test_the_groups_own_limit_counts_where_the_client_names_none(broker, client):
    create_group(broker, retry_max_times=2)
    send_back(client, retried(client, 2))
    assert len(stored(broker, DEAD_LETTERS)) == 1


def test_a_group_without_retry_queues_wants_no_message_again(broker, client):
    message = send(client)
    create_group(broker, retry_queue_nums=0)
    assert client.call(36, {"offset": str(message.physical_offset), "group": "CG", "delayLevel": "0"}).code == 0
    assert stored(broker, SCHEDULE_TOPIC) == []


def test_an_unknown_group_is_made_if_groups_make_themselves(broker, client):
    assert send_back(client, send(client), group="NEW").code == 0
    assert parse_properties(stored(broker, SCHEDULE_TOPIC)[0].properties)["REAL_TOPIC"] == "%RETRY%NEW"


def test_an_unknown_group_is_refused_if_they_do_not(make_broker):
    broker = make_broker(auto_create_group=False)
    client = broker.client()
    answer = client.call(36, {"offset": "0", "group": "NEW", "delayLevel": "0"})
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "NEW" in answer.remark


@pytest.mark.parametrize(("makes_groups", "code"), [(False, 26), (True, 0)])
def test_nothing_is_stored_behind_the_deletion_of_its_group(make_broker, makes_groups, code):
    """The message is read first. A group that is gone by then is made again if groups make themselves, else it stays
    gone."""
    broker = make_broker(auto_create_group=makes_groups)
    create_group(broker)
    client = broker.client()
    message = send(client)
    ext = {"offset": str(message.physical_offset), "group": "CG", "delayLevel": "-1"}
    send_back(client, message, delayLevel="-1")  # the topic is there
    opaques: list[int] = []

    async def cross() -> None:
        opaques.append(client.send(RequestCode.CONSUMER_SEND_MSG_BACK, ext))
        client.send(RequestCode.DELETE_SUBSCRIPTION_GROUP, {"groupName": "CG", "cleanOffset": "true"})
        await asyncio.sleep(0)  # the message is read, and the deletion is not applied
        await broker.memory.env.finish(answer())

    async def answer() -> None:
        while not client.has_answer(opaques[0]):  # noqa: ASYNC110 - the broker's turns go on meanwhile
            await asyncio.sleep(0)

    asyncio.run(cross())
    groups = broker.memory.machine.state.table(GROUPS).by_name
    assert client.answered(opaques[0]).code == code
    assert ("CG" in groups, len(stored(broker, DEAD_LETTERS))) == (makes_groups, 1 + makes_groups)


def test_only_what_a_consumer_can_have_pulled_is_taken_back(broker, client):
    message = send(client)
    send_back(client, message)
    [waiting] = stored(broker, SCHEDULE_TOPIC)
    count = len(broker.memory.node.log.entries)
    for offset in (-1, 0, message.physical_offset + 1, waiting.physical_offset, 1 << 40):
        ext = {"offset": str(offset), "group": "CG", "delayLevel": "0"}
        answer = client.call_from_disk(36, ext)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert str(offset) in answer.remark
    assert len(broker.memory.node.log.entries) == count


@pytest.mark.parametrize("missing", ["offset", "group", "delayLevel"])
def test_a_missing_field_is_named(broker, client, missing):
    ext = {"offset": "0", "group": "CG", "delayLevel": "0"}
    del ext[missing]
    answer = client.call(36, ext)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert missing in answer.remark


def test_each_request_makes_a_copy(broker, client):
    message = send(client)
    send_back(client, message)
    send_back(client, message)
    assert len(stored(broker, SCHEDULE_TOPIC)) == 2


def test_a_message_of_4_mib_is_sent_back():
    config = BrokerConfig(broker_group="broker-a", node_id=NODE_ID, data_dir=Path("unused"))
    broker = make_served_broker(config, BrokerInMemory(log=FakeLog(64 << 20)))
    broker.memory.create_topic("T1")
    client = broker.client()
    client.send_message("T1", bytes(4 << 20))
    assert send_back(client, records(client.pull("T1"))[-1]).code == 0
    assert len(stored(broker, SCHEDULE_TOPIC)[0].body) == 4 << 20


@pytest.mark.parametrize("level", [0, -1])
@pytest.mark.parametrize("length", [31_500, 31_700, 32_500, 32_650])
def test_what_leaves_no_room_in_its_properties_comes_again_and_becomes_a_dead_letter(broker, client, length, level):
    message = send(client, f"own\x01{'x' * length}\x02")
    assert send_back(client, message, delayLevel=str(level)).code == 0
    found = [*stored(broker, SCHEDULE_TOPIC), *stored(broker, RETRIES if level == 0 else DEAD_LETTERS)]
    assert [(bytes(one.body), one.reconsume_times) for one in found] == [(b"body", 1)]
    assert parse_properties(found[0].properties)["own"] == "x" * length


def test_a_leader_that_loses_its_group_says_that_the_outcome_is_unknown(broker, client):
    ext = {"offset": str(retried(client, 16).physical_offset), "group": "CG", "delayLevel": "0"}
    broker.memory.create_topic(DEAD_LETTERS, queues=1)
    broker.memory.node.commit = lambda: None
    answer = client.call_from_disk(36, ext)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "may have been sent back" in answer.remark


def test_what_is_sent_back_is_counted_for_the_topic_that_it_was_sent_to(broker, client):
    statistics = broker.service.parts[Statistics]
    statistics.start()
    message = send(client)
    assert send_back(client, message).code == 0
    broker.advance(PERIOD_S)
    assert send_back(client, message).code == 0
    assert send_back(client, message, maxReconsumeTimes="0").code == 0
    broker.advance(PERIOD_S)
    asked = {"statsName": "SNDBCK_PUT_NUMS", "statsKey": "T1@CG"}
    assert json_body(client.call(RequestCode.VIEW_BROKER_STATS_DATA, asked))["statsMinute"]["sum"] == 2
    statistics.stop()

"""Messages that consumers send back: they wait for a later delivery, become dead letters, and have a pace."""

from __future__ import annotations

import asyncio
import struct
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from served_broker import (
    FakeClient,
    MakeBroker,
    ServedBroker,
    assert_refused,
    json_body,
    make_group,
    make_served_broker,
    records,
    send_ext,
)

from dledger.errors import LogFullError
from dledger_broker.config import BrokerConfig
from dledger_broker.features.delay.asked import RequestedDelay
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.features.retries import pace
from dledger_broker.features.retries.records import sent_back
from dledger_broker.features.retries.repeats import REMEMBER_S
from dledger_broker.features.retries.requests import RetryRequests
from dledger_broker.features.statistics.requests import Statistics
from dledger_broker.features.statistics.samples import PERIOD_S
from dledger_broker.kernel.lookup import Lookup
from dledger_broker.testing import BrokerInMemory
from dledger_broker.testing.node import NODE_ID, FakeLog
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import RecordError
from dledger_remoting.ids import offset_message_id
from dledger_remoting.properties import DELAY, parse_properties
from dledger_remoting.record import MessageRecord, iter_records
from dledger_remoting.topics import SCHEDULE_TOPIC, TIMER_TOPIC

DEAD_LETTERS, RETRIES = "%DLQ%CG", "%RETRY%CG"


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    broker = make_broker()
    make_group(broker)
    return broker


@pytest.fixture
def paced(make_broker: MakeBroker) -> FakeClient:
    """Return a client of a broker that takes one send-back a second, and has the topic of dead letters."""
    client = make_broker(send_backs_per_second=1).client()
    make_group(client.broker)
    assert send_back(client, send(client), delayLevel="-1").code == 0
    return client


def stored(broker: ServedBroker, topic: str) -> list[MessageRecord]:
    """Return every record of a topic in the log."""
    found: list[MessageRecord] = []
    log = broker.memory.node.log
    for entry in log.entries:
        data = bytes(log.data[entry.position + 48 : entry.end - entry.channel])
        try:
            found += [record for record in iter_records(data, verify_crc=True) if record.topic == topic]
        except RecordError:
            continue
    return found


def answers_to_all(client: FakeClient, *exts: dict[str, str]) -> list[int]:
    """Send messages back at once, and return the codes of the answers."""

    async def together() -> list[int]:
        opaques = [client.send(RequestCode.CONSUMER_SEND_MSG_BACK, ext) for ext in exts]
        await client.broker.memory.env.finish(answer_to(client, *opaques))
        return opaques

    return [client.answered(opaque).code for opaque in asyncio.run(together())]


async def answer_to(client: FakeClient, *opaques: int) -> None:
    while not all(map(client.has_answer, opaques)):  # noqa: ASYNC110 - the broker's turns go on meanwhile
        await asyncio.sleep(0)


def back_ext(message: MessageRecord, level: int = 0, **fields: str) -> dict[str, str]:
    return {"offset": str(message.physical_offset), "group": "CG", "delayLevel": str(level), **fields}


def send(client: FakeClient, properties: str = "", **letters: str) -> MessageRecord:
    """Send a message, and return it as a consumer has pulled it."""
    client.send_message("T1", b"body", properties=properties, **letters)
    return records(client.pull("T1"))[-1]


def send_back(client: FakeClient, record: MessageRecord, **fields: str) -> RemotingCommand:
    return client.call_from_disk(RequestCode.CONSUMER_SEND_MSG_BACK, back_ext(record, **fields))


def test_a_retry_topic_property_with_invalid_text_does_not_fail_a_send_back(broker, client):
    """Nobody checks the bytes of properties within a batch, and a send-back is counted while it is applied."""
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
    expected = {
        "REAL_TOPIC": RETRIES,
        "RETRY_TOPIC": "T1",
        "ORIGIN_MESSAGE_ID": offset_message_id(message.store_host, message.physical_offset),
        "DELAY": "3",
        **{name: parse_properties(message.properties)[name] for name in ("KEYS", "TAGS", "own", "UNIQ_KEY")},
    }
    assert {name: properties[name] for name in expected} == expected
    assert broker.memory.machine.state.topics[RETRIES].config.perm == 6


def retried(client: FakeClient, times: int, properties: str = "RETRY_TOPIC\x01T1\x02ORIGIN_MESSAGE_ID\x01first\x02"):
    """Return a message in the retry topic that was delivered again `times` times, as a client stores it itself."""
    client.send_message(RETRIES, b"body", properties=properties, j=str(times), l="100")
    return records(client.pull(RETRIES))[-1]


@pytest.mark.parametrize(("times", "asked", "level"), [(1, 0, 4), (5, 0, 8), (5, 1, 1), (0, 99, 18)])
def test_the_delay_level_grows_with_each_delivery_unless_the_client_names_a_level(broker, client, times, asked, level):
    send_back(client, retried(client, times), delayLevel=str(asked), maxReconsumeTimes="100")
    [waiting] = stored(broker, SCHEDULE_TOPIC)
    assert (waiting.queue_id, waiting.reconsume_times) == (level - 1, times + 1)


@pytest.mark.parametrize(("asked", "delay_ms"), [("2500", 2500), ("0", 1), ("999999999999", 259_200_000), ("-1", None)])
def test_our_client_sets_the_delay_of_a_send_back_in_milliseconds(broker, client, asked, delay_ms):
    """Its level is for brokers that know only levels. A delay above the maximum is cut, so that no message is lost."""
    send_back(client, send(client, "TIMER_DELAY_SEC\x010\x02"), delayLevel="5", delayTimeMillis=asked)
    waiting = [*stored(broker, TIMER_TOPIC), *stored(broker, SCHEDULE_TOPIC)]
    [(topic, properties)] = [(one.topic, parse_properties(one.properties)) for one in waiting]
    expected = (SCHEDULE_TOPIC, None, "5") if delay_ms is None else (TIMER_TOPIC, str(delay_ms), None)
    assert (topic, properties.get("TIMER_DELAY_MS"), properties.get("DELAY")) == expected


def test_a_repeated_send_back_keeps_the_original_topic_and_message_id(broker, client):
    send_back(client, retried(client, 2))
    properties = parse_properties(stored(broker, SCHEDULE_TOPIC)[0].properties)
    assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("T1", "first")


def test_properties_of_an_earlier_delay_are_removed_from_a_message_sent_back(broker, client):
    send_back(client, send(client))
    [waiting] = stored(broker, SCHEDULE_TOPIC)
    text = sent_back(waiting, RETRIES, 0, RequestedDelay(DELAY, 4)).properties
    assert [text.count(name) for name in (b"DELAY\x01", b"REAL_TOPIC\x01", b"TIMER_OUT_MS\x01")] == [1, 0, 0]
    assert parse_properties(text)["DELAY"] == "4"


@pytest.mark.parametrize(
    ("times", "fields", "settings", "dead"),
    [
        (15, {}, {}, False),
        (16, {}, {}, True),
        (2, {}, {"retry_max_times": 2}, True),
        (2, {"maxReconsumeTimes": "2"}, {}, True),
        (1, {"maxReconsumeTimes": "2"}, {}, False),
        (0, {"delayLevel": "-1"}, {}, True),
        (15, {"maxReconsumeTimes": "-1"}, {}, False),
        (16, {"maxReconsumeTimes": "-1"}, {}, True),
    ],
)
def test_a_message_that_came_too_often_becomes_a_dead_letter(broker, client, times, fields, settings, dead):
    make_group(broker, **settings)
    assert send_back(client, retried(client, times), **fields).code == 0
    assert len(stored(broker, DEAD_LETTERS)) == dead
    assert len(stored(broker, SCHEDULE_TOPIC)) == (not dead)


def test_a_dead_letter_names_its_origin_and_its_topic_has_one_queue(broker, client):
    send_back(client, retried(client, 16))
    [letter] = stored(broker, DEAD_LETTERS)
    properties = parse_properties(letter.properties)
    assert (letter.queue_id, letter.reconsume_times) == (0, 17)
    assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("T1", "first")
    assert not properties.keys() & {"DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "DELAY", "REAL_TOPIC"}
    config = broker.memory.machine.state.topics[DEAD_LETTERS].config
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)
    assert broker.service.parts[RetryRequests].dead_letters == 1


@pytest.mark.parametrize(("times", "copies"), [(1, SCHEDULE_TOPIC), (16, DEAD_LETTERS)])
@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ({"failureReason": "ValueError: no\nprice\x1b[31m\x01DELAY\x02"}, "ValueError: no price [31m DELAY"),
        ({"failureReason": "x" * 1000}, "x" * 300),
        ({"failureReason": "\x00"}, ""),
        ({}, None),
    ],
)
def test_a_copy_says_why_its_last_delivery_failed(broker, client, times, copies, told, kept):
    earlier = "RETRY_TOPIC\x01T1\x02__FAILURE_REASON\x01of the delivery before\x02"
    assert send_back(client, retried(client, times, earlier), **told).code == 0
    [copy] = stored(broker, copies)
    assert parse_properties(copy.properties).get("__FAILURE_REASON") == kept


def test_a_reason_without_room_is_left_out_before_the_origin_is(broker, client):
    fitting = "k\x01" + "v" * (32_767 - 200) + "\x02"
    assert send_back(client, send(client, fitting), delayLevel="-1", failureReason="x" * 250).code == 0
    [letter] = stored(broker, DEAD_LETTERS)
    properties = parse_properties(letter.properties)
    assert ("__FAILURE_REASON" in properties, properties["RETRY_TOPIC"]) == (False, "T1")


def test_a_send_back_of_a_group_without_retry_queues_stores_nothing(broker, client):
    message = send(client)
    make_group(broker, retry_queue_nums=0)
    assert client.call(36, back_ext(message)).code == 0
    assert stored(broker, SCHEDULE_TOPIC) == []


def test_a_send_back_creates_an_unknown_group_if_auto_create_group_is_on(broker, client):
    assert send_back(client, send(client), group="NEW").code == 0
    assert parse_properties(stored(broker, SCHEDULE_TOPIC)[0].properties)["REAL_TOPIC"] == "%RETRY%NEW"


def test_a_send_back_of_an_unknown_group_is_refused_if_auto_create_group_is_off(make_broker):
    answer = make_broker(auto_create_group=False).client().call(36, {"offset": "0", "group": "NEW", "delayLevel": "0"})
    assert_refused(answer, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "NEW")


@pytest.mark.parametrize(("makes_groups", "code"), [(False, 26), (True, 0)])
def test_nothing_is_stored_behind_the_deletion_of_its_group(make_broker, makes_groups, code):
    """A group that is gone once the message is read is made again only if groups make themselves."""
    broker = make_broker(auto_create_group=makes_groups)
    make_group(broker)
    client = broker.client()
    message = send(client)
    send_back(client, send(client), delayLevel="-1")  # makes the topic

    async def cross() -> int:
        opaque = client.send(RequestCode.CONSUMER_SEND_MSG_BACK, back_ext(message, -1))
        client.send(RequestCode.DELETE_SUBSCRIPTION_GROUP, {"groupName": "CG", "cleanOffset": "true"})
        await asyncio.sleep(0)  # the message is read, and the deletion is not applied
        await broker.memory.env.finish(answer_to(client, opaque))
        return opaque

    assert client.answered(asyncio.run(cross())).code == code
    groups = broker.memory.machine.state.table(GROUPS).by_name
    assert ("CG" in groups, len(stored(broker, DEAD_LETTERS))) == (makes_groups, 1 + makes_groups)


@pytest.mark.parametrize("missing", ["offset", "group", "delayLevel"])
def test_a_missing_field_is_named(client, missing):
    ext = {"offset": "0", "group": "CG", "delayLevel": "0"}
    del ext[missing]
    assert_refused(client.call(36, ext), ResponseCode.SYSTEM_ERROR, missing)


def test_a_repeated_send_back_makes_no_copy_while_the_first_is_remembered(broker, client):
    message, other = send(client), send(client)
    for count, repeated, what in ((1, message, {}), (1, message, {"delayLevel": "-1"}), (2, other, {})):
        assert send_back(client, repeated, **what).code == 0
        assert len(stored(broker, SCHEDULE_TOPIC)) == count
    assert stored(broker, DEAD_LETTERS) == []
    assert send_back(client, message, group="CH").code == 0, "another group"
    broker.advance(REMEMBER_S + 1)
    assert answers_to_all(client, *[back_ext(message, 3)] * 3) == [0, 0, 0], "all hear of the one copy"
    assert len(stored(broker, SCHEDULE_TOPIC)) == 4
    broker.groups.delete_group("CG", lambda _: None)
    broker.settle()
    assert send_back(client, message).code == 0
    assert len(stored(broker, SCHEDULE_TOPIC)) == 5


def test_a_send_back_that_failed_on_a_full_log_stores_its_message_when_repeated(broker, client):
    message = send(client)
    broker.memory.create_topic(DEAD_LETTERS, queues=1)
    for error in (LogFullError("full"), None):
        broker.memory.node.stage_error = error
        assert (send_back(client, message, delayLevel="-1").code == 0) is (error is None)
    assert len(stored(broker, DEAD_LETTERS)) == 1


def test_send_backs_above_the_rate_wait_and_are_not_refused(paced):
    messages = [send(paced) for _ in range(4)]
    began = paced.broker.memory.env.now()
    assert {send_back(paced, message).code for message in messages} == {0}
    assert paced.broker.memory.env.now() - began >= 2


class Held(bytes):
    """Bytes of a message, counted while they are in memory."""

    count = 0

    def __init__(self, _data: bytes) -> None:
        Held.count += 1

    def __del__(self) -> None:
        Held.count -= 1


def waiting_send_backs(client: FakeClient, count: int) -> list[int]:
    """Send `count` messages back that wait for the rate, and let no time pass. Return the codes of all answers."""
    messages = [send(client) for _ in range(count + 1)]
    client.answers.clear()

    async def together() -> None:
        for message in messages:
            client.send(36, back_ext(message, -1))
        for _ in range(20):
            await asyncio.sleep(0)
            client.broker.settle()
        assert client.in_flight == count + 1 - len(client.answers)
        assert Held.count == 0

    asyncio.run(together())
    return [answer.code for answer in client.answers]


def test_send_backs_that_wait_for_the_rate_hold_no_messages(paced: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of 100 bytes wait by the thousand, and each names a message of up to 4 MiB."""
    read = Lookup.message_at

    async def counted(self: Lookup, position: int) -> bytes | None:
        data = await read(self, position)
        return None if data is None else Held(data)

    monkeypatch.setattr(Lookup, "message_at", counted)
    assert waiting_send_backs(paced, 5) == []


def test_a_send_back_is_refused_while_too_many_wait(paced: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "MAX_WAITING_BYTES", 2_500)
    assert waiting_send_backs(paced, 5) == [ResponseCode.SYSTEM_BUSY] * 4
    assert "send back later" in (paced.answers[0].remark or "")


def test_repetitions_that_wait_for_the_rate_make_no_copy(paced: FakeClient):
    assert answers_to_all(paced, *[back_ext(send(paced), -1)] * 3) == [0, 0, 0]
    assert len(stored(paced.broker, DEAD_LETTERS)) == 2


def test_a_send_back_whose_topic_is_made_first_is_charged_once(make_broker: MakeBroker):
    broker = make_broker(send_backs_per_second=1)
    client = broker.client()
    messages = [send(client) for _ in range(3)]
    began = broker.memory.env.now()
    for number, message in enumerate(messages):
        make_group(broker, f"CG{number}")
        assert send_back(client, message, group=f"CG{number}", delayLevel="-1").code == 0
    assert broker.memory.env.now() - began < 1, "each group is within its rate: a burst of one second"


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
def test_a_message_with_full_properties_can_be_retried_or_become_a_dead_letter(broker, client, length, level):
    message = send(client, f"own\x01{'x' * length}\x02")
    assert send_back(client, message, delayLevel=str(level)).code == 0
    found = [*stored(broker, SCHEDULE_TOPIC), *stored(broker, RETRIES if level == 0 else DEAD_LETTERS)]
    assert [(bytes(one.body), one.reconsume_times) for one in found] == [(b"body", 1)]
    assert parse_properties(found[0].properties)["own"] == "x" * length


def test_a_leader_that_loses_its_group_says_that_the_outcome_is_unknown(broker, client):
    message = retried(client, 16)
    broker.memory.create_topic(DEAD_LETTERS, queues=1)
    broker.memory.node.commit = lambda: None
    assert_refused(send_back(client, message), ResponseCode.SYSTEM_ERROR, "may have been sent back")


def test_send_backs_are_counted_for_the_original_topic(broker, client):
    broker.service.parts[Statistics].start()
    messages = [send(client) for _ in range(3)]
    assert send_back(client, messages[0]).code == 0
    broker.advance(PERIOD_S)
    assert send_back(client, messages[1]).code == 0
    assert send_back(client, messages[2], maxReconsumeTimes="0").code == 0
    broker.advance(PERIOD_S)
    asked = {"statsName": "SNDBCK_PUT_NUMS", "statsKey": "T1@CG"}
    assert json_body(client.call(RequestCode.VIEW_BROKER_STATS_DATA, asked))["statsMinute"]["sum"] == 2


# ---- pace: it remembers very many owners without looking at all of them


class Counted(OrderedDict[str, float]):
    """Table that must not be looked through as a whole."""

    def items(self) -> NoReturn:
        raise AssertionError("all owners are looked at")

    __iter__ = items


class Clock:
    now_s = 100.0

    def now(self) -> float:
        return self.now_s


def test_a_new_owner_examines_few_waiting_owners_and_expired_ones_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "MAX_OWNERS", 100)
    clock, config = Clock(), SimpleNamespace(send_backs_per_second=0.1, send_back_bytes_per_second=1000)
    counters = SimpleNamespace(send_backs_per_second=0, send_back_bytes_per_second=0)
    one = pace.Pace(cast("Any", clock), cast("Any", SimpleNamespace(config=config)), cast("Any", counters))
    owners = one._free_at = Counted()
    for number in range(300):
        one.charge(f"waits{number}", 1, 0)
    assert len(owners) == 300, "a second send-back of any of them waits"
    clock.now_s += 60
    for number in range(300):
        one.charge(f"later{number}", 1, 0)
    assert len(owners) <= 300
    clock.now_s += 60
    for _ in range(3):
        one.charge("later299", 1, 0)
    assert counters.send_backs_per_second == 2

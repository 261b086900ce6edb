"""Retry policies of groups, which are kept as they are given, and messages that clients store for retry."""

from __future__ import annotations

import json

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, assert_refused, json_body, records, send_ext

from dledger_broker.features import FEATURES
from dledger_broker.features.locks.leases import LEASE_S
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.testing.environment import START_MS
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.integers import MAX_INT32, MIN_INT32
from dledger_remoting.properties import parse_properties
from dledger_remoting.record import MessageRecord, iter_records
from dledger_remoting.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from dledger_sim.brokers.message_bodies import encode_body
from dledger_sim.brokers.schedules.brokers import GROUP_NAME, TOPIC, Brokers
from dledger_sim.brokers.schedules.retries import RETRIES as RETRIES_OF_BROKERS
from dledger_sim.brokers.schedules.retries import pulled, send_back
from tests.broker.features.locks.lock_calls import lock, unlock, with_groups

EXPONENTIAL = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1000, "max": 60_000, "multiplier": 3}}
LISTED = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, 2, 3000, 4000, 5000]}}
SHORT = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [700]}}
OF_ROCKETMQ = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {}}


def put_group(client: FakeClient, policy: object, **settings: object) -> RemotingCommand:
    """Give a group a policy. None: the request does not mention a policy."""
    group = {"groupName": "CG", **settings} | ({} if policy is None else {"groupRetryPolicy": policy})
    return client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, {}, json.dumps(group).encode())


def shown(client: FakeClient) -> dict[str, object]:
    """Return the configuration of the group as the broker shows it."""
    config = json_body(client.call(RequestCode.GET_SUBSCRIPTION_GROUP_CONFIG, {"group": "CG"}))
    assert isinstance(config, dict)
    return config


def retried(client: FakeClient, times: int, properties: str = "") -> MessageRecord:
    """Return a message that was delivered again `times` times."""
    client.send_message("T1", b"body", properties=properties, j=str(times))
    return records(client.pull("T1"))[-1]


def send_message_back(client: FakeClient, record: MessageRecord, level: int = 0) -> None:
    ext = {"offset": str(record.physical_offset), "group": "CG", "delayLevel": str(level), "maxReconsumeTimes": "100"}
    assert client.call_from_disk(RequestCode.CONSUMER_SEND_MSG_BACK, ext).code == 0


def delay_ms_of(record: MessageRecord) -> int:
    """Return the delay of a record that waits, on a clock that stands at `START_MS`."""
    return int(parse_properties(record.properties)["TIMER_OUT_MS"]) - START_MS


def waiting(broker: ServedBroker, topic: str, queue_id: int = 0) -> MessageRecord:
    """Return the only record that waits in a queue of the broker's own."""
    queue = broker.memory.queue(topic, queue_id)
    assert queue.max_offset == 1
    unit = broker.memory.machine.queues.read(queue.view, 0, 1)
    assert unit is not None
    position, size = int.from_bytes(unit[:8], "big"), int.from_bytes(unit[8:12], "big")
    return next(iter_records(bytes(broker.memory.log.data[position : position + size])))


@pytest.mark.parametrize("policy", [EXPONENTIAL, LISTED, OF_ROCKETMQ])
def test_a_retry_policy_is_shown_as_given_and_is_in_digest_and_snapshot(
    client: FakeClient, policy: dict[str, object]
) -> None:
    state = client.broker.memory.machine.state
    put_group(client, None)
    without = state.digest()
    assert put_group(client, policy).code == 0
    assert state.digest() != without
    assert decode_state(encode_state(state, 0.0), 0.0, FEATURES).digest() == state.digest()
    told = shown(client)["groupRetryPolicy"]
    assert isinstance(told, dict)
    assert told == policy if policy is not OF_ROCKETMQ else told["exponentialRetryPolicy"]["max"] == 7_200_000
    all_groups = json_body(client.call(RequestCode.GET_ALL_SUBSCRIPTION_GROUP_CONFIG))
    assert isinstance(all_groups, dict)
    assert all_groups["subscriptionGroupTable"]["CG"]["groupRetryPolicy"] == told


@pytest.mark.parametrize(
    "policy", [{"type": "CUSTOMIZED"}, {"type": "CUSTOMIZED", "exponentialRetryPolicy": None}, {}, "null"]
)
def test_the_default_retry_policy_of_rocketmqs_clients_changes_no_state(client: FakeClient, policy: object) -> None:
    put_group(client, None)
    digest = client.broker.memory.machine.state.digest()
    put_group(client, EXPONENTIAL)
    body = json.dumps({"groupName": "CG", "groupRetryPolicy": None if policy == "null" else policy})
    assert client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, {}, body.encode()).code == 0
    assert client.broker.memory.machine.state.digest() == digest
    assert "groupRetryPolicy" not in shown(client)


@pytest.mark.parametrize(
    ("policy", "times", "delay_ms"),
    [
        (EXPONENTIAL, 0, 1_000),
        (EXPONENTIAL, 2, 9_000),
        (EXPONENTIAL, 50, 60_000),
        (OF_ROCKETMQ, 1, 10_000),
        (LISTED, 0, 3_000),
        (LISTED, 2, 5_000),
        (LISTED, 30, 5_000),
        (SHORT, 0, 700),
        (EXPONENTIAL, MIN_INT32, 1_000),
        (LISTED, -1, 3_000),
    ],
)
def test_a_message_waits_as_long_as_the_groups_policy_says(
    client: FakeClient, policy: dict[str, object], times: int, delay_ms: int
) -> None:
    put_group(client, policy)
    send_message_back(client, retried(client, times, "TIMER_DELAY_MS\x010\x02DELAY\x010\x02"))
    record = waiting(client.broker, TIMER_TOPIC)
    properties = parse_properties(record.properties)
    assert (delay_ms_of(record), properties["TIMER_DELAY_MS"]) == (delay_ms, str(delay_ms))
    assert (properties["REAL_TOPIC"], record.reconsume_times) == ("%RETRY%CG", times + 1)
    assert "DELAY" not in properties


@pytest.mark.parametrize(
    ("policy", "times", "asked", "level"),
    [(None, -5, 0, 3), ({"type": "EXPONENTIAL"}, 1, 0, 4), (EXPONENTIAL, 0, 2, 2)],
    ids=["no policy", "a policy without delays", "the client names a level"],
)
def test_retries_without_a_policy_or_with_a_named_level_wait_at_a_delay_level(
    client: FakeClient, policy: object, times: int, asked: int, level: int
) -> None:
    put_group(client, policy)
    send_message_back(client, retried(client, times), asked)
    record = waiting(client.broker, SCHEDULE_TOPIC, level - 1)
    assert parse_properties(record.properties)["DELAY"] == str(level)


def test_a_message_with_the_maximum_delivery_count_becomes_a_dead_letter(client: FakeClient) -> None:
    send_message_back(client, retried(client, MAX_INT32))
    [letter] = records(client.pull("%DLQ%CG"))
    assert letter.reconsume_times == MAX_INT32


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": []}}, "lists 0 delays"),
        ({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [5] * 101}}, "lists 101 delays"),
        ({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [5, 0]}}, "next 0 ms is outside"),
        ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": -1}}, "initial -1 ms is outside"),
        ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"max": 1 << 62}}, "timer_max_delay_s is 259200"),
        ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"multiplier": 0}}, "multiplier 0 is below 1"),
        ({"type": "LINEAR"}, "LINEAR"),
        ({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1 << 64]}}, "next"),
        ([], "groupRetryPolicy"),
    ],
)
def test_an_invalid_retry_policy_is_refused(client: FakeClient, policy: object, text: str) -> None:
    digest = client.broker.memory.machine.state.digest()
    answer = put_group(client, policy)
    assert answer.code in {ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER}
    assert text in (answer.remark or "")
    assert client.broker.memory.machine.state.digest() == digest


def test_a_policy_of_longer_delays_than_are_allowed_now_is_cut(make_broker: MakeBroker) -> None:
    broker = make_broker(timer_max_delay_s=2)
    client = broker.client()
    assert put_group(client, EXPONENTIAL).code == ResponseCode.INVALID_PARAMETER
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dledger_broker.features.retries.requests.check_policy", lambda *_: None)
        assert put_group(client, EXPONENTIAL).code == 0
    send_message_back(client, retried(client, 9))
    assert delay_ms_of(waiting(broker, TIMER_TOPIC)) == 2_000


def test_a_retry_policy_is_refused_until_the_delay_feature_is_active(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = client.broker.memory.machine.state
    monkeypatch.setattr(state.activation, "since", {})
    digest = state.digest()
    assert_refused(put_group(client, EXPONENTIAL), ResponseCode.SYSTEM_BUSY, "'delay' is not active")
    assert state.digest() == digest
    assert put_group(client, {"type": "CUSTOMIZED"}).code == 0


def test_a_retry_is_delivered_after_the_delay_of_its_groups_policy() -> None:
    brokers = Brokers()
    connection = brokers.connect(brokers.leader)
    brokers.found_group(connection)
    body = json.dumps({"groupName": GROUP_NAME, "groupRetryPolicy": LISTED}).encode()
    brokers.ask(connection, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, {}, body)
    brokers.run(0.5)
    send_back(brokers, pulled(brokers, TOPIC)[0], through=brokers.follower, policy_s=3.0)
    brokers.run(1.5)
    assert pulled(brokers, RETRIES_OF_BROKERS) == []
    brokers.run(2.0)
    assert [record.reconsume_times for record in pulled(brokers, RETRIES_OF_BROKERS)] == [1]


# ---- messages that clients store for retry by themselves, as they do when a send-back (36) has failed


DEAD_LETTERS, RETRIES = "%DLQ%CG", "%RETRY%CG"
RETRIED = "RETRY_TOPIC\x01T1\x02ORIGIN_MESSAGE_ID\x01first\x02RECONSUME_TIME\x012\x02"


@pytest.fixture
def broker(broker: ServedBroker) -> ServedBroker:
    return with_groups(broker, "CG", "OTHER")


def stored(broker: ServedBroker, topic: str) -> list[bytes]:
    return broker.memory.bodies(topic) if topic in broker.memory.machine.state.topics else []


@pytest.mark.parametrize(
    "left",
    [
        "",
        "TIMER_DELAY_SEC\x0110\x02",
        "TIMER_DELAY_MS\x0110\x02",
        "TIMER_DELIVER_MS\x0117000000000000\x02",
        "__STARTDELIVERTIME\x01soon\x02",
    ],
)
def test_a_retry_waits_at_the_level_that_its_client_names_whatever_the_message_asked_for(
    broker: ServedBroker, client: FakeClient, left: str
) -> None:
    answer = client.send_message(RETRIES, b"again", properties=f"{left}{RETRIED}DELAY\x015\x02", j="2", l="16")
    assert answer.code == 0, answer.remark
    assert broker.memory.bodies(SCHEDULE_TOPIC, 4) == [b"again"]
    assert stored(broker, TIMER_TOPIC) == stored(broker, RETRIES) == []


def test_a_send_with_two_delays_to_an_ordinary_topic_is_refused(client: FakeClient) -> None:
    answer = client.send_message("T1", b"twice", properties="TIMER_DELAY_SEC\x0110\x02DELAY\x015\x02")
    assert_refused(answer, 13, "keep one of them")


def test_a_delayed_retry_is_delivered_with_its_origin_and_delivery_count() -> None:
    brokers = Brokers()
    brokers.found_group(brokers.connect(brokers.leader))
    ext = send_ext(RETRIES_OF_BROKERS, 0, RETRIED + "DELAY\x012\x02", j="2", l="16")
    answers = brokers.ask(brokers.connect(brokers.leader), RequestCode.SEND_MESSAGE_V2, ext, encode_body(9_000, 0))
    brokers.run(3.0)
    assert [answer.code for answer in answers if answer] == [0]
    assert pulled(brokers, RETRIES_OF_BROKERS) == []
    brokers.run(3.0)
    [again] = pulled(brokers, RETRIES_OF_BROKERS)
    properties = parse_properties(again.properties)
    assert again.reconsume_times == 2
    assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("T1", "first")
    assert (properties["RECONSUME_TIME"], properties["REAL_TOPIC"]) == ("2", RETRIES_OF_BROKERS)


@pytest.mark.parametrize(("times", "asked", "is_dead"), [("2", "2", False), ("3", "2", True), ("3", "-1", False)])
def test_a_clients_retry_limit_counts_unless_negative(
    client: FakeClient, times: str, asked: str, is_dead: bool
) -> None:
    assert client.send_message(RETRIES, b"again", j=times, l=asked).code == 0
    stored_in = (DEAD_LETTERS, RETRIES) if is_dead else (RETRIES, DEAD_LETTERS)
    assert [stored(client.broker, topic) for topic in stored_in] == [[b"again"], []]


def test_a_retry_of_a_group_with_locked_queues_becomes_a_dead_letter_at_once(client: FakeClient) -> None:
    assert lock(client, "anna") == {("T1", 0)}
    assert client.send_message(RETRIES, b"given up", properties=RETRIED + "DELAY\x015\x02", j="1", l="16").code == 0
    assert stored(client.broker, DEAD_LETTERS) == [b"given up"]
    assert stored(client.broker, SCHEDULE_TOPIC) == []
    properties = parse_properties(next(iter_records(client.pull(DEAD_LETTERS).body)).properties)
    assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("T1", "first")


def test_locks_that_ended_or_of_another_group_do_not_affect_retries(client: FakeClient) -> None:
    assert lock(client, "anna", group="OTHER") == {("T1", 0)}
    client.send_message(RETRIES, b"again", j="1")
    lock(client, "anna")
    client.broker.advance(LEASE_S + 1)
    client.send_message(RETRIES, b"once more", j="1")
    lock(client, "anna")
    unlock(client, "anna")
    client.send_message(RETRIES, b"at last", j="1")
    assert stored(client.broker, RETRIES) == [b"again", b"once more", b"at last"]
    assert stored(client.broker, DEAD_LETTERS) == []

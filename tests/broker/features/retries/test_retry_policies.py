"""Retry policies of groups: kept as they are given, and followed by messages that come again."""

from __future__ import annotations

import json

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, json_body, records

from dledger_broker.features import FEATURES
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.testing.environment import START_MS
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.integers import MAX_INT32, MIN_INT32
from dledger_remoting.properties import parse_properties
from dledger_remoting.record import MessageRecord, iter_records
from dledger_remoting.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from dledger_sim.brokers.schedules.brokers import GROUP_NAME, TOPIC, Brokers
from dledger_sim.brokers.schedules.retries import RETRIES, pulled, send_back

EXPONENTIAL = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1000, "max": 60_000, "multiplier": 3}}
LISTED = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, 2, 3000, 4000, 5000]}}
SHORT = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [700]}}
OF_ROCKETMQ = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {}}


def put_group(client: FakeClient, policy: object, **settings: object) -> RemotingCommand:
    """Give a group a policy, None for no word of one."""
    group = {"groupName": "CG", **settings} | ({} if policy is None else {"groupRetryPolicy": policy})
    return client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, {}, json.dumps(group).encode())


def shown(client: FakeClient) -> dict[str, object]:
    """The group as it is told."""
    config = json_body(client.call(RequestCode.GET_SUBSCRIPTION_GROUP_CONFIG, {"group": "CG"}))
    assert isinstance(config, dict)
    return config


def retried(client: FakeClient, times: int) -> MessageRecord:
    """A message that was delivered again so many times."""
    client.send_message("T1", b"body", j=str(times))
    return records(client.pull("T1"))[-1]


def send_message_back(client: FakeClient, record: MessageRecord, level: int = 0) -> None:
    ext = {"offset": str(record.physical_offset), "group": "CG", "delayLevel": str(level), "maxReconsumeTimes": "100"}
    assert client.call_from_disk(RequestCode.CONSUMER_SEND_MSG_BACK, ext).code == 0


def waiting(broker: ServedBroker, topic: str, queue_id: int = 0) -> MessageRecord:
    """The one record that waits in a queue of the broker's own."""
    queue = broker.memory.queue(topic, queue_id)
    assert queue.max_offset == 1
    unit = broker.memory.machine.queues.read(queue.view, 0, 1)
    assert unit is not None
    position, size = int.from_bytes(unit[:8], "big"), int.from_bytes(unit[8:12], "big")
    return next(iter_records(bytes(broker.memory.log.data[position : position + size])))


@pytest.mark.parametrize("policy", [EXPONENTIAL, LISTED, OF_ROCKETMQ])
def test_a_policy_is_kept_as_it_was_given(client: FakeClient, policy: dict[str, object]) -> None:
    assert put_group(client, policy).code == 0
    told = shown(client)["groupRetryPolicy"]
    assert isinstance(told, dict)
    assert told == policy if policy is not OF_ROCKETMQ else told["exponentialRetryPolicy"]["max"] == 7_200_000
    all_groups = json_body(client.call(RequestCode.GET_ALL_SUBSCRIPTION_GROUP_CONFIG))
    assert isinstance(all_groups, dict)
    assert all_groups["subscriptionGroupTable"]["CG"]["groupRetryPolicy"] == told


def test_a_policy_is_part_of_the_state(broker: ServedBroker, client: FakeClient) -> None:
    put_group(client, None)
    without = broker.memory.machine.state.digest()
    put_group(client, EXPONENTIAL)
    state = broker.memory.machine.state
    assert state.digest() != without
    assert decode_state(encode_state(state, 0.0), 0.0, FEATURES).digest() == state.digest()


@pytest.mark.parametrize(
    "policy", [{"type": "CUSTOMIZED"}, {"type": "CUSTOMIZED", "exponentialRetryPolicy": None}, {}, "null"]
)
def test_what_rocketmqs_clients_say_of_every_group_changes_no_state(
    broker: ServedBroker, client: FakeClient, policy: object
) -> None:
    put_group(client, None)
    digest = broker.memory.machine.state.digest()
    put_group(client, EXPONENTIAL)
    body = json.dumps({"groupName": "CG", "groupRetryPolicy": None if policy == "null" else policy})
    assert client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, {}, body.encode()).code == 0
    assert broker.memory.machine.state.digest() == digest
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
    broker: ServedBroker, client: FakeClient, policy: dict[str, object], times: int, delay_ms: int
) -> None:
    put_group(client, policy)
    message = retried(client, times)
    send_message_back(client, message)
    record = waiting(broker, TIMER_TOPIC)
    properties = parse_properties(record.properties)
    assert int(properties["TIMER_OUT_MS"]) - START_MS == delay_ms
    assert (properties["REAL_TOPIC"], record.reconsume_times) == ("%RETRY%CG", times + 1)
    assert "DELAY" not in properties


@pytest.mark.parametrize(("policy", "times", "level"), [(None, -5, 3), ({"type": "EXPONENTIAL"}, 1, 4)])
def test_without_delays_of_its_own_a_group_retries_at_the_levels(
    broker: ServedBroker, client: FakeClient, policy: object, times: int, level: int
) -> None:
    put_group(client, policy)
    send_message_back(client, retried(client, times))
    assert parse_properties(waiting(broker, SCHEDULE_TOPIC, level - 1).properties)["DELAY"] == str(level)


def test_a_level_that_the_client_names_counts_more(broker: ServedBroker, client: FakeClient) -> None:
    put_group(client, EXPONENTIAL)
    send_message_back(client, retried(client, 0), level=2)
    assert waiting(broker, SCHEDULE_TOPIC, 1)


def test_the_next_delivery_waits_by_its_own_count_alone(broker: ServedBroker, client: FakeClient) -> None:
    put_group(client, EXPONENTIAL)
    client.send_message("T1", b"body", j="1", properties="TIMER_DELAY_MS\x010\x02DELAY\x010\x02")
    send_message_back(client, records(client.pull("T1"))[0])
    properties = parse_properties(waiting(broker, TIMER_TOPIC).properties)
    assert (properties["TIMER_DELAY_MS"], properties.get("DELAY")) == ("3000", None)


def test_a_count_of_deliveries_that_cannot_grow_makes_a_dead_letter(broker: ServedBroker, client: FakeClient) -> None:
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
def test_a_policy_by_which_no_message_could_wait_is_refused(
    broker: ServedBroker, client: FakeClient, policy: object, text: str
) -> None:
    digest = broker.memory.machine.state.digest()
    answer = put_group(client, policy)
    assert answer.code in {ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER}
    assert text in (answer.remark or "")
    assert broker.memory.machine.state.digest() == digest


def test_a_policy_of_longer_delays_than_are_allowed_now_is_cut(make_broker: MakeBroker) -> None:
    broker = make_broker(timer_max_delay_s=2)
    client = broker.client()
    assert put_group(client, EXPONENTIAL).code == ResponseCode.INVALID_PARAMETER
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dledger_broker.features.retries.requests.check_policy", lambda *_: None)
        assert put_group(client, EXPONENTIAL).code == 0
    send_message_back(client, retried(client, 9))
    assert int(parse_properties(waiting(broker, TIMER_TOPIC).properties)["TIMER_OUT_MS"]) - START_MS == 2_000


def test_a_policy_is_refused_while_an_older_node_would_read_over_it(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker.memory.machine.state.activation, "since", {})
    digest = broker.memory.machine.state.digest()
    answer = put_group(client, EXPONENTIAL)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "'delay' is not active" in (answer.remark or "")
    assert broker.memory.machine.state.digest() == digest
    assert put_group(client, {"type": "CUSTOMIZED"}).code == 0


def test_a_message_comes_when_its_groups_policy_says_so() -> None:
    brokers = Brokers()
    connection = brokers.connect(brokers.leader)
    brokers.found_group(connection)
    body = json.dumps({"groupName": GROUP_NAME, "groupRetryPolicy": LISTED}).encode()
    brokers.ask(connection, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, {}, body)
    brokers.run(0.5)
    send_back(brokers, pulled(brokers, TOPIC)[0], through=brokers.follower, policy_s=3.0)
    brokers.run(1.5)
    assert pulled(brokers, RETRIES) == []
    brokers.run(2.0)
    assert [record.reconsume_times for record in pulled(brokers, RETRIES)] == [1]

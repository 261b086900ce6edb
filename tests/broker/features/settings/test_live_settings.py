"""Settings: keys of the configuration that are set for the whole group (25), told (26), and in effect at once."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from broker_group import BrokerGroup, client_of
from served_broker import FakeClient, MakeBroker, ServedBroker, assert_refused

from dledger_broker.config import KEYS, BrokerConfig
from dledger_broker.features import FEATURES
from dledger_broker.features.retention.policy import HOUR_MS, policy_of
from dledger_broker.features.settings.table import NAME, SETTINGS, PutSettings
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.kernel.state import BrokerState
from dledger_broker.node import Broker
from dledger_remoting.topics import TopicConfig
from tests.broker.kernel.applied_commands import apply
from tests.broker.telling import tell

PUT, TELL = 25, 26
OWN = BrokerConfig(broker_group="g", node_id="n0", data_dir=Path("unused"))


def put(client: FakeClient, *lines: str) -> int:
    return client.call(PUT, body="\n".join(lines).encode()).code


def told(client: FakeClient) -> dict[str, str]:
    lines = client.call(TELL).body.decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


def is_set(broker: ServedBroker) -> dict[str, str]:
    return broker.memory.machine.state.table(SETTINGS).values


def test_settings_take_effect_at_once_under_rocketmqs_and_our_names(client: FakeClient) -> None:
    def sent(*sends: tuple[str, bytes]) -> list[int]:
        return [client.send_message(topic, body).code for topic, body in sends]

    assert sent(("T2", b"x")) == [0]
    assert put(client, "autoCreateTopicEnable=false", "max_message_bytes=4") == 0
    assert sent(("T3", b"x"), ("T1", b"12345"), ("T1", b"1234")) == [17, 13, 0]
    assert put(client, "autoCreateTopicEnable=true") == 0
    assert sent(("T3", b"x")) == [0]


def test_the_example_of_topics_that_sends_create_has_the_queues_that_are_set(client: FakeClient) -> None:
    def queues_of(topic: str) -> int:
        return client.broker.memory.machine.state.topics[topic].config.write_queue_nums

    assert put(client, "fileReservedTime=48") == 0  # which makes the example topic
    assert client.send_message("T2", b"x", d="64").code == 0
    assert put(client, "defaultTopicQueueNums=12") == 0
    assert client.send_message("T3", b"x", d="64").code == 0
    assert put(client, "autoCreateTopicEnable=false", "defaultTopicQueueNums=") == 0
    assert put(client, "autoCreateTopicEnable=true") == 0
    assert (queues_of("T2"), queues_of("T3"), queues_of("TBW102")) == (8, 12, 8)


def test_the_example_topic_changes_only_with_its_own_settings(make_broker: MakeBroker) -> None:
    """A leader whose file says 8 has made it, and the current leader has another file."""
    broker = make_broker(own=True, default_topic_queues=3)
    client, topics = broker.client(), broker.memory.machine.state.topics
    assert put(client, "fileReservedTime=48") == 0  # the example topic is missing, and is made
    assert topics["TBW102"].config.write_queue_nums == 3
    broker.memory.machine.proposals.put_topic(TopicConfig("TBW102", 8, 8, perm=7), lambda _: None)
    broker.memory.env.run_ready()
    assert put(client, "fileReservedTime=24", "defaultMessageRequestMode=POP") == 0
    assert topics["TBW102"].config.write_queue_nums == 8
    for line in ("autoCreateTopicEnable=true", "default_topic_queues=5", "defaultTopicQueueNums=6"):
        before = topics["TBW102"].config.write_queue_nums
        assert put(client, line) == 0
        assert topics["TBW102"].config.write_queue_nums != before, line


def test_an_empty_value_restores_the_configuration_of_the_node(make_broker: MakeBroker) -> None:
    broker = make_broker(own=True, retention_hours=9)
    client = broker.client()
    put(client, "fileReservedTime=48", "transaction_check_max=3")
    assert told(client)["fileReservedTime"] == "48"
    assert put(client, "fileReservedTime=") == 0
    assert (told(client)["fileReservedTime"], is_set(broker)) == ("9", {"transaction_check_max": "3"})


def test_a_node_tells_its_configuration_in_rocketmqs_words(make_broker: MakeBroker) -> None:
    client = make_broker(
        own=True,
        disk_max_used_ratio=0.8,
        **dict.fromkeys(("metrics_token_file", "secret_file", "tls_key_file"), Path("where-it-is")),
    ).client()
    put(client, "diskMaxUsedSpaceRatio=70", "defaultMessageRequestMode=POP")
    answer, table = client.call(TELL), told(client)
    assert (table["brokerName"], table["listenPort"], table["flushDiskType"]) == ("broker-a", "10911", "SYNC_FLUSH")
    assert (table["diskMaxUsedSpaceRatio"], table["defaultMessageRequestMode"]) == ("70", "POP")
    assert table["transaction_check_max"] == "15"
    assert json.loads(answer.ext["version"])["counter"] == 1
    assert json.loads(answer.ext["dledgerLive"]) == {"default_request_mode": "pop", "disk_max_used_ratio": "0.7"}
    assert "where-it-is" not in answer.body.decode()


BAD_LINES = [
    ("retentionHours=9", 29, "no key of this broker, did you mean"),
    ("storePathRootDir=/etc", 16, "read when a node starts"),
    ("secret_file=/etc/passwd", 16, "read when a node starts"),
    ("class_filters=x", 16, "read when a node starts"),
    ("flushDiskType=ASYNC_FLUSH", 16, "read when a node starts"),
    ("deleteWhen=04", 29, "no key of this broker"),
    ("retention_hours=soon", 29, "expected a whole number"),
    ("auto_create_topic=1", 29, "expected true or false"),
    ("fileReservedTime=0", 29, "outside 1"),
    ("default_request_mode=push", 29, "expected 'pull' or 'pop'"),
    ("max_message_bytes=4194305", 29, "outside"),
    ("nothing", 29, "expected key=value"),
    ("", 29, "nothing to set"),
]


@pytest.mark.parametrize(("line", "code", "text"), BAD_LINES)
def test_a_bad_line_is_named_and_refuses_all_settings_of_its_request(
    client: FakeClient, line: str, code: int, text: str
) -> None:
    body = f"transaction_check_max=2\n{line}".encode() if line else b""
    assert_refused(client.call(PUT, body=body), code, text)
    assert is_set(client.broker) == {}


def test_no_live_key_names_a_path_an_address_or_code() -> None:
    keys = [KEYS.by_name[name] for name in KEYS.live]
    assert len(keys) > 15
    assert {key.kind for key in keys} <= {bool, int, float, str}
    assert all(key.about.choices for key in keys if key.kind is str)


def test_each_live_key_is_reported_in_a_settable_form(client: FakeClient) -> None:
    table = told(client)
    live = {name: text for name, text in table.items() if KEYS.called(name) in KEYS.live}
    assert len(live) == len(KEYS.live)
    assert put(client, *(f"{name}={text}" for name, text in live.items())) == 0
    assert told(client) == table
    assert is_set(client.broker).keys() == set(KEYS.live)


def test_an_unusable_setting_is_reported_and_the_node_keeps_its_own_value() -> None:
    state = BrokerState(FEATURES)
    apply(state, PutSettings({"max_message_bytes": "2000", "retention_hours": "1", "later": "x"}))
    live = LiveConfig(replace(OWN, max_message_bytes=1000, max_frame_bytes=1024, max_partial_bytes=4096))
    live.follow(state.table(SETTINGS))
    assert (live.config.max_message_bytes, live.config.retention_hours) == (1000, 1)
    assert set(live.refused) == {"max_message_bytes", "later"}
    apply(state, PutSettings({"max_message_bytes": "", "later": ""}))
    assert (live.config.retention_hours, live.refused) == (1, {})


def test_the_retention_policy_follows_live_settings() -> None:
    live, state = LiveConfig(OWN), BrokerState(FEATURES)
    live.follow(state.table(SETTINGS))
    apply(state, PutSettings({"retention_hours": "5", "retention_bytes": "7", "disk_max_used_ratio": "0.5"}))
    policy = policy_of(live)
    assert (policy.max_age_ms, policy.max_log_bytes, policy.disk_max_used_ratio) == (5 * HOUR_MS, 7, 0.5)


def test_settings_are_in_digest_and_snapshot_and_an_empty_table_has_no_frame() -> None:
    digests = set()
    for hours in (None, "5", "6"):
        state = BrokerState(FEATURES)
        if hours is not None:
            apply(state, PutSettings({"retention_hours": hours}), PutSettings({"property_filter": "false"}))
        digests.add(state.digest())
    assert len(digests) == 3
    restored = decode_state(encode_state(state, 0.0), 0.0, FEATURES)
    table = restored.table(SETTINGS)
    assert (restored.digest(), table.values) == (state.digest(), {"property_filter": "false", "retention_hours": "6"})
    assert (table.changes, "settings" in SETTINGS.make().capture_frames(0.0)) == (2, False)


async def active(broker: Broker) -> None:
    event = asyncio.Event()

    def look() -> None:
        if broker.machine.is_active(NAME):
            event.set()

    tell(broker.machine.events, "members_changed", look)
    look()
    async with asyncio.timeout(20):
        await event.wait()


async def test_settings_made_through_a_follower_count_on_other_nodes_and_the_next_leader(group: BrokerGroup) -> None:
    leader, (follower, other) = await group.leader(), await group.followers()
    for broker in (leader, follower, other):
        await active(broker)
    client = await client_of(follower)
    assert b"\nbrokerId=0\n" in (await (await client_of(leader)).call(TELL, {})).body
    assert f"\nbrokerId={follower.config.broker_id_when_follower}\n".encode() in (await client.call(TELL, {})).body
    assert (await client.call(PUT, {}, b"autoCreateSubscriptionGroup=false\ntransaction_check_max=2")).code == 0
    await leader.node.transfer_leadership(other.config.node_id)
    assert await group.leader(other_than=leader) is other
    answer = await (await client_of(other)).call(TELL, {})
    assert b"autoCreateSubscriptionGroup=false\n" in answer.body
    assert (await (await client_of(leader)).pull(0)).code == 26

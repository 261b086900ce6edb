"""Changes that cross one another on their way into the log: what is acknowledged is neither undone nor made up."""

from __future__ import annotations

import msgspec
from served_broker import FakeClient, ServedBroker, pull_ext, send_ext

from dledger_broker.features.group_settings.settings import GroupSettings
from dledger_broker.features.offsets.table import OFFSETS
from dledger_remoting.topics import SubscriptionGroupConfig

KEY = ("CG", "T1", 0)


def commit_ext(offset: int) -> dict[str, str]:
    return {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": str(offset)}


def topic_ext(name: str, attributes: str = "") -> dict[str, str]:
    return {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "attributes": attributes,
    }


def make_group(broker: ServedBroker) -> None:
    broker.groups.put_group(SubscriptionGroupConfig("CG"), lambda _: None)
    broker.settle()


def test_two_changes_of_one_topic_at_once_both_count(broker: ServedBroker, client: FakeClient) -> None:
    first = client.send(17, topic_ext("T1", "+idempotent=true"))
    second = client.send(17, topic_ext("T1", "+cleanup.policy=DELETE"))
    broker.settle()
    assert (client.answered(first).code, client.answered(second).code) == (0, 0)
    attributes = broker.memory.machine.state.topics["T1"].config.attributes
    assert attributes == {"idempotent": "true", "cleanup.policy": "DELETE"}


def test_changes_of_one_topic_at_once_do_not_exceed_its_limit_together(
    broker: ServedBroker, client: FakeClient
) -> None:
    changes = [client.send(17, topic_ext("T1", f"+a{number}=" + "x" * 3_000)) for number in range(3)]
    broker.settle()
    assert [client.answered(change).code for change in changes] == [0, 29, 29]
    attributes = broker.memory.machine.state.topics["T1"].config.attributes
    assert attributes == {"a0": "x" * 3_000}


def test_a_deletion_behind_a_creation_in_flight_follows_it(broker: ServedBroker, client: FakeClient) -> None:
    client.send(17, topic_ext("T2"))
    deletion = client.send(215, {"topic": "T2"})
    broker.settle()
    assert client.answered(deletion).code == 0
    assert "T2" not in broker.memory.machine.state.topics


def test_a_commit_is_void_once_its_topic_is_deleted(broker: ServedBroker, client: FakeClient) -> None:
    make_group(broker)
    client.send(15, commit_ext(7))
    client.call(215, {"topic": "T1"})
    client.call(17, topic_ext("T1"))
    broker.advance(5)
    assert broker.memory.machine.state.table(OFFSETS).get(*KEY) is None


def test_no_commit_slips_in_behind_the_deletion_of_its_topic(broker: ServedBroker, client: FakeClient) -> None:
    make_group(broker)
    client.send(215, {"topic": "T1"})
    client.send(15, commit_ext(7))
    broker.offsets.flush(lambda _: None)
    broker.advance(5)
    assert broker.memory.machine.state.table(OFFSETS).get(*KEY) is None


def test_a_commit_is_void_once_its_group_is_deleted_with_its_offsets(broker: ServedBroker, client: FakeClient) -> None:
    make_group(broker)
    client.send(15, commit_ext(7))
    client.call(207, {"groupName": "CG", "cleanOffset": "true"})
    broker.advance(5)
    assert broker.memory.machine.state.table(OFFSETS).get(*KEY) is None


def test_no_commit_slips_in_behind_the_deletion_of_its_group(broker: ServedBroker, client: FakeClient) -> None:
    make_group(broker)
    client.send(207, {"groupName": "CG", "cleanOffset": "true"})
    client.send(15, commit_ext(7))
    broker.offsets.flush(lambda _: None)
    broker.advance(5)
    assert broker.memory.machine.state.table(OFFSETS).get(*KEY) is None


def founded(broker: ServedBroker) -> FakeClient:
    GroupSettings(broker.memory.machine, broker.memory.env, broker.config)
    broker.settle()
    return broker.client()


def test_no_node_refuses_alone_what_a_later_change_may_allow(broker: ServedBroker, client: FakeClient) -> None:
    """A topic may have more queues by now, or other permissions, and a group may consume."""
    make_group(broker)
    client.call(17, {**topic_ext("ReadOnly"), "perm": "4"})
    client.call(17, {**topic_ext("WriteOnly"), "perm": "2"})
    broker.groups.put_group(SubscriptionGroupConfig("Idle", consume_enable=False), lambda _: None)
    broker.settle()
    requests = (
        (310, send_ext("T1", 4)),
        (310, send_ext("ReadOnly")),
        (15, {**commit_ext(7), "queueId": "4"}),
        (11, pull_ext("T1", 4)),
        (11, pull_ext("WriteOnly")),
        (11, pull_ext("T1", consumerGroup="Idle")),
    )
    opaques = [client.send(code, ext) for code, ext in requests]
    assert not any(client.has_answer(opaque) for opaque in opaques)
    broker.settle()
    assert [client.answered(opaque).code for opaque in opaques] == [29, 16, 29, 29, 16, 16]


def test_what_a_deposed_leader_cannot_know_is_not_answered_by_it_alone(
    broker: ServedBroker, client: FakeClient
) -> None:
    """It has no such topic, group or pin, and the offset is the committed one; a later leader may know better."""
    make_group(broker)
    founded(broker)
    client.send(15, commit_ext(7))
    broker.advance(1)
    requests = (
        (215, {"topic": "Unknown"}),
        (207, {"groupName": "Unknown"}),
        (20014, {"name": "unknown"}),
        (15, commit_ext(7)),
    )
    opaques = [client.send(code, ext) for code, ext in requests]
    assert not any(client.has_answer(opaque) for opaque in opaques)
    broker.settle()
    assert [client.answered(opaque).code for opaque in opaques] == [0, 0, 0, 0]


def test_several_topics_of_which_one_may_be_changed_are_not_changed_again_by_the_next_leader(
    broker: ServedBroker, client: FakeClient
) -> None:
    """1. T2 waits for another change, T1 is proposed; 2. leadership is lost, and T2 refused; 3. it comes back."""
    broker.memory.create_topic("T2")
    client.send(17, topic_ext("T2"))
    configs = [{"topicName": name, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6} for name in ("T1", "T2")]
    several = client.send(18, body=msgspec.json.encode({"topicConfigList": configs}))
    broker.memory.node.step_down()
    broker.settle()
    answer = client.answered(several)
    assert (answer.code, answer.ext["outcome"]) == (1, "unknown")
    broker.memory.node.lead()
    broker.advance(1)
    assert broker.memory.machine.state.topics["T1"].config.read_queue_nums == 4

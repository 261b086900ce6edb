"""Changes that are in flight at the same time: an acknowledged change has taken effect and is not undone."""

from __future__ import annotations

import msgspec
import pytest
from served_broker import FakeClient, ServedBroker, founded, make_group, pull_ext, send_ext, submit, topic_ext

from dledger_broker.features.offsets.table import OFFSETS

KEY = ("CG", "T1", 0)


__all__ = ["topic_ext"]


def commit_ext(offset: int) -> dict[str, str]:
    return {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": str(offset)}


def test_two_changes_of_one_topic_at_once_both_count(broker: ServedBroker, client: FakeClient) -> None:
    first = client.send(17, topic_ext("T1", "+idempotent=true"))
    second = client.send(17, topic_ext("T1", "+cleanup.policy=DELETE"))
    broker.settle()
    assert (client.answered(first).code, client.answered(second).code) == (0, 0)
    attributes = broker.memory.machine.state.topics["T1"].config.attributes
    assert attributes == {"idempotent": "true", "cleanup.policy": "DELETE"}


def test_concurrent_changes_of_a_topic_do_not_exceed_its_attribute_limit_together(client: FakeClient) -> None:
    changes = [client.send(17, topic_ext("T1", f"+a{number}=" + "x" * 3_000)) for number in range(3)]
    client.broker.settle()
    assert [client.answered(change).code for change in changes] == [0, 29, 29]
    attributes = client.broker.memory.machine.state.topics["T1"].config.attributes
    assert attributes == {"a0": "x" * 3_000}


def test_a_deletion_takes_effect_behind_a_creation_in_flight(broker: ServedBroker, client: FakeClient) -> None:
    client.send(17, topic_ext("T2"))
    deletion = submit(client, 215, {"topic": "T2"})
    assert client.answered(deletion).code == 0
    assert "T2" not in broker.memory.machine.state.topics


DELETIONS = [(215, {"topic": "T1"}), (207, {"groupName": "CG", "cleanOffset": "true"})]


@pytest.mark.parametrize(("deletion", "ext"), DELETIONS, ids=["topic", "group"])
def test_a_commit_for_a_deleted_topic_or_group_is_void(client: FakeClient, deletion: int, ext: dict[str, str]) -> None:
    make_group(client.broker)
    client.send(15, commit_ext(7))
    client.call(deletion, ext)
    if deletion == 215:
        client.call(17, topic_ext("T1"))
    client.broker.advance(5)
    assert client.broker.memory.machine.state.table(OFFSETS).get(*KEY) is None


@pytest.mark.parametrize(("deletion", "ext"), DELETIONS, ids=["topic", "group"])
def test_no_commit_slips_in_behind_the_deletion_of_its_topic(
    client: FakeClient, deletion: int, ext: dict[str, str]
) -> None:
    make_group(client.broker)
    client.send(deletion, ext)
    client.send(15, commit_ext(7))
    client.broker.offsets.flush(lambda _: None)
    client.broker.advance(5)
    assert client.broker.memory.machine.state.table(OFFSETS).get(*KEY) is None


def test_requests_that_a_later_change_may_allow_are_refused_only_by_a_confirmed_leader(client: FakeClient) -> None:
    """The topic may have more queues or other permissions by now, and the group may consume."""
    make_group(client.broker)
    client.call(17, topic_ext("ReadOnly", perm="4"))
    client.call(17, topic_ext("WriteOnly", perm="2"))
    make_group(client.broker, "Idle", consume_enable=False)
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
    client.broker.settle()
    assert [client.answered(opaque).code for opaque in opaques] == [29, 16, 29, 29, 16, 16]


def test_requests_without_effect_are_answered_only_after_the_leader_is_confirmed(client: FakeClient) -> None:
    """It has no such topic, group or pin, and has already committed the offset, but a later leader may differ."""
    make_group(client.broker)
    founded(client.broker)
    client.send(15, commit_ext(7))
    client.broker.advance(1)
    requests = (
        (215, {"topic": "Unknown"}),
        (207, {"groupName": "Unknown"}),
        (20014, {"name": "unknown"}),
        (15, commit_ext(7)),
    )
    opaques = [client.send(code, ext) for code, ext in requests]
    assert not any(client.has_answer(opaque) for opaque in opaques)
    client.broker.settle()
    assert [client.answered(opaque).code for opaque in opaques] == [0, 0, 0, 0]


def test_a_partly_lost_change_of_several_topics_is_not_repeated_by_the_next_leader(
    broker: ServedBroker, client: FakeClient
) -> None:
    """Leadership is lost while T2 waits for another change and T1 is proposed, and comes back."""
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

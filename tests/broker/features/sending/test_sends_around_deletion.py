"""Sends to a topic while it is deleted: what is acknowledged is in the topic that exists afterwards."""

from __future__ import annotations

from served_broker import FakeClient, ServedBroker, records, send_ext

from dledger_remoting.topics import TopicConfig


def bodies(client: FakeClient, topic: str) -> list[bytes]:
    return [record.body for record in records(client.pull(topic, maxMsgNums="64"))]


def test_a_send_behind_a_deletion_in_flight_goes_to_the_next_topic_of_that_name(
    broker: ServedBroker, client: FakeClient
) -> None:
    client.send_message("T1", b"old")
    broker.memory.machine.proposals.delete_topic("T1", lambda _: None)
    sent = client.send_message("T1", b"new")
    assert (sent.code, sent.ext["queueOffset"]) == (0, "0")
    assert bodies(client, "T1") == [b"new"]


def test_a_send_overtaken_by_a_deletion_goes_to_the_next_topic_of_that_name(
    broker: ServedBroker, client: FakeClient
) -> None:
    client.send_message("T1", b"old")
    late = client.send(310, send_ext("T1"), b"late")
    broker.memory.machine.proposals.delete_topic("T1", lambda _: None)
    broker.memory.machine.proposals.put_topic(TopicConfig("T1", 4, 4), lambda _: None)
    broker.memory.node.commit()
    broker.memory.node.commit()
    broker.settle()
    answer = client.answered(late)
    assert (answer.code, answer.ext["queueOffset"]) == (0, "0")
    assert bodies(client, "T1") == [b"late"]
    assert broker.memory.restart(lead=False).queue("T1").next_offset == 1

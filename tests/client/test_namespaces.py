"""Namespaces: names have the form of Java's clients, and messages name the namespace in which they were sent."""

from __future__ import annotations

import pytest
from client_fakes import fake_cluster, until
from consuming import take

from dledger_client import (
    InvalidArgumentError,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    TransactionProducer,
)
from dledger_client.namespaces import Namespace
from dledger_remoting.codes import RequestCode
from dledger_remoting.properties import parse_properties

TOPIC, GROUP = "ns%T", "ns%CG"
CLUSTER = {"topics": {TOPIC: 1}}


@pytest.mark.parametrize(
    ("plain", "full"),
    [
        ("orders", "ns%orders"),
        ("%RETRY%readers", "%RETRY%ns%readers"),
        ("%DLQ%readers", "%DLQ%ns%readers"),
        ("nsorders", "ns%nsorders"),
    ],
)
def test_names_are_those_of_javas_clients(plain, full):
    namespace = Namespace.named("ns")
    assert namespace.full(plain) == full
    assert namespace.full(full) == full, "what has it gets it once"
    assert namespace.plain(full) == plain
    assert namespace.plain(plain) == plain


def test_names_of_the_service_and_of_other_namespaces_are_left_as_they_are():
    named = Namespace.named("ns")
    for name in ("RMQ_SYS_TRACE_TOPIC", "TBW102", "rmq_sys_wheel_timer", "CID_RMQ_SYS_TRANS"):
        assert named.full(name) == name
    assert named.plain("other%orders") == "other%orders"
    assert Namespace().full("orders") == Namespace().plain("orders") == "orders"


@pytest.mark.parametrize("name", ["", "a%b", "a b", "ä"])
@pytest.mark.parametrize("make", [Producer, lambda *where, **names: PullConsumer(*where, "CG", **names)])
def test_a_namespace_that_names_cannot_hold_is_refused(name, make):
    with pytest.raises(InvalidArgumentError, match="namespace="):
        make("127.0.0.1:9876", namespace=name)


async def test_messages_sent_in_a_namespace_are_received_in_that_namespace(cluster):
    node = cluster.group.nodes[0]
    async with (
        Producer(cluster.namesrv, group="PG", namespace="ns") as producer,
        PushConsumer(cluster.namesrv, "CG", "T", namespace="ns") as consumer,
    ):
        sent = await producer.send("T", b"one")
        await producer.send_batch("T", [b"two", b"three"])
        await producer.send_oneway("T", b"four")
        messages = await take(consumer, 4)
        assert [message.body for message in messages] == [b"one", b"two", b"three", b"four"]
        assert {message.topic for message in messages} == {"T"}
        assert {message.queue for message in messages} == {MessageQueue(TOPIC, "broker-a", 0)}
        assert {message.properties["INSTANCE_ID"] for message in messages} == {"ns"}
        assert sent.topic == TOPIC
        assert await producer.queues("T") == (MessageQueue(TOPIC, "broker-a", 0),)
        assert (await producer.send("T", b"five", queue=messages[0].queue)).queue_offset == 4
        assert list(cluster.group.members[GROUP]) == [consumer.client_id]
    sends = node.requests(RequestCode.SEND_MESSAGE_V2)
    assert {(command.ext["a"], command.ext["b"]) for command in sends} == {("ns%PG", TOPIC)}
    assert cluster.group.offsets[GROUP, TOPIC, 0] == 4


async def test_a_message_that_failed_comes_again_within_its_namespace(cluster):
    cluster.group.store(TOPIC, 0, b"again")
    async with PushConsumer(cluster.namesrv, "CG", "T", namespace="ns", auto_ack=False) as consumer:
        [first] = await take(consumer, 1)
        first.retry(delay_s=0)
        [second] = await take(consumer, 1)
        assert (second.topic, second.body) == ("T", b"again")
        assert second.queue.topic == "%RETRY%ns%CG"
    [asked] = cluster.requests(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert (asked.ext["group"], asked.ext["originTopic"]) == (GROUP, TOPIC)


async def test_a_pull_consumer_uses_full_queue_names_and_plain_topic_names(cluster):
    cluster.group.store(TOPIC, 0, b"pulled")
    async with PullConsumer(cluster.namesrv, "CG", namespace="ns") as consumer:
        await consumer.assign(await consumer.queues("T"))
        [message] = await consumer.poll(timeout=5)
        await consumer.commit()
        assert (message.topic, message.queue.topic) == ("T", TOPIC)
        assert await consumer.committed(message.queue) == 1
    assert cluster.group.offsets[GROUP, TOPIC, 0] == 1


async def test_a_simple_consumer_asks_within_its_namespace(cluster):
    consumer = SimpleConsumer(cluster.namesrv, "CG", "T", namespace="ns")
    assert (consumer._group, consumer._topic) == (GROUP, TOPIC)


async def test_a_transaction_producer_joins_the_group_of_its_namespace():
    async def check(_transaction):
        return "commit"

    async with fake_cluster(topics={TOPIC: 1, "RMQ_SYS_TRANS_HALF_TOPIC": 1}) as cluster:
        async with TransactionProducer(cluster.namesrv, group="PG", check=check, namespace="ns") as producer:
            opened = await producer.begin("T", b"half")
            assert opened.topic == "T"
            await until(lambda: RequestCode.HEART_BEAT in cluster.group.nodes[0].codes())
        [half] = cluster.group.nodes[0].requests(RequestCode.SEND_MESSAGE_V2)
        properties = parse_properties(half.ext["i"])
        assert (half.ext["b"], properties["PGROUP"], properties["INSTANCE_ID"]) == (TOPIC, "ns%PG", "ns")

"""Filters by properties: told to brokers with heartbeats and pulls, and checked before anything is sent."""

import asyncio
from functools import partial

import pytest
from client_fakes import fake_cluster

from dledger_client import (
    ClassFilter,
    InvalidArgumentError,
    OrderlyConsumer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    Sql,
    SyncConsumer,
    SyncPullConsumer,
    SyncSimpleConsumer,
)
from dledger_remoting.codes import RequestCode
from dledger_remoting.heartbeat import decode_heartbeat
from dledger_remoting.topics import retry_topic

LARGE = "amount > 100"


def commands(cluster, code):
    return [command for node in cluster.group.nodes for command in node.received if command.code == code]


def told_by(pulls):
    return {(ext["topic"], ext["expressionType"], ext["subscription"]) for ext in pulls}


async def test_a_group_subscribes_to_each_topic_in_its_own_way():
    async with fake_cluster(topics={"T": 1, "U": 1}) as cluster:
        cluster.group.store("T", 0, b"large", b"amount\x01200\x02TAGS\x01red\x02")
        async with PushConsumer(cluster.namesrv, "CG", {"T": Sql(LARGE), "U": "red || green"}) as consumer:
            async with asyncio.timeout(5):
                assert (await anext(aiter(consumer))).body == b"large"
        (told,) = decode_heartbeat(commands(cluster, RequestCode.HEART_BEAT)[0].body).consumer_data_set
        by_topic = {one.topic: one for one in told.subscription_data_set}
        assert (by_topic["T"].expression_type, by_topic["T"].sub_string) == ("SQL92", LARGE)
        assert by_topic["T"].tags_set == by_topic["T"].code_set == []
        assert (by_topic["U"].expression_type, set(by_topic["U"].tags_set)) == ("TAG", {"red", "green"})
        assert by_topic[retry_topic("CG")].expression_type == "TAG"
        pulls = [command.ext for command in commands(cluster, RequestCode.PULL_MESSAGE)]
        assert {(ext["expressionType"], ext["subscription"]) for ext in pulls if ext["topic"] == "T"} == {
            ("SQL92", LARGE)
        }


async def test_a_reader_of_queues_filters_all_of_them():
    async with fake_cluster() as cluster, PullConsumer(cluster.namesrv, filter=Sql(LARGE)) as consumer:
        cluster.group.store("T", 0, b"large", b"amount\x01200\x02TAGS\x01red\x02")
        await consumer.assign(await consumer.queues("T"))
        assert [message.body for message in await consumer.poll(timeout=5)] == [b"large"]
        pulls = [command.ext for command in commands(cluster, RequestCode.PULL_MESSAGE)]
        assert told_by(pulls) == {("T", "SQL92", LARGE)}


CONSUMERS = {
    "push": partial(PushConsumer, "127.0.0.1:1", "CG", "T"),
    "orderly": partial(OrderlyConsumer, "127.0.0.1:1", "CG", "T", handler=print),
    "pull": partial(PullConsumer, "127.0.0.1:1"),
    "simple": partial(SimpleConsumer, "127.0.0.1:1", "CG", "T"),
    "blocking": partial(SyncConsumer, "127.0.0.1:1", "CG", "T"),
    "blocking pull": partial(SyncPullConsumer, "127.0.0.1:1"),
    "blocking simple": partial(SyncSimpleConsumer, "127.0.0.1:1", "CG", "T"),
}


@pytest.mark.parametrize("make", CONSUMERS.values(), ids=CONSUMERS)
def test_every_consumer_has_the_filter_and_tells_a_fault_before_anything_is_sent(make):
    with pytest.raises(InvalidArgumentError, match="line 1, column 9"):
        make(filter=Sql("amount >"))
    with pytest.raises(InvalidArgumentError, match="no name of a class"):
        make(filter=ClassFilter("os; rm"))


def test_a_fault_in_the_filter_of_one_topic_is_told_too():
    with pytest.raises(InvalidArgumentError, match="line 1, column 9"):
        PushConsumer("127.0.0.1:1", "CG", {"T": Sql("amount >")})


async def test_one_filter_is_for_all_topics_that_are_named_alone():
    async with fake_cluster(topics={"T": 1, "U": 1}) as cluster:
        cluster.group.store("U", 0, b"large", b"amount\x01200\x02")
        async with PushConsumer(cluster.namesrv, "CG", ["T", "U"], filter=Sql(LARGE)) as consumer:
            async with asyncio.timeout(5):
                assert (await anext(aiter(consumer))).body == b"large"
        (told,) = decode_heartbeat(commands(cluster, RequestCode.HEART_BEAT)[0].body).consumer_data_set
        assert {one.topic: one.sub_string for one in told.subscription_data_set} == {
            "T": LARGE,
            "U": LARGE,
            retry_topic("CG"): "*",
        }
    with pytest.raises(InvalidArgumentError, match="a filter each"):
        PushConsumer("127.0.0.1:1", "CG", {"T": "*"}, filter="red")


async def test_a_class_is_told_by_its_name_alone():
    async with fake_cluster(topics={"T": 1}) as cluster:
        cluster.group.store("T", 0, b"large", b"")
        async with PushConsumer(cluster.namesrv, "CG", "T", filter=ClassFilter("com.example.Large")) as consumer:
            async with asyncio.timeout(5):
                assert (await anext(aiter(consumer))).body == b"large"
        (told,) = decode_heartbeat(commands(cluster, RequestCode.HEART_BEAT)[0].body).consumer_data_set
        (one,) = (one for one in told.subscription_data_set if one.topic == "T")
        assert (one.class_filter_mode, one.sub_string, one.tags_set) == (True, "com.example.Large", [])
        pulls = [command.ext for command in commands(cluster, RequestCode.PULL_MESSAGE)]
        assert ("T", "CLASS", "com.example.Large") in told_by(pulls)

"""Filters by properties are sent to brokers with heartbeats and pulls, and are checked before anything is sent."""

from functools import partial

import pytest
from consuming import take

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

CLUSTER = {"topics": {"T": 1, "U": 1}}
LARGE = "amount > 100"


def subscriptions(cluster):
    """Return the subscriptions of the first heartbeat, by topic."""
    (told,) = decode_heartbeat(cluster.requests(RequestCode.HEART_BEAT)[0].body).consumer_data_set
    return {one.topic: one for one in told.subscription_data_set}


def pulls_of(cluster, topic):
    pulls = [command.ext for command in cluster.requests(RequestCode.PULL_MESSAGE)]
    return {(ext["expressionType"], ext["subscription"]) for ext in pulls if ext["topic"] == topic}


async def test_a_group_subscribes_to_each_topic_in_its_own_way(cluster):
    cluster.group.store("T", 0, b"large", b"amount\x01200\x02TAGS\x01red\x02")
    async with PushConsumer(cluster.namesrv, "CG", {"T": Sql(LARGE), "U": "red || green"}) as consumer:
        assert (await take(consumer, 1))[0].body == b"large"
    told = subscriptions(cluster)
    assert (told["T"].expression_type, told["T"].sub_string) == ("SQL92", LARGE)
    assert told["T"].tags_set == told["T"].code_set == []
    assert (told["U"].expression_type, set(told["U"].tags_set)) == ("TAG", {"red", "green"})
    assert told[retry_topic("CG")].expression_type == "TAG"
    assert pulls_of(cluster, "T") == {("SQL92", LARGE)}


async def test_a_pull_consumer_filters_all_assigned_queues(cluster):
    cluster.group.store("T", 0, b"large", b"amount\x01200\x02TAGS\x01red\x02")
    async with PullConsumer(cluster.namesrv, filter=Sql(LARGE)) as consumer:
        await consumer.assign([*await consumer.queues("T"), *await consumer.queues("U")])
        assert [message.body for message in await consumer.poll(timeout=5)] == [b"large"]
    assert pulls_of(cluster, "T") == pulls_of(cluster, "U") == {("SQL92", LARGE)}


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


async def test_one_filter_applies_to_all_topics_of_a_list(cluster):
    cluster.group.store("U", 0, b"large", b"amount\x01200\x02")
    async with PushConsumer(cluster.namesrv, "CG", ["T", "U"], filter=Sql(LARGE)) as consumer:
        assert (await take(consumer, 1))[0].body == b"large"
    told = {topic: one.sub_string for topic, one in subscriptions(cluster).items()}
    assert told == {"T": LARGE, "U": LARGE, retry_topic("CG"): "*"}


async def test_a_class_filter_is_sent_as_the_class_name(cluster):
    cluster.group.store("T", 0, b"large")
    async with PushConsumer(cluster.namesrv, "CG", "T", filter=ClassFilter("com.example.Large")) as consumer:
        assert (await take(consumer, 1))[0].body == b"large"
    told = subscriptions(cluster)["T"]
    assert (told.class_filter_mode, told.sub_string, told.tags_set) == (True, "com.example.Large", [])
    assert ("CLASS", "com.example.Large") in pulls_of(cluster, "T")

"""Filters by properties: told to brokers with heartbeats and pulls, and checked before anything is sent."""

import asyncio

import pytest
from client_fakes import fake_cluster

from dledger_client import InvalidArgumentError, PullConsumer, PushConsumer, Sql, SyncConsumer
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
    async with fake_cluster() as cluster, PullConsumer(cluster.namesrv, sql=LARGE) as consumer:
        cluster.group.store("T", 0, b"large", b"amount\x01200\x02TAGS\x01red\x02")
        await consumer.assign(await consumer.queues("T"))
        assert [message.body for message in await consumer.poll(timeout=5)] == [b"large"]
        pulls = [command.ext for command in commands(cluster, RequestCode.PULL_MESSAGE)]
        assert told_by(pulls) == {("T", "SQL92", LARGE)}


@pytest.mark.parametrize("consumer", [PushConsumer, SyncConsumer])
def test_a_fault_is_told_with_its_place_before_anything_is_sent(consumer):
    with pytest.raises(InvalidArgumentError, match="line 1, column 9"):
        consumer("127.0.0.1:1", "CG", {"T": Sql("amount >")})


def test_a_reader_of_queues_takes_one_filter():
    with pytest.raises(InvalidArgumentError, match="line 1, column 9"):
        PullConsumer("127.0.0.1:1", sql="amount >")
    with pytest.raises(InvalidArgumentError, match="TAGS"):
        PullConsumer("127.0.0.1:1", sql=LARGE, tags="red")

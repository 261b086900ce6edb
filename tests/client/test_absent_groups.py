"""If no node of a broker group is registered, work for its queues waits, or fails with an error that says so."""

from __future__ import annotations

import asyncio
import math

import pytest
from client_fakes import HandClock, fake_cluster, until

from dledger_client import (
    Admin,
    DeadlineError,
    NoBrokerError,
    NotFoundError,
    Producer,
    PullConsumer,
    PushConsumer,
    RefusedError,
    SendError,
)
from dledger_client.cluster.routes import queue_of_key
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import make_response

CLUSTER = {"groups": 2, "nodes": 1}


async def kill_all(group):
    for node in group.nodes:
        await node.kill()
    group.leader = None
    group.name_server.changed()


async def bring_back(group):
    for node in group.nodes:
        await node.start()
        node.alive = True
    await group.elect(group.nodes[0])


def on_group(route, name):
    return next(key for key in map(str, range(1000)) if queue_of_key(route, key).broker_group == name)


@pytest.mark.parametrize("key", ["ordering_key", "unique_key"])
@pytest.mark.parametrize("known_before", [True, False])
async def test_sends_with_a_key_wait_for_their_absent_broker_group(cluster, key, known_before):
    async with Producer(cluster.namesrv, idempotent=True) as producer:
        await producer.queues("T")
        name = on_group(producer._core.routes.cached("T"), "broker-b")
        if known_before:
            await producer.send("T", b"before", **{key: name})
        else:
            producer._core.routes.forget("T")
        await kill_all(cluster.groups[1])
        await until(lambda: not known_before or producer._core.routes.cached("T").absent_writable)
        sending = asyncio.create_task(producer.send("T", b"now", **{key: name}, timeout=30))
        for number in range(8):  # messages without a key go to a group that accepts them
            assert (await producer.send("T", b"%d" % number)).broker_group == "broker-a"
        assert not sending.done()
        await bring_back(cluster.groups[1])
        assert (await sending).broker_group == "broker-b"


async def test_a_name_server_that_tells_nothing_of_absent_groups_is_no_error(cluster, producer):
    cluster.name_server.tells_of_absent = False
    await kill_all(cluster.groups[1])
    assert {queue.broker_group for queue in await producer.queues("T")} == {"broker-a"}
    assert (await producer.send("T", b"x", ordering_key="k")).broker_group == "broker-a"


async def test_sends_to_a_topic_of_absent_broker_groups_wait_for_their_return():
    async with fake_cluster(nodes=1) as cluster, Producer(cluster.namesrv) as producer:
        await kill_all(cluster.group)
        sending = asyncio.create_task(producer.send("T", b"x", timeout=30))
        await until(lambda: producer._core.routes.cached("T") is not None)
        with pytest.raises(SendError, match="no node of broker-a is registered"):
            await producer.send("T", b"y", timeout=0.1)
        await bring_back(cluster.group)
        assert (await sending).broker_group == "broker-a"


async def test_a_client_keeps_the_route_of_a_topic_whose_broker_groups_left():
    """The kept route avoids a rebalance, and finds nodes that return at their old addresses before they register."""
    async with fake_cluster(nodes=1) as cluster, Producer(cluster.namesrv) as producer:
        before = await producer.queues("T")
        await kill_all(cluster.group)
        await producer._core.routes.refresh("T", asyncio.get_running_loop().time() + 10)
        route = producer._core.routes.cached("T")
        assert (route.writable, route.absent_writable) == (before, ())
        cluster.name_server.on[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda _: None
        await bring_back(cluster.group)
        assert (await producer.send("T", b"x")).broker_group == "broker-a"


async def test_the_route_of_a_topic_of_absent_broker_groups_is_an_error():
    async with fake_cluster(nodes=1) as cluster, Admin(cluster.namesrv) as admin:
        await kill_all(cluster.group)
        with pytest.raises(NoBrokerError, match="no node of broker group broker-a is registered"):
            await admin.topic_route("T")


async def test_reading_without_a_group_knows_the_queues_of_an_absent_broker_group(cluster):
    async with PullConsumer(cluster.namesrv) as consumer:
        await kill_all(cluster.groups[1])
        queues = await consumer.queues("T")
        assert {queue.broker_group for queue in queues} == {"broker-a", "broker-b"}
        link = await consumer._core.pool.get(cluster.groups[0].nodes[0].address, math.inf)
        with HandClock() as clock:
            assigning = asyncio.create_task(consumer.assign(queues))
            await clock.run_between_attempts(assigning, [link])
            with pytest.raises(DeadlineError, match="no node of broker-b is registered"):
                await assigning


async def test_operations_on_all_broker_groups_fail_while_one_is_absent(cluster, admin):
    await kill_all(cluster.groups[1])
    node = cluster.groups[0].nodes[0]
    node.on[RequestCode.VIEW_MESSAGE_BY_ID] = lambda command: make_response(command, 22, "not here")
    for refused in (
        admin.create_topic("N"),
        admin.delete_topic("T"),
        admin.topic_config("T"),
        admin.offsets("G", "T"),
        admin.reset_offsets("G", "T", "first"),
        admin.messages_by_key("T", "k"),
        admin.message_by_id("7F000001000000010000000000000000"),
        admin.pins(),
    ):
        with pytest.raises(NoBrokerError, match=r"no node of broker group broker-b is registered: start one, or"):
            await refused
    assert not {215, 222} & set(node.codes())
    await admin.create_topic("N", broker_groups=["broker-a"])
    assert (await admin.broker_groups())["broker-b"].broker_addrs == {}


async def test_forget_group_asks_all_name_servers_and_needs_one_that_knows_the_group():
    async with fake_cluster() as cluster, fake_cluster() as other:
        answers = {cluster: 0, other: 22}

        def answering(code):
            return lambda command: make_response(command, code, "told" if code else "")

        async with Admin([cluster.namesrv, other.namesrv]) as admin:
            for one, code in answers.items():
                one.name_server.on[RequestCode.DLEDGER_FORGET_GROUP] = answering(code)
            await admin.forget_group("broker-b")
            cluster.name_server.on[RequestCode.DLEDGER_FORGET_GROUP] = answering(22)
            with pytest.raises(NotFoundError):
                await admin.forget_group("broker-b")
            other.name_server.on[RequestCode.DLEDGER_FORGET_GROUP] = answering(29)
            with pytest.raises(RefusedError, match="29"):
                await admin.forget_group("broker-b")
        told = [one.name_server.received[-1].ext["brokerName"] for one in answers]
        assert told == ["broker-b", "broker-b"]


async def test_a_group_that_starts_at_the_last_skips_old_messages_of_an_absent_group():
    async with fake_cluster(groups=2, nodes=1, topics={"T": 1}) as cluster:
        away = cluster.groups[1]
        away.store("T", 0, b"old")
        await kill_all(away)
        async with PushConsumer(cluster.namesrv, "CG", "T", start_from="last") as consumer:
            await until(lambda: cluster.group.offsets.get(("CG", "T", 0)) == 0)
            await bring_back(away)
            await until(lambda: away.offsets.get(("CG", "T", 0)) == 1)
            away.store("T", 0, b"new")
            assert [message.body for message in await consumer.receive()] == [b"new"]

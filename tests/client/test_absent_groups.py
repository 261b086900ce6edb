"""A broker group of which no node is registered: what belongs to its queues waits for it, or says that it is away."""

from __future__ import annotations

import asyncio

import pytest
from client_fakes import fake_cluster, until

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
from dledger_client.routes import queue_of_key
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import make_response


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
async def test_a_key_waits_for_its_broker_group_while_that_is_away(key, known_before):
    async with fake_cluster(groups=2, nodes=1) as cluster, Producer(cluster.namesrv, idempotent=True) as producer:
        await producer.queues("T")
        name = on_group(producer._core.routes.cached("T"), "broker-b")
        if known_before:
            await producer.send("T", b"before", **{key: name})
        else:
            producer._core.routes.forget("T")
        await kill_all(cluster.groups[1])
        await until(lambda: not known_before or producer._core.routes.cached("T").absent_writable)
        sending = asyncio.create_task(producer.send("T", b"now", **{key: name}, timeout=30))
        for number in range(8):  # those without a key go where somebody takes them
            assert (await producer.send("T", b"%d" % number)).broker_group == "broker-a"
        assert not sending.done()
        await bring_back(cluster.groups[1])
        assert (await sending).broker_group == "broker-b"


async def test_a_name_server_that_tells_nothing_of_absent_groups_is_no_error():
    async with fake_cluster(groups=2, nodes=1) as cluster, Producer(cluster.namesrv) as producer:
        cluster.name_server.tells_of_absent = False
        await kill_all(cluster.groups[1])
        assert {queue.broker_group for queue in await producer.queues("T")} == {"broker-a"}
        assert (await producer.send("T", b"x", ordering_key="k")).broker_group == "broker-a"


async def test_sends_to_a_topic_all_of_whose_groups_are_away_wait_for_them():
    async with fake_cluster(nodes=1) as cluster, Producer(cluster.namesrv) as producer:
        await kill_all(cluster.group)
        sending = asyncio.create_task(producer.send("T", b"x", timeout=30))
        await until(lambda: producer._core.routes.cached("T") is not None)
        with pytest.raises(SendError, match="no node of broker-a is registered"):
            await producer.send("T", b"y", timeout=0.1)
        await bring_back(cluster.group)
        assert (await sending).broker_group == "broker-a"


async def test_when_all_groups_of_a_topic_go_who_knows_its_route_keeps_it():
    """So nobody rebalances, and nodes that come back where they were are found before they have registered."""
    async with fake_cluster(nodes=1) as cluster, Producer(cluster.namesrv) as producer:
        before = await producer.queues("T")
        await kill_all(cluster.group)
        await producer._core.routes.refresh("T", asyncio.get_running_loop().time() + 10)
        route = producer._core.routes.cached("T")
        assert (route.writable, route.absent_writable) == (before, ())
        cluster.name_server.on[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda _: None
        await bring_back(cluster.group)
        assert (await producer.send("T", b"x")).broker_group == "broker-a"


async def test_the_queues_of_a_topic_all_of_whose_groups_are_away_are_no_empty_answer():
    async with fake_cluster(nodes=1) as cluster, Admin(cluster.namesrv) as admin:
        await kill_all(cluster.group)
        with pytest.raises(NoBrokerError, match="no node of broker group broker-a is registered"):
            await admin.topic_route("T")


async def test_reading_without_a_group_knows_the_queues_of_an_absent_broker_group():
    async with (
        fake_cluster(groups=2, nodes=1) as cluster,
        PullConsumer(cluster.namesrv) as consumer,
        PullConsumer(cluster.namesrv, timeout=0.2) as impatient,
    ):
        await kill_all(cluster.groups[1])
        queues = await consumer.queues("T")
        assert {queue.broker_group for queue in queues} == {"broker-a", "broker-b"}
        with pytest.raises(DeadlineError, match="no node of broker-b is registered"):
            await impatient.assign(queues)


async def test_what_concerns_all_broker_groups_is_not_done_on_some():
    async with fake_cluster(groups=2, nodes=1) as cluster, Admin(cluster.namesrv) as admin:
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
            admin.message_by_id("7F0000010000A2650000000000000000"),
            admin.pins(),
        ):
            with pytest.raises(NoBrokerError, match=r"no node of broker group broker-b is registered: start one, or"):
                await refused
        assert not {215, 222} & set(node.codes())
        await admin.create_topic("N", broker_groups=["broker-a"])
        assert (await admin.broker_groups())["broker-b"].broker_addrs == {}


async def test_all_name_servers_forget_a_group_and_one_that_does_not_know_it_is_no_error():
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


async def test_a_group_that_starts_at_the_last_gets_nothing_that_an_absent_broker_group_held_before():
    async with fake_cluster(groups=2, nodes=1, topics={"T": 1}) as cluster:
        away = cluster.groups[1]
        away.store("T", 0, b"old", b"")
        await kill_all(away)
        async with PushConsumer(cluster.namesrv, "CG", "T", start_from="last") as consumer:
            await until(lambda: cluster.group.offsets.get(("CG", "T", 0)) == 0)
            await bring_back(away)
            await until(lambda: away.offsets.get(("CG", "T", 0)) == 1)
            away.store("T", 0, b"new", b"")
            assert [message.body for message in await consumer.receive()] == [b"new"]

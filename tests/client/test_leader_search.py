"""A producer that has lost a broker group's leader finds it again, though other groups take the sends meanwhile."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from client_fakes import CLOSE, HandClock, fake_cluster, refusing, until

from dledger_client import Producer
from dledger_client.cluster.leader_search import MAX_PAUSE_SECONDS, MIN_PAUSE_SECONDS
from dledger_remoting.codes import RequestCode, ResponseCode

CLUSTER = {"groups": 2, "nodes": 1}
ROUNDS = 8
TIMER_EARLY_SECONDS = time.get_clock_info("monotonic").resolution
"""Time in seconds by which a loop may run a timer early. It exceeds the rounding error of the hand clock."""


def break_connections(node):
    for writer in list(node.writers):
        writer.transport.abort()


async def lose_leader(cluster, producer):
    """Break all connections to the second group's leader, once both groups are known. It goes on leading."""
    for number in range(8):
        await producer.send("T", b"%d" % number)
    break_connections(cluster.groups[1].leader)
    group = producer._core.routes.group("broker-b")
    await until(lambda: group.leader is None)
    return group


async def sends_go_to(producer, number=8):
    return {(await producer.send("T", b"x")).broker_group for _ in range(number)}


async def test_a_lost_leader_that_still_leads_is_found_again():
    async with fake_cluster(groups=2, nodes=3) as cluster, Producer(cluster.namesrv) as producer:
        group = await lose_leader(cluster, producer)
        assert "broker-a" in await sends_go_to(producer)
        await until(lambda: group.leader is not None)
        assert await sends_go_to(producer) == {"broker-a", "broker-b"}


async def test_a_leader_that_was_elected_meanwhile_is_found_among_the_nodes():
    async with fake_cluster(groups=2, nodes=3) as cluster, Producer(cluster.namesrv) as producer:
        group = await lose_leader(cluster, producer)
        await cluster.groups[1].elect(cluster.groups[1].nodes[2], notify=False, register=False)
        await sends_go_to(producer)
        await until(lambda: group.leader == cluster.groups[1].nodes[2].address)


async def test_a_producer_without_read_permission_finds_the_leader_by_a_send(cluster, producer):
    cluster.groups[1].leader.on[RequestCode.GET_MAX_OFFSET] = refusing(ResponseCode.NO_PERMISSION, "not yours")
    group = await lose_leader(cluster, producer)
    await sends_go_to(producer)
    await until(lambda: group.leader is not None)
    assert await sends_go_to(producer) == {"broker-a", "broker-b"}


async def test_a_leader_search_asks_at_growing_intervals_until_a_node_leads(cluster, producer):
    node, times = cluster.groups[1].leader, []

    def not_leading(command):
        times.append(producer._core.loop.time())
        return node.not_leader(command)

    node.on[RequestCode.GET_MAX_OFFSET] = not_leading
    group = await lose_leader(cluster, producer)
    cluster.groups[1].leader = None
    with HandClock() as clock:
        while len(times) < ROUNDS:
            await sends_go_to(producer)
            clock.advance(MIN_PAUSE_SECONDS / 10)
        pauses = [after - before for before, after in pairwise(times)]
        for number, pause in enumerate(pauses):
            assert pause >= min(MIN_PAUSE_SECONDS * 2**number, MAX_PAUSE_SECONDS) - TIMER_EARLY_SECONDS
        await cluster.groups[1].elect(node, notify=False, register=False)
        del node.on[RequestCode.GET_MAX_OFFSET]
        while group.leader is None:
            await sends_go_to(producer)
            clock.advance(MIN_PAUSE_SECONDS / 10)


async def test_a_leader_search_ends_when_no_send_follows(cluster, producer):
    node, asked = cluster.groups[1].leader, []
    node.on[RequestCode.GET_MAX_OFFSET] = lambda command: asked.append(command) or node.not_leader(command)
    await lose_leader(cluster, producer)
    cluster.groups[1].leader = None
    await sends_go_to(producer)
    await until(lambda: asked)
    await until(lambda: not searches_of(producer))
    rounds = len(asked)
    await sends_go_to(producer)
    await until(lambda: len(asked) > rounds)


def searches_of(producer):
    return [task for task in producer._core._background if task.get_name().startswith("search")]


async def test_a_leader_that_stores_nothing_is_tried_once_in_a_while(cluster, producer):
    full = cluster.groups[1].leader
    full.on[RequestCode.SEND_MESSAGE_V2] = refusing(ResponseCode.SERVICE_NOT_AVAILABLE, "its disk is full")
    with HandClock() as clock:
        await producer.queues("T")
        for searches in range(1, 4):
            assert await sends_go_to(producer, 50) == {"broker-a"}
            # The first search begins at once. It may succeed before or after the last of these sends.
            assert searches <= full.codes().count(RequestCode.SEND_MESSAGE_V2) <= searches + 1
            group = producer._core.routes.group("broker-b")
            clock.advance(MAX_PAUSE_SECONDS)
            await clock.until(lambda: group.leader is not None)  # noqa: B023


@pytest.mark.parametrize("answers", [False, True])
async def test_a_search_ends_with_its_client(cluster, answers):
    async with Producer(cluster.namesrv) as producer:
        node = cluster.groups[1].leader
        node.on[RequestCode.GET_MAX_OFFSET] = lambda _: CLOSE if answers else None
        await lose_leader(cluster, producer)
        await sends_go_to(producer)
        await until(lambda: RequestCode.GET_MAX_OFFSET in node.codes())

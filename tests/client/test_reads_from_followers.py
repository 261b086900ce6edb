"""Consumers pull where the last answer tells them to."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from client_fakes import HandClock, until
from consuming import fetcher_of, fill, is_pull_of, take

from dledger_client import PushConsumer
from dledger_remoting.codes import RequestCode

FOLLOWER_ID = 2


def pulls_at(*nodes):
    pulls = [[one for one in node.requests(RequestCode.PULL_MESSAGE) if one.ext["topic"] == "T"] for node in nodes]
    return [len(found) for found in pulls]


@asynccontextmanager
async def sent_on(cluster, broker_id=FOLLOWER_ID):
    """Run a consumer that has read one message at the leader, and has been sent on to another node."""
    cluster.group.offsets["CG", "T", 0] = 0
    cluster.group.readers_go_to = broker_id
    fill(cluster, 1)
    async with PushConsumer(cluster.namesrv, "CG", {"T": "*"}) as consumer:
        assert len(await take(consumer, 1)) == 1
        await until(lambda: sum(pulls_at(*cluster.nodes)) == 2)
        yield consumer


async def test_a_consumer_goes_on_at_the_follower_that_an_answer_names(cluster):
    async with sent_on(cluster) as consumer:
        fill(cluster, 1)
        assert len(await take(consumer, 1)) == 1
        await until(lambda: pulls_at(*cluster.nodes) == [1, 2, 0])


async def test_a_consumer_whose_follower_dies_goes_on_at_the_leader(cluster):
    leader, follower, _ = cluster.nodes
    async with sent_on(cluster) as consumer:
        assert pulls_at(follower) == [1]
        cluster.group.readers_go_to = 0
        await follower.kill()
        fill(cluster, 1)
        assert len(await take(consumer, 1)) == 1
    assert sum(pulls_at(leader)) >= 2


async def test_an_unreachable_follower_is_avoided_although_the_leader_names_the_follower(cluster):
    """The leader itself reaches the follower, and still names it."""
    leader, follower, _ = cluster.nodes
    async with sent_on(cluster) as consumer:
        assert pulls_at(follower) == [1]
        await follower.kill()
        for _ in range(3):
            fill(cluster, 1)
            await take(consumer, 1)
        fetcher = fetcher_of(consumer)
        assert (fetcher._pull_node.shunned_id, fetcher._address) == (FOLLOWER_ID, leader.address)


async def test_a_consumer_that_was_sent_to_a_follower_stays_there_when_another_node_leads(cluster):
    """The consumer waits for messages there, and the follower gets them from any leader."""
    _, follower, other = cluster.nodes
    async with sent_on(cluster) as consumer:
        await cluster.group.elect(other)
        await until(lambda: consumer._running.core.routes.group("broker-a").leader == other.address)
        with HandClock() as clock:
            clock.advance(10)
            for _ in range(5):
                await asyncio.sleep(0)
        fill(cluster, 1)
        assert len(await take(consumer, 1)) == 1
        await until(lambda: any(is_pull_of(command, 2) for command in follower.received))
    assert pulls_at(*cluster.nodes) == [1, 2, 0]


async def test_an_id_that_the_route_does_not_list_leads_to_the_leader(cluster):
    async with sent_on(cluster, 77):
        assert pulls_at(*cluster.nodes) == [2, 0, 0]


async def poll_one(consumer):
    (message,) = await consumer.poll(1, timeout=5)
    return message


async def test_a_pull_consumer_moves_to_the_follower_that_an_answer_names(cluster, puller):
    cluster.group.readers_go_to = FOLLOWER_ID
    fill(cluster, 3)
    await puller.assign(await puller.queues("T"))
    assert [(await poll_one(puller)).queue_offset for _ in range(3)] == [0, 1, 2]
    assert pulls_at(*cluster.nodes) == [1, 2, 0]


async def test_a_pull_consumer_returns_to_the_leader_when_its_follower_dies(cluster, puller):
    """The leader still names the dead node. The consumer tries that node again only after a while."""
    leader, follower, _ = cluster.nodes
    cluster.group.readers_go_to = FOLLOWER_ID
    fill(cluster, 4)
    await puller.assign(await puller.queues("T"))
    assert (await poll_one(puller)).queue_offset == 0
    await follower.kill()
    assert [(await poll_one(puller)).queue_offset for _ in range(3)] == [1, 2, 3]
    assert pulls_at(leader) == [4]


async def test_a_queue_that_is_assigned_again_is_first_read_from_the_leader(cluster, puller):
    cluster.name_server.topics["T"] = 2
    cluster.group.readers_go_to = FOLLOWER_ID
    fill(cluster, 2)
    first, second = await puller.queues("T")
    await puller.assign([first])
    await poll_one(puller)
    await puller.assign([second])
    cluster.group.readers_go_to = 0
    await puller.assign([first])
    assert (await poll_one(puller)).queue_id == first.queue_id
    assert pulls_at(cluster.nodes[0]) == [2]

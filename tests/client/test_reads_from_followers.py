"""Consumers that pull where the last answer says."""

from __future__ import annotations

from client_fakes import fake_cluster, until
from consuming import fill, is_pull_of, take

from dledger_client import PullConsumer, PushConsumer
from dledger_remoting.codes import RequestCode

FOLLOWER_ID = 2


def pulls_at(node):
    return sum(command.code == RequestCode.PULL_MESSAGE and command.ext["topic"] == "T" for command in node.received)


async def test_a_consumer_goes_on_at_the_follower_that_an_answer_names():
    async with fake_cluster(topics={"T": 1}) as cluster:
        leader, follower, other = cluster.group.nodes
        cluster.group.offsets["CG", "T", 0] = 0
        cluster.group.readers_go_to = FOLLOWER_ID
        fill(cluster, 1)
        async with PushConsumer(cluster.namesrv, "CG", {"T": "*"}) as consumer:
            assert len(await take(consumer, 1)) == 1
            await until(lambda: pulls_at(follower) == 1)
            fill(cluster, 1)
            assert len(await take(consumer, 1)) == 1
            await until(lambda: pulls_at(follower) == 2)
        assert (pulls_at(leader), pulls_at(other)) == (1, 0)


async def test_a_consumer_whose_follower_dies_goes_on_at_the_leader():
    async with fake_cluster(topics={"T": 1}) as cluster:
        leader, follower, _ = cluster.group.nodes
        cluster.group.offsets["CG", "T", 0] = 0
        cluster.group.readers_go_to = FOLLOWER_ID
        fill(cluster, 1)
        async with PushConsumer(cluster.namesrv, "CG", {"T": "*"}) as consumer:
            await take(consumer, 1)
            await until(lambda: pulls_at(follower) == 1)
            cluster.group.readers_go_to = 0
            await follower.kill()
            fill(cluster, 1)
            assert len(await take(consumer, 1)) == 1
        assert pulls_at(leader) >= 2


async def test_a_follower_that_cannot_be_reached_is_not_gone_back_to_at_every_word_of_the_leader():
    """The leader reaches it, and goes on naming it."""
    async with fake_cluster(topics={"T": 1}) as cluster:
        leader, follower, _ = cluster.group.nodes
        cluster.group.offsets["CG", "T", 0] = 0
        cluster.group.readers_go_to = FOLLOWER_ID
        fill(cluster, 1)
        async with PushConsumer(cluster.namesrv, "CG", {"T": "*"}) as consumer:
            await take(consumer, 1)
            await until(lambda: pulls_at(follower) == 1)
            await follower.kill()
            for _ in range(3):
                fill(cluster, 1)
                await take(consumer, 1)
            (fetcher,) = (one for one in consumer._running.assignments.fetchers() if one.queue.topic == "T")
            assert fetcher._placed.shunned_id == FOLLOWER_ID
            assert fetcher._address == leader.address


async def test_a_consumer_that_was_sent_to_a_follower_stays_there_when_another_node_leads():
    """It waits there for messages, which come to it from whoever leads."""
    async with fake_cluster(topics={"T": 1}) as cluster:
        leader, follower, other = cluster.group.nodes
        cluster.group.offsets["CG", "T", 0] = 0
        cluster.group.readers_go_to = FOLLOWER_ID
        fill(cluster, 1)
        async with PushConsumer(cluster.namesrv, "CG", {"T": "*"}) as consumer:
            await take(consumer, 1)
            await until(lambda: pulls_at(follower) == 1)
            await cluster.group.elect(other)
            await until(lambda: consumer._running.core.routes.group("broker-a").leader == other.address)
            fill(cluster, 1)
            assert len(await take(consumer, 1)) == 1
            await until(lambda: any(is_pull_of(command, 2) for command in follower.received))
        assert [pulls_at(node) for node in (leader, follower, other)] == [1, 2, 0]


async def test_an_id_that_the_route_does_not_list_leads_to_the_leader():
    async with fake_cluster(topics={"T": 1}) as cluster:
        leader, *followers = cluster.group.nodes
        cluster.group.offsets["CG", "T", 0] = 0
        cluster.group.readers_go_to = 77
        fill(cluster, 1)
        async with PushConsumer(cluster.namesrv, "CG", {"T": "*"}) as consumer:
            await take(consumer, 1)
            await until(lambda: pulls_at(leader) == 2)
        assert [pulls_at(node) for node in followers] == [0, 0]


async def poll_one(consumer):
    (message,) = await consumer.poll(1, timeout=5)
    return message


async def test_who_reads_at_its_own_pace_goes_on_at_the_follower_that_an_answer_names():
    async with fake_cluster(topics={"T": 1}) as cluster, PullConsumer(cluster.namesrv, "CG") as consumer:
        leader, follower, other = cluster.group.nodes
        cluster.group.readers_go_to = FOLLOWER_ID
        fill(cluster, 3)
        await consumer.assign(await consumer.queues("T"))
        assert [(await poll_one(consumer)).queue_offset for _ in range(3)] == [0, 1, 2]
        assert [pulls_at(node) for node in (leader, follower, other)] == [1, 2, 0]


async def test_who_reads_at_its_own_pace_goes_on_at_the_leader_when_its_follower_dies():
    """The leader goes on naming the dead node, which is asked once more only after a while."""
    async with fake_cluster(topics={"T": 1}) as cluster, PullConsumer(cluster.namesrv, "CG") as consumer:
        leader, follower, _ = cluster.group.nodes
        cluster.group.readers_go_to = FOLLOWER_ID
        fill(cluster, 4)
        await consumer.assign(await consumer.queues("T"))
        assert (await poll_one(consumer)).queue_offset == 0
        await follower.kill()
        assert [(await poll_one(consumer)).queue_offset for _ in range(3)] == [1, 2, 3]
        assert pulls_at(leader) == 4


async def test_an_assigned_queue_that_is_given_up_begins_at_the_leader_when_it_is_assigned_again():
    async with fake_cluster(topics={"T": 2}) as cluster, PullConsumer(cluster.namesrv, "CG") as consumer:
        leader = cluster.group.nodes[0]
        cluster.group.readers_go_to = FOLLOWER_ID
        fill(cluster, 2)
        first, second = await consumer.queues("T")
        await consumer.assign([first])
        await poll_one(consumer)
        await consumer.assign([second])
        cluster.group.readers_go_to = 0
        await consumer.assign([first])
        assert (await poll_one(consumer)).queue_id == first.queue_id
        assert pulls_at(leader) == 2

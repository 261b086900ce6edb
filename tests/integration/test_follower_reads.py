"""Readers go to the node that answers name, on real nodes."""

from __future__ import annotations

from itertools import product

from bare_client import BareClient, pull_fields, until
from cluster_checks import create_topic

from dledger_client import SyncProducer
from dledger_client.messages import MessageQueue
from dledger_client.testing import LocalCluster, local_cluster_fixture
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.record import iter_records
from dledger_remoting.route import decode_route

cluster = local_cluster_fixture(config='follower_reads = "spread"')
QUEUES = 4


def pull(address: str, queue_id: int) -> RemotingCommand:
    with BareClient(address) as client:
        return client.ask(RequestCode.PULL_MESSAGE, pull_fields(0, topic="Spread") | {"queueId": str(queue_id)})


def test_followers_keep_the_readers_that_the_leader_assigned_to_them(cluster: LocalCluster) -> None:
    create_topic(cluster, "Spread", QUEUES)
    with SyncProducer(cluster.namesrv) as producer:
        for queue_id in range(QUEUES):
            producer.send("Spread", b"%d" % queue_id, queue=MessageQueue("Spread", "broker-a", queue_id))
    with BareClient(cluster.namesrv) as client:
        route = decode_route(client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Spread"}).body)
    [broker] = route.broker_datas
    addresses = {int(broker_id): address for broker_id, address in broker.broker_addrs.items()}
    followers = addresses.keys() - {0}

    def sent_to() -> set[int]:
        answers = [pull(addresses[0], queue_id) for queue_id in range(QUEUES)]
        return {int(answer.ext["suggestWhichBrokerId"]) for answer in answers}

    until(lambda: sent_to() == followers, "the leader spreads readers over both followers")
    for broker_id, queue_id in product(followers, range(QUEUES)):

        def is_kept(broker_id: int = broker_id, queue_id: int = queue_id) -> bool:
            """Return whether the follower delivers the message and keeps its reader.

            A follower that has not applied the topic or the message yet forwards the pull, or finds nothing.
            """
            answer = pull(addresses[broker_id], queue_id)
            bodies = [record.body for record in iter_records(answer.body)]
            return bodies == [b"%d" % queue_id] and answer.ext["suggestWhichBrokerId"] == str(broker_id)

        until(is_kept, f"follower {broker_id} delivers the message of queue {queue_id} and keeps its reader")

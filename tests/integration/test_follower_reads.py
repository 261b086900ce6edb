"""Readers that go where answers send them, on real nodes."""

from __future__ import annotations

import pytest
from bare_client import BareClient, pull_fields, until
from cluster_checks import create_topic

from dledger_client import SyncProducer
from dledger_client.messages import MessageQueue
from dledger_client.testing import LocalCluster, local_cluster_fixture
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.record import iter_records
from dledger_remoting.route import decode_route

pytestmark = pytest.mark.slow

cluster = local_cluster_fixture(config='follower_reads = "spread"')
QUEUES = 4


def pull(address: str, queue_id: int) -> RemotingCommand:
    with BareClient(address) as client:
        return client.ask(RequestCode.PULL_MESSAGE, pull_fields(0, topic="Spread") | {"queueId": str(queue_id)})


def test_followers_keep_the_readers_that_the_leader_sends_them(cluster: LocalCluster) -> None:
    create_topic(cluster, "Spread", QUEUES)
    with SyncProducer(cluster.namesrv) as producer:
        for queue_id in range(QUEUES):
            producer.send("Spread", b"%d" % queue_id, queue=MessageQueue("Spread", "broker-a", queue_id))
    with BareClient(cluster.namesrv) as client:
        route = decode_route(client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Spread"}).body)
    [broker] = route.broker_datas
    addresses = {int(broker_id): address for broker_id, address in broker.broker_addrs.items()}
    sent_to: set[int] = set()
    for queue_id in range(QUEUES):

        def is_sent_away(queue_id: int = queue_id) -> bool:
            answer = pull(addresses[0], queue_id)
            sent_to.add(int(answer.ext["suggestWhichBrokerId"]))
            return answer.ext["suggestWhichBrokerId"] != "0"

        until(is_sent_away, f"the leader sends the reader of queue {queue_id} to a follower")
    sent_to.discard(0)
    assert sent_to == addresses.keys() - {0}
    for broker_id in sent_to:
        bodies = set()
        for queue_id in range(QUEUES):
            answer = pull(addresses[broker_id], queue_id)
            assert answer.ext["suggestWhichBrokerId"] == str(broker_id)
            bodies |= {record.body for record in iter_records(answer.body)}
        assert bodies == {b"%d" % queue_id for queue_id in range(QUEUES)}

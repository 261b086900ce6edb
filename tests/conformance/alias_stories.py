"""Stories of stock producers whose topic has write aliases: the leader is killed and stays away, and no send fails."""

from __future__ import annotations

import time
from collections.abc import Callable

from cluster_checks import assert_offsets_unique_and_dense, bodies_of, stored_messages
from stock_clients import StockClient

from dledger_client import SyncAdmin
from dledger_client.testing import LocalCluster
from dledger_remoting.codes import RequestCode
from dledger_remoting.route import decode_route, is_alias
from dledger_remoting.topics import WRITE_ALIASES_ATTRIBUTE
from tests.integration.bare_client import BareClient

LISTED_SECONDS = 30.0
ENDLESS = 1_000_000


def create_aliased_topic(cluster: LocalCluster, topic: str, queues: int = 4) -> None:
    """Create a topic, and return once its route lists an alias of every node but the leader."""
    with SyncAdmin(cluster.namesrv) as admin:
        admin.create_topic(topic, queues=queues, attributes={WRITE_ALIASES_ATTRIBUTE: "true"})
    deadline = time.monotonic() + LISTED_SECONDS
    with BareClient(cluster.namesrv) as client:
        while len(listed(client, topic)) < len(cluster.node_ids) - 1:
            assert time.monotonic() < deadline, f"the route of {topic} lists {listed(client, topic)}"


def listed(client: BareClient, topic: str) -> list[str]:
    """Return the aliases in a topic's route."""
    route = decode_route(client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).body)
    return [broker.broker_name for broker in route.broker_datas if is_alias(broker.broker_name)]


def begin_streams(client: StockClient, topic: str, senders: int, **options: object) -> None:
    """Look the route up once, and start endless sends from `senders` threads of the client's process.

    Without the first send, the C++ client fails concurrent first sends of the threads that do not look the route up.
    """
    client.call("send", topic=topic, body="first")
    for sender in range(senders):
        client.begin("stream", topic=topic, prefix=f"{sender}-", count=ENDLESS, pause_ms=5, **options)
    progress(client, 20)


def progress(client: StockClient, messages: int) -> None:
    """Wait until the stream that is ahead has `messages` more messages acknowledged."""
    target = max(client.sent, default=-1) + messages
    client.wait_for(lambda: max(client.sent, default=-1) >= target, f"{messages} more acknowledged")


def leader_killed_for_good(
    cluster: LocalCluster,
    client: StockClient,
    topic: str,
    senders: int,
    is_own_fault: Callable[[str], bool] = lambda _: False,
    **options: object,
) -> None:
    """Check that a leader that is killed and stays away fails no send and costs no acknowledged message.

    Each thread may fail the send that was under way, if its error is one of the client's own faults.
    """
    create_aliased_topic(cluster, topic)
    begin_streams(client, topic, senders, **options)
    cluster.kill_leader()
    progress(client, 100)
    client.call("stop_streams")
    assert [one for one in client.failed if not is_own_fault(str(one["error"]))] == []
    assert len(client.failed) <= senders
    messages = stored_messages(cluster, topic)
    assert_offsets_unique_and_dense(messages)
    assert client.acknowledged() <= set(bodies_of(messages))

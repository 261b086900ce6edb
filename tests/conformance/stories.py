"""Stories that every client of others, in `stock_clients`, has to come through."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from cluster_checks import (
    assert_offsets_unique_and_dense,
    bodies_of,
    create_topic,
    dledger,
    stop_and_compare_logs,
    stored_messages,
)
from stock_clients import StockClient

from dledger_client import ReceivedMessage, SyncAdmin, SyncProducer
from dledger_client.testing import LocalCluster

ROUTE_PERIOD_SECONDS = 30
"""How often a stock client asks for the route; it dials a dead leader until then."""

PATIENCE_SECONDS = ROUTE_PERIOD_SECONDS + 15.0
ENDLESS = 1_000_000


def leader_killed_for_good(cluster: LocalCluster, client: StockClient, topic: str) -> None:
    """A leader that is killed and stays away costs no acknowledged message."""
    _begin(cluster, client, topic)
    killed = cluster.kill_leader()
    _progress(client, 100)
    finish(cluster, client, topic)
    cluster.restart(killed)
    stop_and_compare_logs(cluster)


def rolling_restart(
    cluster: LocalCluster, client: StockClient, topic: str, is_own_fault: Callable[[str], bool] = lambda _: False
) -> None:
    """All nodes restarted one after the other fail no send, but by a fault of the client's own at each restart."""
    _begin(cluster, client, topic)
    for node_id in cluster.node_ids:
        dledger("node", "stop", "--data", str(cluster.data_dir), node_id)
        cluster.restart(node_id)
        cluster.wait_ready()
        _progress(client, 100)
    assert [one for one in client.failed if not is_own_fault(str(one["error"]))] == []
    assert len(client.failed) <= len(cluster.node_ids)
    finish(cluster, client, topic)
    stop_and_compare_logs(cluster)


def has_waited(error: str) -> bool:
    """Whether one of Java's clients failed a send that waited on a connection which broke (docs/compatibility.md)."""
    return "timeout" in error


def two_members(members: list[StockClient], group: str, topic: str, patience_s: float, *, kills: bool = False) -> None:
    """Two members of a group share the queues, and one takes over what the other leaves; with `kills` it says nothing.

    The topic is one broker group's alone.
    """
    for number, member in enumerate(members):
        member.call("push", name=f"member-{number}", group=group, topic=topic)

    def send_until(enough):
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            members[0].call("send", topic=topic, body="x")
            if enough():
                return True
            time.sleep(0.02)  # a pace, not a wait: the client balances by a clock of its own
        return False

    assert send_until(lambda: all(member.received for member in members)), "both members get messages"
    if kills:
        members[1].kill()
    else:
        members[1].call("close_push", name="member-1")
    seen = len(members[0].received)

    def has_all_queues():
        return {message["queue_id"] for message in members[0].received[seen:]} == {0, 1, 2, 3}

    assert send_until(has_all_queues), "the member that stayed gets every queue"


def comes_back(cluster: LocalCluster, first: StockClient, second: StockClient, group: str, topic: str) -> None:
    """A group that comes back skips nothing, and goes back no further than to what it had committed.

    A client may leave before it has noted all that its listener has had; both may be the same process.
    """
    _send(cluster, topic, range(20))
    first.call("push", name="first", group=group, topic=topic)
    first.wait_for(lambda: len(first.bodies("first")) >= 20, "20 messages")
    first.call("close_push", name="first")
    with SyncAdmin(cluster.namesrv) as admin:
        first.wait_for(lambda: any(queue.committed for queue in admin.offsets(group, topic)), "a committed offset")
        before = {queue.queue: queue for queue in admin.offsets(group, topic)}
    _send(cluster, topic, range(20, 40))
    second.call("push", name="second", group=group, topic=topic)
    new = set(map(str, range(20, 40)))
    second.wait_for(lambda: new <= set(second.bodies("second")), "20 more messages")
    second.call("close_push", name="second")
    places = {body: (message.queue, message.queue_offset) for body, message in _stored(cluster, topic).items()}
    got = sorted(places[body] for body in second.bodies("second"))
    for queue, known in before.items():
        offsets = [offset for at, offset in got if at == queue]
        stored = [offset for at, offset in places.values() if at == queue]
        begin = min(offsets, default=known.end)
        assert offsets == list(range(begin, len(stored))), queue
        assert (known.committed or 0) <= begin <= known.end, queue


def _send(cluster: LocalCluster, topic: str, numbers: Iterable[int]) -> None:
    with SyncProducer(cluster.namesrv) as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number)


def _stored(cluster: LocalCluster, topic: str) -> dict[str, ReceivedMessage]:
    messages = stored_messages(cluster, topic)
    return dict(zip(bodies_of(messages), messages, strict=True))


def _begin(cluster: LocalCluster, client: StockClient, topic: str) -> None:
    """Send without end from one thread while a push consumer reads."""
    create_topic(cluster, topic)
    client.call("push", name="reader", group=f"{topic}-readers", topic=topic)
    client.begin("stream", topic=topic, prefix="", count=ENDLESS, pause_ms=5)
    _progress(client, 100)


def _progress(client: StockClient, messages: int) -> None:
    """Wait until this many more messages are acknowledged."""
    target = len(client.sent) + messages
    client.wait_for(lambda: len(client.sent) >= target, f"{messages} more acknowledged", timeout=PATIENCE_SECONDS)


def finish(cluster: LocalCluster, client: StockClient, topic: str, patience_s: float = PATIENCE_SECONDS) -> None:
    """Stop sending; hold what was acknowledged against what is stored and what the push consumer got."""
    client.call("stop_streams")
    acknowledged = client.acknowledged()
    client.wait_for(lambda: acknowledged <= set(client.bodies("reader")), "everything is consumed", timeout=patience_s)
    messages = stored_messages(cluster, topic)
    assert_offsets_unique_and_dense(messages)
    assert acknowledged <= set(bodies_of(messages))

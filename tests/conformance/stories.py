"""Stories that each client in `stock_clients` must pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import pytest
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
"""Interval at which a stock client asks for the route. Until then it dials a dead leader."""

PATIENCE_SECONDS = ROUTE_PERIOD_SECONDS + 15.0
ENDLESS = 1_000_000


def a_large_body_is_read_back_whole(cluster: LocalCluster, client: StockClient, topic: str) -> None:
    """Check that a body that the client compresses is stored and received as it was."""
    body = "compressible " * 5000
    client.call("send", topic=topic, body=body)
    assert bodies_of(stored_messages(cluster, topic)) == [body]
    client.call("push", name="reader", group=f"{topic}-readers", topic=topic)
    client.wait_for(lambda: client.bodies("reader") == [body], "the message")


def what_is_not_waited_for_is_stored(client: StockClient, topic: str, way: str) -> None:
    """Check that messages that are sent one-way or asynchronously are received."""
    client.call("push", name="reader", group=f"{topic}-readers", topic=topic)
    for number in range(20):
        client.call(way, topic=topic, body=str(number))
    client.wait_for(lambda: len(client.bodies("reader")) >= 20, "20 messages")
    assert sorted(client.bodies("reader"), key=int) == [str(number) for number in range(20)]


def a_batch_becomes_single_messages(cluster: LocalCluster, client: StockClient, topic: str) -> object:
    """Check that the messages of a batch are stored one behind the other, and return the client's result."""
    bodies = [f"part {number}" for number in range(32)]
    result = client.call("send_batch", topic=topic, bodies=bodies)
    messages = stored_messages(cluster, topic)
    assert bodies_of(messages) == bodies
    assert [message.queue_offset for message in messages] == [*range(32)]
    return result


def a_shard_is_stored_in_order_in_one_queue(cluster: LocalCluster, client: StockClient, topic: str) -> None:
    """Check that messages with one sharding key are stored in one queue in the order of their sends."""
    offsets = [client.call("send_orderly", topic=topic, body=str(n), shard=3)["queue_offset"] for n in range(10)]
    assert offsets == list(range(10))
    messages = stored_messages(cluster, topic)
    assert bodies_of(messages) == [str(number) for number in range(10)]
    assert len({message.queue for message in messages}) == 1


def only_wanted_tags_are_received(
    cluster: LocalCluster, client: StockClient, topic: str, expression: str, expected: set[str]
) -> None:
    """Check that a push consumer gets only its tags, although hashes collide: "Aa" and "BB" have the same."""
    with SyncProducer(cluster.namesrv) as producer:
        for number, tag in enumerate(("Aa", "BB", "Cc")):
            producer.send(topic, b"%d" % number, tags=tag)
    client.call("push", name="reader", group=f"{topic}-readers", topic=topic, tag=expression)
    client.wait_for(lambda: len(client.bodies("reader")) >= len(expected), f"{len(expected)} messages")
    client.call("close_push", name="reader")
    assert sorted(client.bodies("reader")) == sorted(expected)


EXPRESSIONS = pytest.mark.parametrize(
    ("expression", "expected"), [("*", {"0", "1", "2"}), ("Aa", {"0"}), ("Aa || Cc", {"0", "2"})]
)
"""Subscriptions, and the messages of `only_wanted_tags_are_received` that they match."""


def leader_killed_for_good(cluster: LocalCluster, client: StockClient, topic: str) -> None:
    """Check that a leader that is killed and stays away costs no acknowledged message."""
    _begin(cluster, client, topic)
    killed = cluster.kill_leader()
    _progress(client, 100)
    finish(cluster, client, topic)
    cluster.restart(killed)
    stop_and_compare_logs(cluster)


def rolling_restart(
    cluster: LocalCluster, client: StockClient, topic: str, is_own_fault: Callable[[str], bool] = lambda _: False
) -> None:
    """Check that a rolling restart of all nodes fails no send.

    At each restart one send may fail through a fault of the client's own.
    """
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
    """Return whether a Java client failed a send that waited on a broken connection (docs/compatibility.md)."""
    return "timeout" in error


def two_members(members: list[StockClient], group: str, topic: str, patience_s: float, *, kills: bool = False) -> None:
    """Check that two members of a group share the queues, and that one takes over when the other leaves or is killed.

    With `kills` the other member dies without a word. The topic exists in one broker group only.
    """
    for number, member in enumerate(members):
        member.call("push", name=f"member-{number}", group=group, topic=topic)

    def send_until(enough):
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            members[0].call("send", topic=topic, body="x")
            if enough():
                return True
            time.sleep(0.02)  # paces the sends: the client balances at times of its own
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
    """Check that a returning group skips nothing, and repeats no message from before its committed offset.

    A client may leave before it has noted every message that its listener got. Both clients may be the same process.
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
    """Start an endless stream from one thread while a push consumer reads."""
    create_topic(cluster, topic)
    client.call("push", name="reader", group=f"{topic}-readers", topic=topic)
    client.begin("stream", topic=topic, prefix="", count=ENDLESS, pause_ms=5)
    _progress(client, 100)


def _progress(client: StockClient, messages: int) -> None:
    """Wait until this many more messages are acknowledged."""
    target = len(client.sent) + messages
    client.wait_for(lambda: len(client.sent) >= target, f"{messages} more acknowledged", timeout=PATIENCE_SECONDS)


def finish(cluster: LocalCluster, client: StockClient, topic: str, patience_s: float = PATIENCE_SECONDS) -> None:
    """Stop sending, and compare the acknowledged messages with the stored ones and those of the push consumer."""
    client.call("stop_streams")
    acknowledged = client.acknowledged()
    client.wait_for(lambda: acknowledged <= set(client.bodies("reader")), "everything is consumed", timeout=patience_s)
    messages = stored_messages(cluster, topic)
    assert_offsets_unique_and_dense(messages)
    assert acknowledged <= set(bodies_of(messages))

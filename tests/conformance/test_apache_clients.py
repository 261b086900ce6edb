"""Apache RocketMQ's own clients, unmodified: Java of the 5.x and of the 4.x line, and Go.

`make test-clients` runs this; it needs a JDK and Maven, and takes minutes, so that `make test` leaves it out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from cluster_checks import (
    assert_offsets_unique_and_dense,
    bodies_of,
    create_topic,
    dledger,
    stop_and_compare_logs,
    stored_messages,
)
from stock_clients import JAVA_CLIENTS

from dledger_client.sync import SyncProducer
from dledger_client.testing import LocalCluster

ROUTE_PERIOD_SECONDS = 30
"""How often the client asks for the route; it dials a dead leader until then."""

REBALANCE_SECONDS = 45.0
ENDLESS = 1_000_000
ONLY_JAVA = pytest.mark.parametrize("program", JAVA_CLIENTS, indirect=True)

_NUMBERS = count()


@pytest.fixture
def topic(one_group: LocalCluster) -> str:
    """A topic of the test's own."""
    name = f"Apache{next(_NUMBERS)}"
    create_topic(one_group, name)
    return name


def test_the_first_message_to_an_unknown_topic_creates_it(one_group, apache, topic):
    apache(one_group.namesrv).call("send", topic=f"{topic}-unknown", body="first")
    assert bodies_of(stored_messages(one_group, f"{topic}-unknown")) == ["first"]


@ONLY_JAVA
def test_a_message_is_stored_with_its_body_tag_and_keys_and_found_by_them(one_group, apache, topic):
    client = apache(one_group.namesrv)
    sent = client.call("send", topic=topic, body="hello", tag="greeting", keys="k1")
    (found,) = stored_messages(one_group, topic)
    assert (sent["status"], sent["queue_id"], sent["queue_offset"]) == ("SEND_OK", found.queue.queue_id, 0)
    assert (found.body, found.tags, found.keys) == (b"hello", "greeting", ("k1",))
    assert (found.message_id, found.offset_message_id) == (sent["message_id"], sent["offset_message_id"])
    for message_id in (sent["message_id"], sent["offset_message_id"]):
        assert client.call("view", topic=topic, message_id=message_id) == "hello"
    assert client.call("query", topic=topic, key="k1") == ["hello"]
    assert sorted(client.call("offsets", topic=topic)) == [[0, 0, 0]] * 3 + [[0, 1, 0]]


@pytest.mark.parametrize("way", ["send_async", "send_oneway"])
def test_a_message_that_is_not_waited_for_is_stored(one_group, apache, topic, way):
    client = apache(one_group.namesrv)
    client.call("push", name="reader", group=f"{topic}-readers", topic=topic)
    for number in range(20):
        client.call(way, topic=topic, body=str(number))
    client.wait_for(lambda: len(client.bodies("reader")) >= 20, "20 messages")
    assert sorted(client.bodies("reader"), key=int) == [str(number) for number in range(20)]


def test_a_batch_becomes_single_messages_with_consecutive_offsets(one_group, apache, topic):
    bodies = [f"part {number}" for number in range(32)]
    apache(one_group.namesrv).call("send_batch", topic=topic, bodies=bodies)
    messages = stored_messages(one_group, topic)
    assert bodies_of(messages) == bodies
    assert [message.queue_offset for message in messages] == [*range(32)]


def test_messages_of_one_shard_lie_in_one_queue_in_order(one_group, apache, topic):
    client = apache(one_group.namesrv)
    offsets = [client.call("send_orderly", topic=topic, body=str(n), shard=3)["queue_offset"] for n in range(10)]
    assert offsets == list(range(10))
    messages = stored_messages(one_group, topic)
    assert bodies_of(messages) == [str(number) for number in range(10)]
    assert len({message.queue for message in messages}) == 1


def test_a_body_that_the_client_compresses_is_read_back_whole(one_group, apache, topic):
    body = "compressible " * 5000
    client = apache(one_group.namesrv)
    client.call("send", topic=topic, body=body)
    assert bodies_of(stored_messages(one_group, topic)) == [body]
    client.call("push", name="reader", group=f"{topic}-readers", topic=topic)
    client.wait_for(lambda: client.bodies("reader") == [body], "the message")


@pytest.mark.parametrize(("expression", "expected"), [("*", {"0", "1", "2"}), ("Aa", {"0"}), ("Aa || Cc", {"0", "2"})])
def test_a_push_consumer_gets_what_its_tags_select_though_hashes_collide(
    one_group, apache, topic, expression, expected
):
    with SyncProducer(one_group.namesrv) as producer:
        for number, tag in enumerate(("Aa", "BB", "Cc")):  # "Aa" and "BB" have the same hash
            producer.send(topic, b"%d" % number, tags=tag)
    client = apache(one_group.namesrv)
    client.call("push", name="reader", group=f"{topic}-readers", topic=topic, tag=expression)
    client.wait_for(lambda: len(client.bodies("reader")) >= len(expected), f"{len(expected)} messages")
    client.call("close_push", name="reader")
    assert sorted(client.bodies("reader")) == sorted(expected)


def test_a_group_that_comes_back_goes_on_where_it_was(one_group, apache, topic):
    client = apache(one_group.namesrv)
    for name, first in (("first", 0), ("second", 10)):
        for number in range(first, first + 10):
            client.call("send", topic=topic, body=str(number))
        client.call("push", name=name, group=f"{topic}-readers", topic=topic)
        client.wait_for(lambda name=name: len(client.bodies(name)) >= 10, "10 messages")
        client.call("close_push", name=name)
    assert sorted(map(int, client.bodies("second"))) == list(range(10, 20))


def test_every_member_of_a_broadcast_group_gets_everything(one_group, apache, topic):
    members = [apache(one_group.namesrv), apache(one_group.namesrv)]
    for number, member in enumerate(members):
        member.call("push", name=f"member-{number}", group=f"{topic}-readers", topic=topic, broadcast=True)
    for number in range(20):
        members[0].call("send", topic=topic, body=str(number))
    for number, member in enumerate(members):
        member.wait_for(lambda member=member: len(member.received) >= 20, "20 messages", timeout=REBALANCE_SECONDS)
        assert sorted(map(int, member.bodies(f"member-{number}"))) == list(range(20))


def test_two_members_share_the_queues_and_one_takes_over_what_the_other_leaves(one_group, apache, topic):
    members = [apache(one_group.namesrv), apache(one_group.namesrv)]
    for number, member in enumerate(members):
        member.call("push", name=f"member-{number}", group=f"{topic}-readers", topic=topic)

    def send_until(enough):
        deadline = time.monotonic() + REBALANCE_SECONDS
        while time.monotonic() < deadline:
            members[0].call("send", topic=topic, body="x")
            if enough():
                return True
            time.sleep(0.02)  # a pace, not a wait: the client balances by a clock of its own
        return False

    assert send_until(lambda: all(member.received for member in members)), "both members get messages"
    members[1].call("close_push", name="member-1")
    seen = len(members[0].received)

    def has_all_queues():
        return {message["queue_id"] for message in members[0].received[seen:]} == {0, 1, 2, 3}

    assert send_until(has_all_queues), "the member that stayed gets every queue"


@ONLY_JAVA
def test_a_message_whose_listener_fails_comes_again(one_group, apache, topic):
    client = apache(one_group.namesrv)
    client.call("send", topic=topic, body="again")
    client.call("push", name="reader", group=f"{topic}-readers", topic=topic, fails_first="again")
    client.wait_for(lambda: len(client.bodies("reader")) >= 2, "the second delivery", timeout=REBALANCE_SECONDS)
    assert set(client.bodies("reader")) == {"again"}


@ONLY_JAVA
def test_a_lite_pull_consumer_reads_everything_and_goes_on_where_it_committed(one_group, apache, topic):
    client = apache(one_group.namesrv)
    for first in (0, 30):
        for number in range(first, first + 30):
            client.call("send", topic=topic, body=str(number))
        found = client.call("lite_pull", group=f"{topic}-readers", topic=topic, count=30)
        assert sorted(map(int, found)) == list(range(first, first + 30))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(data_dir=tmp_path / "cluster") as started:
        yield started


def begin(cluster, client, topic):
    """Send without end from one thread while a push consumer reads."""
    create_topic(cluster, topic)
    client.call("push", name="reader", group=f"{topic}-readers", topic=topic)
    client.begin("stream", topic=topic, prefix="", count=ENDLESS, pause_ms=5)
    progress(client, 100)


def progress(client, messages):
    """Wait until this many more messages are acknowledged."""
    target = len(client.sent) + messages
    client.wait_for(lambda: len(client.sent) >= target, f"{messages} more", timeout=ROUTE_PERIOD_SECONDS + 15.0)


def finish(cluster, client, topic):
    """Stop sending; hold what was acknowledged against what is stored and what the push consumer got."""
    client.call("stop_streams")
    acknowledged = client.acknowledged()
    client.wait_for(
        lambda: acknowledged <= set(client.bodies("reader")), "all is consumed", timeout=ROUTE_PERIOD_SECONDS + 15.0
    )
    messages = stored_messages(cluster, topic)
    assert_offsets_unique_and_dense(messages)
    assert acknowledged <= set(bodies_of(messages))


def test_it_goes_on_after_a_kill_of_the_leader_that_stays_away(cluster, apache):
    client = apache(cluster.namesrv)
    begin(cluster, client, "ApacheKill")
    killed = cluster.kill_leader()
    progress(client, 100)
    finish(cluster, client, "ApacheKill")
    cluster.restart(killed)
    stop_and_compare_logs(cluster)


def test_a_rolling_restart_of_all_nodes_fails_none_of_its_sends(cluster, apache):
    client = apache(cluster.namesrv)
    begin(cluster, client, "ApacheRolling")
    for node_id in cluster.node_ids:
        dledger("node", "stop", "--data", str(cluster.data_dir), node_id)
        cluster.restart(node_id)
        cluster.wait_ready()
        progress(client, 100)
    assert client.failed == []
    finish(cluster, client, "ApacheRolling")

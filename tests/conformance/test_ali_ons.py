"""The unmodified npm client `ali-ons` 3.12.0 sends and consumes, and goes on when a leader is killed.

Two broker groups: within one group it never tries a send again.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import stories
from cluster_checks import (
    bodies_of,
    create_topic,
    stop_and_compare_logs,
    stored_messages,
)

from dledger_client.sync import SyncProducer
from dledger_client.testing import LocalCluster

FAILOVER_SECONDS = 60.0
"""It asks for the route every 30 s, and every 10 s whether its queues have changed."""

ENDLESS = 1_000_000


def test_a_message_is_stored_with_its_body_tag_and_keys(two_groups, ali_ons):
    create_topic(two_groups, "AliSend")
    sent = ali_ons(two_groups.namesrv).call("send", topic="AliSend", body="hello", tag="greeting", keys="k1")
    (found,) = stored_messages(two_groups, "AliSend")
    assert (sent["status"], sent["message_id"]) == ("SEND_OK", found.offset_message_id)
    assert (sent["broker_group"], sent["queue_offset"]) == (found.queue.broker_group, found.queue_offset)
    assert (found.body, found.tags, found.keys) == (b"hello", "greeting", ("k1",))


def test_a_key_that_was_cut_within_an_emoji_is_stored_with_a_question_mark(two_groups, ali_ons):
    """Its JSON has half of a surrogate pair, which Java reads, too."""
    create_topic(two_groups, "AliCut")
    assert (
        ali_ons(two_groups.namesrv).call("send", topic="AliCut", body="hello", keys="cut\ud83d")["status"] == "SEND_OK"
    )
    (found,) = stored_messages(two_groups, "AliCut")
    assert found.keys == ("cut?",)


def test_sends_reach_both_groups(two_groups, ali_ons):
    create_topic(two_groups, "AliBoth")
    client = ali_ons(two_groups.namesrv)
    groups = [client.call("send", topic="AliBoth", body=str(n))["broker_group"] for n in range(16)]
    assert set(groups) == set(two_groups.groups)
    assert sorted(map(int, bodies_of(stored_messages(two_groups, "AliBoth")))) == list(range(16))


def test_a_body_that_the_client_compresses_is_read_back_whole(two_groups, ali_ons):
    create_topic(two_groups, "AliCompressed")
    body = "compressible " * 5000
    client = ali_ons(two_groups.namesrv)
    client.call("send", topic="AliCompressed", body=body)
    assert bodies_of(stored_messages(two_groups, "AliCompressed")) == [body]
    client.call("push", name="reader", group="ali-compressed", topic="AliCompressed")
    client.wait_for(lambda: client.bodies("reader") == [body], "the message")


@pytest.mark.parametrize(("expression", "expected"), [("*", {"0", "1", "2"}), ("Aa", {"0"}), ("Aa || Cc", {"0", "2"})])
def test_a_push_consumer_gets_what_its_tags_select_though_hashes_collide(two_groups, ali_ons, expression, expected):
    topic = f"AliTags{len(expected)}"
    create_topic(two_groups, topic)
    with SyncProducer(two_groups.namesrv) as producer:
        for number, tag in enumerate(("Aa", "BB", "Cc")):  # "Aa" and "BB" have the same hash
            producer.send(topic, b"%d" % number, tags=tag)
    client = ali_ons(two_groups.namesrv)
    client.call("push", name="reader", group=f"ali-tags-{len(expected)}", topic=topic, tag=expression)
    client.wait_for(lambda: len(client.bodies("reader")) >= len(expected), f"{len(expected)} messages")
    client.call("close_push", name="reader")
    assert sorted(client.bodies("reader")) == sorted(expected)


def test_a_group_that_comes_back_goes_on_where_it_was(two_groups, ali_ons):
    create_topic(two_groups, "AliResume")
    first, second = ali_ons(two_groups.namesrv), ali_ons(two_groups.namesrv)
    stories.comes_back(two_groups, first, second, "ali-resume", "AliResume")


@pytest.mark.slow
def test_it_goes_on_after_a_kill_of_a_leader_that_stays_away(tmp_path: Path, ali_ons):
    topic = "AliKill"
    with LocalCluster(groups=2, data_dir=tmp_path / "cluster") as cluster:
        create_topic(cluster, topic)
        client = ali_ons(cluster.namesrv)
        client.call("push", name="reader", group="ali-kill", topic=topic)
        client.begin("stream", topic=topic, prefix="", count=ENDLESS, pause_ms=5)

        def progress_of(group, messages):
            def sent():
                return sum(one["broker_group"] == group for one in client.sent.values())

            target = sent() + messages
            client.wait_for(lambda: sent() >= target, f"{messages} more sent to {group}", timeout=FAILOVER_SECONDS)

        progress_of("broker-a", 50)
        killed = cluster.kill_leader("broker-a")
        progress_of("broker-b", 50)
        progress_of("broker-a", 50)
        stories.finish(cluster, client, topic, FAILOVER_SECONDS)
        cluster.restart(killed)
        stop_and_compare_logs(cluster, "broker-a")

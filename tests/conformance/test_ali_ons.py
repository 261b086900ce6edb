"""The unmodified npm client `ali-ons` 3.12.0 sends, consumes, and continues when a leader is killed.

The tests use two broker groups: within one group this client never repeats a send.
"""

from __future__ import annotations

from pathlib import Path

import stories
from cluster_checks import bodies_of, create_topic, stop_and_compare_logs, stored_messages

from dledger_client.testing import LocalCluster

FAILOVER_SECONDS = 60.0
"""Time limit in seconds: the client asks for the route every 30 s, and every 10 s whether its queues have changed."""


def test_a_message_is_stored_with_its_body_tag_and_keys(two_groups, ali_ons, topic):
    sent = ali_ons(two_groups.namesrv).call("send", topic=topic, body="hello", tag="greeting", keys="k1")
    (found,) = stored_messages(two_groups, topic)
    assert (sent["status"], sent["message_id"]) == ("SEND_OK", found.offset_message_id)
    assert (sent["broker_group"], sent["queue_offset"]) == (found.queue.broker_group, found.queue_offset)
    assert (found.body, found.tags, found.keys) == (b"hello", "greeting", ("k1",))


def test_a_key_that_was_cut_within_an_emoji_is_stored_with_a_question_mark(two_groups, ali_ons, topic):
    """Its JSON contains half of a surrogate pair, as Java's may."""
    sent = ali_ons(two_groups.namesrv).call("send", topic=topic, body="hello", keys="cut\ud83d")
    (found,) = stored_messages(two_groups, topic)
    assert (sent["status"], found.keys) == ("SEND_OK", ("cut?",))


def test_sends_reach_both_groups(two_groups, ali_ons, topic):
    client = ali_ons(two_groups.namesrv)
    groups = [client.call("send", topic=topic, body=str(n))["broker_group"] for n in range(16)]
    assert set(groups) == set(two_groups.groups)
    assert sorted(map(int, bodies_of(stored_messages(two_groups, topic)))) == list(range(16))


def test_a_body_that_the_client_compresses_is_read_back_whole(two_groups, ali_ons, topic):
    stories.a_large_body_is_read_back_whole(two_groups, ali_ons(two_groups.namesrv), topic)


@stories.EXPRESSIONS
def test_a_push_consumer_gets_only_its_tags_although_hashes_collide(two_groups, ali_ons, topic, expression, expected):
    stories.only_wanted_tags_are_received(two_groups, ali_ons(two_groups.namesrv), topic, expression, expected)


def test_a_returning_group_continues_at_its_committed_offset(two_groups, ali_ons, topic):
    first, second = ali_ons(two_groups.namesrv), ali_ons(two_groups.namesrv)
    stories.comes_back(two_groups, first, second, "ali-resume", topic)


def test_the_client_continues_after_the_permanent_loss_of_a_leader(tmp_path: Path, ali_ons):
    topic = "AliKill"
    with LocalCluster(groups=2, data_dir=tmp_path / "cluster") as cluster:
        create_topic(cluster, topic)
        client = ali_ons(cluster.namesrv)
        client.call("push", name="reader", group="ali-kill", topic=topic)
        client.begin("stream", topic=topic, prefix="", count=stories.ENDLESS, pause_ms=5)

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

"""The unmodified C++ client (PyPI `rocketmq` 0.4.4) sends and consumes."""

from __future__ import annotations

import pytest
import stories
from cluster_checks import assert_offsets_unique_and_dense, bodies_of, stored_messages

from dledger_client import SyncAdmin

WAIT_MS = 3_000
"""Time in ms that the client waits for an answer before it tries again by itself."""
REBALANCE_SECONDS = 30.0


def test_the_first_message_to_an_unknown_topic_creates_it(one_group, cpp):
    cpp(one_group.namesrv).call("send", topic="CppUnknown", body="first")
    assert bodies_of(stored_messages(one_group, "CppUnknown")) == ["first"]


def test_a_message_is_stored_with_its_body_tag_and_keys(one_group, cpp, topic):
    sent = cpp(one_group.namesrv).call("send", topic=topic, body="hello", tag="greeting", keys="k1")
    (found,) = stored_messages(one_group, topic)
    assert (sent["status"], sent["queue_offset"]) == (0, found.queue_offset)
    assert (found.body, found.tags, found.keys, found.message_id) == (b"hello", "greeting", ("k1",), sent["message_id"])
    with SyncAdmin(one_group.namesrv) as admin:
        assert bodies_of(admin.messages_by_key(topic, "k1")) == ["hello"]
        assert bodies_of(admin.messages_by_key(topic, sent["message_id"], unique=True)) == ["hello"]


@pytest.mark.parametrize(
    "story", [stories.a_shard_is_stored_in_order_in_one_queue, stories.a_large_body_is_read_back_whole]
)
def test_what_the_client_sends_is_stored_as_it_was_sent(one_group, cpp, topic, story):
    story(one_group, cpp(one_group.namesrv), topic)


def test_a_oneway_message_is_stored(one_group, cpp, topic):
    stories.what_is_not_waited_for_is_stored(cpp(one_group.namesrv), topic, "send_oneway")


def test_a_batch_becomes_single_messages_with_consecutive_offsets(one_group, cpp, topic):
    sent = stories.a_batch_becomes_single_messages(one_group, cpp(one_group.namesrv), topic)
    assert sent["queue_offset"] == 0


def test_a_pull_consumer_finds_all_messages_and_then_only_new_ones(one_group, cpp, topic):
    client = cpp(one_group.namesrv)
    for number in range(50):
        client.call("send", topic=topic, body=str(number))
    assert sorted(map(int, client.call("pull", group="cpp-pull", topic=topic))) == list(range(50))
    assert client.call("pull", group="cpp-pull", topic=topic) == []
    client.call("send", topic=topic, body="50")
    assert client.call("pull", group="cpp-pull", topic=topic) == ["50"]


@stories.EXPRESSIONS
def test_a_push_consumer_gets_only_its_tags_although_hashes_collide(one_group, cpp, topic, expression, expected):
    stories.only_wanted_tags_are_received(one_group, cpp(one_group.namesrv), topic, expression, expected)


def test_a_returning_group_continues_at_its_committed_offset(one_group, cpp, topic):
    client = cpp(one_group.namesrv)
    stories.comes_back(one_group, client, client, "cpp-resume", topic)


def test_two_members_share_the_queues_and_one_takes_over_after_the_other(one_group, cpp, topic):
    members = [cpp(one_group.namesrv), cpp(one_group.namesrv)]
    stories.two_members(members, "cpp-shared", topic, REBALANCE_SECONDS)


def test_every_message_of_a_stream_has_an_offset_of_its_own(one_group, cpp, topic):
    client = cpp(one_group.namesrv)
    assert client.call("stream", topic=topic, prefix="", count=500, pause_ms=0) == 500
    messages = stored_messages(one_group, topic)
    assert_offsets_unique_and_dense(messages)
    stored = sorted(map(int, bodies_of(messages)))
    assert sorted(set(stored)) == list(range(500))
    # The client gives every attempt a new key. A send whose answer was lost is repeated, and may be stored twice.
    again = {*(one["failed"] for one in client.failed), *(n for n, one in client.sent.items() if one["ms"] >= WAIT_MS)}
    assert {number for number in stored if stored.count(number) > 1} <= again, client.failed

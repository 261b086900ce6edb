"""The unmodified C++ client (PyPI `rocketmq` 0.4.4) sends and consumes."""

from __future__ import annotations

from operator import itemgetter

import pytest
import stories
from cluster_checks import assert_offsets_unique_and_dense, bodies_of, create_topic, stored_messages

from dledger_client import SyncAdmin, SyncProducer

WAIT_MS = 3_000
"""The client waits so long for an answer before it tries again by itself."""
REBALANCE_SECONDS = 30.0
RETRY_SECONDS = 40.0
"""The second delivery comes after 10 s, to a consumer that looks every 20 s which queues are its own."""


def test_the_first_message_to_an_unknown_topic_creates_it(one_group, cpp):
    cpp(one_group.namesrv).call("send", topic="CppUnknown", body="first")
    assert bodies_of(stored_messages(one_group, "CppUnknown")) == ["first"]


def test_a_message_is_stored_with_its_body_tag_and_keys(one_group, cpp):
    create_topic(one_group, "CppSend")
    sent = cpp(one_group.namesrv).call("send", topic="CppSend", body="hello", tag="greeting", keys="k1")
    (found,) = stored_messages(one_group, "CppSend")
    assert (sent["status"], sent["queue_offset"]) == (0, found.queue_offset)
    assert (found.body, found.tags, found.keys, found.message_id) == (b"hello", "greeting", ("k1",), sent["message_id"])
    with SyncAdmin(one_group.namesrv) as admin:
        assert bodies_of(admin.messages_by_key("CppSend", "k1")) == ["hello"]
        assert bodies_of(admin.messages_by_key("CppSend", sent["message_id"], unique=True)) == ["hello"]


def test_a_body_that_the_client_compresses_is_read_back_whole(one_group, cpp):
    create_topic(one_group, "CppCompressed")
    body = "compressible " * 5000
    client = cpp(one_group.namesrv)
    client.call("send", topic="CppCompressed", body=body)
    assert bodies_of(stored_messages(one_group, "CppCompressed")) == [body]
    assert client.call("pull", group="cpp-compressed", topic="CppCompressed") == [body]


def test_a_oneway_message_is_stored(one_group, cpp):
    create_topic(one_group, "CppOneway")
    client = cpp(one_group.namesrv)
    client.call("push", name="reader", group="cpp-oneway", topic="CppOneway")
    for number in range(20):
        client.call("send_oneway", topic="CppOneway", body=str(number))
    client.wait_for(lambda: len(client.bodies("reader")) >= 20, "20 one-way messages")
    assert sorted(client.bodies("reader"), key=int) == [str(number) for number in range(20)]


def test_orderly_messages_of_one_shard_lie_in_one_queue_in_order(one_group, cpp):
    create_topic(one_group, "CppOrderly")
    client = cpp(one_group.namesrv)
    offsets = [client.call("send_orderly", topic="CppOrderly", body=str(n), shard=3)["queue_offset"] for n in range(10)]
    assert offsets == list(range(10))
    messages = stored_messages(one_group, "CppOrderly")
    assert bodies_of(messages) == [str(number) for number in range(10)]
    assert len({message.queue for message in messages}) == 1


def test_an_orderly_consumer_locks_its_queues_and_gets_each_one_in_order(one_group, cpp):
    create_topic(one_group, "CppLocked")
    members = [cpp(one_group.namesrv), cpp(one_group.namesrv)]
    for number in range(60):
        members[0].call("send_orderly", topic="CppLocked", body=str(number), shard=number % 3)
    for number, member in enumerate(members):
        member.call("push", name=f"member{number}", group="cpp-locked", topic="CppLocked", orderly=True)

    def received() -> list[dict[str, object]]:
        """As they came: a queue may go from either member to the other, when that has made itself known."""
        return sorted((line for member in members for line in member.received), key=itemgetter("at"))

    members[0].wait_for(lambda: len({line["body"] for line in received()}) == 60, "all messages, in order")
    by_queue: dict[object, list[object]] = {}
    for line in received():
        by_queue.setdefault(line["queue_id"], []).append(line["queue_offset"])
    assert {queue: sorted(offsets) for queue, offsets in by_queue.items()} == by_queue


def test_a_batch_becomes_single_messages_with_consecutive_offsets(one_group, cpp):
    create_topic(one_group, "CppBatch")
    client = cpp(one_group.namesrv)
    bodies = [f"part {number}" for number in range(32)]
    first = client.call("send_batch", topic="CppBatch", bodies=bodies)["queue_offset"]
    messages = stored_messages(one_group, "CppBatch")
    assert bodies_of(messages) == bodies
    assert [message.queue_offset for message in messages] == [first + number for number in range(32)]


def test_a_pull_consumer_finds_everything_then_only_what_is_new(one_group, cpp):
    create_topic(one_group, "CppPull")
    client = cpp(one_group.namesrv)
    for number in range(50):
        client.call("send", topic="CppPull", body=str(number))
    assert sorted(map(int, client.call("pull", group="cpp-pull", topic="CppPull"))) == list(range(50))
    assert client.call("pull", group="cpp-pull", topic="CppPull") == []
    client.call("send", topic="CppPull", body="50")
    assert client.call("pull", group="cpp-pull", topic="CppPull") == ["50"]


@pytest.mark.parametrize(("expression", "expected"), [("*", {"0", "1", "2"}), ("Aa", {"0"}), ("Aa || Cc", {"0", "2"})])
def test_a_push_consumer_gets_what_its_tags_select_though_hashes_collide(one_group, cpp, expression, expected):
    topic = f"CppTags{len(expected)}"
    create_topic(one_group, topic)
    client = cpp(one_group.namesrv)
    with SyncProducer(one_group.namesrv) as producer:
        for number, tag in enumerate(("Aa", "BB", "Cc")):  # "Aa" and "BB" have the same hash
            producer.send(topic, b"%d" % number, tags=tag)
    client.call("push", name="reader", group=f"cpp-tags-{len(expected)}", topic=topic, tag=expression)
    client.wait_for(lambda: len(client.bodies("reader")) >= len(expected), f"{len(expected)} messages")
    client.call("close_push", name="reader")
    assert sorted(client.bodies("reader")) == sorted(expected)


def test_a_message_that_could_not_be_handled_comes_again(one_group, cpp):
    create_topic(one_group, "CppRetry")
    client = cpp(one_group.namesrv)
    client.call("push", name="reader", group="cpp-retry", topic="CppRetry", fails={"again": 1})
    client.call("send", topic="CppRetry", body="again")
    client.wait_for(lambda: len(client.bodies("reader")) >= 2, "a second delivery", timeout=RETRY_SECONDS)
    assert client.bodies("reader") == ["again", "again"]


def test_a_group_that_comes_back_goes_on_where_it_was(one_group, cpp):
    create_topic(one_group, "CppResume")
    client = cpp(one_group.namesrv)
    stories.comes_back(one_group, client, client, "cpp-resume", "CppResume")


def test_two_members_share_the_queues_and_one_takes_over_what_the_other_leaves(one_group, cpp):
    create_topic(one_group, "CppShared")
    members = [cpp(one_group.namesrv), cpp(one_group.namesrv)]
    stories.two_members(members, "cpp-shared", "CppShared", REBALANCE_SECONDS)


def test_every_message_of_a_stream_has_an_offset_of_its_own(one_group, cpp):
    create_topic(one_group, "CppStream")
    client = cpp(one_group.namesrv)
    assert client.call("stream", topic="CppStream", prefix="", count=500, pause_ms=0) == 500
    messages = stored_messages(one_group, "CppStream")
    assert_offsets_unique_and_dense(messages)
    stored = sorted(map(int, bodies_of(messages)))
    assert sorted(set(stored)) == list(range(500))
    # The client gives every attempt a key of its own: what it waited for in vain, and sent again, may be stored twice.
    again = {*(one["failed"] for one in client.failed), *(n for n, one in client.sent.items() if one["ms"] >= WAIT_MS)}
    assert {number for number in stored if stored.count(number) > 1} <= again, client.failed

"""RocketMQ 5's own clients, unmodified, through a proxy.

`make test` runs Python's and Node's, `make test-clients` also Java's, Go's and Rust's.
"""

from __future__ import annotations

import logging
import re
import subprocess
import time
from itertools import count
from pathlib import Path

import pytest
from cluster_checks import stored_messages, wait_until
from grpc_clients import GO, NODE, PYTHON, create_topic, having, only
from stock_clients import StockClientError

from dledger_client import SubscriptionGroupConfig, SyncAdmin, SyncProducer

NUMBERS = count()
SECONDS = 30.0
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "grpc.md"


@pytest.fixture
def client(shared_grpc_client):
    """Return a client that the tests share: its consumers have names and groups of their own."""
    return shared_grpc_client


def group_name():
    return f"Group5-{next(NUMBERS)}"


def receive(client, name, wanted, *, ack=True, invisible_s=10):
    """Receive until `wanted` messages have come, and acknowledge them. Returns them in the order of their coming."""
    got = []
    deadline = time.monotonic() + SECONDS
    while len(got) < wanted:
        assert time.monotonic() < deadline, f"{len(got)} of {wanted} messages came: {got}"
        for message in client.call("receive", name=name, invisible_s=invisible_s):
            got.append(message)
            if ack:
                client.call("ack", name=name, message=message["id"])
    return got


def test_a_message_comes_with_its_body_tag_keys_and_properties(client, typed_topic):
    topic, group = typed_topic("NORMAL"), group_name()
    client.call("simple", name=group, group=group, topic=topic)
    sent = client.call(
        "send",
        topic=topic,
        body="hello é",
        tag="greeting",
        keys=["k1", "k2"],
        properties={"who": "me", "traceparent": "x"},
    )
    (got,) = receive(client, group, 1)
    assert got == {
        "id": sent["message_id"],
        "topic": topic,
        "body": "hello é",
        "tag": "greeting",
        "keys": ["k1", "k2"],
        "group": got["group"],
        "properties": {"who": "me", "traceparent": "x"},
        "attempt": 1,
        "corrupted": False,
    }
    assert not got["group"]


def test_a_topic_refuses_messages_of_another_kind_than_its_own(client, typed_topic, quick_group):
    topic = typed_topic("NORMAL")
    with pytest.raises(StockClientError):
        client.call("send", topic=topic, body="in order", group="g")
    assert stored_messages(quick_group, topic) == []


def test_a_topic_that_does_not_exist_is_an_error_and_is_not_created(client, quick_group):
    with pytest.raises(StockClientError):
        client.call("send", topic="NoSuchTopic5", body="x", timeout=60)
    with SyncAdmin(quick_group.namesrv) as admin:
        assert "NoSuchTopic5" not in admin.topics()


@having("hide")
def test_a_message_that_is_not_acknowledged_comes_again_and_an_acknowledged_one_does_not(client, typed_topic):
    topic, group = typed_topic("NORMAL"), group_name()
    client.call("simple", name=group, group=group, topic=topic)
    client.call("send", topic=topic, body="again")
    (first,) = receive(client, group, 1, ack=False)
    client.call("hide", name=group, message=first["id"], seconds=1)
    (second,) = receive(client, group, 1)
    assert (first["attempt"], second["attempt"], second["id"]) == (1, 2, first["id"])
    assert client.call("receive", name=group) in ([], None)


@pytest.mark.parametrize(
    ("filter_fields", "wanted"),
    [({"expression": "a || b"}, ["a 1", "b 1"]), ({"expression": "size > 1", "sql": True}, ["a 2", "c 2"])],
    ids=["tags", "sql"],
)
def test_a_filter_lets_only_its_messages_through(client, typed_topic, filter_fields, wanted):
    topic = typed_topic("NORMAL")
    group = group_name()
    client.call("simple", name=group, group=group, topic=topic, **filter_fields)
    bodies = ["a 1", "b 1", "c 1"] if "sql" not in filter_fields else ["a 2", "b 1", "c 2"]
    for body in bodies:
        client.call("send", topic=topic, body=body, tag=body[0], properties={"size": body[-1]})
    assert sorted(message["body"] for message in receive(client, group, 2)) == wanted
    assert client.call("receive", name=group) in ([], None)


def test_a_delayed_message_comes_when_it_is_due(client, typed_topic):
    topic, group = typed_topic("DELAY"), group_name()
    client.call("simple", name=group, group=group, topic=topic)
    due = time.time() + 3
    sent = client.call("send", topic=topic, body="late", delay_s=3)
    (got,) = receive(client, group, 1)
    assert got["id"] == sent["message_id"]
    assert time.time() >= due - 2  # clients cut their times to seconds
    assert client.call("receive", name=group) in ([], None)


@having("recall")
def test_a_recalled_message_never_comes(client, typed_topic):
    topic, group = typed_topic("DELAY"), group_name()
    client.call("simple", name=group, group=group, topic=topic)
    recalled = client.call("send", topic=topic, body="recalled", delay_s=3)
    kept = client.call("send", topic=topic, body="kept", delay_s=3)
    client.call("recall", topic=topic, handle=recalled["recall_handle"])
    (got,) = receive(client, group, 1)
    assert got["id"] == kept["message_id"]
    assert client.call("receive", name=group) in ([], None)


def test_a_transaction_is_seen_once_it_is_committed_and_never_after_a_rollback(client, typed_topic):
    topic = typed_topic("TRANSACTION")
    group = group_name()
    client.call("simple", name=group, group=group, topic=topic)
    halves = {body: client.call("begin", topic=topic, body=body)["message_id"] for body in ("dropped", "kept")}
    client.call("rollback", message=halves["dropped"])
    client.call("commit", message=halves["kept"])
    (got,) = receive(client, group, 1)
    assert (got["id"], got["body"]) == (halves["kept"], "kept")
    assert client.call("receive", name=group) in ([], None)


def test_an_orphaned_transaction_is_recovered_by_another_producer_at_another_proxy(grpc_client, proxies, typed_topic):
    topic = typed_topic("TRANSACTION")
    lost, other = grpc_client(proxies[0].address), grpc_client(proxies[1].address)
    group = group_name()
    other.call("simple", name=group, group=group, topic=topic)
    half = lost.call("begin", topic=topic, body="orphan")["message_id"]
    lost.kill()
    other.call("commit", message=other.call("begin", topic=topic, body="its own")["message_id"])  # starts its producer
    got = {message["body"]: message["id"] for message in receive(other, group, 2)}
    assert got["orphan"] == half
    assert "orphan" in other.checked


@having("push")
def test_messages_of_a_group_come_in_their_order_through_failures(client, quick_group, typed_topic):
    topic, group = typed_topic("FIFO"), group_name()
    with SyncAdmin(quick_group.namesrv) as admin:
        admin.create_group(SubscriptionGroupConfig(group, consume_message_orderly=True))
    client.call("push", name=group, group=group, topic=topic, fails={"a2": 2})
    for body in (f"{name}{number}" for number in range(5) for name in "ab"):
        client.call("send", topic=topic, body=body, group=body[0])
    wanted = {f"{name}{number}" for number in range(5) for name in "ab"}
    client.wait_for(
        lambda: set(client.bodies(group)) >= wanted and client.bodies(group).count("a2") == 3,
        "not all came",
        timeout=SECONDS,
    )
    for name in "ab":
        order = list(dict.fromkeys(body for body in client.bodies(group) if body[0] == name))
        assert order == [f"{name}{number}" for number in range(5)]


@pytest.mark.long
def test_a_simple_consumer_of_a_group_in_order_gets_each_message_group_in_its_order(client, quick_group, typed_topic):
    topic, group = typed_topic("FIFO"), group_name()
    with SyncAdmin(quick_group.namesrv) as admin:
        admin.create_group(SubscriptionGroupConfig(group, consume_message_orderly=True))
    client.call("simple", name=group, group=group, topic=topic)
    sent = [f"{name}{number}" for number in range(5) for name in "ab"]
    for body in sent:
        client.call("send", topic=topic, body=body, group=body[0])
    got = receive(client, group, len(sent))
    for name in "ab":
        assert [one["body"] for one in got if one["group"] == name] == [body for body in sent if body[0] == name]


@having("push")
def test_a_message_that_fails_too_often_is_a_dead_letter(client, quick_group, typed_topic):
    topic, group = typed_topic("NORMAL"), group_name()
    with SyncAdmin(quick_group.namesrv) as admin:
        admin.create_group(SubscriptionGroupConfig(group, retry_max_times=1))
    client.call("push", name=group, group=group, topic=topic, fails={"bad": 100})
    client.call("send", topic=topic, body="bad")
    client.wait_for(lambda: client.bodies(group).count("bad") == 2, "not delivered twice", timeout=SECONDS)

    def dead_letters():
        with SyncAdmin(quick_group.namesrv) as admin:
            if f"%DLQ%{group}" not in admin.topics(include_system=True):
                return []
        return [message.body for message in stored_messages(quick_group, f"%DLQ%{group}")]

    assert wait_until(lambda: dead_letters() == [b"bad"], SECONDS)
    assert client.bodies(group).count("bad") == 2


@having("push")
def test_a_push_consumer_gets_what_other_clients_send_and_operators_see_it(
    client, grpc_program, quick_group, typed_topic
):
    topic, group = typed_topic("NORMAL"), group_name()
    client.call("push", name=group, group=group, topic=topic)
    with SyncProducer(quick_group.namesrv) as producer, SyncAdmin(quick_group.namesrv) as admin:
        assert wait_until(lambda: len(admin.members(group)) == 1, SECONDS)
        for number in range(20):
            producer.send(topic, f"{number}".encode())
        wanted = {str(number) for number in range(20)}
        client.wait_for(lambda: set(client.bodies(group)) == wanted, "not all came", timeout=SECONDS)
        assert sorted(client.bodies(group)) == sorted(wanted)
        (member,) = admin.members(group)
        assert member.address.startswith("127.0.0.1:")
        if grpc_program.client not in (NODE, GO):  # Node's ends only with its long poll, Go's announces no end
            client.call("stop", name=group)
            assert wait_until(lambda: admin.members(group) == [], SECONDS)


@having("push")
@pytest.mark.long
def test_sends_and_deliveries_go_on_when_a_leader_is_killed(grpc_client, proxies, quick_group, typed_topic):
    """A leader may die between a pop and its answer: nobody confirms these messages, so they come again after 30 s."""
    topic, group = typed_topic("NORMAL"), group_name()
    client = grpc_client(proxies[0].address)
    client.call("push", name=group, group=group, topic=topic)
    client.begin("stream", topic=topic, prefix="m", count=100_000, pause_ms=20)
    client.wait_for(lambda: len(client.sent) >= 20, "no sends")
    killed = quick_group.kill_leader()
    try:
        at_kill = len(client.sent)
        client.wait_for(lambda: len(client.sent) >= at_kill + 20, "no sends after the leader's death", timeout=60)
    finally:
        quick_group.restart(killed)
    client.call("stop_streams")
    client.wait_for(lambda: set(client.bodies(group)) >= client.acknowledged(), "not all came", timeout=3 * SECONDS)
    stored = [message.body.decode() for message in stored_messages(quick_group, topic)]
    assert set(stored) == client.acknowledged()


@having("push")
@pytest.mark.long
def test_sends_and_consumers_go_on_when_a_proxy_is_killed(grpc_client, grpc_program, proxies, quick_group, typed_topic):
    """Node's client cannot be given two addresses, so its proxy has to come back.

    What the proxy has popped and not handed out is not confirmed, and comes again after 30 s.
    """
    topic, group = typed_topic("NORMAL"), group_name()
    knows_both = grpc_program.client != NODE
    client = grpc_client(";".join(proxy.address for proxy in proxies[: 2 if knows_both else 1]))
    client.call("push", name=group, group=group, topic=topic)
    client.begin("stream", topic=topic, prefix="m", count=100_000, pause_ms=20)
    client.wait_for(lambda: len(client.sent) >= 20 and client.bodies(group), "nothing is sent or comes")
    proxies[0].kill()
    try:
        if knows_both:
            at_kill = len(client.sent)
            client.wait_for(lambda: len(client.sent) >= at_kill + 20, "no sends after the proxy's death", timeout=60)
    finally:
        proxies[0].start()
    at_start = len(client.sent)
    client.wait_for(lambda: len(client.sent) >= at_start + 20, "no sends after the proxy's return", timeout=60)
    client.call("stop_streams")
    client.wait_for(lambda: set(client.bodies(group)) >= client.acknowledged(), "not all came", timeout=4 * SECONDS)
    stored = [message.body.decode() for message in stored_messages(quick_group, topic)]
    assert set(stored) == client.acknowledged()


@pytest.mark.long
def test_a_simple_consumer_gets_all_that_was_acknowledged_through_the_death_of_a_leader_and_of_a_proxy(
    grpc_client, grpc_program, proxies, quick_group, typed_topic
):
    """Node's client cannot be given two addresses, so its proxy has to come back."""
    topic, group = typed_topic("NORMAL"), group_name()
    knows_both = grpc_program.client != NODE
    client = grpc_client(";".join(proxy.address for proxy in proxies[: 2 if knows_both else 1]))
    client.call("simple", name=group, group=group, topic=topic)
    client.begin("stream", topic=topic, prefix="m", count=100_000, pause_ms=20)
    got = set()
    receive_until(client, group, got, lambda: len(got) >= 20)
    killed = quick_group.kill_leader()
    try:
        at_kill = len(client.sent)
        receive_until(client, group, got, lambda: len(client.sent) >= at_kill + 20)
    finally:
        quick_group.restart(killed)
    proxies[0].kill()
    try:
        at_kill = len(client.sent)
        if knows_both:
            receive_until(client, group, got, lambda: len(client.sent) >= at_kill + 20)
    finally:
        proxies[0].start()
    at_start = len(client.sent)
    receive_until(client, group, got, lambda: len(client.sent) >= at_start + 20)
    client.call("stop_streams")
    receive_until(client, group, got, lambda: got >= client.acknowledged())
    stored = [message.body.decode() for message in stored_messages(quick_group, topic)]
    assert set(stored) == client.acknowledged()


def receive_until(client, name, got, condition):
    """Receive and acknowledge through failures until a condition holds. Adds the bodies to `got`."""
    deadline = time.monotonic() + 3 * SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{len(got)} received, {len(client.sent)} sent: {client.errors()}"
        try:
            for message in client.call("receive", name=name):
                client.call("ack", name=name, message=message["id"])
                got.add(message["body"])
        except StockClientError as error:
            logging.getLogger(__name__).info("during a failure: %s", error)


@only(PYTHON)
def test_the_first_example_of_the_guide_sends_a_message(grpc_program, proxies, quick_group):
    """It needs nothing but Python's client and the proxy."""
    create_topic(quick_group, "greetings", "NORMAL")
    example = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)[0]
    assert len(example.splitlines()) <= 15
    program = example.replace("127.0.0.1:8081", proxies[0].address)
    done = subprocess.run(
        [grpc_program.command[0], "-c", program], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    (stored,) = stored_messages(quick_group, "greetings")
    assert (stored.body, stored.message_id) == (b"hello", done.stdout.strip())

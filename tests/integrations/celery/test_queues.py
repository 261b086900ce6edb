"""Queues of kombu on a real cluster: deliveries, delays, priorities, dead letters and purges."""

import asyncio
import time
from contextlib import contextmanager

import pytest
from celery_clusters import closing, connect, url_of
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import ChannelError, OperationalError

from dledger_client import AccessRule, AccountAdmin, Credentials, SyncAdmin, SyncConsumer, SyncProducer
from dledger_client.testing import LocalCluster, local_cluster_fixture
from tests.conformance.guarded_groups import APP, GUARDED, ROOT_ACCOUNT, STRANGER, TOPIC, issue_tls, make_accounts
from tests.waiting import wait_until

WITHIN_S = 30.0

__all__ = ["closing", "connect"]

ACCOUNT = ROOT_ACCOUNT
"""All queues are those of a cluster with access control."""

SENDER = Credentials("sender", "secret-of-sender")
"""An account that may use a topic, and no group."""

cluster = local_cluster_fixture(nodes=1, config=GUARDED)


@pytest.fixture(scope="module")
def accounts(cluster):
    """Make an account that may use one topic, and an account that may do nothing."""
    make_accounts(cluster.namesrv)

    async def prepare():
        async with AccountAdmin(cluster.namesrv, ROOT_ACCOUNT) as admin:
            await admin.create(SENDER.access_key, SENDER.secret)
            await admin.grant(SENDER.access_key, AccessRule(f"Topic:{TOPIC}", ("Pub", "Sub", "Get")))

    asyncio.run(prepare())


@pytest.fixture
def connection(connect):
    return connect()


@pytest.fixture
def name(request):
    return f"{request.node.name}.queue"


@contextmanager
def received(connection, *queues, prefetch=0, no_ack=False):
    """Consume queues, and yield the list of their messages, with a function that waits for a number of them."""
    messages = []
    channel = connection.channel()
    channel.basic_qos(0, prefetch, False)
    consumer = Consumer(channel, list(queues), on_message=messages.append, no_ack=no_ack, auto_declare=True)

    def wait_for(count):
        deadline = time.monotonic() + WITHIN_S
        while len(messages) < count:
            connection.drain_events(timeout=max(0.0, deadline - time.monotonic()))
        return [message.payload for message in messages]

    with channel, consumer:
        yield messages, wait_for


def nothing_comes(connection, seconds=0.0):
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=seconds)
    return True


def size(connection, name):
    return connection.default_channel.queue_declare(name, passive=True).message_count


def test_a_message_is_acknowledged_given_back_or_finished(connection, name):
    queue = connection.SimpleQueue(name)
    for number in range(3):
        queue.put(number)
    assert size(connection, name) == 3
    messages = [queue.get(timeout=WITHIN_S) for _ in range(3)]
    assert not any(message.delivery_info["redelivered"] for message in messages)
    messages[0].ack()
    messages[1].reject()
    messages[2].reject(requeue=True)
    again = queue.get(timeout=WITHIN_S)
    assert again.payload == messages[2].payload
    assert (again.delivery_info["redelivered"], again.delivery_info["deliveries"]) == (True, 2)
    again.ack()
    wait_until(lambda: size(connection, name) == 0)  # all are finished


def test_a_message_is_hidden_while_it_is_worked_on_and_comes_again_after_a_crash(connect, name):
    connection, other = connect(visibility_timeout=3), connect()
    connection.SimpleQueue(name).put("work")
    message = connection.default_channel.basic_get(name)
    began = time.monotonic()
    other_queue = other.SimpleQueue(name)
    with pytest.raises(other_queue.Empty):
        other_queue.get(timeout=5)
    assert time.monotonic() - began > 4, "longer than the visibility timeout"
    connection.transport.link._opened.blocking.stop()  # as a crash: nothing is given back
    assert other_queue.get(timeout=WITHIN_S).payload == message.payload


def test_what_a_closed_channel_has_not_acknowledged_goes_back_at_once(connect, connection, name):
    with connect(visibility_timeout=600) as first:
        with received(first, Queue(name), prefetch=2) as (messages, wait_for):
            first.SimpleQueue(name).put("one")
            first.SimpleQueue(name).put("two")
            wait_for(2)
            messages[0].ack()
            left = messages[1].payload
    assert connection.SimpleQueue(name).get(timeout=WITHIN_S).payload == left


def test_no_more_messages_are_in_work_than_the_prefetch_limit(connection, name):
    with received(connection, Queue(name), prefetch=2) as (messages, wait_for):
        queue = connection.SimpleQueue(name)
        for number in range(5):
            queue.put(number)
        wait_for(2)
        assert nothing_comes(connection, 1.0)
        messages[0].ack()
        wait_for(3)
        assert nothing_comes(connection)
        for message in messages[1:]:
            message.ack()
        wait_for(5)
        for message in messages[3:]:
            message.ack()


def test_messages_without_acknowledgements_are_finished_as_they_come(connection, name):
    queue = connection.SimpleQueue(name, no_ack=True)
    queue.put("once")
    assert queue.get(timeout=WITHIN_S).payload == "once"
    wait_until(lambda: size(connection, name) == 0)  # it is finished


def test_messages_of_several_queues_come_in_turn(connection, name):
    queues = [Queue(f"{name}.{number}") for number in range(3)]
    for queue in queues:
        for _ in range(2):
            connection.SimpleQueue(queue.name).put(queue.name)
    with received(connection, *queues, prefetch=1) as (messages, wait_for):
        for count in range(1, 7):
            wait_for(count)
            messages[-1].ack()
    names = [message.payload for message in messages]
    assert len(set(names[:3])) == 3
    assert sorted(names) == sorted(2 * [queue.name for queue in queues])


def test_higher_priorities_come_first(connection, name):
    queue = Queue(name, max_priority=9)
    with connection.channel() as channel:
        producer = Producer(channel)
        for priority in (0, 5, 9, 1, 12):
            producer.publish(priority, routing_key=name, declare=[queue], priority=priority)
    with received(connection, queue, prefetch=1) as (messages, wait_for):
        for count in range(1, 6):
            wait_for(count)
            messages[-1].ack()
    assert sorted(message.payload for message in messages[:2]) == [9, 12]
    assert [message.payload for message in messages[2:]] == [5, 1, 0]


def test_a_message_with_an_eta_waits_at_the_broker(connection, name):
    queue = connection.SimpleQueue(name)
    due = time.time() + 1.5
    eta = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(due)) + f"{due % 1:.6f}"[1:] + "+00:00"
    queue.put("later", headers={"eta": eta})
    queue.put("now")
    assert queue.get(timeout=WITHIN_S).payload == "now"
    assert size(connection, name) == 1, "the one that is worked on; no worker holds the other"
    assert queue.get(timeout=WITHIN_S).payload == "later"
    assert time.time() >= due - 0.1


def test_an_eta_beyond_the_longest_delay_is_renewed(connect, name, monkeypatch):
    monkeypatch.setattr("dledger_celery.envelopes.HELD_SECONDS", 0.2)
    connection = connect(longest_delay=1)
    queue = connection.SimpleQueue(name)
    due = time.time() + 2.5
    eta = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(due)) + f"{due % 1:.6f}"[1:] + "+00:00"
    queue.put("later", headers={"eta": eta, "task": "t", "id": "1"})
    message = queue.get(timeout=WITHIN_S)
    assert time.time() >= due - 0.3
    assert not message.delivery_info["redelivered"]
    message.ack()
    wait_until(lambda: size(connection, name) == 0)  # no copy is left


def test_a_delay_that_the_brokers_refuse_is_refused_at_the_send(connect, name):
    connection = connect(longest_delay=400_000)
    headers = {"eta": "2200-01-01T00:00:00+00:00"}
    with pytest.raises(ChannelError, match=r"the limit is 259200 s.*set the transport option longest_delay"):
        connection.SimpleQueue(name).put("later", headers=headers)


def test_a_task_that_is_sent_again_is_stored_once_and_its_retry_too(connect, connection, name):
    for retries in (0, 0, 1, 1):
        other = connect()
        headers = {"task": "t", "id": "one", "retries": retries}
        other.SimpleQueue(name).put("x", headers=headers)
    assert size(connection, name) == 2
    connection.SimpleQueue(name).put("y", headers={"task": "t", "id": "one", "retries": 0})
    assert size(connection, name) == 3, "another content is another message"
    with connect(idempotent=False) as careless:
        careless.SimpleQueue(name).put("x", headers={"task": "t", "id": "one", "retries": 0})
    assert size(connection, name) == 4


def test_a_message_is_a_dead_letter_after_its_last_delivery(connect, cluster, name):
    connection = connect(max_deliveries=2)
    queue = connection.SimpleQueue(name)
    queue.put("poison", headers={"task": "t", "id": "the-task"})
    for _ in range(2):
        queue.get(timeout=WITHIN_S).reject(requeue=True)
    group = connection.transport.link.settings.names.group(name)
    with SyncConsumer(cluster.namesrv, "readers-of-dead-letters", {f"%DLQ%{group}": "*"}, credentials=ACCOUNT) as dead:
        (letter,) = dead.receive(1, timeout=WITHIN_S)
    assert letter.keys == ("the-task",)
    with pytest.raises(queue.Empty):
        queue.get(timeout=1.5)


def test_a_foreign_message_ends_no_loop_and_becomes_a_dead_letter(connect, cluster, name, caplog):
    connection = connect(max_deliveries=1)
    queue = connection.SimpleQueue(name)
    queue.put("before")
    topic = connection.transport.link.settings.names.topic(name)
    with SyncProducer(cluster.namesrv, credentials=ACCOUNT) as producer:
        producer.send(topic, b"not of kombu")
    queue.put("after")
    found = [queue.get(timeout=WITHIN_S) for _ in range(2)]
    assert {message.payload for message in found} == {"before", "after"}
    for message in found:
        message.ack()
    with SyncConsumer(cluster.namesrv, "readers-of-foreign", {f"%DLQ%{topic}": "*"}, credentials=ACCOUNT) as dead:
        assert dead.receive(1, timeout=WITHIN_S)[0].body == b"not of kombu"
    assert "is given back, in the end to the dead letters" in caplog.text


def test_a_rejected_message_goes_where_its_queue_says(connection, name):
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}.dead"}
    with received(connection, Queue(name, queue_arguments=arguments)) as (messages, wait_for):
        connection.SimpleQueue(name, queue_args=arguments).put("bad")
        wait_for(1)
        messages[0].reject()
        assert connection.SimpleQueue(f"{name}.dead").get(timeout=WITHIN_S).payload == "bad"
    assert size(connection, name) == 0


def test_a_purge_skips_what_waits_and_what_comes_again(connection, name):
    channel, queue = connection.default_channel, connection.SimpleQueue(name)
    for number in range(3):
        queue.put(number)
    channel.basic_get(name).reject(requeue=True)
    assert queue.clear() == 3
    assert size(connection, name) == 0
    queue.put("new")
    assert queue.get(timeout=WITHIN_S).payload == "new"
    with pytest.raises(queue.Empty):
        queue.get(timeout=1.5)


def test_a_deleted_queue_leaves_nothing(cluster, connection, name):
    queue = Queue(name, max_priority=1, channel=connection.default_channel)
    queue.declare()
    connection.SimpleQueue(name).put("x")
    connection.SimpleQueue(name).get(timeout=WITHIN_S).reject(requeue=True)
    connection.SimpleQueue(name).get(timeout=WITHIN_S)
    topic = connection.transport.link.settings.names.topic(name)
    with SyncAdmin(cluster.namesrv, credentials=ACCOUNT) as admin:
        assert [found for found in admin.topics() if topic in found]
        assert queue.delete(if_unused=True) is None
        assert topic in admin.topics(), "nobody knows who else reads it"
        queue.delete()
        assert [found for found in admin.topics() if topic in found and not found.startswith("%RETRY%")] == []
        assert topic not in admin.groups()
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        size(connection, name)


def test_an_exchange_routes_to_the_queues_that_are_declared_here(connection, name):
    exchange = Exchange(name, type="topic")
    queues = [Queue(f"{name}.{key}", exchange, routing_key=key) for key in ("a.*", "#")]
    producer = Producer(connection.default_channel, exchange)
    producer.publish("both", routing_key="a.b", declare=[*queues])
    producer.publish("one", routing_key="b", declare=[*queues])
    assert [size(connection, queue.name) for queue in queues] == [1, 2]
    with pytest.raises(ChannelError, match="no queue is bound here"):
        producer.publish("lost", exchange="unknown", routing_key="x")


def test_a_group_that_an_account_may_not_use_ends_the_wait_for_messages(accounts, connect):
    with connect(SENDER) as connection:
        queue = connection.SimpleQueue(TOPIC)
        queue.put("a sender needs no right to the group")
        with pytest.raises(ChannelError, match="no permission to access Group"):
            queue.get(timeout=WITHIN_S)
        queue.close()


def test_an_account_needs_only_the_rights_of_the_page_and_no_error_shows_a_secret(accounts, connect, caplog):
    with connect(APP) as connection:
        queue = connection.SimpleQueue(TOPIC)
        queue.put("allowed")
        queue.get(timeout=WITHIN_S).ack()
        with pytest.raises(ChannelError, match="no permission") as refused:
            connection.SimpleQueue("not-mine")
    assert APP.secret not in str(refused.value)
    with connect(STRANGER) as connection, pytest.raises(ChannelError, match="no permission") as refused:
        connection.SimpleQueue(TOPIC).put("refused")
    assert STRANGER.secret not in str(refused.value) + caplog.text


@pytest.mark.long
def test_a_connection_may_use_tls_and_an_account(tmp_path):
    own, peers = issue_tls(tmp_path)
    with LocalCluster(nodes=1, config=f"{own}{peers}{GUARDED}{own}") as secured:
        secured_url = url_of(secured, ROOT_ACCOUNT).replace("dledger://", "dledgers://")
        with Connection(
            f"{secured_url}shop", transport_options={"tls": {"ca_file": f"{tmp_path}/ca.pem"}}
        ) as connection:
            queue = connection.SimpleQueue("encrypted")
            queue.put("x")
            assert queue.get(timeout=WITHIN_S).payload == "x"
            queue.clear()
        with Connection(secured_url, transport_options={"timeout": 2}) as connection:
            with pytest.raises(ChannelError, match="certificate"):
                connection.connect()


def test_a_dead_cluster_is_one_line_for_senders():
    with Connection("dledger://127.0.0.1:1", transport_options={"timeout": 0.5}) as connection:
        with pytest.raises(OperationalError, match=r"no name server of 127\.0\.0\.1:1 answered") as failed:
            connection.ensure_connection(max_retries=1, interval_start=0)
        assert "\n" not in str(failed.value)


def test_what_a_cancelled_consumer_has_not_taken_goes_back_while_its_work_goes_on(connect, name):
    connection = connect(visibility_timeout=600)
    queue = connection.SimpleQueue(name)
    for number in range(4):
        queue.put(number)
    first = queue.get(timeout=WITHIN_S)
    wait_until(lambda: len(connection.transport.link.inbox._items) == 3)  # the others are fetched
    queue.consumer.cancel()
    other = connect().SimpleQueue(name)
    assert sorted(other.get(timeout=WITHIN_S).payload for _ in range(3)) == sorted({0, 1, 2, 3} - {first.payload})
    first.ack()

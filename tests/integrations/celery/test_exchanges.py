"""Exchanges of kombu on a real cluster: every reader gets what goes to all, and readers that are gone leave nothing."""

import os
import signal
import threading
from contextlib import closing as closed_after

import pytest
from celery_clusters import closing, connect, url_of
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.common import Broadcast
from kombu.exceptions import ChannelError
from kombu.pidbox import Mailbox

from dledger_client import SyncAdmin

__all__ = ["closing", "connect"]

WITHIN_S = 20.0


def topics_and_groups(cluster):
    with SyncAdmin(cluster.namesrv) as admin:
        return {*admin.topics()}, {*admin.groups()}


def drain(connection, messages, count):
    while len(messages) < count:
        connection.drain_events(timeout=WITHIN_S)
    return [message.payload for message in messages]


def test_every_queue_of_a_fanout_exchange_gets_every_message_from_its_declaration_on(connect):
    exchange, readers = Exchange("news", type="fanout"), []
    sender = connect()
    producer = Producer(sender.default_channel, exchange)
    producer.publish("before")
    for _ in range(2):
        messages, reader = [], connect()
        consumer = Consumer(reader, [Broadcast(queue=None, exchange=exchange)], on_message=messages.append)
        readers.append((reader, messages, consumer))
    for number in range(3):
        producer.publish(number)
    for reader, messages, consumer in readers:
        consumer.consume()  # what came before is kept
        assert drain(reader, messages, 3) == [0, 1, 2]
        messages[0].ack()  # has nothing to do
        messages[1].reject()


def test_a_topic_exchange_of_transient_messages_is_read_by_pattern(connect):
    exchange, reader = Exchange("events", type="topic"), connect()
    queue = Queue("listener", exchange, routing_key="task.#", auto_delete=True)
    messages = []
    with Consumer(reader, [queue], on_message=messages.append, no_ack=True):
        producer = Producer(connect().default_channel, exchange)
        for key in ("worker.online", "task.sent.x", "task.done"):
            producer.publish(key, routing_key=key, delivery_mode=1)
        assert drain(reader, messages, 2) == ["task.sent.x", "task.done"]


def test_a_mailbox_is_answered_and_its_reply_queues_leave_nothing(cluster, connect):
    def make(**options):
        return Mailbox("box", type="fanout", **options)

    nodes = [make()(connect()).Node(f"node-{number}") for number in range(2)]
    consumers = []
    for node in nodes:
        node.handler(lambda state, words, node=node: f"{node.hostname} heard {words}")
        node.handlers["say"] = node.handlers.pop("<lambda>")
        node.channel = node.mailbox.connection.default_channel
        consumers.append(node.listen())
    stop = threading.Event()

    def serve(connection):
        while not stop.is_set():
            try:
                connection.drain_events(timeout=0.05)
            except TimeoutError:
                continue

    threads = [threading.Thread(target=serve, args=(node.mailbox.connection,)) for node in nodes]
    for thread in threads:
        thread.start()
    before = None
    for words in ("one", "two"):
        asker = make()(connect())
        answers = asker.multi_call("say", {"words": words}, timeout=WITHIN_S, limit=2)
        assert sorted(text for answer in answers for text in answer.values()) == [
            f"node-0 heard {words}",
            f"node-1 heard {words}",
        ]
        one = asker.call(["node-1"], "say", {"words": words}, timeout=WITHIN_S)
        assert one == [{"node-1": f"node-1 heard {words}"}]
        asker.connection.release()
        before, previous = topics_and_groups(cluster), before
    stop.set()
    for thread in threads:
        thread.join()
    assert before == previous, "the second asker has left nothing"
    assert {topic for topic in before[0] if "box" in topic} == {"box%2epidbox%X", "reply%2ebox%2epidbox%X"}
    assert not any("box" in group for group in before[1])


def test_a_transient_queue_is_deleted_with_its_last_reader(connect):
    exchange, reader = Exchange("short", type="fanout"), connect()
    queue = Queue("listener", exchange, auto_delete=True)
    channel = reader.default_channel
    with Consumer(reader, [queue], on_message=lambda _: None):
        assert channel.queue_declare("listener", passive=True).message_count == 0
        assert reader.transport.link.broadcasts._readers
    assert not reader.transport.link.broadcasts._readers
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        channel.queue_declare("listener", passive=True)
    assert list(reader.transport.state.queue_bindings("listener")) == []


def test_messages_of_an_unread_transient_queue_are_counted_got_and_purged(connect):
    exchange, reader = Exchange("kept", type="fanout"), connect()
    channel = reader.default_channel
    queue = Queue("keeper", exchange, auto_delete=True, channel=channel)
    queue.declare()
    producer = Producer(connect().default_channel, exchange)
    for number in range(3):
        producer.publish(number)
    while channel.queue_declare("keeper", passive=True).message_count < 3:
        pass
    assert queue.get(no_ack=True).payload == 0
    assert queue.purge() == 2
    assert queue.get() is None


def test_a_durable_queue_of_a_fanout_exchange_is_refused(connect):
    queue = Queue("durable", Exchange("all", type="fanout"), channel=connect().default_channel)
    with pytest.raises(ChannelError, match="queue 'durable' is durable, and cannot be bound to the fanout"):
        queue.declare()


def test_queues_without_an_exchange_cannot_be_transient(connect):
    channel = connect().default_channel
    queue = Queue("replies", exclusive=True)
    with pytest.raises(ChannelError, match="another result_backend than rpc"):
        Consumer(channel, [queue], on_message=print).consume()
    for name in ("replies", "not-declared"):
        with pytest.raises(ChannelError, match="another result_backend than rpc"):
            Producer(channel).publish("x", routing_key=name, delivery_mode=1)


def test_a_forked_process_sends_by_itself_and_takes_nothing_of_its_parent(cluster):
    with closed_after(Connection(url_of(cluster))) as connection:
        queue = connection.SimpleQueue("forked")
        queue.put("taken by the parent")
        message = queue.get(timeout=WITHIN_S)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                message.ack()  # has no effect here
                Producer(connection.default_channel).publish("sent by the child", routing_key="forked")
                os._exit(0 if connection.transport.link.inbox.take(0) is None else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        second = queue.get(timeout=WITHIN_S)
        assert second.payload == "sent by the child"
        assert connection.default_channel.queue_declare("forked", passive=True).message_count == 2, "both in work"
        message.ack()
        second.ack()


def test_a_connection_that_kombu_gives_up_after_a_fork_opens_again_there(cluster):
    with closed_after(Connection(url_of(cluster))) as connection:
        connection.SimpleQueue("pooled").put("x")
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                connection.collect()  # as kombu does after a fork
                assert not connection.connected
                Producer(connection.channel()).publish("y", routing_key="pooled")
                os._exit(0)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert connection.connected
        assert connection.default_channel.queue_declare("pooled", passive=True).message_count == 2


def test_a_closed_connection_says_so(connect):
    connection = connect()
    transport, channel = connection.transport, connection.default_channel
    connection.release()
    with pytest.raises(ConnectionError, match="the connection is closed"):
        transport.link.run(transport.link.broadcasts.close)
    assert channel.closed


def test_a_loop_is_woken_by_a_message_and_rests_without(connect):
    connection = connect()
    inbox = connection.transport.link.inbox
    inbox.deliver("q", {})
    reader = inbox.fileno()
    os.set_blocking(reader, False)
    inbox.deliver("q", {})
    inbox.deliver("other", {})
    assert (inbox.take(0), len(inbox.discard("q"))) == (("q", {}), 1)
    inbox.deliver("q", {})
    assert len(inbox.discard("other")) == 1
    assert len(inbox.discard("q")) == 1
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    inbox.deliver("q", {})
    assert os.read(reader, 1) == b"!"

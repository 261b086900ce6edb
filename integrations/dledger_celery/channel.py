"""Channel of kombu's virtual transports over a cluster.

A durable queue is a topic with a consumer group of the same name, in which messages are popped one by one. Transient
queues read the topics of exchanges (`broadcasts`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.uuid import uuid

from .cluster import MAX_PRIORITY, Cluster
from .deliveries import Deliveries
from .envelopes import TRANSIENT, Payload, Untyped
from .link import Link

NOT_FOUND: Final = (50, 10), "Channel.queue_declare", "404"


class QueueFacts(msgspec.Struct, frozen=True):
    """Declaration of a queue, as its connection knows it."""

    is_transient: bool = False
    max_priority: int = 0
    dead_letter_exchange: str | None = None
    dead_letter_key: str | None = None


class QoS(virtual.QoS):
    """Messages that a channel has handed out. They are settled at the cluster."""

    channel: Channel

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message."""
        self.channel.settle(delivery_tag, Deliveries.acknowledge)
        self._delivered.pop(delivery_tag, None)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give a message back, or finish it; then a copy goes where the queue sends its dead letters."""
        message = self._delivered.pop(delivery_tag, None)
        if requeue:
            self.channel.settle(delivery_tag, Deliveries.requeue)
            return
        if message is not None:
            self.channel.send_dead_letter(message)
        self.channel.settle(delivery_tag, Deliveries.acknowledge)

    def restore_unacked(self) -> list[tuple[BaseException, object]]:
        """Give all messages back that are not acknowledged."""
        while self._delivered:
            tag, _ = self._delivered.popitem()
            self.channel.settle(tag, Deliveries.requeue)
        return []

    def restore_unacked_once(self, stderr: object = None) -> None:
        """Give all messages back, at the end of the channel or of the process."""
        self._on_collect.cancel()
        if self.channel.do_restore:
            self.restore_unacked()


class Channel(virtual.Channel):
    """One channel of a connection. It may be used by one thread; messages may be settled by any."""

    QoS = QoS
    supports_fanout = True

    def __init__(self, connection: Untyped, **kwargs: Untyped) -> None:
        self._link: Link = connection.link
        self._facts_of: dict[str, QueueFacts] = connection.queues
        self._deliveries: tuple[Cluster, Deliveries] | None = None
        self._queue_of: dict[str, str] = {}
        super().__init__(connection, **kwargs)

    # ---------------------------------------------------------------- queues

    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        **kwargs: Untyped,
    ) -> queue_declare_ok_t:
        """Declare a queue, or, if `passive`, return the number of its messages.

        The number is 0 after a declaration that is not passive, which senders make: counting takes requests to all
        leaders, and rights to the group. Raises `ChannelError` if there is no such queue.
        """
        if passive and not self._has_queue(queue or ""):
            raise ChannelError(f"NOT_FOUND - no queue {queue!r} in vhost {self._vhost!r}", *NOT_FOUND)
        if passive:
            return queue_declare_ok_t(queue, self._size(queue or ""), 0)
        queue = queue or f"amq.gen-{uuid()}"
        self._new_queue(queue, **kwargs)
        return queue_declare_ok_t(queue, 0, 0)

    def prepare_queue_arguments(self, arguments: dict[str, Untyped], **kwargs: Untyped) -> dict[str, Untyped]:
        """Return the arguments of a queue by the names that RabbitMQ has for them."""
        named: dict[str, Untyped] = to_rabbitmq_queue_arguments(arguments, **kwargs)
        return named

    def _new_queue(self, queue: str, **kwargs: Untyped) -> None:
        arguments = kwargs.get("arguments") or {}
        max_priority = max(int(arguments.get("x-max-priority") or 0), self._facts(queue).max_priority)
        facts = QueueFacts(
            bool(kwargs.get("exclusive") or kwargs.get("auto_delete")),
            min(max_priority, MAX_PRIORITY),
            arguments.get("x-dead-letter-exchange"),
            arguments.get("x-dead-letter-routing-key"),
        )
        self._facts_of[queue] = facts
        if not facts.is_transient:
            for topic in self._topics(queue):
                self._ensure_topic(topic)

    def _has_queue(self, queue: str, **kwargs: Untyped) -> bool:
        if self._is_transient(queue):
            return self._link.broadcasts.has(queue)
        return bool(queue) and self._link.run(self._link.cluster.has_topic, self._topics(queue)[-1])

    def _size(self, queue: str) -> int:
        link = self._link
        if self._is_transient(queue):
            return link.broadcasts.size(queue)
        return link.run(link.cluster.size, self._group(queue), self._all_topics(queue))

    def _purge(self, queue: str) -> int:
        link = self._link
        if self._is_transient(queue):
            return len(self._drop_undelivered(queue)) + link.call(link.broadcasts.purge, queue)
        return link.run(link.cluster.purge, self._group(queue), self._all_topics(queue))

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Untyped) -> None:
        """Delete a queue with its messages. With `if_unused` a durable one stays: nobody knows who else reads it."""
        link = self._link
        if self._is_transient(queue):
            link.run(link.broadcasts.delete, queue)
        elif if_unused or (if_empty and self._size(queue)):
            return
        else:
            link.run(link.cluster.delete, self._group(queue), self._all_topics(queue))
        self._forget_bindings(queue)
        self._facts_of.pop(queue, None)
        self.connection.client.declared_entities.clear()  # the next sender is to declare it anew

    def _forget_bindings(self, queue: str) -> None:
        for exchange, routing_key, _ in list(self.state.queue_bindings(queue)):
            table = self.state.exchanges.get(exchange, {}).get("table", [])
            table[:] = [row for row in table if row[2] != queue or row[0] != routing_key]
        self.state.queue_bindings_delete(queue)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: Untyped, queue: str) -> None:
        """Bind a queue that kombu has put into the table of the exchange."""
        kind, row = self.typeof(exchange), (routing_key, pattern, queue)
        if self._is_transient(queue):
            self._link.run(
                self._link.broadcasts.bind, queue, exchange, lambda key: bool(kind.lookup([row], exchange, key, None))
            )
        elif kind.type == "fanout":
            self._forget_bindings(queue)
            raise ChannelError(
                f"queue {queue!r} is durable, and cannot be bound to the fanout exchange {exchange!r}: declare it with "
                "auto_delete=True, or send to each queue by its name"
            )

    # ---------------------------------------------------------------- sending

    def basic_publish(self, message: Payload, exchange: str, routing_key: str, **kwargs: Untyped) -> None:
        """Send a message. Returns when a majority has stored it.

        Raises `ChannelError` if no queue is known here that would get it.
        """
        self._inplace_augment_message(message, exchange, routing_key)
        self._route(message, exchange, routing_key)

    def _route(self, message: Payload, exchange: str, routing_key: str) -> None:
        """Send a message, whose body is encoded, to all queues that get it."""
        is_transient = message["properties"].get("delivery_mode") == TRANSIENT
        if not exchange:
            self._publish_to_queue(routing_key, message, is_transient=is_transient)
            return
        queues = [queue for queue in self._lookup(exchange, routing_key) if not self._is_transient(queue)]
        for queue in queues:
            self._put(queue, message)
        known = self.state.exchanges.get(exchange)
        if is_transient or (known is not None and (known["type"] == "fanout" or not known["durable"])):
            self._link.run(self._link.broadcasts.publish, exchange, message)
        elif not queues:
            raise ChannelError(
                f"no queue is bound here to exchange {exchange!r} with the key {routing_key!r}: declare the queue in "
                "the sender, too, or send to the queue by its name"
            )

    def _publish_to_queue(self, queue: str, message: Payload, *, is_transient: bool) -> None:
        if self._is_transient(queue) or (is_transient and queue not in self._facts_of):
            raise ChannelError(
                f"queue {queue!r} is not a durable one that is declared here, and messages come to it only through an "
                "exchange with a name (for results of tasks: choose another result_backend than rpc://)"
            )
        self._put(queue, message)

    def _put(self, queue: str, message: Payload, **kwargs: Untyped) -> None:
        topic = self._link.settings.names.topic(
            queue, min(self._get_message_priority(message), self._facts(queue).max_priority)
        )
        self._ensure_topic(topic)
        self._link.run(self._link.cluster.send, topic, message)

    def send_dead_letter(self, message: Untyped) -> None:
        """Send a copy of a rejected message where its queue's arguments say, if they do."""
        queue = self._queue_of.get(message.delivery_tag, "")
        facts = self._facts(queue)
        if facts.dead_letter_exchange is None and facts.dead_letter_key is None:
            return
        key = facts.dead_letter_key or message.delivery_info.get("routing_key", "")
        exchange, payload = facts.dead_letter_exchange or "", message.serializable()
        payload["properties"]["delivery_info"] = {"exchange": exchange, "routing_key": key}
        self._route(payload, exchange, key)

    # ---------------------------------------------------------------- receiving

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[Untyped], object],
        consumer_tag: str,
        **kwargs: Untyped,
    ) -> None:
        """Begin to deliver messages of a queue. With `no_ack` a message is finished before it is delivered."""
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        link = self._link
        try:
            if not self._is_transient(queue):
                group, topics = self._group(queue), self._topics(queue)
                for topic in topics:
                    self._ensure_topic(topic)
                link.run(link.cluster.ensure_group, group)
                link.run(self.deliveries.consume, queue, group, topics, no_ack=no_ack)
            elif link.broadcasts.has(queue):
                link.call(link.broadcasts.consume, queue)
            else:
                raise ChannelError(
                    f"queue {queue!r} is bound to no exchange with a name, so nothing comes to it (for results of "
                    "tasks: choose another result_backend than rpc://)"
                )
        except BaseException:
            super().basic_cancel(consumer_tag)
            raise

    def basic_cancel(self, consumer_tag: str) -> None:
        """End a consumer. Messages that it has not taken go back; a transient queue is deleted."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is None or queue in self._active_queues or not self._link.is_open:
            return
        if self._is_transient(queue):
            self._drop_undelivered(queue)
            self.queue_delete(queue)
        else:
            self._link.run(self.deliveries.cancel, queue)
            for payload in self._drop_undelivered(queue):
                self.settle(payload["properties"]["delivery_tag"], Deliveries.requeue)

    def takes(self, queue: str) -> bool:
        """Return whether this channel consumes a queue."""
        return queue in self._active_queues

    def take(self, queue: str, payload: Payload) -> None:
        """Hand a message to the consumer of its queue."""
        self.note_queue(payload["properties"]["delivery_tag"], queue)
        if not self.qos.prefetch_count:
            self._link.call_soon(self.deliveries.look_again)
        self.connection._callbacks[queue](payload)  # noqa: SLF001 -- as kombu's own class does

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Untyped) -> Untyped:
        """Return one message of a queue, None if there is none now."""
        link = self._link
        if self._is_transient(queue):
            payload = link.call(link.broadcasts.get, queue)
        else:
            payload = link.run(self.deliveries.get, queue, self._group(queue), self._topics(queue), no_ack=no_ack)
        if payload is None:
            return None
        message = self.Message(payload, channel=self)
        self.note_queue(message.delivery_tag, queue)
        if not no_ack:
            self.qos.append(message, message.delivery_tag)
        return message

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Limit the number of messages that are delivered and not settled; 0: no limit."""
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self._link.call(self.deliveries.set_limit, prefetch_count)

    def settle(self, delivery_tag: str, settle: Callable[[Deliveries, str], None]) -> None:
        """Settle a message in the background, from any thread."""
        self._queue_of.pop(delivery_tag, None)
        if self._deliveries is not None:
            self._link.call_soon(settle, self._deliveries[1], delivery_tag)

    def note_queue(self, delivery_tag: str, queue: str) -> None:
        """Remember from which queue a message came."""
        if self._facts(queue).dead_letter_exchange is not None or self._facts(queue).dead_letter_key is not None:
            self._queue_of[delivery_tag] = queue

    @property
    def deliveries(self) -> Deliveries:
        """The deliveries of this channel in this process."""
        cluster = self._link.cluster
        if self._deliveries is None or self._deliveries[0] is not cluster:
            self._deliveries = cluster, Deliveries(cluster, self._link.inbox)
        return self._deliveries[1]

    def close(self) -> None:
        """Close the channel. Messages that are not acknowledged go back, once those under way are settled."""
        if self.closed:
            return
        super().close()
        if self._deliveries is not None and self._link.is_open:
            self._link.run(self._deliveries[1].close)
        self._deliveries = None

    # ---------------------------------------------------------------- names

    @property
    def _vhost(self) -> str:
        return self._link.settings.names.virtual_host or "/"

    def _facts(self, queue: str) -> QueueFacts:
        return self._facts_of.get(queue) or QueueFacts()

    def _is_transient(self, queue: str) -> bool:
        return self._facts(queue).is_transient

    def _group(self, queue: str) -> str:
        return self._link.settings.names.group(queue)

    def _topics(self, queue: str) -> list[str]:
        """Return the topics of a queue, that of its highest priority first."""
        return self._all_topics(queue, self._facts(queue).max_priority)

    def _all_topics(self, queue: str, max_priority: int = MAX_PRIORITY) -> list[str]:
        """Return the topics that a queue may have: somebody else may have declared it with priorities."""
        names = self._link.settings.names
        return [names.topic(queue, priority) for priority in range(max_priority, -1, -1)]

    def _ensure_topic(self, topic: str) -> None:
        self._link.run(self._link.cluster.ensure_topic, topic, self._link.settings.topic_queues)

    def _drop_undelivered(self, queue: str) -> list[Payload]:
        return self._link.inbox.discard(queue)

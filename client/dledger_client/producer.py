"""Producer of messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Final, Generic, Self

import msgspec

from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import IllegalOperation, InvalidParameter
from dledger_remoting.headers import RecallMessageHeader, UnregisterClientHeader, encode_ext
from dledger_remoting.heartbeat import HeartbeatData, ProducerData
from dledger_remoting.properties import CORRELATION_ID, parse_properties
from dledger_remoting.recalls import RecallHandle
from dledger_remoting.signatures import Credentials
from dledger_remoting.topics import HALF_TOPIC, validate_group
from dledger_remoting.traces import DEFAULT_REGION, RecallTrace, Trace

from . import interception
from .arguments import above_zero, at_least, checked
from .cluster.connection import Connection
from .cluster.core import ClientCore, new_client_id
from .cluster.nameservers import parse_addresses
from .cluster.surroundings import wall_ms
from .errors import ClientClosedError, InvalidArgumentError
from .interception import Caller, ReceiveCall, SendCall, SendOperation
from .messages import Codec, Message, MessageQueue, ReceivedMessage, T, encoded, message_of
from .namespaces import Namespace
from .replies import Reply, RequestsThatWait, asked_by, in_time, pass_reply_on
from .results import SendResult
from .sending.batches import encoded_batch, parts_of, results_of
from .sending.deliveries import Deliveries
from .sending.lanes import refuse_two_choices
from .sending.outgoing import COMPRESS_OVER_BYTES, MAX_BATCH_BYTES, OutgoingEncoder, validate_destination
from .sending.sender import Sender
from .sending.tracing import DEFAULT_MAX_TRACES, tracer
from .sending.window import CallsUnderWay, InFlightWindow
from .tls import Tls

DEFAULT_TIMEOUT_SECONDS: Final = 10.0
"""Default time limit of a call in seconds. A group replaces its leader in less: a failover is a delay, no error."""

ATTEMPT_TIMEOUT_SECONDS: Final = 3.0


@checked
class Producer(Generic[T]):
    """Sends messages to the leaders of a topic's broker groups. Use it as an async context manager.

        async with Producer("127.0.0.1:9876", group="PG") as producer:
            result = await producer.send("orders", b"body", key="order-17")

    Every call has one deadline, `timeout` seconds after its start, over all its attempts. Until then it tries again
    after refusals that may pass, for example of a node that is busy or does not lead. The outcome of an attempt is
    unknown if the connection was lost, or no answer came within `attempt_timeout`. Such an attempt is repeated only
    with `retry_unknown`, and may then store the message twice: delivery is *at least once*, as with RocketMQ. With
    `retry_unknown=False` it is *at most once*: the call raises a `SendError` whose `outcome` is `"unknown"`. With
    `retry_busy=False`, a refusal by a busy node or a quota is raised at once, for callers that slow down by themselves.

    With `idempotent`, for all sends or a single send, the broker group answers a repeated attempt as it answered
    the first, and stores nothing again. Attempts of unknown outcome are then always repeated, to the same broker group.
    A message is stored *exactly once*, while the group remembers it (`idempotent_window_ms`, two minutes). A program
    that may run again names its messages itself, by `unique_key`: the same key, body and properties are the same
    message.

    An `ordering_key`, or the `unique_key` of an idempotent send, leads to the same queue while the topic keeps its
    queues. While the queue's broker group is absent, sends wait for it. With several broker groups the topic must exist
    before: a topic that sends create gets its queues group by group.

    At most `max_in_flight` requests and `max_in_flight_bytes` bytes are under way; further sends wait. Bodies larger
    than `compress_over_bytes` are compressed (None: never), except in batches. Many sends may run at the same time,
    from one event loop. Topics and `group` are names within `namespace`, if there is one; results have the names that
    brokers know.

    With `trace`, the fate of each message is written to the topic `RMQ_SYS_TRACE_TOPIC`, or to the topic that `trace`
    names, for `Admin.message_trace`. Traces neither delay nor fail a send. At most `max_traces` traces wait;
    `traces_dropped` counts those that do not fit or cannot be sent. One-way sends leave no trace.

    Bodies are bytes. With a `codec` they are values, of which it makes the bytes (`dledger_client.codecs`).
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        group: str = "DEFAULT_PRODUCER",
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        attempt_timeout: float = ATTEMPT_TIMEOUT_SECONDS,
        retry_unknown: bool = True,
        retry_busy: bool = True,
        idempotent: bool = False,
        compress_over_bytes: int | None = COMPRESS_OVER_BYTES,
        max_message_bytes: int = 4 * 1024 * 1024,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        max_in_flight: int = 4096,
        max_in_flight_bytes: int = 64 * 1024 * 1024,
        namespace: str | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        client_id: str | None = None,
        trace: bool | str = False,
        max_traces: int = DEFAULT_MAX_TRACES,
        codec: Codec[T] | None = None,
    ) -> None:
        self._namespace = Namespace.named(namespace)
        self._credentials = credentials
        self._tls = tls
        try:
            validate_group(group)
        except InvalidParameter as error:
            raise InvalidArgumentError(error.remark) from error
        above_zero(timeout=timeout, attempt_timeout=attempt_timeout)
        at_least(1, max_in_flight=max_in_flight, max_in_flight_bytes=max_in_flight_bytes)
        at_least(1, max_message_bytes=max_message_bytes, max_batch_bytes=max_batch_bytes)
        at_least(0, compress_over_bytes=compress_over_bytes)
        self._name_servers = parse_addresses(name_servers)
        self._group = self._namespace.full(group)
        self._timeout = timeout
        self._attempt_timeout = attempt_timeout
        self._retry_unknown = retry_unknown
        self._retry_busy = retry_busy
        self._idempotent = idempotent
        self._client_id = client_id or new_client_id()
        self._caller = Caller(self._client_id, group, namespace or "", self._name_servers)
        self._encoder = OutgoingEncoder(
            compress_over_bytes=compress_over_bytes,
            max_message_bytes=max_message_bytes,
            max_batch_bytes=max_batch_bytes,
            instance_id=namespace,
        )
        self._codec = codec
        self._tracer = tracer(trace, max_traces)
        self._window = InFlightWindow(max_in_flight, max_in_flight_bytes)
        self._calls = CallsUnderWay()
        self._closing = False
        self._pending_requests = RequestsThatWait()
        self._check_handler: Callable[[Connection, RemotingCommand], None] | None = None
        self._core: ClientCore | None = None
        self._deliveries: Deliveries | None = None

    async def start(self) -> None:
        """Begin to keep routes up to date. No name server needs to be there yet."""
        if self._core is not None:
            raise ClientClosedError("the producer has been started before; make another one")
        self._core = ClientCore(
            self._name_servers,
            client_id=self._client_id,
            heartbeat=self._heartbeat,
            on_request=self._on_request,
            credentials=self._credentials,
            tls=self._tls,
        )
        sender = Sender(
            self._core,
            self._group,
            attempt_timeout=self._attempt_timeout,
            retry_unknown=self._retry_unknown,
            retry_busy=self._retry_busy,
        )
        self._deliveries = Deliveries(self._core, sender, self._window, self._group, self._tracer)
        self._core.start()
        if self._tracer is not None:
            self._tracer.start(self._core)
        if self._check_handler is not None:
            # Every broker group has this topic. By following its route, a producer and all groups know each other, even
            # before its first send.
            self._core.routes.keep(HALF_TOPIC)

    async def close(self) -> None:
        """Wait for the sends under way, each of which has its own deadline, then leave the cluster."""
        core, self._closing = self._core, True
        if core is None:
            return
        try:
            await self._calls.ended()
            if self._tracer is not None:
                await self._tracer.close()
            header = UnregisterClientHeader(client_id=core.client_id, producer_group=self._group)
            for connection in core.pool.connections():
                if connection.address not in core.name_servers.addresses:
                    connection.send_oneway(RemotingCommand(RequestCode.UNREGISTER_CLIENT, ext=encode_ext(header)))
        finally:
            await core.close()

    @property
    def traces_dropped(self) -> int:
        """Number of traces that did not fit or could not be sent."""
        return 0 if self._tracer is None else self._tracer.dropped

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def send(
        self,
        topic: str,
        body: T | Message[T],
        *,
        key: str | Iterable[str] | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        ordering_key: str | None = None,
        queue: MessageQueue | None = None,
        unique_key: str | None = None,
        delay_s: float | None = None,
        deliver_at: datetime | int | None = None,
        idempotent: bool | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send one message and wait until a majority of its broker group has stored it.

        `body` may be a `Message`, which holds the other arguments itself. Messages with the same `ordering_key` go to
        the same queue, one after another. They keep the order of the calls even when attempts are repeated. `queue`
        picks a queue of the topic itself, and is refused beside an `ordering_key`. Without either, queues are taken in
        turn. A message for later, with `delay_s` or `deliver_at`, can be recalled until then (`recall`). A `key` with
        blanks is several keys, as with RocketMQ. `unique_key` replaces the key that the client makes for every message.
        An `idempotent` send with a `unique_key` goes to the queue that follows from it, unless another is picked.

        Raises `InvalidArgumentError` before anything is sent, and `SendError`, whose `outcome` says whether the message
        may have been stored.
        """
        with self._calls:
            arguments = Message(b"", key, tags, properties, unique_key, delay_s, deliver_at, ordering_key)
            message = encoded(message_of(body, arguments), self._codec)
            deadline = self._deadline(timeout)
            topic = self._resolve_topic(topic, queue)
            is_idempotent = self._idempotent if idempotent is None else idempotent
            refuse_two_choices(queue, [message.ordering_key])
            if (around := interception.interceptor) is None:
                return (await self._send_one(topic, queue, deadline, is_idempotent, [message]))[0]
            call = self._call("send", topic, [message], idempotent=is_idempotent)
            send = partial(self._send_one, topic, queue, deadline, is_idempotent)
            return (await interception.send(around, call, send))[0]

    async def _send_one(
        self, topic: str, queue: MessageQueue | None, deadline: float, is_idempotent: bool, messages: Sequence[Message]
    ) -> list[SendResult]:
        """Send a single message."""
        (message,) = messages
        outgoing = self._encoder.encode(topic, message, idempotent=is_idempotent)
        _, deliveries = self._require_started()
        if message.ordering_key is not None:
            return await deliveries.send_in_lane([outgoing], topic, message.ordering_key, deadline)
        choose = deliveries.choice(queue, message.unique_key if is_idempotent else None)
        return await deliveries.send(outgoing, choose, deadline)

    async def send_batch(
        self,
        topic: str,
        messages: Sequence[T | Message[T]],
        *,
        ordering_key: str | None = None,
        queue: MessageQueue | None = None,
        idempotent: bool | None = None,
        timeout: float | None = None,
    ) -> list[SendResult]:
        """Send messages to one queue in their order, many times faster than one by one. Returns one result per message.

        Messages that have an `ordering_key` of their own go to its queue; `queue` is refused beside such messages. A
        message for later gets a request of its own.

        Messages that do not fit into one request of `max_batch_bytes` go in several, one after another. Each request is
        stored as a whole or not at all. An idempotent batch repeats another one if all its messages are the same, in
        the same order. Its first message's `unique_key`, if there is one, determines its queue. Raises the errors of
        `send`; `SendError.stored` has the results of the messages acknowledged before.
        """
        with self._calls:
            bodies = encoded_batch(messages, self._codec)
            deadline = self._deadline(timeout)
            topic = self._resolve_topic(topic, queue)
            is_idempotent = self._idempotent if idempotent is None else idempotent
            send = partial(self._send_batch, topic, queue, deadline, is_idempotent, ordering_key)
            if (around := interception.interceptor) is None or not bodies:
                return await send(bodies)
            given = [body if isinstance(body, Message) else Message(body) for body in bodies]
            call = self._call("send_batch", topic, given, idempotent=is_idempotent)
            return list(await interception.send(around, call, send))

    async def _send_batch(
        self,
        topic: str,
        queue: MessageQueue | None,
        deadline: float,
        is_idempotent: bool,
        ordering_key: str | None,
        messages: Sequence[Message | bytes],
    ) -> list[SendResult]:
        parts = parts_of(self._encoder, topic, messages, ordering_key, idempotent=is_idempotent)
        refuse_two_choices(queue, [part.ordering_key for part in parts])
        _, deliveries = self._require_started()
        if len(parts) == 1:
            return await deliveries.send_part(topic, parts[0], queue, deadline)
        sends = [deliveries.send_part(topic, part, queue, deadline) for part in parts]
        return results_of(parts, await asyncio.gather(*sends, return_exceptions=True))

    async def recall(self, topic: str, handle: str, *, timeout: float | None = None) -> str:
        """Recall a message that is to be delivered later, by its `SendResult.recall_handle`. Returns its unique key.

        Once this has returned, the message is not delivered any more; a broker of RocketMQ only promises to try. It can
        be called again, also when the outcome is unknown. Raises `RefusedError` with the code 604 if the message is
        delivered, or about to be; `DeadlineError` and `NoRouteError`; `InvalidArgumentError` for a malformed handle.
        """
        with self._calls:
            deadline = self._deadline(timeout)
            core, deliveries = self._require_started()
            sender = deliveries.sender
            try:
                decoded = RecallHandle.decode(handle)
            except IllegalOperation as error:
                raise InvalidArgumentError(error.remark) from error
            topic = self._namespace.full(topic)
            await sender.route(topic, deadline)
            header = RecallMessageHeader(topic, handle, self._group)
            group = core.routes.group(decoded.broker_group)
            answer = await core.call_leader(group, RequestCode.RECALL_MESSAGE, encode_ext(header), deadline=deadline)
            unique_key = answer.ext.get("msgId", decoded.unique_key)
            now_ms = wall_ms()
            self._trace(RecallTrace(now_ms, DEFAULT_REGION, self._group, topic, unique_key, succeeded=True))
            return unique_key

    async def send_oneway(
        self,
        topic: str,
        body: T,
        *,
        key: str | Iterable[str] | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Send one message to a broker without waiting for an answer. It may be lost without notice.

        Waits while the broker reads too slowly. Raises `SendError` if no broker takes the message before the deadline.
        """
        with self._calls:
            message = encoded(Message(body, key, tags, properties), self._codec)
            deadline = self._deadline(timeout)
            topic = self._resolve_topic(topic)
            _, deliveries = self._require_started()

            async def send(messages: Sequence[Message]) -> list[SendResult]:
                await deliveries.send_oneway(self._encoder.encode(topic, messages[0]), deadline)
                return []

            if (around := interception.interceptor) is None:
                await send([message])
            else:
                await interception.send(around, self._call("send_oneway", topic, [message]), send)

    def _set_check_handler(self, handler: Callable[[Connection, RemotingCommand], None]) -> None:
        """Set the handler of brokers' requests, before the start; for producers of transactions."""
        self._check_handler = handler

    async def request(
        self,
        topic: str,
        body: T,
        *,
        key: str | Iterable[str] | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Reply:
        """Send a message and wait for the reply of one of its consumers, `timeout` seconds for both.

        Raises the errors of `send`, and `DeadlineError` with the outcome `"unknown"` if no reply comes in time. The
        message is stored then, and may be worked on later.
        """
        with self._calls:
            message = encoded(Message(body, key, tags, properties), self._codec)
            deadline = self._deadline(timeout)
            core, _ = self._require_started()
            with self._pending_requests.one_more(core.client_id, deadline) as (property_text, reply):
                await self._send_with_properties("request", topic, message, property_text, 0, deadline)
                if (around := interception.interceptor) is None:
                    return await in_time(reply, topic, deadline)
                call = ReceiveCall(self._caller, "reply")
                with around.receiving(call):
                    call.messages = (await in_time(reply, topic, deadline),)
                return reply.result()

    async def reply(
        self,
        message: ReceivedMessage[object],
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Reply to a request, with bytes. Its producer has the reply when this returns.

        Raises `InvalidArgumentError` if the message is no request, `RefusedError` if its producer is gone, and
        `DeadlineError`.
        """
        with self._calls:
            deadline = self._deadline(timeout)
            core, _ = self._require_started()
            reply_address = asked_by(message)

            async def send(messages: Sequence[Message]) -> list[SendResult]:
                outgoing = self._encoder.encode(reply_address.topic, messages[0])
                await pass_reply_on(core, message.queue.broker_group, self._group, reply_address, outgoing, deadline)
                return []

            replies = [Message(body, properties=properties)]
            if (around := interception.interceptor) is None:
                await send(replies)
            else:
                call = self._call("reply", reply_address.topic, replies)
                call.asked_by = message
                await interception.send(around, call, send)

    def _on_request(self, connection: Connection, command: RemotingCommand) -> None:
        """Handle a request of a broker."""
        if command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            self._pending_requests.take(connection, command)
        elif self._check_handler is not None:
            self._check_handler(connection, command)

    async def _send_half(self, topic: str, message: Message, property_text: str, sys_flag: int) -> SendResult:
        """Send a transaction's message, with the properties that mark it as one. Raises the errors of `send`."""
        with self._calls:
            deadline = self._deadline(None)
            return await self._send_with_properties("begin", topic, message, property_text, sys_flag, deadline)

    async def _send_with_properties(
        self, operation: SendOperation, topic: str, message: Message, text: str, sys_flag: int, deadline: float
    ) -> SendResult:
        """Send a message with the properties of `text` before its own: the application cannot set them."""
        topic = self._resolve_topic(topic)

        async def send(messages: Sequence[Message]) -> list[SendResult]:
            plain = self._encoder.encode(topic, messages[0])
            properties, flags = text + plain.properties, plain.sys_flag | sys_flag
            outgoing = msgspec.structs.replace(plain, properties=properties, sys_flag=flags)
            _, deliveries = self._require_started()
            return await deliveries.send(outgoing, deliveries.choice(None), deadline)

        if (around := interception.interceptor) is None:
            return (await send([message]))[0]
        call = self._call(operation, topic, [message])
        call.conversation_id = parse_properties(text).get(CORRELATION_ID)
        return (await interception.send(around, call, send))[0]

    def _call(
        self, operation: SendOperation, topic: str, messages: Sequence[Message], *, idempotent: bool = False
    ) -> SendCall:
        return SendCall(self._caller, operation, self._namespace.plain(topic), messages, idempotent)

    async def _ask_leader(self, broker_group: str, code: int, ext: Mapping[str, str], timeout: float) -> None:
        """Ask a broker group's leader a question that can be repeated. Raises `RefusedError` or `DeadlineError`."""
        with self._calls:
            core, _ = self._require_started()
            deadline = core.loop.time() + timeout
            await core.call_leader(core.routes.group(broker_group), code, ext, deadline=deadline)

    async def queues(self, topic: str, *, timeout: float | None = None) -> tuple[MessageQueue, ...]:
        """Return the sorted queues of a topic that can be written, including queues of an absent broker group.

        Raises `NoRouteError`.
        """
        deadline = self._deadline(timeout)
        _, deliveries = self._require_started()
        return (await deliveries.sender.route(self._namespace.full(topic), deadline)).all_writable

    def _trace(self, trace: Trace) -> None:
        if self._tracer is not None:
            self._tracer.add(trace)

    def _deadline(self, timeout: float | None) -> float:
        core, _ = self._require_started()
        if self._closing:
            raise ClientClosedError("the producer is closed")
        return core.loop.time() + (self._timeout if timeout is None else timeout)

    def _resolve_topic(self, topic: str, queue: MessageQueue | None = None) -> str:
        """Return the topic as brokers know it. Raises `InvalidArgumentError` for a topic that takes no sends, and for
        another topic's queue.
        """
        core, _ = self._require_started()
        full_topic = self._namespace.full(topic)
        if queue is not None and queue[0] not in (topic, full_topic):
            raise InvalidArgumentError(f"queue={tuple(queue)}: a queue of the topic {topic} is expected")
        if core.routes.cached(full_topic) is None:
            validate_destination(full_topic)
        return full_topic

    def _require_started(self) -> tuple[ClientCore, Deliveries]:
        if self._core is None or self._deliveries is None:
            raise ClientClosedError("the producer is not started: use 'async with Producer(...)'")
        return self._core, self._deliveries

    def _heartbeat(self) -> HeartbeatData:
        return HeartbeatData(client_id=self._client_id, producer_data_set=[ProducerData(self._group)])

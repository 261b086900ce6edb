"""Consumer that takes messages of any queue, each for a while, and acknowledges them one by one (POP)."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Final, Generic, Self

import msgspec

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import InvalidParameter, RemotingError
from dledger_remoting.filters.tags import SUBSCRIBE_ALL
from dledger_remoting.headers import ConsumerSendBackHeader, decode_ext, encode_ext
from dledger_remoting.headers_pop import (
    FAILURE_REASON_FIELD,
    UNTAKEN_FIELD,
    AckHeader,
    ChangeInvisibleHeader,
    ChangeInvisibleResponseHeader,
    PopHeader,
)
from dledger_remoting.pop import MAX_POP_MESSAGES, CheckPoint
from dledger_remoting.properties import ORIGIN_MESSAGE_ID, POP_CHECK_POINT, failure_reason
from dledger_remoting.signatures import Credentials
from dledger_remoting.topics import validate_group, validate_topic

from . import interception
from .arguments import above_zero, at_least, checked
from .cluster.core import ClientCore
from .cluster.nameservers import parse_addresses
from .cluster.surroundings import wall_ms
from .consuming.popped import check_point_of, popped_messages
from .consuming.pops import PATIENCE_SECONDS, Found, Pops
from .consuming.retries import DEAD_LETTER_LEVEL
from .errors import ClientClosedError, ClientError, InvalidArgumentError, NoBrokerError, refusal
from .interception import Caller, ReceiveCall, SettleCall
from .messages import Codec, ReceivedMessage, T, decoded, log_undelivered, undecoded, undeliverable
from .namespaces import Namespace
from .sending.tracing import DEFAULT_MAX_TRACES, delivery_trace, handling_trace, tracer
from .subscriptions import Filter, subscription
from .tls import Tls

DEFAULT_TIMEOUT_SECONDS: Final = 10.0
DEFAULT_INVISIBLE_SECONDS: Final = 30.0
MAX_INVISIBLE_SECONDS: Final = 12 * 3_600.0
POLL_SECONDS: Final = 2.0
"""Maximum time in seconds that one request waits, so that a lost leader is noticed while `receive` waits."""
SHARED_POLL_SECONDS: Final = 0.5
"""The same maximum if several broker groups have the topic, because a message may come to any of them."""
REJECT_SECONDS: Final = 1.0
"""Time limit in seconds to acknowledge a message that the group does not want, or to give back an undelivered one."""
_ANY_QUEUE: Final = -1
_NO_MESSAGE_CODES: Final = frozenset({int(ResponseCode.POLLING_TIMEOUT), int(ResponseCode.POLLING_FULL)})
_NOT_HELD_CODES: Final = frozenset({int(ResponseCode.NO_MESSAGE)})

logger = logging.getLogger(__name__)


@checked
class SimpleConsumer(Generic[T]):
    """Takes messages of a topic, from any queue that has some, and acknowledges each by itself.

        async with SimpleConsumer("127.0.0.1:9876", "workers", "jobs", invisible=60) as consumer:
            for message in await consumer.receive(10):
                await work(message.body)
                await consumer.ack(message)

    All members of a group share all queues. There may be more members than queues, and a slow member delays no other.
    The others do not get a member's messages for `invisible` seconds, 1 to 43,200. A message not acknowledged by then
    is redelivered, to any member, and becomes a dead letter in the end. `change_invisible` extends or shortens the
    time. There is no order. `filter` selects messages by tags, `Sql` or a `ClassFilter`; all members must have the same
    filter.

    A new group begins at the first message of each queue if `from_beginning`, else behind the present messages. Failed
    requests are repeated until `timeout` seconds are over, then `ClientError` is raised. `group` and `topic` are names
    within `namespace`, if there is one. `trace` and `max_traces` are those of `Producer`; traces say when each message
    was received and acknowledged.

    With a `codec` (`dledger_client.codecs`) each message has a `value`. A message whose body does not decode is logged
    and not returned. It comes again after another invisible time, and becomes a dead letter in the end.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        group: str,
        topic: str,
        *,
        filter: Filter = SUBSCRIBE_ALL,  # noqa: A002 -- as all consumers have it
        invisible: float = DEFAULT_INVISIBLE_SECONDS,
        from_beginning: bool = True,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        namespace: str | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        client_id: str | None = None,
        trace: bool | str = False,
        max_traces: int = DEFAULT_MAX_TRACES,
        codec: Codec[T] | None = None,
    ) -> None:
        above_zero(timeout=timeout)
        try:
            validate_group(group)
            validate_topic(topic)
        except InvalidParameter as error:
            raise InvalidArgumentError(error.remark) from error
        self._name_servers = parse_addresses(name_servers)
        self._namespace = Namespace.named(namespace)
        self._credentials = credentials
        self._tls = tls
        self._group = self._namespace.full(group)
        self._topic = self._namespace.full(topic)
        self._subscription = subscription(self._topic, filter, 0)
        self._invisible_ms = _invisible_ms(invisible)
        self._init_mode = 0 if from_beginning else 1
        self._timeout = timeout
        self._client_id = client_id
        self._codec = codec
        self._tracer = tracer(trace, max_traces)
        self._core: ClientCore | None = None
        self._pops: Pops | None = None
        self._rotation = 0
        self._rejections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin to keep routes up to date."""
        if self._core is not None:
            raise ClientClosedError("the consumer has been started before; make another one")
        self._core = ClientCore(
            self._name_servers,
            client_id=self._client_id,
            namespace=self._namespace,
            credentials=self._credentials,
            tls=self._tls,
        )
        self._pops = Pops(self._core, self._pop, self._give_back, self._invisible_ms / 1000)
        self._core.start()
        if self._tracer is not None:
            self._tracer.start(self._core)

    async def close(self) -> None:
        """Close all connections. Unacknowledged messages are redelivered when their invisible time ends.

        Messages that came for cancelled calls of `receive` go back to the group.
        """
        if self._core is not None and self._pops is not None:
            if not self._core.is_closed:
                await self._pops.close(POLL_SECONDS + REJECT_SECONDS)
            await self._wait_for_rejections()
            if self._tracer is not None and not self._core.is_closed:
                await self._tracer.close()
            await self._core.close()

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

    async def receive(self, max_messages: int = MAX_POP_MESSAGES, *, wait: float = 10.0) -> list[ReceivedMessage[T]]:
        """Take up to `max_messages` messages, 1 to 32. Waits up to `wait` seconds for the first, and may return none.

        Their properties hold the check point by which `ack` and `change_invisible` name them. Messages that the group
        does not want are acknowledged, and the wait continues. A call may be cancelled (`asyncio.wait_for`). Its
        messages then come with the next call, or go back to the group, which counts as no delivery. If there are
        several broker groups, answers of some are enough. Raises `NoRouteError` for a topic that does not exist,
        `RefusedError` and `DeadlineError`.
        """
        if not 1 <= max_messages <= MAX_POP_MESSAGES:
            raise InvalidArgumentError(f"max_messages {max_messages} is outside 1..{MAX_POP_MESSAGES}")
        at_least(0, wait=wait)
        if (around := interception.interceptor) is None:
            return await self._receive(max_messages, wait)
        call = ReceiveCall(self._caller, "receive", self._namespace.plain(self._topic))
        with around.receiving(call):
            call.messages = messages = await self._receive(max_messages, wait)
        return messages

    async def _receive(self, max_messages: int, wait: float) -> list[ReceivedMessage[T]]:
        core, pops = self._require_started(), self._require_pops()
        deadline = core.loop.time() + wait
        while True:
            if handed_out := self._hand_out(pops.take(max_messages)):
                return handed_out
            route = await core.routes.get(self._topic, max(deadline, core.loop.time()) + self._timeout)
            names = sorted({queue.broker_group for queue in route.readable})
            if handed_out := self._hand_out(await self._pop_in_turn(pops, names, max_messages, deadline)):
                return handed_out
            if core.loop.time() >= deadline or not names:
                return []

    async def _pop_in_turn(
        self, pops: Pops, names: Sequence[str], max_messages: int, deadline: float
    ) -> list[ReceivedMessage]:
        """Ask one broker group after another, the last of them with a poll. Raises `ClientError` if none answers."""
        core = self._require_started()
        max_poll_seconds = SHARED_POLL_SECONDS if len(names) > 1 else POLL_SECONDS
        candidates = [name for name in names if not pops.is_slow(name)] or names
        answered = False
        failure: ClientError | None = None
        for number in range(len(candidates)):
            self._rotation += 1
            name, is_last = candidates[self._rotation % len(candidates)], number == len(candidates) - 1
            poll_seconds = max(0.0, min(max_poll_seconds, deadline - core.loop.time())) if is_last else 0.0
            patience = math.inf if is_last and not answered else PATIENCE_SECONDS
            try:
                messages = await pops.pop(name, max_messages, poll_seconds, patience)
            except ClientError as error:
                if not error.retryable:
                    raise
                logger.warning("%s has no messages of %s to give: %s", name, self._topic, error)
                failure = error
                continue
            answered = answered or messages is not None
            if messages:
                return messages
        if failure is not None and not answered:
            raise failure
        return []

    def _hand_out(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage[T]]:
        """Return the messages that decode. The delivery of any other message has failed."""
        self._trace_received(messages)
        return [readable for message in messages if (readable := self._readable(message)) is not None]

    def _readable(self, message: ReceivedMessage) -> ReceivedMessage[T] | None:
        """Return a message with its value. If it has none, the broker is told why, in the background."""
        readable = decoded(message, self._codec)
        if (error := undeliverable(readable)) is None:
            return readable
        log_undelivered(error)
        self._in_background(self._tell_failure(message, error.failure_reason), "failure of a message to decode")
        return None

    async def _tell_failure(self, message: ReceivedMessage, reason: str) -> None:
        """Tell the broker why a delivery has failed. Without that the message comes again all the same."""
        try:
            await self._change(message, self._invisible_ms, REJECT_SECONDS, reason)
        except ClientError as error:
            logger.info("no reason is kept for a message of %s that comes again: %s", message.queue, error)

    async def _change(
        self, message: ReceivedMessage[object], invisible_ms: int, timeout: float, reason: str | None
    ) -> RemotingCommand:
        """Ask the broker to hide a message for so many ms from now on."""
        point, topic = check_point_of(message), message.queue.topic
        header = ChangeInvisibleHeader(self._group, topic, point.queue_id, point.text, point.queue_offset, invisible_ms)
        told = {FAILURE_REASON_FIELD: failure_reason(reason)} if reason else {}
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        return await self._call_leader(point.broker_name, code, {**encode_ext(header), **told}, timeout)

    def _in_background(self, work: Coroutine[None, None, None], name: str) -> None:
        """Settle a message in the background, before the next pop."""
        task = self._require_started().spawn(work, name)
        self._rejections.add(task)
        task.add_done_callback(self._rejections.discard)

    def put_back(self, messages: Sequence[ReceivedMessage[T]]) -> None:
        """Undo a `receive` whose messages nobody has seen, for example because the program that asked for them is gone.

        The next `receive` returns them. If none follows soon, they go back to the group as undelivered messages.
        """
        self._require_pops().keep([undecoded(message) for message in messages])

    async def ack(self, message: ReceivedMessage[object]) -> bool:
        """Acknowledge the message. Once this has returned True, no member of the group gets it again.

        False means that its invisible time was over: it comes again, or another member has it by now. Or it was
        acknowledged before, by an earlier attempt or call whose answer was lost. Any consumer of the group may have
        received the message. Raises `NoBrokerError` if the topic has no such broker group, and `DeadlineError`.
        """
        point = check_point_of(message)
        if (around := interception.interceptor) is None:
            is_done = await self._acknowledge(message, point, self._timeout)
        else:
            call = SettleCall(self._caller, "ack", (message,))
            with around.settling(call):
                is_done = call.succeeded = await self._acknowledge(message, point, self._timeout)
        if self._tracer is not None:
            cost_ms = max(0, wall_ms() - point.pop_time_ms)
            self._tracer.add(handling_trace(message, self._group, _request_id(point), cost_ms, succeeded=is_done))
        return is_done

    async def reject(self, message: ReceivedMessage[object], *, reason: str | None = None) -> bool:
        """Give up on the message: it becomes a dead letter of the group, and is acknowledged. Returns as `ack` does.

        `reason` is the dead letter's `failure_reason`, its first 300 characters.

        If an error is raised, or this returns False, the message may come again although it is a dead letter.
        """
        point = check_point_of(message)
        header = ConsumerSendBackHeader(
            offset=message.physical_offset,
            group=self._group,
            delay_level=DEAD_LETTER_LEVEL,
            origin_msg_id=message.properties.get(ORIGIN_MESSAGE_ID, message.offset_message_id),
            origin_topic=self._namespace.full(message.topic),
            unit_mode=False,
            failure_reason=failure_reason(reason or "") or None,
        )
        code = RequestCode.CONSUMER_SEND_MSG_BACK
        with interception.settling(self._caller, "dead_letter", (message,)):
            await self._call_leader(point.broker_name, code, encode_ext(header), self._timeout)
        return await self.ack(message)

    async def change_invisible(
        self, message: ReceivedMessage[T], seconds: float, *, reason: str | None = None
    ) -> ReceivedMessage[T] | None:
        """Hide the message for `seconds` from now on, 1 to 43,200.

        The returned message replaces the given one, which can no longer be acknowledged. Returns None where `ack`
        returns False. `reason` says why the work on the message failed. The next delivery, or the dead letter, has
        it as its `failure_reason`, unless another node leads by then.
        """
        point, invisible_ms = check_point_of(message), _invisible_ms(seconds)
        with interception.settling(self._caller, "change_invisible", (message,)) as call:
            response = await self._change(message, invisible_ms, self._timeout, reason)
            call.succeeded = response.code == ResponseCode.SUCCESS
        if not call.succeeded:
            return None
        try:
            changed = decode_ext(ChangeInvisibleResponseHeader, response.ext)
        except RemotingError as error:
            raise refusal(error) from error
        point = msgspec.structs.replace(
            point,
            start_offset=point.queue_offset,
            pop_time_ms=changed.pop_time,
            invisible_ms=changed.invisible_time,
        )
        return msgspec.structs.replace(message, properties={**message.properties, POP_CHECK_POINT: point.text})

    # ---------------------------------------------------------------- private

    async def _pop(
        self, broker_group: str, max_messages: int, poll_seconds: float, on_late_messages: Found
    ) -> list[ReceivedMessage]:
        """Ask one broker group, once earlier unwanted messages are acknowledged, so that little is under way."""
        await self._wait_for_rejections()
        core = self._require_started()
        header = PopHeader(
            self._group,
            self._topic,
            _ANY_QUEUE,
            max_messages,
            self._invisible_ms,
            int(poll_seconds * 1000),
            wall_ms(),
            self._init_mode,
            self._subscription.expression_type,
            self._subscription.expression,
        )

        def handle_late(response: RemotingCommand) -> None:
            try:
                on_late_messages(self._decode_messages(response, broker_group))
            except ClientError as error:
                logger.warning("messages of a late answer of %s come again: %s", broker_group, error)

        response = await core.call_leader(
            core.routes.group(broker_group),
            RequestCode.POP_MESSAGE,
            encode_ext(header),
            deadline=core.loop.time() + poll_seconds + self._timeout,
            accept=_NO_MESSAGE_CODES,
            on_late=handle_late,
        )
        return self._decode_messages(response, broker_group)

    def _decode_messages(self, response: RemotingCommand, broker_group: str) -> list[ReceivedMessage]:
        """Return the wanted messages of an answer. Raises `RefusedError` if it cannot be read."""
        if response.code != ResponseCode.SUCCESS:
            return []
        try:
            messages = popped_messages(response, self._group, self._topic, broker_group, self._namespace)
        except RemotingError as error:
            raise refusal(error) from error
        return self._reject_unwanted(messages)

    async def _give_back(self, message: ReceivedMessage) -> None:
        """Give an undelivered message back to the group at once.

        A broker that does not know this request counts it as a delivery.
        """
        point, topic = check_point_of(message), message.queue.topic
        header = ChangeInvisibleHeader(self._group, topic, point.queue_id, point.text, point.queue_offset, 0)
        ext = {**encode_ext(header), UNTAKEN_FIELD: "true"}
        try:
            await self._call_leader(point.broker_name, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext, REJECT_SECONDS)
        except ClientError as error:
            logger.info("a message of %s that nobody has had comes again later: %s", message.queue, error)

    def _reject_unwanted(self, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        """Return the messages that the group wants. The others are acknowledged in the background.

        Brokers compare only the codes of tags, and two tags may have the same code. If an unwanted message were only
        dropped, it would come again and again, and become a dead letter of the group.
        """
        wanted_messages: list[ReceivedMessage] = []
        for message in messages:
            if self._subscription.tags.matches_tag(message.tags):
                wanted_messages.append(message)
            else:
                self._in_background(self._reject(message), "acknowledgement of an unwanted message")
        return wanted_messages

    async def _reject(self, message: ReceivedMessage) -> None:
        """Acknowledge a message that the group does not want.

        If that fails, the message is redelivered, and rejected then.
        """
        try:
            await self._acknowledge(message, check_point_of(message), REJECT_SECONDS)
        except ClientError as error:
            logger.info("an unwanted message of %s was not acknowledged, it comes again: %s", message.queue, error)

    async def _wait_for_rejections(self) -> None:
        """Wait until rejected messages are acknowledged, or that has failed: at most `REJECT_SECONDS`."""
        if self._rejections:
            await asyncio.wait(self._rejections)

    async def _acknowledge(self, message: ReceivedMessage[object], point: CheckPoint, timeout: float) -> bool:
        """Acknowledge a message, in attempts for `timeout` seconds.

        Returns whether it counts as finished from now on.
        """
        header = AckHeader(self._group, message.queue.topic, point.queue_id, point.text, point.queue_offset)
        response = await self._call_leader(point.broker_name, RequestCode.ACK_MESSAGE, encode_ext(header), timeout)
        return response.code == ResponseCode.SUCCESS

    def _trace_received(self, messages: Sequence[ReceivedMessage]) -> None:
        if self._tracer is not None:
            now_ms = wall_ms()
            for message in messages:
                request_id = _request_id(check_point_of(message))
                self._tracer.add(delivery_trace(message, self._group, request_id, now_ms))

    async def _call_leader(
        self, broker_group: str, code: int, ext: Mapping[str, str], timeout: float
    ) -> RemotingCommand:
        core = self._require_started()
        deadline = core.loop.time() + timeout
        if broker_group not in core.routes.groups:  # another consumer has received the message
            await core.routes.get(self._topic, deadline)
        group = core.routes.groups.get(broker_group)
        if group is None:
            raise NoBrokerError(f"topic {self._topic} has no broker group {broker_group}")
        return await core.call_leader(group, code, ext, deadline=deadline, accept=_NOT_HELD_CODES)

    def _require_pops(self) -> Pops:
        if self._pops is None:
            raise ClientClosedError("the consumer is not running")
        return self._pops

    @property
    def _caller(self) -> Caller:
        group, namespace = self._namespace.plain(self._group), self._namespace.name or ""
        return Caller(self._require_started().client_id, group, namespace, self._name_servers)

    def _require_started(self) -> ClientCore:
        if self._core is None or self._core.is_closed:
            raise ClientClosedError("the consumer is not running")
        return self._core


def _invisible_ms(seconds: float) -> int:
    if not 1.0 <= seconds <= MAX_INVISIBLE_SECONDS:
        raise InvalidArgumentError(f"a message is hidden for 1 to {MAX_INVISIBLE_SECONDS:.0f} s, not {seconds}")
    return int(seconds * 1000)


def _request_id(point: CheckPoint) -> str:
    """Return the id that joins the traces of one delivery. A change of the invisible time begins another id."""
    return f"{point.broker_name}-{point.queue_id}-{point.queue_offset}-{point.pop_time_ms}"

"""Consumer that takes messages of any queue, each for a while, and acknowledges them one by one (POP)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Self

import msgspec

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import InvalidParameter, RemotingError
from dledger_remoting.filters.tags import SUBSCRIBE_ALL
from dledger_remoting.headers import decode_ext, encode_ext
from dledger_remoting.headers_pop import (
    AckHeader,
    ChangeInvisibleHeader,
    ChangeInvisibleResponseHeader,
    PopHeader,
)
from dledger_remoting.pop import MAX_POP_MESSAGES, CheckPoint
from dledger_remoting.properties import POP_CHECK_POINT
from dledger_remoting.signatures import Credentials
from dledger_remoting.topics import validate_group, validate_topic

from .arguments import above_zero, at_least, checked
from .core import ClientCore
from .errors import ClientClosedError, ClientError, InvalidArgumentError, refusal
from .messages import ReceivedMessage
from .nameservers import parse_addresses
from .namespaces import Namespace
from .popped import check_point_of, popped_messages
from .subscriptions import Filter, subscription
from .tls import Tls
from .tracing import DEFAULT_MAX_TRACES, delivery_trace, handling_trace, tracer

DEFAULT_TIMEOUT_SECONDS: Final = 10.0
DEFAULT_INVISIBLE_SECONDS: Final = 30.0
MAX_INVISIBLE_SECONDS: Final = 12 * 3_600.0
POLL_SECONDS: Final = 2.0
"""One request waits no longer, so that a leader that is gone is noticed while `receive` waits."""
SHARED_POLL_SECONDS: Final = 0.5
"""The same where several broker groups have the topic: a message may come to any of them."""
REJECT_SECONDS: Final = 1.0
"""So long it is tried to acknowledge a message that the group does not want."""
_ANYTHING: Final = -1
_NOTHING: Final = frozenset({int(ResponseCode.POLLING_TIMEOUT), int(ResponseCode.POLLING_FULL)})
_NOT_OURS: Final = frozenset({int(ResponseCode.NO_MESSAGE)})

logger = logging.getLogger(__name__)


@checked
class SimpleConsumer:
    """Takes messages of a topic, from whichever queue has some, and acknowledges each by itself.

        async with SimpleConsumer("127.0.0.1:9876", "workers", "jobs", invisible=60) as consumer:
            for message in await consumer.receive(10):
                await work(message.body)
                await consumer.ack(message)

    All members of a group share all queues: there may be more of them than queues, and a slow one holds up nobody. What
    a member takes the others do not get for `invisible` seconds, 1 to 43,200. What is not acknowledged by then comes
    again, to any of them, and becomes a dead letter in the end; `change_invisible` gives more time, or less. There is
    no order. `filter` is what of it is wanted: tags, `Sql` or a `ClassFilter`; all members have to have the same.

    A group that is new begins at the first message of each queue if `from_beginning`, else behind what is there. What
    fails is repeated until `timeout` seconds are over, then it raises `ClientError`. `group` and `topic` are names
    within `namespace`, if there is one. `trace` and `max_traces` are those of `Producer`: when each message was
    received, and acknowledged.
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
        self._wanted = subscription(self._topic, filter, 0)
        self._invisible_ms = _invisible_ms(invisible)
        self._init_mode = 0 if from_beginning else 1
        self._timeout = timeout
        self._client_id = client_id
        self._tracer = tracer(trace, max_traces)
        self._core: ClientCore | None = None
        self._turn = 0
        self._rejecting: set[asyncio.Task[None]] = set()

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
        self._core.start()
        if self._tracer is not None:
            self._tracer.start(self._core)

    async def close(self) -> None:
        """Close all connections; what is not acknowledged comes again when its time is over."""
        if self._core is not None:
            await self._rejected()
            if self._tracer is not None and not self._core.is_closed:
                await self._tracer.close()
            await self._core.close()

    @property
    def traces_dropped(self) -> int:
        """See `Producer.traces_dropped`."""
        return 0 if self._tracer is None else self._tracer.dropped

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def receive(self, max_messages: int = MAX_POP_MESSAGES, *, wait: float = 10.0) -> list[ReceivedMessage]:
        """Take 1 to 32 messages; waits up to `wait` seconds for the first one, and returns none if none comes.

        Their properties hold the check point by which `ack` and `change_invisible` name them. Messages that the group
        does not want are acknowledged and waited over. Raises `NoRouteError` for a topic that is not there,
        `RefusedError` and `DeadlineError`.
        """
        if not 1 <= max_messages <= MAX_POP_MESSAGES:
            raise InvalidArgumentError(f"max_messages {max_messages} is outside 1..{MAX_POP_MESSAGES}")
        at_least(0, wait=wait)
        core = self._started()
        until = core.loop.time() + wait
        while True:
            route = await core.routes.get(self._topic, max(until, core.loop.time()) + self._timeout)
            names = sorted({queue.broker_group for queue in route.readable})
            for number in range(len(names)):
                self._turn += 1
                is_last = number == len(names) - 1
                longest = (SHARED_POLL_SECONDS if len(names) > 1 else POLL_SECONDS) if is_last else 0.0
                left = max(0.0, min(longest, until - core.loop.time()))
                found = await self._pop(names[self._turn % len(names)], max_messages, left)
                if found:
                    self._trace_received(found)
                    return found
            if core.loop.time() >= until or not names:
                return []

    async def ack(self, message: ReceivedMessage) -> bool:
        """The message is done with. Once this has returned True, nobody of the group gets it again.

        False: its time was over, so that it comes again, or is with another member by now. It may also have been
        acknowledged by an attempt of this call, or an earlier call, of which the answer was lost.
        """
        point = check_point_of(message)
        is_done = await self._acknowledge(message, point, self._timeout)
        if self._tracer is not None:
            cost_ms = max(0, _now_ms() - point.pop_time_ms)
            self._tracer.add(handling_trace(message, self._group, _request_id(point), cost_ms, succeeded=is_done))
        return is_done

    async def change_invisible(self, message: ReceivedMessage, seconds: float) -> ReceivedMessage | None:
        """Hide the message for `seconds` from now on, 1 to 43,200. The message that is returned takes the place of the
        one that was given, which can be acknowledged no more; None: see `ack`.
        """
        point, topic = check_point_of(message), message.queue.topic
        invisible_ms = _invisible_ms(seconds)
        header = ChangeInvisibleHeader(self._group, topic, point.queue_id, point.text, point.queue_offset, invisible_ms)
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        response = await self._ask(point.broker_name, code, encode_ext(header), self._timeout)
        if response.code != ResponseCode.SUCCESS:
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

    # ---------------------------------------------------------------- inside

    async def _pop(self, broker_group: str, max_messages: int, poll_seconds: float) -> list[ReceivedMessage]:
        """Ask one broker group, once what it is told of earlier messages is settled: so little is under way."""
        await self._rejected()
        core = self._started()
        header = PopHeader(
            self._group,
            self._topic,
            _ANYTHING,
            max_messages,
            self._invisible_ms,
            int(poll_seconds * 1000),
            _now_ms(),
            self._init_mode,
            self._wanted.expression_type,
            self._wanted.expression,
        )
        response = await core.call_leader(
            core.routes.group(broker_group),
            RequestCode.POP_MESSAGE,
            encode_ext(header),
            deadline=core.loop.time() + poll_seconds + self._timeout,
            accept=_NOTHING,
        )
        if response.code != ResponseCode.SUCCESS:
            return []
        try:
            found = popped_messages(response, self._group, self._topic, broker_group, self._namespace)
        except RemotingError as error:
            raise refusal(error) from error
        return self._wanted_of(found)

    def _wanted_of(self, found: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        """The messages that the group wants; the others are acknowledged in the background.

        Brokers compare only the codes of tags, and two tags may have the same. Dropped in silence, a message that
        nobody wants would come again and again, and be a dead letter of the group in the end.
        """
        wanted: list[ReceivedMessage] = []
        for message in found:
            if self._wanted.tags.matches_tag(message.tags):
                wanted.append(message)
            else:
                task = self._started().spawn(self._reject(message), "acknowledgement of an unwanted message")
                self._rejecting.add(task)
                task.add_done_callback(self._rejecting.discard)
        return wanted

    async def _reject(self, message: ReceivedMessage) -> None:
        """Acknowledge a message that the group does not want. If that fails, it comes again, and is rejected then."""
        try:
            await self._acknowledge(message, check_point_of(message), REJECT_SECONDS)
        except ClientError as error:
            logger.info("an unwanted message of %s was not acknowledged, it comes again: %s", message.queue, error)

    async def _rejected(self) -> None:
        """Wait until what was rejected is acknowledged, or that has failed: for `REJECT_SECONDS` at the most."""
        if self._rejecting:
            await asyncio.wait(self._rejecting)

    async def _acknowledge(self, message: ReceivedMessage, point: CheckPoint, timeout: float) -> bool:
        """Whether a message counts as done with from now on; tried for `timeout` seconds."""
        header = AckHeader(self._group, message.queue.topic, point.queue_id, point.text, point.queue_offset)
        response = await self._ask(point.broker_name, RequestCode.ACK_MESSAGE, encode_ext(header), timeout)
        return response.code == ResponseCode.SUCCESS

    def _trace_received(self, messages: Sequence[ReceivedMessage]) -> None:
        if self._tracer is not None:
            now_ms = _now_ms()
            for message in messages:
                request_id = _request_id(check_point_of(message))
                self._tracer.add(delivery_trace(message, self._group, request_id, now_ms))

    async def _ask(self, broker_group: str, code: int, ext: Mapping[str, str], timeout: float) -> RemotingCommand:
        core = self._started()
        group = core.routes.group(broker_group)
        deadline = core.loop.time() + timeout
        return await core.call_leader(group, code, ext, deadline=deadline, accept=_NOT_OURS)

    def _started(self) -> ClientCore:
        if self._core is None or self._core.is_closed:
            raise ClientClosedError("the consumer is not running")
        return self._core


def _invisible_ms(seconds: float) -> int:
    if not 1.0 <= seconds <= MAX_INVISIBLE_SECONDS:
        raise InvalidArgumentError(f"a message is hidden for 1 to {MAX_INVISIBLE_SECONDS:.0f} s, not {seconds}")
    return int(seconds * 1000)


def _request_id(point: CheckPoint) -> str:
    """What joins the traces of one delivery; hiding the message for longer makes another one of it."""
    return f"{point.broker_name}-{point.queue_id}-{point.queue_offset}-{point.pop_time_ms}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

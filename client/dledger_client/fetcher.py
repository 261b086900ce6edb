"""Reading one queue: long polls, one after the other, into a buffer that the consumer empties.

Any node of the broker group may be asked: followers serve what is committed. The node that the last answer names is
preferred, or the leader; a node that fails is avoided in the next attempt, which goes to the leader.

| answer | what follows |
|---|---|
| 0 | the messages that match the tags exactly go into the buffer |
| 19, 20 | nothing (new, or matching); on with the offset that the answer names |
| 21 | the offset lies outside the queue, which is logged: on with the queue's first message; or the group was reset |
| 14, 2 | another node, after a short pause |
| 24, 25 | the broker does not know the subscription: a heartbeat brings it |
| 17, others; an unreadable message | logged; the route is looked up; a pause of 1 s, doubled up to 16 s |
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

import msgspec

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import (
    BodyError,
    ProtocolError,
    RemotingError,
    ServiceNotAvailable,
    SubscriptionNotExist,
    SubscriptionNotLatest,
    SystemBusy,
    error_from_response,
)
from dledger_remoting.filters.tags import TagFilter
from dledger_remoting.headers import PullMessageHeader, PullResponseHeader, decode_ext, encode_ext
from dledger_remoting.headers_consume import PULL_SUBSCRIPTION, PULL_SUSPEND
from dledger_remoting.record import iter_records

from .core import ClientCore
from .errors import ClientError
from .flow import FlowControl, FlowReason
from .leaders import LEADER_ID
from .messages import MessageQueue, ReceivedMessage, Settlement, received_message
from .namespaces import Namespace
from .placed import Placed
from .progress import QueueProgress
from .subscriptions import Subscription

logger = logging.getLogger(__name__)

_ANSWER_SECONDS: Final = 5.0
"""How much later than the end of its long poll a node may answer before it is taken for dead."""

MIN_PAUSE_SECONDS: Final = 0.025
MAX_PAUSE_SECONDS: Final = 1.0
_REFUSED_PAUSE_SECONDS: Final = 1.0
_MAX_REFUSED_PAUSE_SECONDS: Final = 16.0
"""A topic that is gone for good is neither asked for nor logged every second."""

_RESET: Final = "OFFSET_RESET"
"""What brokers remark, RocketMQ's as well."""


class PullLimits(msgspec.Struct, frozen=True):
    """How much one pull may bring, and how long it may wait. With `finds_end` only one that begins where the queue is
    known to end waits, so that nobody else has to for long to hear of that.
    """

    max_messages: int = 32
    suspend_seconds: float = 15.0
    finds_end: bool = False


class Taken(NamedTuple):
    """A message in work: how often it had been delivered before, and when it was taken, by the event loop's clock."""

    reconsume_times: int
    taken_at: float


class PullResult(msgspec.Struct, frozen=True):
    """What a pull brought: the answer's code, matching messages in order, where the next pull begins, and whether the
    queue ends there.

    `is_reset`: the group goes on there, and what was read before counts no more. `next_broker_id` is that of the node
    to pull from then.
    """

    code: int
    messages: list[ReceivedMessage]
    next_offset: int
    is_end: bool
    is_reset: bool = False
    next_broker_id: int = LEADER_ID


_PULL_CODES: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


async def pull(
    core: ClientCore,
    address: str,
    consumer_group: str,
    queue: MessageQueue,
    offset: int,
    subscription: Subscription,
    *,
    max_messages: int,
    suspend_seconds: float,
    settle: Callable[[ReceivedMessage, Settlement], None] | None = None,
) -> PullResult:
    """One pull from one node. Raises `ClientError` if it fails, `RemotingError` if it is refused."""
    header = PullMessageHeader(
        consumer_group=consumer_group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=max_messages,
        sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if suspend_seconds > 0 else 0),
        commit_offset=0,
        suspend_timeout_millis=int(suspend_seconds * 1000),
        sub_version=subscription.version,
        subscription=subscription.expression,
        expression_type=subscription.expression_type,
    )
    deadline = core.loop.time() + suspend_seconds + _ANSWER_SECONDS
    response = await core.call(address, RequestCode.PULL_MESSAGE, encode_ext(header), deadline=deadline)
    if response.code not in _PULL_CODES:
        raise error_from_response(response.code, response.remark, response.ext)
    return _pull_result(response, queue, offset, subscription.tags, settle, core.namespace)


def _pull_result(
    response: RemotingCommand,
    queue: MessageQueue,
    offset: int,
    tags: TagFilter,
    settle: Callable[[ReceivedMessage, Settlement], None] | None,
    namespace: Namespace,
) -> PullResult:
    """What an answer holds, up to the first message that cannot be read. Raises `BodyError` if that is at `offset`.

    A queue that ends before `offset` belongs to a topic that was deleted and made again: all of it is new, whatever
    offset the answer names to go on with.
    """
    header = decode_ext(PullResponseHeader, response.ext)
    next_offset, next_id = header.next_begin_offset, header.suggest_which_broker_id
    if response.code == ResponseCode.PULL_OFFSET_MOVED and response.remark == _RESET:
        return PullResult(response.code, [], next_offset, is_end=False, is_reset=True, next_broker_id=next_id)
    if response.code == ResponseCode.PULL_OFFSET_MOVED and offset > header.max_offset:
        next_offset = header.min_offset
    messages: list[ReceivedMessage] = []
    for record in iter_records(response.body):
        if record.queue_offset < offset:
            continue
        try:
            message = received_message(record, queue, settle, namespace)
        except BodyError as error:
            if record.queue_offset == offset:
                raise BodyError(f"the message at offset {offset} of {queue}: {error.remark}") from error
            return PullResult(response.code, messages, record.queue_offset, is_end=False, next_broker_id=next_id)
        if tags.matches_tag(message.tags):
            messages.append(message)
    is_end = next_offset >= header.max_offset
    return PullResult(response.code, messages, next_offset, is_end=is_end, next_broker_id=next_id)


class MovedCallback(Protocol):
    """Told that a queue is to be read anew from an offset."""

    def __call__(self, fetcher: QueueFetcher, offset: int, *, is_reset: bool) -> None:
        """By its fetcher; because the topic was made again, or because the group was reset."""


class QueueFetcher:
    """Keeps one queue's buffer filled while it belongs to this consumer.

    `find_start` gives the offset to begin with, `on_messages` is called when the buffer has got messages, or the queue
    turns out to end here, `settle` when the application has ended its work on one, `on_moved` with an offset to read
    anew from, below those read so far if the topic was made again, any if the group was reset: this fetcher's time is
    over. The fields without underscore are the consumer's: `buffer`, `saved_offset`, `in_work` (by offset, what is
    taken and not finished), `waiting_since` (when something was taken last, or came to an empty buffer), `pulled_at`
    (when a node answered last), `listed` (the fetcher stands in the consumer's list of queues with work), `retrying`
    (offsets that are given back and not stored anywhere else yet), `drained` (the queue is known to end with what was
    read, or it cannot be read), `topic_queues` (how many of its topic the consumer reads).
    """

    def __init__(
        self,
        core: ClientCore,
        consumer_group: str,
        queue: MessageQueue,
        subscription: Subscription,
        limits: PullLimits,
        flow: FlowControl,
        *,
        paused: bool,
        find_start: Callable[[], Awaitable[int]],
        on_messages: Callable[[QueueFetcher], None],
        settle: Callable[[QueueFetcher, ReceivedMessage, Settlement], None],
        on_moved: MovedCallback,
    ) -> None:
        self.queue = queue
        self.buffer: deque[ReceivedMessage] = deque()
        self.progress: QueueProgress | None = None
        self.saved_offset: int | None = None
        self.revoked = False
        self.in_work: dict[int, Taken] = {}
        self.waiting_since = self.pulled_at = core.loop.time()
        self.listed = False
        self.retrying: set[int] = set()
        self.paused = paused
        self.drained = False
        self.topic_queues = 1
        self._core = core
        self._consumer_group = consumer_group
        self._subscription = subscription
        self._limits = limits
        self._flow = flow
        self._find_start = find_start
        self._on_messages = on_messages
        self._settle = partial(settle, self)
        self._on_moved = on_moved
        self._room = asyncio.Event()
        self._settled = asyncio.Event()
        self._address: str | None = None
        self._avoid: str | None = None
        self._placed = Placed(core.loop)
        self._failures = 0
        self._refusals = 0
        self._pull: asyncio.Task[PullResult] | None = None
        self._task = core.keep(self._run, f"fetch {queue}")

    def unsaved_offset(self) -> int | None:
        """The offset to commit, None if it is committed already or not known yet."""
        if self.progress is None or self.progress.committable == self.saved_offset:
            return None
        return self.progress.committable

    @property
    def reading_stopped(self) -> bool:
        """True while so much is not finished that no more is read."""
        return self._stopped_by is not None

    @property
    def _stopped_by(self) -> FlowReason | None:
        return None if self.progress is None else self._flow.reason(self.progress, self.topic_queues)

    @property
    def may_have_more(self) -> bool:
        """True if the next message may be about to come, though none is here."""
        return not (self.buffer or self.drained or self.paused or self.revoked or self.reading_stopped)

    def go_on(self, *, paused: bool, topic_queues: int) -> None:
        """The application pauses the queue, or lets it go on; or the share of its topic's limits has changed."""
        if self.paused and not paused:
            self.waiting_since = self._core.loop.time()
        self.paused, self.topic_queues = paused, topic_queues
        self._room.set()

    def take(self) -> ReceivedMessage:
        """Hand out the first message of the buffer, which must not be empty."""
        message = self.buffer.popleft()
        self.waiting_since = self._core.loop.time()
        self.in_work[message.queue_offset] = Taken(message.reconsume_times, self.waiting_since)
        return message

    def finish(self, message: ReceivedMessage) -> bool:
        """Its taker has done what it could with a message. False if it has not been taken, or finished before: it may
        have been handed out again since, and that delivery is another taker's.
        """
        taken = self.in_work.get(message.queue_offset)
        if taken is None or taken.reconsume_times != message.reconsume_times:
            return False
        del self.in_work[message.queue_offset]
        self._settled.set()
        return True

    def acknowledge(self, offset: int) -> None:
        """A message is done with; without effect if it was not outstanding."""
        if self.progress is not None and self.progress.acknowledge(offset):
            self._room.set()
            self._settled.set()

    def on_leader(self) -> None:
        """The group has found a leader: a pull that hangs at another node is repeated there at once, unless an answer
        led to that one.
        """
        group = self._core.routes.group(self.queue.broker_group)
        is_led = self._placed.broker_id != LEADER_ID and self._avoid is None
        if self._pull is not None and self._address != group.leader and not is_led:
            self._pull.cancel()

    def revoke(self) -> None:
        """Stop reading; what is buffered and not handed out is dropped and stays uncommitted."""
        self.revoked = True
        self._task.cancel()
        if self.progress is not None and self.buffer:
            self.progress.withdraw(self.buffer[0].queue_offset)
        self.buffer.clear()

    async def idle(self) -> None:
        """Wait until no message that was handed out is unacknowledged."""
        while self.progress is not None and self.progress.outstanding:
            self._settled.clear()
            await self._settled.wait()

    async def untaken(self) -> None:
        """Wait until nobody works on a message: what is given back meanwhile stays unacknowledged."""
        while self.in_work:
            self._settled.clear()
            await self._settled.wait()

    async def _run(self) -> None:
        if self.progress is None:  # else an exception has ended a run before: what was handed out is still in work
            self.progress = QueueProgress(await self._start_offset())
        progress = self.progress
        while True:
            await self._may_read()
            result = await self._pull_once(progress.next_offset)
            if result is None:
                self._note_end(is_end=True)
                continue
            if result.is_reset:
                logger.info("%s: the group was reset to offset %d", self.queue, result.next_offset)
                self._on_moved(self, result.next_offset, is_reset=True)
                return
            if result.code == ResponseCode.PULL_OFFSET_MOVED:
                logger.warning(
                    "%s: offset %d is outside the queue, going on at %d",
                    self.queue,
                    progress.next_offset,
                    result.next_offset,
                )
                if result.next_offset < progress.next_offset:
                    self._on_moved(self, result.next_offset, is_reset=False)
                    return
                progress.advance(result.next_offset)
                continue
            for message in result.messages:
                progress.deliver(message.queue_offset, len(message.body))
            if not self.buffer:
                self.waiting_since = self._core.loop.time()
            self.buffer.extend(result.messages)
            stuck = result.next_offset <= progress.next_offset
            progress.advance(result.next_offset)
            self._note_end(is_end=result.is_end)
            if result.messages:
                self._on_messages(self)
            elif stuck and result.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
                await asyncio.sleep(MIN_PAUSE_SECONDS)

    async def _may_read(self) -> None:
        """Wait until there is room, and the queue is not paused."""
        last: FlowReason | None = None
        while (reason := self._stopped_by) is not None or self.paused:
            if reason is not None and reason != last:
                self._flow.stops[reason] += 1
            last = reason
            self._room.clear()
            await self._room.wait()

    def _note_end(self, *, is_end: bool) -> None:
        """What is known of the queue's end has changed; who waits for it is told."""
        if is_end and not self.drained and not self.buffer:
            self.drained = True
            self._on_messages(self)
        self.drained = is_end

    async def _start_offset(self) -> int:
        while True:
            try:
                return await self._find_start()
            except ClientError as error:
                self._note_end(is_end=True)
                logger.warning("%s: no offset to begin with yet: %s", self.queue, error)
                await asyncio.sleep(_REFUSED_PAUSE_SECONDS)

    async def _pull_once(self, offset: int) -> PullResult | None:
        """One pull, None after a failure that has been dealt with."""
        group = self._core.routes.group(self.queue.broker_group)
        address = self._address = group.any_address(self._avoid, self._placed.broker_id)
        if address is None:
            self._core.routes.refresh_soon(self.queue.topic)
            await asyncio.sleep(_REFUSED_PAUSE_SECONDS)
            return None
        self._pull = asyncio.ensure_future(
            pull(
                self._core,
                address,
                self._consumer_group,
                self.queue,
                offset,
                self._subscription,
                max_messages=self._limits.max_messages,
                suspend_seconds=self._suspend_seconds(),
                settle=self._settle,
            )
        )
        try:
            result = await self._pull
        except asyncio.CancelledError:
            if being_cancelled():
                raise
            return None
        except ClientError as error:
            logger.debug("pull of %s from %s failed: %s", self.queue, address, error)
            group.doubt(address)
            self._placed.shun()
            await self._pause(address)
            return None
        except RemotingError as error:
            await self._on_refusal(error, address)
            return None
        finally:
            self._pull = None
        self._failures = self._refusals = 0
        self.pulled_at = self._core.loop.time()
        self._avoid = None
        self._placed.follow(result.next_broker_id)
        return result

    def _suspend_seconds(self) -> float:
        return 0.0 if self._limits.finds_end and not self.drained else self._limits.suspend_seconds

    async def _on_refusal(self, error: RemotingError, address: str) -> None:
        if isinstance(error, ServiceNotAvailable | SystemBusy):
            if isinstance(error, ServiceNotAvailable):
                self._core.note_not_leader(self._core.routes.group(self.queue.broker_group), address, error)
            await self._pause(address)
            return
        if isinstance(error, SubscriptionNotExist | SubscriptionNotLatest):
            await self._core.beat_now((address,))
            await self._pause(None)
            return
        if isinstance(error, ProtocolError):
            logger.warning("reading of %s stands still: %s", self.queue, error)
        else:
            logger.warning("pull of %s from %s refused: code %d, %s", self.queue, address, error.code, error)
        self._core.routes.refresh_soon(self.queue.topic)
        self._placed.shun()
        self._avoid = address
        pause = min(_REFUSED_PAUSE_SECONDS * (1 << min(self._refusals, 10)), _MAX_REFUSED_PAUSE_SECONDS)
        self._refusals += 1
        await asyncio.sleep(pause)

    async def _pause(self, avoid: str | None) -> None:
        """Wait a little longer after each failure in a row, then go elsewhere if a node is to be avoided."""
        self._avoid = avoid
        pause = min(MIN_PAUSE_SECONDS * (1 << min(self._failures, 10)), MAX_PAUSE_SECONDS)
        self._failures += 1
        await asyncio.sleep(pause)


def being_cancelled() -> bool:
    """True if this very task is to end, False if only what it waited for was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

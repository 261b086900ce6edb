"""Reader of one queue: long polls, one after another, fill a buffer that the consumer empties.

Any node of the broker group may be asked: followers serve committed messages. The node that the last answer names is
preferred, or the leader. A node that fails is avoided in the next attempt, which goes to the leader.

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

from dledger_remoting.codes import ResponseCode
from dledger_remoting.errors import (
    ProtocolError,
    RemotingError,
    ServiceNotAvailable,
    SubscriptionNotExist,
    SubscriptionNotLatest,
    SystemBusy,
)

from ..cluster.core import ClientCore
from ..cluster.leaders import LEADER_ID
from ..errors import ClientError
from ..messages import MessageQueue, ReceivedMessage, Settlement
from ..subscriptions import Subscription
from .empty_answers import EmptyAnswers, Placed
from .flow import FlowControl, FlowReason
from .offsets import Creations
from .progress import QueueProgress
from .pulls import PullLimits, PullResult, pull

logger = logging.getLogger(__name__)

MIN_PAUSE_SECONDS: Final = 0.025
MAX_PAUSE_SECONDS: Final = 1.0
_REFUSED_PAUSE_SECONDS: Final = 1.0
_MAX_REFUSED_PAUSE_SECONDS: Final = 16.0
"""Maximum pause in seconds after refusals.

So a missing topic is not asked for and logged every second.
"""


class Taken(NamedTuple):
    """A message in work: its number of earlier deliveries, and when it was taken, by the event loop's clock."""

    reconsume_times: int
    taken_at: float


class MovedCallback(Protocol):
    """Callback for a queue that is to be read anew from an offset."""

    def __call__(self, fetcher: QueueFetcher, offset: int, *, is_reset: bool) -> None:
        """Called by the queue's fetcher, because the topic was created again, or because the group was reset."""


class QueueFetcher:
    """Keeps one queue's buffer filled while the queue belongs to this consumer.

    Arguments of the constructor:

    - `find_start`: returns the offset to begin with.
    - `creations`: the creation of the topic to which that offset belongs.
    - `on_messages`: called when the buffer has got messages, or the queue turns out to end here.
    - `settle`: called when the application has ended its work on a message.
    - `on_moved`: called with an offset to read anew from; this fetcher is then no longer used. The offset is lower than
      those read so far if the topic was created again. It may be any offset if the group was reset.

    Fields without underscore are for the consumer:

    - `buffer`, `saved_offset`: messages to hand out, and the offset committed last.
    - `in_work`: messages that are taken and not finished, by offset.
    - `waiting_since`: when a message was taken last, or came to an empty buffer.
    - `pulled_at`: when a node answered last.
    - `listed`: the fetcher is in the consumer's list of queues with work.
    - `retrying`: offsets that are given back and not stored anywhere else yet, and since when they should be.
    - `unread_since`, `trouble`: when reading began to fail, None if it does not fail, and why.
    - `drained`: the queue is known to end with the messages that were read, or it cannot be read.
    - `topic_queues`: number of the topic's queues that the consumer reads.
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
        creations: Creations,
        on_messages: Callable[[QueueFetcher], None],
        settle: Callable[[QueueFetcher, ReceivedMessage[object], Settlement], None],
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
        self.retrying: dict[int, float] = {}
        self._retry_offsets: set[int] = set()
        self.unread_since: float | None = self.waiting_since
        self.trouble = "its offset to begin with is not known"
        self.paused = paused
        self.drained = False
        self.topic_queues = 1
        self._core = core
        self._consumer_group = consumer_group
        self._subscription = subscription
        self._limits = limits
        self._flow = flow
        self._find_start = find_start
        self.created: int | None = None
        """The creation of the topic that is read, None if no broker has reported it.

        A commit of an earlier creation's offset must say so, also when the queue's next fetcher has begun with the
        topic that was made since.
        """
        self._creations = creations
        self._on_messages = on_messages
        self._settle = partial(settle, self)
        self._on_moved = on_moved
        self._may_continue = asyncio.Event()
        self._work_changed = asyncio.Event()
        self._address: str | None = None
        self._avoided_address: str | None = None
        self._pull_node = Placed(core.loop)
        self._failures = 0
        self._refusals = 0
        self._empty_answers = EmptyAnswers(core.loop)
        self._pull_task: asyncio.Task[PullResult] | None = None
        self._task = core.keep(self._run, f"fetch {queue}")

    def unsaved_offset(self) -> int | None:
        """Return the offset to commit, None if it is committed already or not known yet."""
        if self.progress is None or self.progress.committable == self.saved_offset:
            return None
        return self.progress.committable

    @property
    def reading_stopped(self) -> bool:
        """True while reading is stopped because too much is unfinished."""
        return self._stop_reason is not None

    @property
    def _stop_reason(self) -> FlowReason | None:
        return None if self.progress is None else self._flow.reason(self.progress, self.topic_queues)

    @property
    def may_have_more(self) -> bool:
        """True if no message is here, but the next one may be about to come."""
        return not (self.buffer or self.drained or self.paused or self.revoked or self.reading_stopped)

    def go_on(self, *, paused: bool, topic_queues: int) -> None:
        """Apply a pause or continuation by the application, or a changed share of the topic's limits."""
        if self.paused and not paused:
            self.waiting_since = self._core.loop.time()
        self.paused, self.topic_queues = paused, topic_queues
        self._may_continue.set()

    def take(self) -> ReceivedMessage:
        """Hand out the first message of the buffer, which must not be empty."""
        message = self.buffer.popleft()
        self._retry_offsets.discard(message.queue_offset)
        self.waiting_since = self._core.loop.time()
        self.in_work[message.queue_offset] = Taken(message.reconsume_times, self.waiting_since)
        return message

    def finish(self, message: ReceivedMessage[object]) -> bool:
        """Record that the taker of a message has finished it.

        Returns False if the message was not taken, or was finished before. It may have been handed out again since;
        that delivery belongs to another taker.
        """
        taken = self.in_work.get(message.queue_offset)
        if taken is None or taken.reconsume_times != message.reconsume_times:
            return False
        del self.in_work[message.queue_offset]
        self._work_changed.set()
        return True

    def acknowledge(self, offset: int) -> None:
        """Acknowledge a message; without effect if it was not outstanding."""
        if self.progress is not None and self.progress.acknowledge(offset):
            self._may_continue.set()
            self._work_changed.set()

    def on_leader(self) -> None:
        """Handle a new leader of the group: repeat a pull that hangs at another node there at once.

        A pull stays where it is if an answer had led it to that node.
        """
        group = self._core.routes.group(self.queue.broker_group)
        is_directed = self._pull_node.broker_id != LEADER_ID and self._avoided_address is None
        if self._pull_task is not None and self._address != group.leader and not is_directed:
            self._pull_task.cancel()

    def revoke(self) -> None:
        """Stop reading. Buffered messages that were not handed out are dropped and stay uncommitted."""
        self.revoked = True
        self._task.cancel()
        if self.progress is not None and self.buffer:
            self.progress.withdraw(self.buffer[0].queue_offset)
        self._retry_offsets.difference_update(message.queue_offset for message in self.buffer)
        self.buffer.clear()

    async def idle(self) -> None:
        """Wait until all messages that were handed out are acknowledged.

        Messages that wait in their places to be tried again do not count: once reading has stopped, they are not tried
        again here.
        """
        while self.progress is not None and self.progress.outstanding > len(self._retry_offsets):
            self._work_changed.clear()
            await self._work_changed.wait()

    def try_again(self, offset: int) -> None:
        """Mark a message that waits in its place to be handed out again."""
        self._retry_offsets.add(offset)
        self._work_changed.set()

    async def untaken(self) -> None:
        """Wait until no handler works on a message. Messages given back during the wait stay unacknowledged."""
        while self.in_work:
            self._work_changed.clear()
            await self._work_changed.wait()

    async def _run(self) -> None:
        # If there is progress, an exception has ended an earlier run. Messages that it handed out are still in work, so
        # the progress is kept.
        if self.progress is None:
            self.progress = QueueProgress(await self._start_offset())
            self.created = self._creations.get(self.queue, self._core.routes.created(self.queue))
            self.unread_since = None
        progress = self.progress
        while True:
            await self._wait_until_readable()
            self._empty_answers.asked(self._suspend_seconds())
            result = await self._pull_once(progress.next_offset)
            if result is None:
                self._record_end(is_end=True)
                continue
            if result.is_reset:
                logger.info("%s: the group was reset to offset %d", self.queue, result.next_offset)
                self._on_moved(self, result.next_offset, is_reset=True)
                return
            if result.topic_created is not None:
                self._creations[self.queue] = self.created = result.topic_created
            if result.code == ResponseCode.PULL_OFFSET_MOVED:
                logger.warning(
                    "%s: offset %d is outside the queue, going on at %d",
                    self.queue,
                    progress.next_offset,
                    result.next_offset,
                )
                if result.next_offset < progress.next_offset or result.topic_created is not None:
                    self._on_moved(self, result.next_offset, is_reset=False)
                    return
                progress.advance(result.next_offset)
                continue
            for message in result.messages:
                progress.deliver(message.queue_offset, len(message.body))
            if not self.buffer:
                self.waiting_since = self._core.loop.time()
            self.buffer.extend(result.messages)
            is_stuck = result.next_offset <= progress.next_offset
            progress.advance(result.next_offset)
            self._record_end(is_end=result.is_end)
            if result.messages:
                self._on_messages(self)
            elif is_stuck and result.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
                await asyncio.sleep(MIN_PAUSE_SECONDS)
            elif (pause := self._empty_answers.pause(result.code)) > 0.0:
                await asyncio.sleep(pause)

    async def _wait_until_readable(self) -> None:
        """Wait until there is room, and the queue is not paused."""
        last_reason: FlowReason | None = None
        while (reason := self._stop_reason) is not None or self.paused:
            if reason is not None and reason != last_reason:
                self._flow.stops[reason] += 1
            last_reason = reason
            self._may_continue.clear()
            await self._may_continue.wait()

    def _record_end(self, *, is_end: bool) -> None:
        """Record whether the queue is known to end here, and wake the tasks that wait for that."""
        if is_end and not self.drained and not self.buffer:
            self.drained = True
            self._on_messages(self)
        self.drained = is_end

    async def _start_offset(self) -> int:
        while True:
            try:
                return await self._find_start()
            except ClientError as error:
                self._record_end(is_end=True)
                self.trouble = f"its offset to begin with is not known: {error}"
                logger.warning("%s: no offset to begin with yet: %s", self.queue, error)
                await asyncio.sleep(_REFUSED_PAUSE_SECONDS)

    async def _pull_once(self, offset: int) -> PullResult | None:
        """Pull once. Returns None after a failure that has been handled."""
        group = self._core.routes.group(self.queue.broker_group)
        address = self._address = group.any_address(self._avoided_address, self._pull_node.broker_id)
        if address is None:
            self._record_trouble("no node of its broker group is known")
            self._core.routes.refresh_soon(self.queue.topic)
            await asyncio.sleep(_REFUSED_PAUSE_SECONDS)
            return None
        self._pull_task = asyncio.ensure_future(
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
                keep_unreadable=self._limits.keep_unreadable,
                topic_created=self.created,
            )
        )
        try:
            result = await self._pull_task
        except asyncio.CancelledError:
            if being_cancelled():
                raise
            return None
        except ClientError as error:
            logger.debug("pull of %s from %s failed: %s", self.queue, address, error)
            self._record_trouble(str(error))
            group.doubt(address)
            self._pull_node.shun()
            await self._pause_after_failure(address)
            return None
        except RemotingError as error:
            await self._on_refusal(error, address)
            return None
        finally:
            self._pull_task = None
        self._failures = self._refusals = 0
        self.unread_since = None
        self.pulled_at = self._core.loop.time()
        self._avoided_address = None
        self._pull_node.follow(result.next_broker_id)
        return result

    def _suspend_seconds(self) -> float:
        return 0.0 if self._limits.finds_end and not self.drained else self._limits.suspend_seconds

    def _record_trouble(self, reason: str) -> None:
        """Record that reading fails, with the reason and the time."""
        self.trouble = reason
        if self.unread_since is None:
            self.unread_since = self._core.loop.time()

    async def _on_refusal(self, error: RemotingError, address: str) -> None:
        self._record_trouble(f"{address} refuses pulls: code {error.code}, {error.remark}")
        if isinstance(error, ServiceNotAvailable | SystemBusy):
            if isinstance(error, ServiceNotAvailable):
                self._core.note_not_leader(self._core.routes.group(self.queue.broker_group), address, error)
            await self._pause_after_failure(address)
            return
        if isinstance(error, SubscriptionNotExist | SubscriptionNotLatest):
            await self._core.beat_now((address,))
            await self._pause_after_failure(None)
            return
        if isinstance(error, ProtocolError):
            logger.warning("reading of %s stands still: %s", self.queue, error)
        else:
            logger.warning("pull of %s from %s refused: code %d, %s", self.queue, address, error.code, error)
        self._core.routes.refresh_soon(self.queue.topic)
        self._pull_node.shun()
        self._avoided_address = address
        pause = min(_REFUSED_PAUSE_SECONDS * (1 << min(self._refusals, 10)), _MAX_REFUSED_PAUSE_SECONDS)
        self._refusals += 1
        await asyncio.sleep(pause)

    async def _pause_after_failure(self, avoid: str | None) -> None:
        """Wait a little longer after each failure in a row, then go elsewhere if a node is to be avoided."""
        self._avoided_address = avoid
        pause = failure_pause_seconds(self._failures)
        self._failures += 1
        await asyncio.sleep(pause)


def failure_pause_seconds(failures: int) -> float:
    """Return the pause after a failed pull, which had `failures` failed pulls in a row before it."""
    return min(MIN_PAUSE_SECONDS * (1 << min(failures, 10)), MAX_PAUSE_SECONDS)


def being_cancelled() -> bool:
    """Return True if this very task is to end, False if only something that it awaited was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

"""The queues that a consumer reads: taking them over, giving them up, and committing how far it has got.

Handing a queue over without delivering messages twice: 1. both members learn of the new share at the same time, by the
broker's notice; 2. the old owner stops reading, drops what it has not handed out, and commits; 3. it commits once more
when the messages in work are done, or after `RELEASE_SECONDS`; 4. the new owner asks for the committed offset only
`HANDOVER_SECONDS` after it learned of its share. What is in work longer than that is delivered to both.

With locks it goes on differently: 3. the old owner waits until nothing is in work, commits, has the answer, and gives
the lock up; if it cannot commit the lock ends by itself. 4. The new owner waits for the lock, then asks for the offset.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from dledger_remoting.topics import is_retry_topic

from .core import ClientCore
from .fetcher import PullLimits, QueueFetcher
from .flow import FlowControl
from .leaders import BrokerGroup
from .locks import QueueLocks
from .membership import Membership
from .messages import MessageQueue, ReceivedMessage, Settlement
from .offsets import OffsetStore, QueueOffsets, StartFrom
from .pauses import Pauses
from .routes import TopicRoute
from .subscriptions import Subscription

logger = logging.getLogger(__name__)

COMMIT_SECONDS: Final = 5.0
REBALANCE_SECONDS: Final = 20.0
HANDOVER_SECONDS: Final = 0.5
RELEASE_SECONDS: Final = 0.4

_FIRST_REPEAT_SECONDS: Final = 0.5
"""After this time, then twice as long and so on, the share is determined again when a topic was missing."""

_ANSWER_SECONDS: Final = 5.0


class Assignments:
    """The fetchers of one consumer, kept in step with its share of the queues.

    `on_messages` is called when a fetcher has got messages, `settle` when the application has ended its work on one.
    With `in_order` a queue that is reset is read again when nobody works on a message of it; with `with_locks` a queue
    is read only while its lock is held.
    """

    def __init__(
        self,
        core: ClientCore,
        consumer_group: str,
        subscriptions: Mapping[str, Subscription],
        membership: Membership,
        store: OffsetStore,
        *,
        start_from: StartFrom,
        limits: PullLimits,
        flow: FlowControl,
        on_messages: Callable[[QueueFetcher], None],
        settle: Callable[[QueueFetcher, ReceivedMessage, Settlement], None],
        in_order: bool = False,
        with_locks: bool = False,
    ) -> None:
        self._in_order = in_order
        self._locks = QueueLocks(core, consumer_group, self._read_after_loss) if with_locks else None
        self._core = core
        self._consumer_group = consumer_group
        self._subscriptions = subscriptions
        self._membership = membership
        self._store = store
        self._start_from: StartFrom = start_from
        self._limits = limits
        self._flow = flow
        self._pauses = Pauses()
        self._on_messages = on_messages
        self._settle = settle
        self._fetchers: dict[MessageQueue, QueueFetcher] = {}
        self._releasing: dict[MessageQueue, QueueFetcher] = {}
        self._first_seen: dict[str, frozenset[MessageQueue]] = {}
        self._rebalance_wanted = asyncio.Event()
        self._released = asyncio.Event()
        self._closing = False

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """The queues that are read now."""
        return frozenset(self._fetchers)

    def holds(self, fetcher: QueueFetcher) -> bool:
        """True while what is acknowledged to a fetcher is committed: until a moment after its queue was given up."""
        return fetcher is self._fetchers.get(fetcher.queue) or fetcher is self._releasing.get(fetcher.queue)

    def may_work_on(self, fetcher: QueueFetcher) -> bool:
        """False while the lock of a queue is not held: another member may work on it."""
        return self._locks is None or self._locks.holds(fetcher.queue)

    @property
    def paused(self) -> frozenset[MessageQueue]:
        """The queues of `queues` that are paused."""
        return frozenset(queue for queue in self._fetchers if queue in self._pauses)

    def pause(self, queues: Iterable[MessageQueue] | None, *, paused: bool) -> list[QueueFetcher]:
        """Read nothing more of these queues and hand out nothing of them, or go on; None: all that there are and will
        be. Returns the fetchers of those that are read.
        """
        self._pauses.set(queues, paused=paused)
        self._adjust()
        return list(self._fetchers.values())

    def start(self) -> None:
        """Begin to follow routes, leaders and the group's membership."""
        self._core.routes.listeners.append(self._on_route)
        self._core.leader_listeners.append(self._on_leader)
        self._core.keep(self._rebalance_regularly, "rebalance")
        self._core.keep(self._commit_regularly, "commit offsets")
        if self._locks is not None:
            self._core.keep(self._locks.renew_regularly, "renew locks")

    def rebalance_soon(self) -> None:
        """The group's members have changed."""
        self._rebalance_wanted.set()

    def stop_reading(self) -> None:
        """Keep the queues, but read and hand out nothing more."""
        self._closing = True
        for fetcher in self._fetchers.values():
            fetcher.revoke()

    async def idle(self) -> None:
        """Wait until everything handed out is acknowledged."""
        await asyncio.gather(*(fetcher.idle() for fetcher in self.fetchers()))

    async def commit(self) -> set[MessageQueue]:
        """Commit what is acknowledged and not committed yet; the queues for which that failed until the next time."""
        return await self._commit(self.fetchers())

    async def unlock(self) -> bool:
        """Give up the locks of queues of which everything handed out is committed; False if there are others."""
        if self._locks is None:
            return True
        finished = [one for one in self.fetchers() if not one.in_work and one.unsaved_offset() is None]
        await self._locks.release(fetcher.queue for fetcher in finished)
        return len(finished) == len(self.fetchers())

    def fetchers(self) -> list[QueueFetcher]:
        """Those of the queues that are read, and of those that are being given up."""
        return [*self._fetchers.values(), *self._releasing.values()]

    async def _rebalance_regularly(self) -> None:
        repeat = _FIRST_REPEAT_SECONDS
        while not self._closing:
            self._rebalance_wanted.clear()
            if await self._try_to_rebalance():
                pause, repeat = REBALANCE_SECONDS, _FIRST_REPEAT_SECONDS
            else:
                pause, repeat = repeat, min(repeat * 2, REBALANCE_SECONDS)
            try:
                async with asyncio.timeout(pause):
                    await self._rebalance_wanted.wait()
            except TimeoutError:
                pass

    async def _try_to_rebalance(self) -> bool:
        """`_rebalance`; a strategy is the application's code, and what it raises must not end all rebalancing."""
        try:
            return await self._rebalance()
        except Exception:
            logger.exception("%s could not determine its share of the queues, trying again", self._core.client_id)
            return False

    async def _rebalance(self) -> bool:
        """Take over and give up queues; False if the share is not known of all topics."""
        wanted = await self._membership.assignment(self.queues)
        if self._closing:
            return True
        for queue in self.queues - wanted.queues:
            self._give_up(queue)
        for queue in sorted(wanted.queues - self.queues):
            self._take_over(queue, wait=not wanted.alone or queue in self._releasing)
        self._adjust()
        return wanted.complete

    def _adjust(self) -> None:
        """Tell the fetchers of pauses, and of how many share their topic's limits."""
        queues = Counter(queue.topic for queue in self._fetchers)
        for queue, fetcher in self._fetchers.items():
            fetcher.go_on(paused=queue in self._pauses, topic_queues=queues[queue.topic])

    def _take_over(self, queue: MessageQueue, *, wait: bool) -> None:
        logger.info("%s reads %s", self._core.client_id, queue)
        self._read(queue, lambda: self._find_start(queue, wait=wait))

    def _read(self, queue: MessageQueue, find_start: Callable[[], Awaitable[int]]) -> None:
        fetcher = self._fetchers[queue] = QueueFetcher(
            self._core,
            self._consumer_group,
            queue,
            self._subscriptions[queue.topic],
            self._limits,
            self._flow,
            paused=queue in self._pauses,
            find_start=find_start,
            on_messages=self._on_messages,
            settle=self._settle,
            on_moved=self._read_anew,
        )
        fetcher.drained = self._locks is not None  # nobody waits for what comes once the lock is granted

    def positions(self) -> dict[MessageQueue, int]:
        """What would be committed now of the queues that are read."""
        return {
            queue: fetcher.progress.committable
            for queue, fetcher in self._fetchers.items()
            if fetcher.progress is not None
        }

    def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """The group goes on elsewhere, in those of these queues that are read."""
        for queue, offset in offsets.items():
            fetcher = self._fetchers.get(queue)
            if fetcher is not None and not self._closing:
                logger.info("%s: the group was reset to offset %d", queue, offset)
                self._read_anew(fetcher, offset, is_reset=True)

    def _read_anew(self, fetcher: QueueFetcher, offset: int, *, is_reset: bool) -> None:
        """Read a topic that was made again, or a queue in which the group was reset. What was handed out before counts
        no more, whatever becomes of it: it is not committed, nor sent back.

        A commit from before the reset that is under way has an answer before the queue is read again: behind that the
        broker would take it for one that knows of the reset.
        """
        if self._fetchers.get(fetcher.queue) is not fetcher:
            return
        fetcher.revoke()

        async def start() -> int:
            if not is_reset:
                return offset
            if self._in_order:
                await fetcher.untaken()  # or two would work on the queue
            return await self._store.reset(fetcher.queue, offset, self._core.loop.time() + _ANSWER_SECONDS)

        self._read(fetcher.queue, start)

    def _read_after_loss(self, queue: MessageQueue) -> None:
        """Somebody else may have had the lock: what is buffered is void, and what is in work is not committed."""
        if queue in self._fetchers and not self._closing:
            self._give_up(queue)
            self._take_over(queue, wait=False)

    def _give_up(self, queue: MessageQueue) -> None:
        logger.info("%s no longer reads %s", self._core.client_id, queue)
        fetcher = self._releasing[queue] = self._fetchers.pop(queue)
        fetcher.revoke()
        self._core.spawn(self._release(fetcher), f"release {queue}")

    async def _release(self, fetcher: QueueFetcher) -> None:
        await self._commit([fetcher])
        if self._locks is not None:
            await fetcher.untaken()
        else:
            await self._wait_a_moment(fetcher)
        left = await self._commit([fetcher])
        if self._locks is not None and not left and self.may_work_on(fetcher):
            await self._locks.release([fetcher.queue])
        if self._releasing.get(fetcher.queue) is fetcher:
            del self._releasing[fetcher.queue]
        self._released.set()

    async def _wait_a_moment(self, fetcher: QueueFetcher) -> None:
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await fetcher.idle()
        except TimeoutError:
            logger.warning("%s given up with messages in work; the next owner gets them too", fetcher.queue)

    async def _find_start(self, queue: MessageQueue, *, wait: bool) -> int:
        """The committed offset; without one the configured start, which is then committed at once.

        Otherwise a member that takes over before the first commit would begin at a later "last" and skip messages. For
        the same reason a queue that appears later, with its topic or when that grows, is read from its first message.
        """
        if self._locks is not None:
            while queue in self._releasing:
                self._released.clear()
                await self._released.wait()
            await self._locks.acquire(queue)
        elif wait:
            await asyncio.sleep(HANDOVER_SECONDS)
        deadline = self._core.loop.time() + _ANSWER_SECONDS
        stored = await self._store.load(queue, deadline)
        if stored is not None:
            return stored
        is_new = queue not in self._first_seen.get(queue.topic, ())
        start = "first" if is_new or is_retry_topic(queue.topic) else self._start_from
        offset = await QueueOffsets(self._core).at(queue, start, deadline)
        if offset > 0 or not (self._start_from == "first" or is_retry_topic(queue.topic)):
            await self._store.save({queue: offset}, deadline)
        return offset

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_SECONDS)
            await self.commit()

    async def _commit(self, fetchers: Iterable[QueueFetcher]) -> set[MessageQueue]:
        offsets = {
            fetcher: offset
            for fetcher in fetchers
            if (offset := fetcher.unsaved_offset()) is not None
            and self.holds(fetcher)
            and not self._is_followed(fetcher)
            and self.may_work_on(fetcher)
        }
        if not offsets:
            return set()
        deadline = self._core.loop.time() + _ANSWER_SECONDS
        saved = await self._store.save({fetcher.queue: offset for fetcher, offset in offsets.items()}, deadline)
        for fetcher, offset in offsets.items():
            if fetcher.queue in saved:
                fetcher.saved_offset = offset
        return {fetcher.queue for fetcher in offsets} - saved

    def _is_followed(self, fetcher: QueueFetcher) -> bool:
        """True if the queue was given up, has come back, and is read on already from what was committed."""
        reading = self._fetchers.get(fetcher.queue, fetcher)
        return reading is not fetcher and reading.progress is not None

    def _on_route(self, route: TopicRoute) -> None:
        if route.topic in self._subscriptions:
            there = () if route.topic in self._core.routes.made_later else route.all_readable
            self._first_seen.setdefault(route.topic, frozenset(there))
            self._rebalance_wanted.set()

    def _on_leader(self, group: BrokerGroup) -> None:
        for fetcher in self._fetchers.values():
            if fetcher.queue.broker_group == group.name:
                fetcher.on_leader()

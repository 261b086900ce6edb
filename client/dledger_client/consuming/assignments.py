"""The queues that a consumer reads: it takes them over, gives them up, and commits its progress in them.

A queue is handed over without delivering messages twice:

1. Both members learn of the new share at the same time, from the broker's notice.
2. The old owner stops reading, drops messages that it has not handed out, and commits.
3. It commits once more when the messages in work are done, or after `RELEASE_SECONDS`.
4. The new owner asks for the committed offset `HANDOVER_SECONDS` after it learned of its share.

Messages that are in work for longer are delivered to both.

With locks the last steps differ:

3. The old owner waits until nothing is in work, commits, has the answer, and gives the lock up. If it cannot commit,
   the lock ends by itself.
4. The new owner waits for the lock, then asks for the offset.

Work counts per queue, not per fetcher. A queue that is reset or assigned again gets a new fetcher, while work on the
earlier fetcher's messages continues. An ordered consumer reads such a queue again once all that work is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from dledger_remoting.topics import is_retry_topic

from ..cluster.core import ClientCore
from ..cluster.leaders import BrokerGroup
from ..cluster.routes import TopicRoute
from ..messages import MessageQueue, ReceivedMessage, Settlement
from ..subscriptions import Subscription
from .fetcher import QueueFetcher
from .flow import FlowControl
from .locks import QueueLocks
from .membership import Membership
from .offsets import OffsetStore, Position, QueueOffsets, StartFrom
from .pauses import Pauses
from .pulls import PullLimits

logger = logging.getLogger(__name__)

COMMIT_SECONDS: Final = 5.0
REBALANCE_SECONDS: Final = 20.0
HANDOVER_SECONDS: Final = 0.5
RELEASE_SECONDS: Final = 0.4

_FIRST_REPEAT_SECONDS: Final = 0.5
"""First pause before an incomplete share is determined again. Each further pause is twice as long."""

_ANSWER_SECONDS: Final = 5.0


class Assignments:
    """The fetchers of one consumer, kept in step with its share of the queues.

    `on_messages` is called when a fetcher has received messages, `settle` when the application has finished with one.
    With `in_order` a queue that is reset is read again when no message of it is in work. With `with_locks` a queue is
    read only while its lock is held.
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
        settle: Callable[[QueueFetcher, ReceivedMessage[object], Settlement], None],
        in_order: bool = False,
        with_locks: bool = False,
    ) -> None:
        self._in_order = in_order
        self._locks = QueueLocks(core, consumer_group, self._restart_after_lost_lock) if with_locks else None
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
        self._former_fetchers: set[QueueFetcher] = set()
        """Former fetchers whose messages may still be in work."""
        self._start_requests: Counter[MessageQueue] = Counter()
        """Number of fetchers of each queue that ask where to begin."""
        self._initial_queues: dict[str, frozenset[MessageQueue]] = {}
        self._rebalance_wanted = asyncio.Event()
        self._released = asyncio.Event()
        self._closing = False

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """The queues that are read now."""
        return frozenset(self._fetchers)

    def holds(self, fetcher: QueueFetcher) -> bool:
        """Return True while acknowledgements to a fetcher are committed: until shortly after its queue was given up."""
        return fetcher is self._fetchers.get(fetcher.queue) or fetcher is self._releasing.get(fetcher.queue)

    def may_work_on(self, fetcher: QueueFetcher) -> bool:
        """Return False while the lock of a queue is not held: another member may work on it."""
        return self._locks is None or self._locks.holds(fetcher.queue)

    @property
    def paused(self) -> frozenset[MessageQueue]:
        """The queues of `queues` that are paused."""
        return frozenset(queue for queue in self._fetchers if queue in self._pauses)

    def pause(self, queues: Iterable[MessageQueue] | None, *, paused: bool) -> list[QueueFetcher]:
        """Pause or resume these queues; None means all present and future queues.

        A paused queue is not read, and none of its messages are handed out. Returns the fetchers of all queues.
        """
        self._pauses.set(queues, paused=paused)
        self._update_fetchers()
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
        """Determine the share soon, because the group's members have changed."""
        self._rebalance_wanted.set()

    def stop_reading(self) -> None:
        """Keep the queues, but read and hand out nothing more."""
        self._closing = True
        for fetcher in self._fetchers.values():
            self._revoke(fetcher)

    async def idle(self) -> None:
        """Wait until everything handed out is acknowledged."""
        await asyncio.gather(*(fetcher.idle() for fetcher in self.fetchers()))

    async def commit(self) -> set[MessageQueue]:
        """Commit all acknowledged offsets that are not committed; return the queues for which that failed."""
        return await self._commit(self.fetchers())

    async def unlock(self) -> bool:
        """Give up the locks of queues whose handed-out messages are all committed; return False if others are left."""
        if self._locks is None:
            return True
        busy_queues = {
            fetcher.queue for fetcher in self.fetchers() if fetcher.in_work or fetcher.unsaved_offset() is not None
        }
        busy_queues |= {fetcher.queue for fetcher in self._former_fetchers if fetcher.in_work}
        await self._release_locks({fetcher.queue for fetcher in self.fetchers()} - busy_queues)
        return not busy_queues

    def forget_work(self) -> None:
        """Forget all work on messages, because the handlers were cancelled."""
        for fetcher in {*self.fetchers(), *self._former_fetchers}:
            fetcher.in_work.clear()

    def fetchers(self) -> list[QueueFetcher]:
        """Return the fetchers of the queues that are read, and of queues that are being given up."""
        return [*self._fetchers.values(), *self._releasing.values()]

    def watched(self) -> list[QueueFetcher]:
        """Return these fetchers, and former ones with messages in work, which may hold up their queues."""
        current = self.fetchers()
        return [*current, *(fetcher for fetcher in self._former_fetchers if fetcher.in_work and fetcher not in current)]

    async def finish_before_release(self, queue: MessageQueue) -> None:
        """Wait until no message of a queue is in work, before its lock is released."""
        await self._wait_for_work(queue)

    async def finish_before_reading(self, queue: MessageQueue) -> None:
        """Wait until no message of a queue that is read in order is in work, before it is read again."""
        await self._wait_for_work(queue)

    async def _wait_for_work(self, queue: MessageQueue) -> None:
        """Wait until no message of a queue's former fetchers is in work."""
        while working := [fetcher for fetcher in self._former_fetchers if fetcher.queue == queue and fetcher.in_work]:
            await asyncio.gather(*(fetcher.untaken() for fetcher in working))

    async def _wait_until_readable(self, queue: MessageQueue) -> None:
        """Wait until a queue may be read: if ordered, without messages in work, and with its lock if locks are used."""
        while self._locks is not None and queue in self._releasing:
            self._released.clear()
            await self._released.wait()
        if self._in_order:
            await self.finish_before_reading(queue)
        if self._locks is not None:
            await self._locks.acquire(queue)

    def _revoke(self, fetcher: QueueFetcher) -> None:
        fetcher.revoke()
        self._former_fetchers = {former for former in self._former_fetchers if former.in_work}
        self._former_fetchers.add(fetcher)

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
        """Rebalance. A strategy is the application's code: an exception of it must not end all rebalancing."""
        try:
            return await self._rebalance()
        except Exception:
            logger.exception("%s could not determine its share of the queues, trying again", self._core.client_id)
            return False

    async def _rebalance(self) -> bool:
        """Take over and give up queues; return False if the share of some topic is unknown."""
        assignment = await self._membership.assignment(self.queues)
        if self._closing:
            return True
        for queue in sorted(self.queues - assignment.queues):
            self._give_up(queue)
        for queue in sorted(assignment.queues - self.queues):
            self._take_over(queue, wait=not assignment.alone or queue in self._releasing)
        self._update_fetchers()
        return assignment.complete

    def _update_fetchers(self) -> None:
        """Tell the fetchers of pauses, and of the number of fetchers that share their topic's limits."""
        queues = Counter(queue.topic for queue in self._fetchers)
        for queue, fetcher in self._fetchers.items():
            fetcher.go_on(paused=queue in self._pauses, topic_queues=queues[queue.topic])

    def _take_over(self, queue: MessageQueue, *, wait: bool) -> None:
        logger.info("%s reads %s", self._core.client_id, queue)
        self._start_fetcher(queue, lambda: self._find_start(queue, wait=wait))

    def _start_fetcher(self, queue: MessageQueue, find_start: Callable[[], Awaitable[int]]) -> None:
        fetcher = self._fetchers[queue] = QueueFetcher(
            self._core,
            self._consumer_group,
            queue,
            self._subscriptions[queue.topic],
            self._limits,
            self._flow,
            paused=queue in self._pauses,
            find_start=find_start,
            creations=self._store.creations,
            on_messages=self._on_messages,
            settle=self._settle,
            on_moved=self._read_anew,
        )
        fetcher.drained = self._locks is not None  # other queues do not wait for the grant of the lock

    def positions(self) -> dict[MessageQueue, int]:
        """Return the offsets that a commit would commit now."""
        return {
            queue: fetcher.progress.committable
            for queue, fetcher in self._fetchers.items()
            if fetcher.progress is not None
        }

    def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue these queues, as far as they are read, at other offsets, because the group was reset."""
        for queue, offset in offsets.items():
            fetcher = self._fetchers.get(queue)
            if fetcher is not None and not self._closing:
                logger.info("%s: the group was reset to offset %d", queue, offset)
                self._read_anew(fetcher, offset, is_reset=True)

    def _read_anew(self, fetcher: QueueFetcher, offset: int, *, is_reset: bool) -> None:
        """Read a topic that was made again, or a queue in which the group was reset.

        Messages that were handed out before count no more: they are neither committed nor sent back.

        A commit from before the reset must be answered before the queue is read again. Once it is read, the broker
        accepts this member's commits.
        """
        if self._fetchers.get(fetcher.queue) is not fetcher:
            return
        self._revoke(fetcher)

        async def start() -> int:
            await self._wait_until_readable(fetcher.queue)
            if not is_reset:
                return offset
            with self._block_earlier_commits(fetcher.queue):
                return await self._store.reset(fetcher.queue, offset, self._core.loop.time() + _ANSWER_SECONDS)

        self._start_fetcher(fetcher.queue, start)

    def _restart_after_lost_lock(self, queue: MessageQueue) -> None:
        """Begin again with a queue whose lock another member may have had.

        Buffered messages are dropped, and messages in work are not committed.
        """
        if queue in self._fetchers and not self._closing:
            self._give_up(queue)
            self._take_over(queue, wait=False)

    def _give_up(self, queue: MessageQueue) -> None:
        logger.info("%s no longer reads %s", self._core.client_id, queue)
        fetcher = self._fetchers.pop(queue)
        self._revoke(fetcher)
        if self._locks is not None and queue in self._releasing:
            return  # This fetcher has read nothing. The fetcher that is being released gives the lock up.
        self._releasing[queue] = fetcher
        self._core.spawn(self._release(fetcher), f"release {queue}")

    async def _release(self, fetcher: QueueFetcher) -> None:
        await self._commit([fetcher])
        if self._locks is not None:
            await self.finish_before_release(fetcher.queue)
        else:
            await self._wait_for_acknowledgements(fetcher)
        uncommitted = await self._commit([fetcher])
        if self._locks is not None and not uncommitted and self.may_work_on(fetcher):
            await self._release_locks({fetcher.queue})
        elif self._locks is not None:
            self._locks.let_end(fetcher.queue)
        if self._releasing.get(fetcher.queue) is fetcher:
            del self._releasing[fetcher.queue]
            if fetcher.queue not in self._fetchers:
                self._store.creations.pop(fetcher.queue, None)
        self._released.set()

    async def _release_locks(self, queues: set[MessageQueue]) -> None:
        """Give the locks of queues up once no commit of these queues is under way.

        1. A commit of 9 waits for a leader.
        2. The group is reset, so the queue has a new fetcher, which has read nothing yet.
        3. The queue is given up. Its new fetcher has nothing to commit.
        4. Another member gets the lock and reads on. A commit of 9 would come from a member without the lock.
        """
        assert self._locks is not None
        await asyncio.gather(*map(self._store.wait_for_saves, queues))
        await self._locks.release(queues)

    async def _wait_for_acknowledgements(self, fetcher: QueueFetcher) -> None:
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await fetcher.idle()
        except TimeoutError:
            logger.warning("%s given up with messages in work; the next owner gets them too", fetcher.queue)

    async def _find_start(self, queue: MessageQueue, *, wait: bool) -> int:
        """Return the committed offset; without any, the configured start, which is then committed at once.

        Without that commit, a member that takes over before the first one would begin at a later "last" and skip
        messages. For the same reason a queue that appears later is read from its first message.
        """
        if wait and self._locks is None:
            await asyncio.sleep(HANDOVER_SECONDS)
        await self._wait_until_readable(queue)
        with self._block_earlier_commits(queue):
            return await self._load_start(queue)

    async def _load_start(self, queue: MessageQueue) -> int:
        deadline = self._core.loop.time() + _ANSWER_SECONDS
        stored = await self._store.load(queue, deadline)
        if stored is not None:
            return stored
        is_new = queue not in self._initial_queues.get(queue.topic, ())
        start = "first" if is_new or is_retry_topic(queue.topic) else self._start_from
        offset = await QueueOffsets(self._core, self._store.creations).at(queue, start, deadline)
        if offset > 0 or not (self._start_from == "first" or is_retry_topic(queue.topic)):
            await self._store.save({queue: Position(offset, self._store.creations.get(queue))}, deadline)
        return offset

    @contextmanager
    def _block_earlier_commits(self, queue: MessageQueue) -> Iterator[None]:
        """Commit nothing of the queue's earlier fetchers while its next one asks where to begin.

        1. A fetcher that is being released has read up to 171.
        2. The group is reset to 109.
        3. The next fetcher asks, and is told 109. The broker accepts this member's commits from now on.
        4. A commit of 171 would skip messages.
        """
        self._start_requests[queue] += 1
        try:
            yield
        finally:
            self._start_requests[queue] -= 1

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
            and not self._has_successor(fetcher)
            and self.may_work_on(fetcher)
        }
        if not offsets:
            return set()
        deadline = self._core.loop.time() + _ANSWER_SECONDS
        positions = {fetcher.queue: Position(offset, fetcher.created) for fetcher, offset in offsets.items()}
        saved = await self._store.save(positions, deadline)
        for fetcher, offset in offsets.items():
            if fetcher.queue in saved:
                fetcher.saved_offset = offset
        return {fetcher.queue for fetcher in offsets} - saved

    def _has_successor(self, fetcher: QueueFetcher) -> bool:
        """Return True if the queue was given up and came back, and its next fetcher knows or asks where to begin."""
        current = self._fetchers.get(fetcher.queue, fetcher)
        return current is not fetcher and (current.progress is not None or self._start_requests[fetcher.queue] > 0)

    def _on_route(self, route: TopicRoute) -> None:
        if route.topic in self._subscriptions:
            existing = () if route.topic in self._core.routes.made_later else route.all_readable
            self._initial_queues.setdefault(route.topic, frozenset(existing))
            self._rebalance_wanted.set()

    def _on_leader(self, group: BrokerGroup) -> None:
        for fetcher in self._fetchers.values():
            if fetcher.queue.broker_group == group.name:
                fetcher.on_leader()

"""Reading queues at one's own pace, without being assigned them by a group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self

import msgspec

from dledger_remoting.codes import ResponseCode
from dledger_remoting.errors import (
    InvalidParameter,
    RemotingError,
    ServiceNotAvailable,
    SystemBusy,
)
from dledger_remoting.filters.tags import SUBSCRIBE_ALL
from dledger_remoting.signatures import Credentials
from dledger_remoting.topics import validate_group

from .arguments import above_zero, at_least, checked
from .core import ClientCore
from .errors import ClientClosedError, ClientError, DeadlineError, InvalidArgumentError, refusal
from .fetcher import MIN_PAUSE_SECONDS, pull
from .messages import MessageQueue, ReceivedMessage, queues_in
from .nameservers import parse_addresses
from .namespaces import Namespace
from .offsets import QueueOffsets
from .pauses import Pauses
from .placed import Placed
from .subscriptions import Filter, subscription
from .tls import Tls

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_SECONDS: Final = 10.0
MAX_SUSPEND_SECONDS: Final = 15.0


class _Pull(NamedTuple):
    """A pull under way, and until when it may wait for messages."""

    task: asyncio.Task[tuple[list[ReceivedMessage], int]]
    deadline: float


@checked
class PullConsumer:
    """Reads assigned queues from wherever it is told to; positions are committed only by `commit`.

        async with PullConsumer("127.0.0.1:9876", "CG") as consumer:
            await consumer.assign(await consumer.queues("orders"))
            await consumer.seek_to_begin()
            messages = await consumer.poll(100, timeout=1.0)

    A queue that is assigned begins at the group's committed offset, or at its first message if there is none. `filter`
    is for all queues: tags (`"a || b"`), `Sql("amount > 100")` or a `ClassFilter`. `group` and topics are names within
    `namespace`, if there is one; queues have the names that brokers know. What fails is repeated until `timeout`
    seconds are over, then it raises `ClientError`: an offset request waits so long, and a queue may be unreadable for
    so long before `poll` says so.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        group: str = "DEFAULT_CONSUMER",
        *,
        filter: Filter = SUBSCRIBE_ALL,  # noqa: A002 -- as all consumers have it
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        namespace: str | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        client_id: str | None = None,
    ) -> None:
        above_zero(timeout=timeout)
        try:
            validate_group(group)
        except InvalidParameter as error:
            raise InvalidArgumentError(error.remark) from error
        self._name_servers = parse_addresses(name_servers)
        self._namespace = Namespace.named(namespace)
        self._credentials = credentials
        self._tls = tls
        self._group = self._namespace.full(group)
        self._subscription = subscription("", filter, 0)
        self._timeout = timeout
        self._client_id = client_id
        self._core: ClientCore | None = None
        self._positions: dict[MessageQueue, int] = {}
        self._failing_since: dict[MessageQueue, float] = {}
        self._pulls: dict[MessageQueue, _Pull] = {}
        self._placed: dict[MessageQueue, Placed] = {}
        self._turn = 0
        self._pauses = Pauses()

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

    async def close(self) -> None:
        """Close all connections; nothing is committed."""
        if self._core is not None:
            pulls = [self._pulls.pop(queue).task for queue in list(self._pulls)]
            for task in pulls:
                task.cancel()
            await asyncio.gather(*pulls, return_exceptions=True)
            await self._core.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of a topic that can be read, sorted; also those of a broker group that is away just now.

        Raises `NoRouteError`.
        """
        core = self._started()
        return (await core.routes.get(self._namespace.full(topic), self._deadline())).all_readable

    async def assign(self, queues: Iterable[tuple[str, str, int]]) -> None:
        """Read exactly these queues, given as (topic, broker group, queue id), from their committed offsets on.

        Queues that were assigned before keep their positions.
        """
        core = self._started()
        wanted = queues_in(queues)
        for topic in {queue.topic for queue in wanted}:
            known = await self.queues(topic)
            for queue in wanted:
                if queue.topic == topic and queue not in known:
                    raise InvalidArgumentError(f"{queue} is not one of the {len(known)} readable queues of {topic}")
        offsets = QueueOffsets(core)
        deadline = self._deadline()
        positions: dict[MessageQueue, int] = {}
        for queue in wanted:
            position = self._positions.get(queue)
            if position is None:
                position = await offsets.committed(self._group, queue, deadline)
            if position is None:
                position = await offsets.first(queue, deadline)
            positions[queue] = position
        for queue in set(self._positions) - set(positions):
            self._drop_pull(queue)
            self._placed.pop(queue, None)
        self._positions = positions
        self._failing_since.clear()

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """The offset that is read next in each assigned queue."""
        return dict(self._positions)

    @property
    def paused(self) -> frozenset[MessageQueue]:
        """The assigned queues that are paused."""
        return frozenset(queue for queue in self._positions if queue in self._pauses)

    def pause(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """Have `poll` leave these queues out until `resume`; None: all, also those that are assigned later."""
        self._pauses.set(None if queues is None else queues_in(queues), paused=True)

    def resume(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """Have `poll` read paused queues again from where they are; None: all."""
        self._pauses.set(None if queues is None else queues_in(queues), paused=False)

    def seek(self, queue: tuple[str, str, int], offset: int) -> None:
        """Read a queue from `offset` on; outside it, the next poll begins at the first message."""
        self._move(self._assigned(queue), offset)

    async def seek_to_time(self, timestamp_ms: int, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """Read from the first message stored at or after a time in ms since 1970; all assigned queues by default."""
        offsets = QueueOffsets(self._started())
        for queue in self._chosen(queues):
            self._move(queue, await offsets.at_time(queue, timestamp_ms, self._deadline()))

    async def seek_to_begin(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """Read from the first kept message; all assigned queues by default."""
        offsets = QueueOffsets(self._started())
        for queue in self._chosen(queues):
            self._move(queue, await offsets.first(queue, self._deadline()))

    async def seek_to_end(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """Read only what comes from now on; all assigned queues by default."""
        offsets = QueueOffsets(self._started())
        for queue in self._chosen(queues):
            self._move(queue, await offsets.end(queue, self._deadline()))

    async def poll(self, max_messages: int = 32, timeout: float = 1.0) -> list[ReceivedMessage]:
        """Up to `max_messages` messages of the assigned queues, those of one queue in order.

        Returns as soon as some have come, and an empty list if none come within `timeout` seconds, or up to 5 s later
        if a node does not answer at all. All queues but those that are paused are asked at the same time. Messages that
        do not fit are read again by the next poll, which also goes on waiting for the queues that have not answered.
        Raises `ClientError` if no other queue has brought messages and one is refused for good or has not been readable
        for the consumer's `timeout`; then or with a later poll, reading goes on where it stopped.
        """
        at_least(1, max_messages=max_messages)
        core = self._started()
        if not self._positions:
            raise InvalidArgumentError("no queue is assigned")
        self._turn = (self._turn + 1) % len(self._positions)
        deadline = core.loop.time() + timeout
        silent = set(self._positions) - self.paused
        messages: list[ReceivedMessage] = []
        if not silent:
            await asyncio.sleep(max(timeout, 0.0))
        while (silent := silent - self.paused) and not messages:
            asked = self._begin_pulls(max_messages, deadline)
            ended = await self._first_to_end(asked, deadline)
            for queue, one in ended.items():
                if one.task.exception() is None:
                    found, next_offset = one.task.result()
                    self._take(found, next_offset, max_messages, messages)
                    if not found and one.deadline >= deadline:
                        silent.discard(queue)
            if not messages:
                for one in ended.values():
                    one.task.result()  # raises what made it fail
        return messages

    async def commit(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """Commit the positions of these queues for the group; of all assigned ones by default."""
        offsets = QueueOffsets(self._started())
        deadline = self._deadline()
        await asyncio.gather(
            *(offsets.commit(self._group, queue, self._positions[queue], deadline) for queue in self._chosen(queues))
        )

    async def committed(self, queue: tuple[str, str, int]) -> int | None:
        """What the group has committed for a queue, whoever of it has; None if nothing."""
        return await QueueOffsets(self._started()).committed(self._group, MessageQueue(*queue), self._deadline())

    def _begin_pulls(self, max_messages: int, deadline: float) -> dict[MessageQueue, _Pull]:
        """The pulls of all queues, in turn; those of an earlier poll that are still under way are left so.

        A broker does not notice that nobody waits for its answer any more: every long poll that was given up would
        stay there, and bring the next messages once more.
        """
        queues = list(self._positions)
        for queue in queues[self._turn :] + queues[: self._turn]:
            if queue not in self._pulls and queue not in self._pauses:
                task = asyncio.create_task(self._pull(queue, max_messages, deadline), name=f"pull {queue}")
                self._pulls[queue] = _Pull(task, deadline)
        return {queue: one for queue, one in self._pulls.items() if queue not in self._pauses}

    async def _first_to_end(self, asked: dict[MessageQueue, _Pull], deadline: float) -> dict[MessageQueue, _Pull]:
        """The pulls that have ended, as soon as one has. At `deadline` those that may wait longer are given up."""
        longer = [queue for queue, one in asked.items() if one.deadline > deadline]
        left = max(deadline - self._started().loop.time(), 0.0) if longer else None
        tasks = [one.task for one in asked.values()]
        done, _ = await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            for queue in longer:
                self._drop_pull(queue)
        return {
            queue: self._pulls.pop(queue)
            for queue, one in asked.items()
            if one.task in done and self._pulls.get(queue) is one
        }

    def _drop_pull(self, queue: MessageQueue) -> None:
        """Give a pull up, whose answer is of no use any more."""
        pull = self._pulls.pop(queue, None)
        if pull is not None:
            pull.task.cancel()

    def _move(self, queue: MessageQueue, offset: int) -> None:
        self._drop_pull(queue)
        self._positions[queue] = offset

    def _take(
        self, found: list[ReceivedMessage], next_offset: int, max_messages: int, messages: list[ReceivedMessage]
    ) -> None:
        """Move what fits to `messages` and the queue's position behind it."""
        room = max_messages - len(messages)
        if found:
            queue = found[0].queue
            messages += found[:room]
            self._positions[queue] = next_offset if len(found) <= room else found[room].queue_offset

    async def _pull(self, queue: MessageQueue, max_messages: int, deadline: float) -> tuple[list[ReceivedMessage], int]:
        """The next messages of one queue, or none at the deadline. The position moves over what does not match."""
        core = self._started()
        group = core.routes.group(queue.broker_group)
        placed = self._placed.setdefault(queue, Placed(core.loop))
        wanted = msgspec.structs.replace(self._subscription, topic=queue.topic)
        avoid: str | None = None
        while True:
            left = deadline - core.loop.time()
            address = group.any_address(avoid, placed.broker_id)
            if address is None:
                raise DeadlineError(f"no node of {queue.broker_group} is known")
            try:
                result = await pull(
                    core,
                    address,
                    self._group,
                    queue,
                    self._positions[queue],
                    wanted,
                    max_messages=max_messages,
                    suspend_seconds=min(max(left, 0.0), MAX_SUSPEND_SECONDS),
                )
            except ClientError as error:
                group.doubt(address)
                placed.shun()
                failure = error
            except RemotingError as error:
                failure = refusal(error)
                if isinstance(error, ServiceNotAvailable):
                    core.note_not_leader(group, address, error)
                elif not isinstance(error, SystemBusy):
                    raise failure from error
            else:
                self._failing_since.pop(queue, None)
                placed.follow(result.next_broker_id)
                if result.messages:
                    return result.messages, result.next_offset
                if result.is_reset:
                    logger.info("%s: the group was reset to offset %d", queue, result.next_offset)
                elif result.code == ResponseCode.PULL_OFFSET_MOVED:
                    logger.warning("%s: offset %d is outside the queue", queue, self._positions[queue])
                self._positions[queue] = result.next_offset
                if left <= 0:
                    return [], result.next_offset
                continue
            avoid = address
            now = core.loop.time()
            if not failure.retryable or now - self._failing_since.setdefault(queue, now) >= self._timeout:
                raise failure
            if now >= deadline:
                return [], self._positions[queue]
            await asyncio.sleep(MIN_PAUSE_SECONDS)

    def _assigned(self, queue: tuple[str, str, int]) -> MessageQueue:
        found = MessageQueue(*queue)
        if found not in self._positions:
            raise InvalidArgumentError(f"{found} is not assigned")
        return found

    def _chosen(self, queues: Iterable[tuple[str, str, int]] | None) -> list[MessageQueue]:
        return list(self._positions) if queues is None else [self._assigned(queue) for queue in queues_in(queues)]

    def _deadline(self) -> float:
        return self._started().loop.time() + self._timeout

    def _started(self) -> ClientCore:
        if self._core is None:
            raise ClientClosedError("the consumer is not started: use 'async with PullConsumer(...)'")
        return self._core

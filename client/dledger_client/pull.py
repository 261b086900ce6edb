"""Consumer that reads queues at its own pace, without an assignment by a group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Final, Generic, NamedTuple, Self

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

from . import interception
from .arguments import above_zero, at_least, checked
from .cluster.core import ClientCore
from .cluster.nameservers import parse_addresses
from .consuming.empty_answers import EmptyAnswers, Placed
from .consuming.fetcher import MIN_PAUSE_SECONDS
from .consuming.offsets import Creations, Position, QueueOffsets
from .consuming.pauses import Pauses
from .consuming.pulls import pull
from .errors import ClientClosedError, ClientError, DeadlineError, InvalidArgumentError, refusal
from .interception import Caller, ReceiveCall
from .messages import Codec, MessageQueue, ReceivedMessage, T, decoded, queues_in
from .namespaces import Namespace
from .subscriptions import Filter, subscription
from .tls import Tls

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_SECONDS: Final = 10.0
MAX_SUSPEND_SECONDS: Final = 15.0


class _Pull(NamedTuple):
    """A pull under way, and the end of its waiting time."""

    task: asyncio.Task[tuple[list[ReceivedMessage], int]]
    deadline: float


@checked
class PullConsumer(Generic[T]):
    """Reads assigned queues from any position. Positions are committed only by `commit`.

        async with PullConsumer("127.0.0.1:9876", "CG") as consumer:
            await consumer.assign(await consumer.queues("orders"))
            await consumer.seek_to_begin()
            messages = await consumer.poll(100, timeout=1.0)

    An assigned queue begins at the group's committed offset, or, if the group has not committed, at its first message.
    `filter` is for all queues: tags (`"a || b"`), `Sql("amount > 100")` or a `ClassFilter`. `group` and topics are
    names within `namespace`, if there is one; queues have the names that brokers know. Failed requests are repeated
    until `timeout` seconds are over, then `ClientError` is raised. This limits the wait of an offset request, and the
    time for which a queue may be unreadable before `poll` raises. With `keep_unreadable` a message whose body cannot be
    read has a `fault`. Otherwise `poll` raises, and its queue stops there until `seek`.

    With a `codec` (`dledger_client.codecs`) each message has a `value`. If its body does not decode, `value` raises
    `DecodeError`, which has the message; reading goes on.
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
        keep_unreadable: bool = False,
        codec: Codec[T] | None = None,
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
        self._keep_unreadable = keep_unreadable
        self._codec = codec
        self._core: ClientCore | None = None
        self._positions: dict[MessageQueue, int] = {}
        self._failing_since: dict[MessageQueue, float] = {}
        self._pulls: dict[MessageQueue, _Pull] = {}
        self._pull_nodes: dict[MessageQueue, Placed] = {}
        self._creations: Creations = {}
        self._rotation = 0
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
        self._offsets = QueueOffsets(self._core, self._creations)

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
        """Return the sorted queues of a topic that can be read, including queues of an absent broker group.

        Raises `NoRouteError`.
        """
        core = self._require_started()
        return (await core.routes.get(self._namespace.full(topic), self._deadline())).all_readable

    async def assign(self, queues: Iterable[tuple[str, str, int]]) -> None:
        """Read exactly these queues, given as (topic, broker group, queue id), from their committed offsets on.

        Queues that were assigned before keep their positions.
        """
        self._require_started()
        requested = queues_in(queues)
        for topic in {queue.topic for queue in requested}:
            readable = await self.queues(topic)
            for queue in requested:
                if queue.topic == topic and queue not in readable:
                    raise InvalidArgumentError(f"{queue} is not one of the {len(readable)} readable queues of {topic}")
        offsets = self._offsets
        deadline = self._deadline()
        positions: dict[MessageQueue, int] = {}
        for queue in requested:
            position = self._positions.get(queue)
            if position is None:
                position = await offsets.committed(self._group, queue, deadline)
            if position is None:
                position = await offsets.first(queue, deadline)
            positions[queue] = position
        for queue in set(self._positions) - set(positions):
            self._drop_pull(queue)
            self._pull_nodes.pop(queue, None)
            self._creations.pop(queue, None)
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
        """Have `poll` leave these queues out until `resume`; None: all present and later queues."""
        self._pauses.set(None if queues is None else queues_in(queues), paused=True)

    def resume(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """Have `poll` read paused queues again from their positions; None: all."""
        self._pauses.set(None if queues is None else queues_in(queues), paused=False)

    def seek(self, queue: tuple[str, str, int], offset: int) -> None:
        """Read a queue from `offset` on. If that is outside the queue, the next poll begins at the first message."""
        self._set_position(self._require_assigned(queue), offset)

    async def seek_to_time(self, timestamp_ms: int, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """Read from the first message stored at or after a time in ms since 1970; all assigned queues by default."""
        self._require_started()
        for queue in self._select_queues(queues):
            self._set_position(queue, await self._offsets.at_time(queue, timestamp_ms, self._deadline()))

    async def seek_to_begin(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """Read from the first kept message; all assigned queues by default."""
        self._require_started()
        for queue in self._select_queues(queues):
            self._set_position(queue, await self._offsets.first(queue, self._deadline()))

    async def seek_to_end(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """Read only what comes from now on; all assigned queues by default."""
        self._require_started()
        for queue in self._select_queues(queues):
            self._set_position(queue, await self._offsets.end(queue, self._deadline()))

    async def poll(self, max_messages: int = 32, timeout: float = 1.0) -> list[ReceivedMessage[T]]:
        """Return up to `max_messages` messages of the assigned queues, those of one queue in order.

        Returns as soon as some have come. Returns an empty list if none come within `timeout` seconds, or up to 5 s
        later if a node does not answer at all. All queues that are not paused are asked at the same time. Messages that
        do not fit are read again by the next poll, which also continues to wait for the queues that have not answered.

        Raises `ClientError` if a queue is permanently refused, or was not readable for the consumer's `timeout`, and no
        other queue has brought messages. The next poll continues where reading stopped.
        """
        if (around := interception.interceptor) is None:
            return await self._poll(max_messages, timeout)
        topics = {queue.topic for queue in self._positions}
        call = ReceiveCall(self._caller, "poll", self._namespace.plain(topics.pop()) if len(topics) == 1 else None)
        with around.receiving(call):
            call.messages = messages = await self._poll(max_messages, timeout)
        return messages

    async def _poll(self, max_messages: int, timeout: float) -> list[ReceivedMessage[T]]:
        at_least(1, max_messages=max_messages)
        core = self._require_started()
        if not self._positions:
            raise InvalidArgumentError("no queue is assigned")
        self._forget_failures()
        self._rotation = (self._rotation + 1) % len(self._positions)
        deadline = core.loop.time() + timeout
        unanswered = set(self._positions) - self.paused
        messages: list[ReceivedMessage] = []
        if not unanswered:
            await asyncio.sleep(max(timeout, 0.0))
        while (unanswered := unanswered - self.paused) and not messages:
            pulls = self._begin_pulls(max_messages, deadline)
            ended_pulls = await self._wait_for_first(pulls, deadline)
            for queue, ended_pull in ended_pulls.items():
                if ended_pull.task.exception() is None:
                    received, next_offset = ended_pull.task.result()
                    self._accept_messages(received, next_offset, max_messages, messages)
                    if not received and ended_pull.deadline >= deadline:
                        unanswered.discard(queue)
            if not messages:
                for ended_pull in ended_pulls.values():
                    ended_pull.task.result()  # raises the error of a failed pull
        return [decoded(message, self._codec) for message in messages]

    async def commit(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """Commit the positions of these queues for the group; of all assigned queues by default."""
        self._require_started()
        deadline = self._deadline()
        with interception.settling(self._caller, "commit"):
            await asyncio.gather(*(self._commit(queue, deadline) for queue in self._select_queues(queues)))

    async def _commit(self, queue: MessageQueue, deadline: float) -> None:
        """Commit a position. It is read in turn: a pull that learns of a reset moves it, and waits for its turn."""
        async with self._offsets.turn(queue):
            position = self._positions.get(queue)
            if position is not None:
                await self._offsets.commit_in_turn(
                    self._group, queue, Position(position, self._creations.get(queue)), deadline
                )

    async def committed(self, queue: tuple[str, str, int]) -> int | None:
        """Return the offset that the group has committed for a queue, None before its first commit."""
        # Without `self._creations`: the positions may belong to an earlier creation of the topic.
        offsets = QueueOffsets(self._require_started())
        async with self._offsets.turn(MessageQueue(*queue)):
            return await offsets.committed(self._group, MessageQueue(*queue), self._deadline())

    def _begin_pulls(self, max_messages: int, deadline: float) -> dict[MessageQueue, _Pull]:
        """Begin the pulls of all queues, in turn. Pulls of an earlier poll that are still under way are kept.

        A broker does not notice that its answer is not awaited any more. Every long poll that was given up would stay
        there, and its answer would carry the next messages in vain.
        """
        queues = list(self._positions)
        for queue in queues[self._rotation :] + queues[: self._rotation]:
            if queue not in self._pulls and queue not in self._pauses:
                task = asyncio.create_task(self._pull(queue, max_messages, deadline), name=f"pull {queue}")
                self._pulls[queue] = _Pull(task, deadline)
        return {queue: queue_pull for queue, queue_pull in self._pulls.items() if queue not in self._pauses}

    def _forget_failures(self) -> None:
        """Forget failed pulls of the last poll, so that they are tried again: a topic that was gone may be back."""
        for queue, queue_pull in list(self._pulls.items()):
            if queue_pull.task.done() and (queue_pull.task.cancelled() or queue_pull.task.exception() is not None):
                del self._pulls[queue]

    async def _wait_for_first(self, pulls: dict[MessageQueue, _Pull], deadline: float) -> dict[MessageQueue, _Pull]:
        """Return the pulls that have ended, as soon as one has.

        At `deadline`, pulls that may wait longer are given up.
        """
        longer_pulls = [queue for queue, queue_pull in pulls.items() if queue_pull.deadline > deadline]
        remaining = max(deadline - self._require_started().loop.time(), 0.0) if longer_pulls else None
        tasks = [queue_pull.task for queue_pull in pulls.values()]
        done, _ = await asyncio.wait(tasks, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            for queue in longer_pulls:
                self._drop_pull(queue)
        return {
            queue: self._pulls.pop(queue)
            for queue, queue_pull in pulls.items()
            if queue_pull.task in done and self._pulls.get(queue) is queue_pull
        }

    def _drop_pull(self, queue: MessageQueue) -> None:
        """Give up a pull whose answer is of no use any more."""
        pull = self._pulls.pop(queue, None)
        if pull is not None:
            pull.task.cancel()

    def _set_position(self, queue: MessageQueue, offset: int) -> None:
        self._drop_pull(queue)
        self._positions[queue] = offset

    def _accept_messages(
        self, received: list[ReceivedMessage], next_offset: int, max_messages: int, messages: list[ReceivedMessage]
    ) -> None:
        """Move the messages that fit to `messages`, and the queue's position behind them."""
        room = max_messages - len(messages)
        if received:
            queue = received[0].queue
            messages += received[:room]
            self._positions[queue] = next_offset if len(received) <= room else received[room].queue_offset

    def _put_back(self, messages: Sequence[ReceivedMessage[T]]) -> None:
        """Move the positions back to messages that the caller of `poll` has not got. A commit would skip them."""
        for message in reversed(messages):
            if message.queue in self._positions:
                self.seek(message.queue, message.queue_offset)

    async def _pull(self, queue: MessageQueue, max_messages: int, deadline: float) -> tuple[list[ReceivedMessage], int]:
        """Return the next messages of one queue, or none at the deadline.

        The position moves over messages that do not match.
        """
        core = self._require_started()
        group = core.routes.group(queue.broker_group)
        pull_node = self._pull_nodes.setdefault(queue, Placed(core.loop))
        topic_subscription = msgspec.structs.replace(self._subscription, topic=queue.topic)
        avoided_address: str | None = None
        empty_answers = EmptyAnswers(core.loop)
        while True:
            remaining = deadline - core.loop.time()
            empty_answers.asked(min(max(remaining, 0.0), MAX_SUSPEND_SECONDS))
            address = group.any_address(avoided_address, pull_node.broker_id)
            if address is None:
                raise DeadlineError(f"no node of {queue.broker_group} is known")
            try:
                result = await pull(
                    core,
                    address,
                    self._group,
                    queue,
                    self._positions[queue],
                    topic_subscription,
                    max_messages=max_messages,
                    suspend_seconds=min(max(remaining, 0.0), MAX_SUSPEND_SECONDS),
                    keep_unreadable=self._keep_unreadable,
                    topic_created=self._creations.get(queue, core.routes.created(queue)),
                )
            except ClientError as error:
                group.doubt(address)
                pull_node.shun()
                failure = error
            except RemotingError as error:
                failure = refusal(error)
                if isinstance(error, ServiceNotAvailable):
                    core.note_not_leader(group, address, error)
                elif not isinstance(error, SystemBusy):
                    raise failure from error
            else:
                self._failing_since.pop(queue, None)
                pull_node.follow(result.next_broker_id)
                if result.messages:
                    return result.messages, result.next_offset
                if result.is_reset:
                    logger.info("%s: the group was reset to offset %d", queue, result.next_offset)
                    # Wait for commits under way: once a pull begins at the new offset, the broker accepts all commits.
                    async with self._offsets.turn(queue):
                        self._positions[queue] = result.next_offset
                elif result.code == ResponseCode.PULL_OFFSET_MOVED:
                    logger.warning("%s: offset %d is outside the queue", queue, self._positions[queue])
                if result.topic_created is not None:
                    self._creations[queue] = result.topic_created
                self._positions[queue] = result.next_offset
                if remaining <= 0:
                    return [], result.next_offset
                if (pause := empty_answers.pause(result.code)) > 0.0:
                    await asyncio.sleep(min(pause, max(0.0, deadline - core.loop.time())))
                continue
            avoided_address = address
            now = core.loop.time()
            if not failure.retryable or now - self._failing_since.setdefault(queue, now) >= self._timeout:
                raise failure
            if now >= deadline:
                return [], self._positions[queue]
            await asyncio.sleep(MIN_PAUSE_SECONDS)

    def _require_assigned(self, queue: tuple[str, str, int]) -> MessageQueue:
        assigned = MessageQueue(*queue)
        if assigned not in self._positions:
            raise InvalidArgumentError(f"{assigned} is not assigned")
        return assigned

    def _select_queues(self, queues: Iterable[tuple[str, str, int]] | None) -> list[MessageQueue]:
        return (
            list(self._positions) if queues is None else [self._require_assigned(queue) for queue in queues_in(queues)]
        )

    def _deadline(self) -> float:
        return self._require_started().loop.time() + self._timeout

    @property
    def _caller(self) -> Caller:
        group, namespace = self._namespace.plain(self._group), self._namespace.name or ""
        return Caller(self._require_started().client_id, group, namespace, self._name_servers)

    def _require_started(self) -> ClientCore:
        if self._core is None:
            raise ClientClosedError("the consumer is not started: use 'async with PullConsumer(...)'")
        return self._core

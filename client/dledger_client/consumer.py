"""Consuming as a member of a group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeAlias

import msgspec

from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.filters.tags import SUBSCRIBE_ALL
from dledger_remoting.heartbeat import HeartbeatData
from dledger_remoting.signatures import Credentials

from .arguments import above_zero, at_least, checked
from .assignments import Assignments
from .callbacks import check_handler
from .connection import Connection
from .core import ClientCore, new_client_id
from .errors import ClientClosedError, DeadlineError, InvalidArgumentError
from .fetcher import PullLimits, QueueFetcher, being_cancelled
from .flow import DEFAULT_OUTSTANDING, DEFAULT_OUTSTANDING_BYTES, FlowControl, FlowLimits, FlowReason
from .membership import Membership, heartbeat_of
from .messages import MessageQueue, ReceivedMessage, Settlement, queues_in
from .nameservers import parse_addresses
from .namespaces import Namespace
from .offers import Offers, Priority, priority_of
from .offsets import BrokerOffsetStore, FileOffsetStore, OffsetStore, StartFrom, check_start
from .questions import QUESTION_CODES, OperatorQuestions, described
from .rebalance import Strategy, StrategyName, strategy_named
from .resets import RESET_CODES, take_request
from .retries import RetrySender, pause_seconds
from .stalls import QueueStall, StallWatch
from .subscriptions import Filter, filters_by_topic, subscriptions_of
from .takers import Taker, Takers
from .tls import Tls
from .tracing import DEFAULT_MAX_TRACES, tracer

logger = logging.getLogger(__name__)

_ORDERLY_RECONSUME_TIMES: Final = 16
"""How often an orderly consumer tries a message again that fails, if it is not told; no broker takes part in that."""

Handler: TypeAlias = Callable[[ReceivedMessage], Awaitable[None]]
"""Processes one message; an exception means that it must come back later."""


class _Running(msgspec.Struct, frozen=True):
    """What exists between start and close."""

    core: ClientCore
    assignments: Assignments
    membership: Membership
    offers: Offers
    retries: RetrySender
    stalls: StallWatch
    questions: OperatorQuestions


@checked
class PushConsumer:
    """Reads its share of the subscribed topics' queues; an async iterator, or a runner of a handler.

        async with PushConsumer("127.0.0.1:9876", "CG", {"orders": "*"}) as consumer:
            async for message in consumer:
                print(message.body)

    `subscriptions` is a topic or several, of which `filter` is wanted: tags (`"a || b"`), `Sql("amount > 100")` or a
    `ClassFilter`; or topics that have a filter each. With a `handler`, `concurrency` messages are handled at the same
    time; an exception gives the message back, to come again later, at most `max_reconsume_times` times, or as often as
    the group's settings say, then it goes to the topic `%DLQ%<group>`. With `orderly`, messages of one queue are
    handled one after the other, and a failed one is tried again before its successors, by default 16 times.

    A message is finished by its taker, or it is not acknowledged: by the handler that returns, by the task that took it
    from the iterator and asks for the next one, or by `message.ack()` or `message.retry()`; with `auto_ack=False` by
    these only. Neither an error nor the end of the `async with` block finishes one: before `break`, acknowledge it.
    Several tasks may iterate; each finishes what it took. What is committed for a queue, every 5 s and at the end, is
    the lowest offset not acknowledged: nothing is skipped, and what was in work when a consumer died comes again.

    `start_from` says where a group begins that has committed nothing: `"first"`, `"last"`, or a time in ms. `broadcast`
    lets every member read everything; its offsets are kept in `offset_file`, and failed messages are not given back.
    A queue whose messages nobody takes or finishes for `warn_after` seconds is logged, as often, and counted: see
    `stalled`. `queue_locks` has an orderly consumer lock its queues, see `OrderlyConsumer`. `trace` and `max_traces`
    are those of `Producer`: when work on each message began and how it ended.

    A queue is read ahead of the work on it up to `max_outstanding` messages, `max_outstanding_bytes` bytes of bodies
    and `max_span` offsets, all queues of a topic together up to `max_topic_outstanding` and `max_topic_bytes`: see
    `flow`. `strategy` shares the queues among the members, see `rebalance`. With `priority=True` messages of queues
    with higher ids come first, those of others once these are drained; a function says another priority of a queue.
    Names of topics and groups are those within `namespace`, if there is one; queues are named as brokers know them.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        group: str,
        subscriptions: str | Sequence[str] | Mapping[str, Filter],
        handler: Handler | None = None,
        *,
        filter: Filter = SUBSCRIBE_ALL,  # noqa: A002 -- as all consumers have it
        concurrency: int = 20,
        auto_ack: bool = True,
        orderly: bool = False,
        start_from: StartFrom = "first",
        strategy: StrategyName | Strategy = "average",
        broadcast: bool = False,
        offset_file: Path | None = None,
        max_reconsume_times: int | None = None,
        pull_batch_size: int = 32,
        max_outstanding: int = DEFAULT_OUTSTANDING,
        max_outstanding_bytes: int = DEFAULT_OUTSTANDING_BYTES,
        max_span: int | None = None,
        max_topic_outstanding: int | None = None,
        max_topic_bytes: int | None = None,
        priority: bool | Priority = False,
        namespace: str | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        start_timeout: float | None = 10.0,
        close_timeout: float = 5.0,
        warn_after: float = 60.0,
        client_id: str | None = None,
        queue_locks: bool = False,
        trace: bool | str = False,
        max_traces: int = DEFAULT_MAX_TRACES,
    ) -> None:
        at_least(1, concurrency=concurrency, pull_batch_size=pull_batch_size)
        at_least(0, max_reconsume_times=max_reconsume_times, close_timeout=close_timeout)
        above_zero(start_timeout=start_timeout, warn_after=warn_after)
        if broadcast != (offset_file is not None):
            raise InvalidArgumentError("offset_file belongs to broadcast consumers, which keep their offsets in it")
        if queue_locks and (broadcast or not orderly):
            raise InvalidArgumentError("queue_locks are for orderly consumers that share their queues")
        self._name_servers = parse_addresses(name_servers)
        self._namespace = Namespace.named(namespace)
        self._credentials = credentials
        self._tls = tls
        self._group = self._namespace.full(group)
        self._subscriptions = subscriptions_of(
            self._namespace, self._group, filters_by_topic(subscriptions, filter), with_retries=not broadcast
        )
        self._handler = None if handler is None else check_handler(handler)
        self._concurrency = concurrency
        self._auto_ack = auto_ack
        self._orderly = orderly
        self._queue_locks = queue_locks
        self._start_from = check_start(start_from)
        self._strategy = None if broadcast else strategy_named(strategy)
        self._offset_file = offset_file
        self._max_reconsume_times = max_reconsume_times
        self._priority = priority_of(priority)
        self._limits = PullLimits(max_messages=pull_batch_size, finds_end=self._priority is not None)
        self._flow = FlowControl(
            FlowLimits(max_outstanding, max_outstanding_bytes, max_span, max_topic_outstanding, max_topic_bytes).check()
        )
        self._start_timeout = start_timeout
        self._close_timeout = close_timeout
        self._warn_after = warn_after
        self._client_id = client_id or new_client_id()
        self._tracer = tracer(trace, max_traces)

        self._running: _Running | None = None
        self._workers: list[asyncio.Task[None]] = []
        self._takers = Takers()
        self._ending: asyncio.Task[None] | None = None

    @property
    def client_id(self) -> str:
        """The id under which brokers list this member of the group."""
        return self._client_id

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that this member reads now."""
        return frozenset() if self._running is None else self._running.assignments.queues

    @property
    def stalled(self) -> list[QueueStall]:
        """The queues that stand still now because nobody takes or finishes a message of theirs, the longest first."""
        return [] if self._running is None else self._running.stalls.stalled()

    @property
    def stalls(self) -> int:
        """How many such stalls have been found since the start."""
        return 0 if self._running is None else self._running.stalls.seen

    @property
    def traces_dropped(self) -> int:
        """See `Producer.traces_dropped`."""
        return 0 if self._tracer is None else self._tracer.dropped

    @property
    def flow_stops(self) -> dict[FlowReason, int]:
        """How often reading of a queue has stopped since the start because too much was unfinished, by the limit."""
        return dict(self._flow.stops)

    @property
    def paused(self) -> frozenset[MessageQueue]:
        """The queues of `assignment` that are paused."""
        return frozenset() if self._running is None else self._running.assignments.paused

    def pause(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """Hand out nothing more of these queues and read no more of them until `resume`; None: of all, also of those
        that come to this member later. What was handed out before is finished and committed as ever.
        """
        self._started().assignments.pause(None if queues is None else queues_in(queues), paused=True)

    def resume(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """Go on with paused queues; None: with all."""
        running = self._started()
        for fetcher in running.assignments.pause(None if queues is None else queues_in(queues), paused=False):
            running.offers.add(fetcher)

    async def start(self) -> None:
        """Join the group and begin to read. Topics and brokers need not be there yet.

        Raises `NoNameServerError` if no name server answers within `start_timeout` seconds (None: it may come later),
        and `WrongServerError` if something else answers there.
        """
        if self._running is not None:
            raise ClientClosedError("the consumer has been started before; make another one")
        core = ClientCore(
            self._name_servers,
            client_id=self._client_id,
            heartbeat=self._heartbeat,
            on_request=self._on_request,
            namespace=self._namespace,
            credentials=self._credentials,
            tls=self._tls,
        )
        store: OffsetStore = BrokerOffsetStore(core, self._group)
        if self._offset_file is not None:
            store = FileOffsetStore(self._offset_file)
        membership = Membership(core, self._group, list(self._subscriptions), self._strategy)
        assignments = Assignments(
            core,
            self._group,
            self._subscriptions,
            membership,
            store,
            start_from=self._start_from,
            limits=self._limits,
            flow=self._flow,
            on_messages=self._offer,
            settle=self._settle,
            in_order=self._orderly,
            with_locks=self._queue_locks,
        )
        offers = Offers(assignments, self._group, orderly=self._orderly, priority=self._priority, tracer=self._tracer)
        retries = RetrySender(core, self._group, self._max_reconsume_times)
        stalls = StallWatch(self._client_id, assignments.fetchers, self._warn_after)
        questions = self._questions(assignments)
        self._running = _Running(core, assignments, membership, offers, retries, stalls, questions)
        await self._await_name_server(core)
        core.start()
        if self._tracer is not None:
            self._tracer.start(core)
        core.keep(stalls.run, "watch for stalls")
        assignments.start()
        if self._handler is not None:
            self._workers = [
                core.keep(partial(self._work, self._handler), f"handler {number}")
                for number in range(self._concurrency)
            ]

    def _questions(self, assignments: Assignments) -> OperatorQuestions:
        told = self._heartbeat().consumer_data_set[0]
        return OperatorQuestions(
            self._group,
            self._namespace,
            self._handler,
            assignments.fetchers,
            subscriptions=told.subscription_data_set,
            properties=described(
                self._name_servers, told.consume_type, concurrency=self._concurrency, in_order=self._orderly
            ),
            in_order=self._orderly,
            auto_ack=self._auto_ack,
        )

    async def _await_name_server(self, core: ClientCore) -> None:
        if self._start_timeout is None:
            return
        try:
            await core.name_servers.check(core.loop.time() + self._start_timeout)
        except BaseException:
            await core.close()
            raise

    async def close(self) -> None:
        """Finish the messages in work, for at most `close_timeout` seconds, commit, and leave the group.

        Whoever else calls it waits for the same end. Called by a handler it returns at once, so that the handler's own
        message can be finished.
        """
        running, caller = self._running, asyncio.current_task()
        if running is None:
            return
        if self._ending is None:
            running.assignments.stop_reading()
            self._ending = asyncio.create_task(self._end(running, caller), name="close consumer")
            running.offers.close()
        if caller in self._workers:
            return
        try:
            await asyncio.wait((self._ending,))
        except asyncio.CancelledError:
            self._ending.cancel()
            await asyncio.wait((self._ending,))
            raise
        if not self._ending.cancelled():
            self._ending.result()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def run_forever(self) -> None:
        """With a handler: wait until the consumer is closed."""
        if not self._workers:
            raise InvalidArgumentError("this consumer has no handler, or is not started; iterate over one without")
        # Unlike `gather` and `close`, this leaves them at work if the caller is cancelled.
        await asyncio.wait(self._workers)
        if self._ending is not None:
            await asyncio.wait((self._ending,))

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        if self._handler is not None:
            raise InvalidArgumentError("this consumer has a handler; iterate over one without")
        return self

    def __anext__(self) -> Coroutine[None, None, ReceivedMessage]:
        taker = asyncio.current_task()  # who calls, whichever task waits then: see `takers`
        message = self._takers.finish(taker)
        if message is not None and self._auto_ack:
            message.ack()
        return self._next_for(taker)

    async def receive(self, max_messages: int = 32, timeout: float | None = None) -> list[ReceivedMessage]:
        """Up to `max_messages` messages, as soon as there is one; empty if none comes within `timeout` seconds.

        They must be acknowledged one by one, whatever `auto_ack` is. Raises `ClientClosedError` once the consumer is
        being closed.
        """
        at_least(1, max_messages=max_messages)
        offers = self._started().offers
        messages: list[ReceivedMessage] = []
        try:
            async with asyncio.timeout(timeout):
                first = await offers.next()
        except TimeoutError:
            return messages
        if first is None:
            raise ClientClosedError("the consumer is closed")
        messages.append(first)
        while len(messages) < max_messages and (message := offers.take()) is not None:
            messages.append(message)
        return messages

    def nack(self, message: ReceivedMessage, *, delay_s: float | None = None) -> None:
        """The message could not be processed, and comes back later: see `ReceivedMessage.retry`."""
        message.retry(delay_s=delay_s)

    async def commit(self) -> None:
        """Commit now what is acknowledged, instead of within 5 s. Raises `DeadlineError` if some of it could not be."""
        left = await self._started().assignments.commit()
        if left:
            raise DeadlineError(f"the offsets of {', '.join(map(str, sorted(left)))} could not be committed yet")

    async def _next_for(self, taker: Taker | None) -> ReceivedMessage:
        self._takers.begin_to_ask(taker)
        message = None
        try:
            message = await self._started().offers.next()
        finally:
            self._takers.end_to_ask(taker, message)
        if message is None:
            raise StopAsyncIteration
        return message

    async def _end(self, running: _Running, closer: asyncio.Task[object] | None) -> None:
        try:
            await self._finish_work(running, closer)
            await running.assignments.commit()
            if await running.assignments.unlock():  # to leave would free the locks of what is in work
                await running.membership.leave()
            if self._tracer is not None:
                await self._tracer.close()
        finally:
            await running.questions.close()
            await running.core.close()

    async def _finish_work(self, running: _Running, closer: asyncio.Task[object] | None) -> None:
        try:
            async with asyncio.timeout(self._close_timeout):
                if self._handler is not None:
                    await asyncio.wait(self._workers)
                    await running.assignments.idle()
                else:
                    await self._takers.all_finished(closer)
        except TimeoutError:
            logger.warning("%s closes with messages in work; they will be delivered again", self._client_id)

    def _offer(self, fetcher: QueueFetcher) -> None:
        self._started().offers.add(fetcher)

    async def _work(self, handler: Handler) -> None:
        offers = self._started().offers
        while (message := await offers.next()) is not None:
            try:
                await handler(message)
            except (KeyboardInterrupt, SystemExit, GeneratorExit):
                raise
            except BaseException:  # cancellations of others, and panics of extensions, which are no `Exception`
                if being_cancelled():
                    raise
                logger.exception("handler failed for message %s of %s", message.message_id, message.queue)
                message.retry()
            else:
                if self._auto_ack:
                    message.ack()

    def _settle(self, fetcher: QueueFetcher, message: ReceivedMessage, settlement: Settlement) -> None:
        running = self._started()
        if running.core.is_closed or not fetcher.finish(message) or not running.assignments.holds(fetcher):
            return
        if not settlement.again or self._strategy is None:
            self._done(fetcher, message)
        else:
            fetcher.retrying.add(message.queue_offset)
            running.core.spawn(
                self._retry(running, fetcher, message, settlement.delay_s), f"retry {message.message_id}"
            )

    def _done(self, fetcher: QueueFetcher, message: ReceivedMessage) -> None:
        fetcher.acknowledge(message.queue_offset)
        if self._orderly:
            self._offer(fetcher)

    async def _retry(
        self, running: _Running, fetcher: QueueFetcher, message: ReceivedMessage, delay_s: float | None
    ) -> None:
        limit = _ORDERLY_RECONSUME_TIMES if self._max_reconsume_times is None else self._max_reconsume_times
        is_repeated_here = self._orderly and message.reconsume_times < limit
        if not is_repeated_here and await running.retries.give_back(
            message, delay_s, lambda: running.assignments.holds(fetcher), give_up=self._orderly
        ):
            fetcher.retrying.discard(message.queue_offset)
            self._done(fetcher, message)
            return
        await asyncio.sleep(pause_seconds(message.reconsume_times) if delay_s is None else delay_s)
        fetcher.retrying.discard(message.queue_offset)
        if not fetcher.revoked:
            again = msgspec.structs.replace(message, reconsume_times=message.reconsume_times + 1)
            fetcher.buffer.appendleft(again)
            self._offer(fetcher)

    def _heartbeat(self) -> HeartbeatData:
        return heartbeat_of(
            self._client_id,
            self._group,
            self._subscriptions,
            broadcast=self._strategy is None,
            from_first=self._start_from != "last",
        )

    def _on_request(self, connection: Connection, command: RemotingCommand) -> bool:
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._started().assignments.rebalance_soon()
        elif command.code in RESET_CODES:
            return take_request(connection, command, self._group, self._started().assignments)
        elif command.code in QUESTION_CODES:
            self._started().questions.take(connection, command)
        else:
            return False
        return True

    def _started(self) -> _Running:
        if self._running is None:
            raise ClientClosedError("the consumer is not started: use 'async with PushConsumer(...)'")
        return self._running

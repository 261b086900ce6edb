"""Consumers that are members of a group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Generic, Self, Unpack

import msgspec

from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.filters.tags import SUBSCRIBE_ALL
from dledger_remoting.heartbeat import HeartbeatData
from dledger_remoting.signatures import Credentials

from . import interception
from .arguments import at_least, checked
from .cluster.connection import Connection
from .cluster.core import ClientCore, new_client_id
from .cluster.nameservers import parse_addresses
from .consuming.assignments import Assignments
from .consuming.fetcher import QueueFetcher
from .consuming.flow import FlowControl, FlowReason, ReadAhead
from .consuming.handling import Handler, Handling
from .consuming.membership import Membership, heartbeat_of
from .consuming.offers import Offers, priority_of
from .consuming.offsets import BrokerOffsetStore, FileOffsetStore, OffsetStore
from .consuming.pulls import PullLimits
from .consuming.questions import QUESTION_CODES, RESET_CODES, OperatorQuestions, described, take_reset
from .consuming.rebalance import strategy_named
from .consuming.retries import RetrySender
from .consuming.settlements import Settlements
from .consuming.stalls import QueueStall, StallWatch
from .consuming.takers import Taker, Takers
from .errors import ClientClosedError, DeadlineError, InvalidArgumentError
from .interception import Caller, ReceiveCall
from .messages import Codec, MessageQueue, ReceivedMessage, Settlement, T, decoded, delivered, queues_in
from .namespaces import Namespace
from .sending.tracing import DEFAULT_MAX_TRACES, tracer
from .settings import ConsumerSettings, Delivery, SettingsByName, Sharing, TimeLimits
from .subscriptions import Filter, filters_by_topic, subscriptions_of
from .tls import Tls

logger = logging.getLogger(__name__)

_CUT_OFF_SECONDS: Final = 1.0
"""Time limit in seconds for cancelled handlers to end."""


class _Running(msgspec.Struct, frozen=True):
    """Parts that exist between start and close."""

    core: ClientCore
    assignments: Assignments
    membership: Membership
    offers: Offers
    settlements: Settlements
    stalls: StallWatch
    questions: OperatorQuestions


@checked
class PushConsumer(Generic[T]):
    """Reads its share of the subscribed topics' queues, as an async iterator or as the runner of a handler.

        async with PushConsumer("127.0.0.1:9876", "CG", {"orders": "*"}) as consumer:
            async for message in consumer:
                print(message.body)

    `subscriptions` is a topic or several, to which `filter` applies: tags (`"a || b"`), `Sql("amount > 100")` or a
    `ClassFilter`. It may also be a mapping of topics to their filters. With a `handler`, `concurrency` messages are
    handled at the same time. An exception gives the message back. It then comes again later, at most
    `max_reconsume_times` times. After that it goes to the topic `%DLQ%<group>`.

    A message is not acknowledged until its taker finishes it. There are three ways. A handler returns. A task that took
    the message from the iterator asks for the next one. The application calls `message.ack()` or `message.retry()`,
    which is the only way with `auto_ack=False`. Neither an error nor the end of the `async with` block finishes a
    message: acknowledge it before `break`. Several tasks may iterate; each finishes what it took. Every 5 s and at the
    end, the lowest offset that is not acknowledged is committed for each queue. So nothing is skipped, and messages in
    work when a consumer dies come again.

    Further settings are in groups (module `settings`): `delivery`, `sharing`, `read_ahead` and `times`. Each setting
    may also be given by its own name, instead of in its group: `orderly=True` is `delivery=Delivery(orderly=True)`.

    `trace` and `max_traces` are those of `Producer`; traces say when work on each message began and how it ended. Names
    of topics and groups are those within `namespace`, if there is one; queues have the names that brokers know.

    With a `codec` (`dledger_client.codecs`) each message has a `value`. A message whose body does not decode is not
    handed out. It is logged, and counts as failed: it comes again, and becomes a dead letter in the end. A consumer
    with `broadcast` has no retries, so it hands such a message out, and its `value` raises `DecodeError`.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        group: str,
        subscriptions: str | Sequence[str] | Mapping[str, Filter],
        handler: Handler[T] | None = None,
        *,
        filter: Filter = SUBSCRIBE_ALL,  # noqa: A002 -- as all consumers have it
        concurrency: int = 20,
        codec: Codec[T] | None = None,
        delivery: Delivery | None = None,
        sharing: Sharing | None = None,
        read_ahead: ReadAhead | None = None,
        times: TimeLimits | None = None,
        namespace: str | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        client_id: str | None = None,
        trace: bool | str = False,
        max_traces: int = DEFAULT_MAX_TRACES,
        **options: Unpack[SettingsByName],
    ) -> None:
        at_least(1, concurrency=concurrency)
        settings = ConsumerSettings.gathered(delivery, sharing, read_ahead, times, options)
        self._settings = settings
        self._name_servers = parse_addresses(name_servers)
        self._namespace = Namespace.named(namespace)
        self._credentials = credentials
        self._tls = tls
        self._group = self._namespace.full(group)
        is_broadcast = settings.sharing.broadcast
        self._subscriptions = subscriptions_of(
            self._namespace, self._group, filters_by_topic(subscriptions, filter), with_retries=not is_broadcast
        )
        self._codec = codec
        self._concurrency = concurrency
        self._strategy = None if is_broadcast else strategy_named(settings.sharing.strategy)
        self._priority = priority_of(settings.delivery.priority)
        self._limits = PullLimits(
            max_messages=settings.read_ahead.pull_batch_size,
            finds_end=self._priority is not None,
            keep_unreadable=settings.delivery.keep_unreadable,
        )
        self._flow = FlowControl(settings.read_ahead)
        self._client_id = client_id or new_client_id()
        self._tracer = tracer(trace, max_traces)
        self._caller = Caller(self._client_id, group, namespace or "", self._name_servers, is_broadcast=is_broadcast)
        self._handling = (
            None
            if handler is None
            else Handling(self._caller, handler, codec, auto_ack=settings.delivery.auto_ack, is_broadcast=is_broadcast)
        )

        self._running: _Running | None = None
        self._workers: list[asyncio.Task[None]] = []
        self._takers = Takers()
        self._close_task: asyncio.Task[None] | None = None

    @property
    def settings(self) -> ConsumerSettings:
        """The settings in groups, with the defaults of those that were not given."""
        return self._settings

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
        """Queues that are stalled now because no task takes or finishes one of their messages, the longest first."""
        return [] if self._running is None else self._running.stalls.stalled()

    @property
    def stalls(self) -> int:
        """Number of stalls found since the start."""
        return 0 if self._running is None else self._running.stalls.seen

    @property
    def traces_dropped(self) -> int:
        """Number of traces that did not fit or could not be sent."""
        return 0 if self._tracer is None else self._tracer.dropped

    @property
    def flow_stops(self) -> dict[FlowReason, int]:
        """Number of times since the start that reading of a queue stopped because too much was unfinished.

        Counted for each of the reasons `count`, `bytes` and `span`, which module `flow` explains.
        """
        return dict(self._flow.stops)

    @property
    def paused(self) -> frozenset[MessageQueue]:
        """The queues of `assignment` that are paused."""
        return frozenset() if self._running is None else self._running.assignments.paused

    def pause(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """Stop reading these queues and handing out their messages until `resume`; None: all queues.

        All queues include those that come to this member later. Messages that were handed out before are finished and
        committed as usual.
        """
        self._require_started().assignments.pause(None if queues is None else queues_in(queues), paused=True)

    def resume(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """Continue paused queues; None: all."""
        running = self._require_started()
        for fetcher in running.assignments.pause(None if queues is None else queues_in(queues), paused=False):
            running.offers.add(fetcher)

    async def start(self) -> None:
        """Join the group and begin to read. Topics and brokers need not exist yet.

        Raises `NoNameServerError` if no name server answers within `start_timeout` seconds (None: it may come later).
        Raises `WrongServerError` if something else answers there.
        """
        if self._running is not None:
            raise ClientClosedError("the consumer has been started before; make another one")
        delivery, sharing = self._settings.delivery, self._settings.sharing
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
        if sharing.offset_file is not None:
            store = FileOffsetStore(sharing.offset_file)
        membership = Membership(core, self._group, list(self._subscriptions), self._strategy)
        assignments = Assignments(
            core,
            self._group,
            self._subscriptions,
            membership,
            store,
            start_from=sharing.start_from,
            limits=self._limits,
            flow=self._flow,
            on_messages=self._offer,
            settle=self._settle,
            in_order=delivery.orderly,
            with_locks=delivery.queue_locks,
        )
        offers = Offers(
            assignments, self._group, orderly=delivery.orderly, priority=self._priority, tracer=self._tracer
        )
        settlements = Settlements(
            assignments,
            offers,
            RetrySender(core, self._caller, self._group, delivery.max_reconsume_times),
            core,
            in_order=delivery.orderly,
            is_broadcast=self._strategy is None,
            max_reconsume_times=delivery.max_reconsume_times,
        )
        stalls = StallWatch(self._client_id, assignments.watched, self._settings.times.warn_after)
        questions = self._make_operator_questions(assignments)
        self._running = _Running(core, assignments, membership, offers, settlements, stalls, questions)
        await self._await_name_server(core)
        core.start()
        if self._tracer is not None:
            self._tracer.start(core)
        core.keep(stalls.run, "watch for stalls")
        assignments.start()
        if self._handling is not None:
            self._workers = [
                core.keep(partial(self._handling.run, offers), f"handler {number}")
                for number in range(self._concurrency)
            ]

    def _make_operator_questions(self, assignments: Assignments) -> OperatorQuestions:
        consumer_data, delivery = self._heartbeat().consumer_data_set[0], self._settings.delivery
        return OperatorQuestions(
            self._group,
            self._namespace,
            None if self._handling is None else self._handling.work_on,
            assignments.fetchers,
            subscriptions=consumer_data.subscription_data_set,
            properties=described(
                self._name_servers, consumer_data.consume_type, concurrency=self._concurrency, in_order=delivery.orderly
            ),
            in_order=delivery.orderly,
            auto_ack=delivery.auto_ack,
        )

    async def _await_name_server(self, core: ClientCore) -> None:
        if self._settings.times.start_timeout is None:
            return
        try:
            await core.name_servers.check(core.loop.time() + self._settings.times.start_timeout)
        except BaseException:
            await core.close()
            raise

    async def close(self) -> None:
        """Finish the messages in work, for at most `close_timeout` seconds, commit, and leave the group.

        Further callers wait for the same end. Called by a handler, it returns at once, so that the handler's own
        message can be finished.
        """
        running, caller = self._running, asyncio.current_task()
        if running is None:
            return
        if self._close_task is None:
            running.assignments.stop_reading()
            self._close_task = asyncio.create_task(self._close_parts(running, caller), name="close consumer")
            running.offers.close()
        if caller in self._workers:
            return
        try:
            await asyncio.wait((self._close_task,))
        except asyncio.CancelledError:
            self._close_task.cancel()
            await asyncio.wait((self._close_task,))
            raise
        if not self._close_task.cancelled():
            self._close_task.result()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def run_forever(self) -> None:
        """Wait until the consumer is closed. The consumer must have a handler."""
        if not self._workers:
            raise InvalidArgumentError("this consumer has no handler, or is not started; iterate over one without")
        # Unlike `gather` and `close`, this leaves the handlers at work if the caller is cancelled.
        await asyncio.wait(self._workers)
        if self._close_task is not None:
            await asyncio.wait((self._close_task,))

    def __aiter__(self) -> AsyncIterator[ReceivedMessage[T]]:
        if self._handling is not None:
            raise InvalidArgumentError("this consumer has a handler; iterate over one without")
        return self

    def __anext__(self) -> Coroutine[None, None, ReceivedMessage[T]]:
        taker = asyncio.current_task()  # the task that calls, even if another task then awaits: `takers` says why
        message = self._takers.finish(taker)
        if message is not None and self._settings.delivery.auto_ack:
            message.ack()
        return self._next_message_for(taker)

    async def receive(self, max_messages: int = 32, timeout: float | None = None) -> list[ReceivedMessage[T]]:
        """Return up to `max_messages` messages, as soon as any arrives; none if none comes within `timeout` seconds.

        They must be acknowledged one by one, even with `auto_ack`. Raises `ClientClosedError` once the consumer is
        being closed.
        """
        if (around := interception.interceptor) is None:
            return await self._take(max_messages, timeout)
        call = ReceiveCall(self._caller, "receive")
        with around.receiving(call):
            call.messages = messages = await self._take(max_messages, timeout)
        return messages

    async def _take(self, max_messages: int, timeout: float | None) -> list[ReceivedMessage[T]]:
        """Take messages as `receive` does, perhaps before the application asks for them."""
        at_least(1, max_messages=max_messages)
        offers = self._require_started().offers
        messages: list[ReceivedMessage[T]] = []
        try:
            async with asyncio.timeout(timeout):
                first = await self._next_message(offers)
        except TimeoutError:
            return messages
        if first is None:
            raise ClientClosedError("the consumer is closed")
        messages.append(first)
        while len(messages) < max_messages and (message := offers.take()) is not None:
            if (readable := self._decoded(message)) is not None:
                messages.append(readable)
        return messages

    def nack(
        self, message: ReceivedMessage[object], *, delay_s: float | None = None, reason: str | None = None
    ) -> None:
        """Give back a message that could not be processed, as `ReceivedMessage.retry` does."""
        message.retry(delay_s=delay_s, reason=reason)

    async def commit(self) -> None:
        """Commit acknowledged messages now instead of within 5 s.

        Raises `DeadlineError` if some could not be committed.
        """
        assignments = self._require_started().assignments
        with interception.settling(self._caller, "commit"):
            uncommitted = await assignments.commit()
            if uncommitted:
                listed = ", ".join(map(str, sorted(uncommitted)))
                raise DeadlineError(f"the offsets of {listed} could not be committed yet")

    async def _next_message_for(self, taker: Taker | None) -> ReceivedMessage[T]:
        self._takers.begin_to_ask(taker)
        message = None
        try:
            offers = self._require_started().offers
            if (around := interception.interceptor) is None:
                message = await self._next_message(offers)
            else:
                call = ReceiveCall(self._caller, "iterate")
                with around.receiving(call):
                    message = await self._next_message(offers)
                    call.messages = () if message is None else (message,)
        finally:
            self._takers.end_to_ask(taker, message)
        if message is None:
            raise StopAsyncIteration
        return message

    async def _next_message(self, offers: Offers) -> ReceivedMessage[T] | None:
        """Return the next message that decodes, as soon as any arrives; None once the consumer is closed."""
        while (message := await offers.next()) is not None:
            if (readable := self._decoded(message)) is not None:
                return readable
        return None

    def _decoded(self, message: ReceivedMessage) -> ReceivedMessage[T] | None:
        """Return a message with its value. Returns None if it has none, and comes again for that reason."""
        if self._strategy is None:  # it would not come again
            return decoded(message, self._codec)
        return delivered(message, self._codec)

    async def _close_parts(self, running: _Running, closer: asyncio.Task[object] | None) -> None:
        try:
            await self._finish_work(running, closer)
            await running.assignments.commit()
            if await running.assignments.unlock():  # leaving would free the locks of messages in work
                await running.membership.leave()
            if self._tracer is not None:
                await self._tracer.close()
        finally:
            await running.questions.close()
            await running.core.close()

    async def _finish_work(self, running: _Running, closer: asyncio.Task[object] | None) -> None:
        try:
            async with asyncio.timeout(self._settings.times.close_timeout):
                if self._handling is not None:
                    await asyncio.wait(self._workers)
                    await running.assignments.idle()
                else:
                    await self._takers.all_finished(closer)
        except TimeoutError:
            logger.warning("%s closes with messages in work; they will be delivered again", self._client_id)
            await self._cancel_handlers(running)

    async def _cancel_handlers(self, running: _Running) -> None:
        """Cancel the handlers to end all work on messages, so that the locks of their queues can be released."""
        if not self._workers:
            return
        for worker in self._workers:
            worker.cancel()
        _, working = await asyncio.wait(self._workers, timeout=_CUT_OFF_SECONDS)
        if not working:
            running.assignments.forget_work()

    def _offer(self, fetcher: QueueFetcher) -> None:
        self._require_started().offers.add(fetcher)

    def _settle(self, fetcher: QueueFetcher, message: ReceivedMessage[object], settlement: Settlement) -> None:
        self._require_started().settlements.settle(fetcher, message, settlement)

    def _heartbeat(self) -> HeartbeatData:
        return heartbeat_of(
            self._client_id,
            self._group,
            self._subscriptions,
            broadcast=self._strategy is None,
            from_first=self._settings.sharing.start_from != "last",
        )

    def _on_request(self, connection: Connection, command: RemotingCommand) -> bool:
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._require_started().assignments.rebalance_soon()
        elif command.code in RESET_CODES:
            return take_reset(connection, command, self._group, self._require_started().assignments)
        elif command.code in QUESTION_CODES:
            self._require_started().questions.take(connection, command)
        else:
            return False
        return True

    def _require_started(self) -> _Running:
        if self._running is None:
            raise ClientClosedError("the consumer is not started: use 'async with PushConsumer(...)'")
        return self._running

"""Pops (200050), peeks (200052), questions whether there are messages (200054), and the count of waiting pops (200055).

A pop is chosen and proposed in one turn of the event loop, and answered when it is applied. So no other client gets the
same messages, not even from the next leader. Codes and checks follow RocketMQ's `PopMessageProcessor`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from dledger.environment import Environment
from dledger.errors import LogError, NotLeaderError
from dledger_broker.errors import NoSuchQueue
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.features.offsets.buffer import OffsetBuffer
from dledger_broker.features.pop.acks import AckRequests, invisible_ms_of
from dledger_broker.features.pop.answers import FOUND, found_body, found_ext, nothing_ext
from dledger_broker.features.pop.changes import PopChanges
from dledger_broker.features.pop.choosing import Choice, Chooser, PopQuery, QueueBatch
from dledger_broker.features.pop.commands import NO_ROW, Pop, PopQueueKey
from dledger_broker.features.pop.held import GoneClients, HeldPops, PopWait
from dledger_broker.features.pop.reading import PopReads, Read, ReadPlan
from dledger_broker.features.pop.resets import PopResets
from dledger_broker.features.pop.revival import HiddenByLease, Revivals
from dledger_broker.features.pop.shared_names import SharedNames
from dledger_broker.features.pop.turns import PopTurns
from dledger_broker.features.pulling.limits import MAX_ANSWER_BYTES, MAX_HELD_BYTES, MAX_SUSPEND_S
from dledger_broker.features.pulling.permits import ReaderGroups
from dledger_broker.features.pulling.subscriptions import Subscriptions
from dledger_broker.features.quotas.gate import QuotaGate
from dledger_broker.kernel import rights
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.group_clock import GroupClock
from dledger_broker.kernel.jobs import Job
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Gauge, Part, Parts
from dledger_broker.kernel.queues import QueueState, TopicState
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import NO_EFFECT, Effect, Needs, Route
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.errors import (
    InvalidParameter,
    NoPermission,
    SubscriptionParseFailed,
    TopicNotExist,
    UnknownExpressionType,
)
from dledger_remoting.filters.subscriptions import MessageFilter
from dledger_remoting.headers import decode_ext, encode_ext
from dledger_remoting.headers_pop import (
    LEASE_FIELD,
    NotificationHeader,
    NotificationResponseHeader,
    PeekHeader,
    PollingInfoHeader,
    PollingInfoResponseHeader,
    PopHeader,
)
from dledger_remoting.pop import MAX_POP_MESSAGES, Retry, pop_retry_topic
from dledger_remoting.topics import is_readable, require_readable

MAX_ATTEMPT_CHARS: Final = 128
MAX_DIGITS: Final = 20


_READING: Final = (rights.group("consumerGroup", Action.SUB), rights.topic("topic", Action.SUB))
_PEEKING: Final = (rights.topic("topic", Action.SUB), rights.group("consumerGroup", Action.SUB))
_COUNTING: Final = (
    rights.group("consumerGroup", Action.SUB, Action.GET),
    rights.topic("topic", Action.SUB, Action.GET),
)


class Leasing:
    """Giver of leases, under which popped messages stay hidden while their client lives."""

    times: HiddenByLease
    """The times for which leases hide messages."""

    def owner_of(self, request: Request, header: PopHeader) -> str:
        """Return the owner of the lease that a pop asks for, or "" if it asks for none. Raises `RemotingError`."""
        raise NotImplementedError

    def leased(self, pop: Pop, owner: str) -> Command:
        """Return the command of a pop under a lease."""
        raise NotImplementedError


class PopRequests(Part):
    """POP on one node. `changes` has the changes in flight, and `resets` takes commits that say `reset`."""

    def __init__(
        self,
        machine: BrokerMachine,
        env: Environment,
        group: LeadershipView,
        live: LiveConfig,
        counters: BrokerCounters,
        requests: Requests,
        clock: GroupClock,
        changes: PopChanges,
        chooser: Chooser,
        reads: PopReads,
        reader_groups: ReaderGroups,
        subscriptions: Subscriptions,
        commits: OffsetBuffer,
        held: HeldPops,
        acks: AckRequests,
        revivals: Revivals,
        shared_names: SharedNames,
        quotas: QuotaGate,
    ) -> None:
        self._quotas = quotas
        self._shared_names = shared_names
        self._machine = machine
        self._env = env
        self._group = group
        self._live = live
        self._counters = counters
        self._requests = requests
        self._clock = clock
        self.changes = changes
        self._chooser = chooser
        self._reads = reads
        self._reader_groups = reader_groups
        self._subscriptions = subscriptions
        self._commits = commits
        self._acks = acks
        self.revivals = revivals
        self._was_ready = False
        self._leasing: Leasing | None = None
        self.accepts_waiting = True
        self.popped = 0
        self.held = held
        self.gone = GoneClients(env, requests, self.held)
        self._turns = PopTurns(env, requests.run)
        self.resets = PopResets(machine, changes, requests, self.held.arrived)
        clock.add_dependent(lambda: self.changes.table.has_deliveries)

    def meet(self, parts: Parts) -> None:
        self._leasing = parts.find(Leasing)
        if self._leasing is not None:
            self.revivals.dues.leases = self._leasing.times

    @property
    def routes(self) -> Mapping[int, Route]:
        return {
            RequestCode.POP_MESSAGE: Route(self.pop, Needs.LEADER, HELD, rights=_READING),
            RequestCode.PEEK_MESSAGE: Route(self.peek, Needs.CONFIRMED_LEADER, NO_EFFECT, rights=_PEEKING),
            RequestCode.NOTIFICATION: Route(self.notify, Needs.LEADER, HELD_QUESTION, rights=_READING),
            RequestCode.POLLING_INFO: Route(self.polling_info, Needs.LEADER, NO_EFFECT, rights=_COUNTING),
            RequestCode.POP_ROLLBACK: Route(
                self.move_nothing, Needs.NOTHING, NO_EFFECT, forwarded=False, rights=(rights.cluster(Action.UPDATE),)
            ),
            RequestCode.CHANNEL_GONE: Route(
                self.gone.note, Needs.NOTHING, NO_EFFECT, rights=(rights.cluster(Action.UPDATE),)
            ),
            **self._acks.routes,
        }

    @property
    def jobs(self) -> Sequence[Job]:
        return (self.revivals,)

    @property
    def gauges(self) -> Sequence[Gauge]:
        table = self.changes
        return (
            Gauge("held_pops", "Pops that wait for messages", self.held.__len__),
            Gauge("messages_popped", "Messages that pops have got from this node", lambda: self.popped),
            Gauge(
                "pop_messages_open",
                "Popped messages that are neither acknowledged nor redelivered",
                lambda: table.table.open_count,
            ),
            Gauge("pop_messages_revived", "Popped messages that were redelivered", lambda: self.revivals.revived),
            Gauge(
                "pop_dead_letters",
                "Popped messages that became dead letters because they were delivered too often",
                lambda: self.revivals.buried,
            ),
            Gauge(
                "pop_messages_unreadable",
                "Popped messages that could not be read for redelivery",
                lambda: self.revivals.unreadable,
            ),
            Gauge(
                "pop_messages_ended", "Popped messages that a reset, trim or deletion ended", lambda: table.table.ended
            ),
        )

    def release(self) -> None:
        self.accepts_waiting = False
        self.held.release_all()

    def close(self) -> None:
        self.revivals.close()

    def unready(self, error: NotLeaderError) -> None:
        self.changes.discard(error)
        self._chooser.counts.forget_all()

    def prepare_handover(self) -> None:
        self.changes.flush()

    def prepare_deletion(self) -> None:
        self.changes.flush()

    def messages_arrived(self, queues: Sequence[QueueState]) -> None:
        if len(self.held):
            self.held.arrived(queue.topic for queue in queues)

    # ---------------------------------------------------------------- pops

    def pop(self, request: Request) -> None:
        """Take messages, at once or when they arrive (200050)."""
        header = decode_ext(PopHeader, request.ext)
        query = self._parse_query(request, header)
        if query is None or not (request.has_polled or self._turns.may_run(request, self._queues_of(header))):
            return
        if request.has_polled or self._is_within_quotas(request, header):
            self._pop(request, header, query, None)

    def _queues_of(self, header: PopHeader) -> int:
        topic = self._machine.topic(header.topic) if header.queue_id < 0 else None
        return 1 if topic is None else topic.config.read_queue_nums

    def _is_within_quotas(self, request: Request, header: PopHeader) -> bool:
        return self._quotas.admits(request, header.topic, 0, 0, _polls_s(header))

    def _parse_query(self, request: Request, header: PopHeader) -> PopQuery | None:
        """Return the demand of a pop, or None while its group is being created. Raises `RemotingError` with RocketMQ's
        code.
        """
        if not 1 <= header.max_msg_nums <= MAX_POP_MESSAGES:
            raise InvalidParameter(f"maxMsgNums {header.max_msg_nums} is outside 1..{MAX_POP_MESSAGES}")
        invisible_ms_of(header.invisible_time)
        attempt_id = header.attempt_id or ""
        if len(attempt_id) > MAX_ATTEMPT_CHARS:
            raise InvalidParameter(f"attemptId has {len(attempt_id)} characters, the limit is {MAX_ATTEMPT_CHARS}")
        self._readable(header.topic, header.queue_id)
        message_filter = self._filter(header)
        if not self._has_group(request, header.consumer_group):
            return None
        return PopQuery(
            header.consumer_group,
            header.topic,
            max(header.queue_id, -1),
            header.max_msg_nums,
            MAX_ANSWER_BYTES,
            message_filter,
            header.init_mode,
            header.order,
            attempt_id if header.order else "",
            self._shared_names.may_read(header.consumer_group, header.topic),
            "" if self._leasing is None else self._leasing.owner_of(request, header),
        )

    def _filter(self, header: PopHeader) -> MessageFilter | None:
        try:
            return self._subscriptions.parse(header.exp_type, header.exp or "*")
        except UnknownExpressionType as error:
            # RocketMQ answers pops with this code, and pulls with 1.
            raise SubscriptionParseFailed(error.remark) from error

    def _readable(self, name: str, queue_id: int) -> TopicState:
        """Return a topic that may be popped. Raises `RemotingError`."""
        require_readable(name)
        topic = self._machine.topic(name)
        if topic is None:
            raise TopicNotExist(f"topic {name} does not exist: create it first")
        if not is_readable(topic.config.perm):
            raise NoPermission(f"topic {name} has perm {topic.config.perm}, which does not allow reading")
        if queue_id >= topic.config.read_queue_nums:
            raise NoSuchQueue(name, queue_id, topic.config.read_queue_nums)
        return topic

    def _has_group(self, request: Request, name: str) -> bool:
        """Return whether a group exists. If not, the request is handled again once the group is created. Raises
        `RemotingError`.
        """
        group = self._machine.state.table(GROUPS).by_name.get(name)
        if group is None:
            if not self._reader_groups.has_to_be_made(name):
                raise InvalidParameter(f"{name} is a group of the system, which pops nothing: name another one")
            self._reader_groups.make(request, name)
            return False
        if not group.consume_enable:
            raise NoPermission(f"consumer group {name} may not consume: its consumeEnable is false")
        return True

    def _pop(self, request: Request, header: PopHeader, query: PopQuery, read: Read | None) -> None:
        """Choose messages and propose the pop. After a read for the request, this node may no longer be the leader."""
        if self.gone.has_sent(request):
            request.origin.settle()
            return
        if not self._group.ready:
            self._requests.pass_on(request)
            return
        now_ms = self._clock.delay_base_ms()
        if now_ms is None:
            self._clock.hold(request, self._requests)
            return
        choice = self._chooser.choose(query, read)
        may_find_messages = choice.cold or any(batch.records for batch in choice.batches)
        if may_find_messages and not self._is_within_quotas(request, header):
            return
        if choice.cold and (read is None or not choice.batches):
            self._requests.spawn(request, self._pop_cold(request, header, query, choice.cold[0]))
        elif (committed := self._find_pending_commit(query.group, choice.batches)) is not None:
            self._commits.flush(partial(self._requests.resume, request), committed)
        elif choice.batches:
            self._propose(request, header, query, choice, now_ms)
        else:
            self._wait(request, header, query, choice, now_ms)

    async def _pop_cold(self, request: Request, header: PopHeader, query: PopQuery, plan: ReadPlan) -> None:
        """Read on a worker what is not in the page cache."""
        self._counters.cold_reads += 1
        read = await self._reads.read_later(plan)
        self._pop(request, header, query, read)

    def _find_pending_commit(self, group: str, batches: Sequence[QueueBatch]) -> PopQueueKey | None:
        """Return a queue with commits of pulling consumers under way, which its first pop must not overtake, or
        None.
        """
        for batch in batches:
            key = PopQueueKey(group, batch.row.topic, batch.row.queue_id)
            if batch.row.expected == NO_ROW and self._commits.pending(*key) is not None:
                return key
        return None

    def _propose(self, request: Request, header: PopHeader, query: PopQuery, choice: Choice, now_ms: int) -> None:
        keys = [PopQueueKey(query.group, batch.row.topic, batch.row.queue_id) for batch in choice.batches]
        pop_time_ms = max([now_ms, *(self.changes.last_pop_ms(key) + 1 for key in keys)])
        invisible_ms = invisible_ms_of(header.invisible_time)
        rows = tuple(batch.row for batch in choice.batches)
        command = Pop(query.group, pop_time_ms, invisible_ms, rows, query.is_ordered, query.attempt_id)
        leased = self._leasing.leased(command, query.client) if self._leasing is not None and query.client else None
        self.changes.pop(command, partial(self._on_popped, request, query, choice, command), leased)

    def _on_popped(
        self, request: Request, query: PopQuery, choice: Choice, command: Pop, error: LogError | None
    ) -> None:
        """Answer with the messages that the group now has.

        A trim or a deletion may have been applied before the pop.
        """
        if error is not None:
            self._requests.fail(request, error)
            return
        table, time_ms = self.changes.table, command.pop_time_ms
        batches = [
            batch
            for batch in choice.batches
            if batch.records and table.delivery(PopQueueKey(query.group, batch.row.topic, batch.row.queue_id), time_ms)
        ]
        if not batches:
            self._requests.run(request)
            return
        count = sum(len(batch.records) for batch in batches)
        self.popped += count
        for batch in batches:
            size = sum(map(len, batch.records))
            self._counters.count_delivery(query.group, batch.row.topic, len(batch.records), size)
            if query.is_ordered:
                key = PopQueueKey(query.group, batch.row.topic, batch.row.queue_id)
                self._chooser.counts.note(key, batch.row.offsets, batch.counts)
            self._quotas.charge(request, query.topic, len(batch.records), size)
        invisible_ms, is_ordered = command.invisible_ms, query.is_ordered
        body = found_body(
            batches, query.topic, self._live.config.broker_group, time_ms, invisible_ms, is_ordered=is_ordered
        )
        ext = found_ext(batches, time_ms, invisible_ms, choice.remaining, is_ordered=is_ordered)
        if query.client:
            ext[LEASE_FIELD] = "true"
        request.respond(ResponseCode.SUCCESS, FOUND, ext, body)

    # ---------------------------------------------------------------- waiting

    def _wait(self, request: Request, header: PopHeader, query: PopQuery, choice: Choice, now_ms: int) -> None:
        """Let a pop that found nothing wait, or answer that there is nothing."""

        def answer(code: int, remark: str) -> None:
            invisible_ms = invisible_ms_of(header.invisible_time)
            request.respond(
                code, remark, nothing_ext(now_ms, invisible_ms, choice.remaining, is_ordered=query.is_ordered)
            )

        if choice.is_full:
            self._counters.max_pop_in_flight += 1
            limit = self._live.config.max_pop_in_flight
            answer(
                ResponseCode.POLLING_FULL,
                f"{limit} messages of a queue are popped by group {query.group} and not acknowledged, which is the "
                "limit max_pop_in_flight: acknowledge some",
            )
        elif header.poll_time <= 0 or not self.accepts_waiting:
            answer(ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
        elif not self._may_wait(request):
            answer(ResponseCode.POLLING_FULL, "too many requests wait: ask without a poll time")
        else:
            expire = partial(answer, ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
            wait = wait_of(query.group, query.topic, query.queue_id, has_filter=query.message_filter is not None)
            # By the time a message arrives, other clients may have used the quotas up.
            request.within_quotas, request.has_polled = False, True
            self.held.hold(request, wait, request.received + _polls_s(header), expire)

    def _may_wait(self, request: Request) -> bool:
        if len(request.header) + len(request.body) > MAX_HELD_BYTES:
            return False
        if request.origin.held >= self._live.config.max_held_pulls or not self._requests.held.has_room(request):
            self._counters.max_held_pulls += 1
            return False
        return True

    def leader_changed(self) -> None:
        """Release the waiting clients of a deposed leader, so that they find the new leader."""
        self.revivals.dues.leader_changed()
        was_ready, self._was_ready = self._was_ready, self._group.ready
        if was_ready and not self._group.ready:
            self.held.release_all()

    def topics_changed(self) -> None:
        topics = self._machine.state.topics
        self.held.rerun_matching(lambda wait: wait.topic not in topics)

    def groups_changed(self) -> None:
        groups = self._machine.state.table(GROUPS).by_name
        self.held.rerun_matching(lambda wait: wait.group not in groups or not groups[wait.group].consume_enable)

    # ---------------------------------------------------------------- questions

    def peek(self, request: Request) -> None:
        """Answer with the messages that a pop would get now, without taking them (200052)."""
        header = decode_ext(PeekHeader, request.ext)
        if not 1 <= header.max_msg_nums <= MAX_POP_MESSAGES:
            raise InvalidParameter(f"maxMsgNums {header.max_msg_nums} is outside 1..{MAX_POP_MESSAGES}")
        if self._quotas.admits(request, header.topic, 0, 0):
            self._peek(request, header, None)

    def _peek(self, request: Request, header: PeekHeader, read: Read | None) -> None:
        self._readable(header.topic, header.queue_id)
        if not self._has_group(request, header.consumer_group):
            return
        group, topic = header.consumer_group, header.topic
        query = question_of(group, topic, header.queue_id, header.max_msg_nums)
        query = query._replace(reads_v1=self._shared_names.may_read(group, topic))
        choice = self._chooser.choose(query, read, is_question=True)
        batches = [batch for batch in choice.batches if batch.records]
        if choice.cold and (read is None or not batches):
            self._requests.spawn(request, self._peek_cold(request, header, choice.cold[0]))
            return
        now_ms = self._env.wall_ms()
        if batches:
            ext = found_ext(batches, now_ms, 0, choice.remaining, is_ordered=False)
            body = b"".join(record for batch in batches for record in batch.records)
            self._quotas.charge(request, topic, sum(len(batch.records) for batch in batches), len(body))
            request.respond(ResponseCode.SUCCESS, FOUND, ext, body)
        else:
            ext = nothing_ext(now_ms, 0, choice.remaining, is_ordered=False)
            request.respond(ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", ext)

    async def _peek_cold(self, request: Request, header: PeekHeader, plan: ReadPlan) -> None:
        self._counters.cold_reads += 1
        self._peek(request, header, await self._reads.read_later(plan))

    def notify(self, request: Request) -> None:
        """Answer whether there are messages to pop, at once or when they arrive (200054). Filters are not applied."""
        header = decode_ext(NotificationHeader, request.ext)
        self._readable(header.topic, header.queue_id)
        if not self._has_group(request, header.consumer_group):
            return
        group, topic = header.consumer_group, header.topic
        query = question_of(group, topic, header.queue_id, 1, is_ordered=header.order)
        query = query._replace(reads_v1=self._shared_names.may_read(group, topic))

        def answer(*, has_message: bool, is_full: bool = False) -> None:
            request.respond(ext=encode_ext(NotificationResponseHeader(has_message, is_full)))

        if self._chooser.has_messages(query):
            answer(has_message=True)
        elif header.poll_time <= 0 or not self.accepts_waiting:
            answer(has_message=False)
        elif not self._may_wait(request):
            answer(has_message=False, is_full=True)
        else:
            wait = wait_of(query.group, query.topic, query.queue_id, has_filter=False)
            expire: Callable[[], None] = partial(answer, has_message=False)
            self.held.hold(request, wait, request.received + _polls_s(header), expire)

    def polling_info(self, request: Request) -> None:
        """Answer how many pops of a group wait at this leader (200055)."""
        header = decode_ext(PollingInfoHeader, request.ext)
        self._readable(header.topic, header.queue_id)
        count = self.held.count_of(header.consumer_group, header.topic, max(header.queue_id, -1))
        request.respond(ext=encode_ext(PollingInfoResponseHeader(count)))

    def move_nothing(self, request: Request) -> None:
        """Do nothing (200056). RocketMQ moves pop state between its kinds of store; here that state is in the log."""
        request.respond()


def wait_of(group: str, topic: str, queue_id: int, *, has_filter: bool) -> PopWait:
    """Return the condition that a pop waits for: messages of its topic or of its retry topics."""
    topics = tuple(pop_retry_topic(group, topic, retry) for retry in Retry)
    return PopWait(group, topic, queue_id, topics, has_filter)


def question_of(group: str, topic: str, queue_id: int, count: int, *, is_ordered: bool = False) -> PopQuery:
    """Return a pop for a question that takes nothing."""
    return PopQuery(group, topic, max(queue_id, -1), count, MAX_ANSWER_BYTES, None, 0, is_ordered, "")


def _polls_s(header: PopHeader | NotificationHeader) -> float:
    """Return the time in seconds for which a request is to wait for messages."""
    return min(max(0, header.poll_time) / 1000, MAX_SUSPEND_S)


def _poll_s(request: Request) -> float:
    """Return the time in seconds for which the leader may hold a forwarded pop, or 0 if the field is unreadable."""
    text = request.ext.get("pollTime", "")
    asked_ms = int(text) if text.isascii() and text.isdecimal() and len(text) < MAX_DIGITS else 0
    return min(asked_ms / 1000, MAX_SUSPEND_S)


def _nothing_popped(request: Request) -> None:
    """Answer a pop to which the leader did not answer. Messages that it may have taken return after their invisible
    time.
    """
    ext = nothing_ext(0, 0, 0, is_ordered=False)
    request.respond(ResponseCode.POLLING_TIMEOUT, "the leader did not answer, pop again", ext)


def _nothing_known(request: Request) -> None:
    request.respond(ext=encode_ext(NotificationResponseHeader(has_msg=False)))


HELD: Final = Effect(changes=False, unanswered=_nothing_popped, held_s=_poll_s)
"""Later requests need not wait for the answer to a pop."""
HELD_QUESTION: Final = Effect(changes=False, unanswered=_nothing_known, held_s=_poll_s)

"""Pops (200050), and what is asked about them: what one would get (200052), whether there is something (200054), how
many wait (200055).

A pop is chosen and proposed in one turn, and answered when it is applied: what its client has then no other one gets,
whoever leads. Codes and checks are those of RocketMQ's `PopMessageProcessor`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from dledger.environment import Environment
from dledger.errors import LogError
from dledger_broker.errors import NoSuchQueue
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.features.offsets.buffer import OffsetBuffer
from dledger_broker.features.pop.acks import AckRequests
from dledger_broker.features.pop.answers import FOUND, found_body, found_ext, nothing_ext
from dledger_broker.features.pop.changes import PopChanges
from dledger_broker.features.pop.choosing import Choice, Chooser, PopAsk, Taken
from dledger_broker.features.pop.commands import NO_ROW, Pop, PopQueueKey
from dledger_broker.features.pop.held import HeldPops, PopWait
from dledger_broker.features.pop.limits import invisible_ms_of
from dledger_broker.features.pop.reading import PopReads, Read, Wanted
from dledger_broker.features.pop.resets import PopResets
from dledger_broker.features.pop.revival import Revivals
from dledger_broker.features.pop.shared_names import SharedNames
from dledger_broker.features.pulling.limits import MAX_ANSWER_BYTES, MAX_HELD_BYTES, MAX_SUSPEND_S
from dledger_broker.features.pulling.reader_groups import ReaderGroups
from dledger_broker.features.pulling.subscriptions import Subscriptions
from dledger_broker.features.quotas.admission import Admission
from dledger_broker.kernel import rights
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.group_clock import GroupClock
from dledger_broker.kernel.jobs import Job
from dledger_broker.kernel.leadership import Group
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Gauge, Part
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


class PopRequests(Part):
    """A node's part of POP. `changes` is what is in flight of it, `resets` takes the commits that say so."""

    def __init__(
        self,
        machine: BrokerMachine,
        env: Environment,
        group: Group,
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
        acks: AckRequests,
        revivals: Revivals,
        shared_names: SharedNames,
        quotas: Admission,
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
        self._revivals = revivals
        self._was_ready = False
        self.accepts_waiting = True
        self.popped = 0
        self.held = HeldPops(env, requests.run)
        self.resets = PopResets(machine, changes, requests, self.held.arrived)
        revivals.on_due = acks.on_settled = self.held.arrived
        machine.on_topics_changed.append(self._topics_changed)
        machine.on_groups_changed.append(self._groups_changed)
        group.listeners.append(self._leadership_changed)
        clock.needed_by(lambda: self.changes.table.has_deliveries)

    @property
    def routes(self) -> Mapping[int, Route]:
        """See `Part.routes`."""
        return {
            RequestCode.POP_MESSAGE: Route(self.pop, Needs.LEADER, HELD, rights=_READING),
            RequestCode.PEEK_MESSAGE: Route(self.peek, Needs.CONFIRMED_LEADER, NO_EFFECT, rights=_PEEKING),
            RequestCode.NOTIFICATION: Route(self.notify, Needs.LEADER, HELD_QUESTION, rights=_READING),
            RequestCode.POLLING_INFO: Route(self.polling_info, Needs.LEADER, NO_EFFECT, rights=_COUNTING),
            RequestCode.POP_ROLLBACK: Route(
                self.move_nothing, Needs.NOTHING, NO_EFFECT, forwarded=False, rights=(rights.cluster(Action.UPDATE),)
            ),
            **self._acks.routes,
        }

    @property
    def jobs(self) -> Sequence[Job]:
        """See `Part.jobs`."""
        return (self._revivals,)

    @property
    def gauges(self) -> Sequence[Gauge]:
        """See `Part.gauges`."""
        table = self.changes
        return (
            Gauge("held_pops", "Pops that wait for messages", self.held.__len__),
            Gauge("messages_popped", "Messages that pops have got from this node", lambda: self.popped),
            Gauge("pop_messages_open", "Popped messages that are not done with", lambda: table.table.open_count),
            Gauge("pop_messages_revived", "Popped messages that came again", lambda: self._revivals.revived),
            Gauge("pop_dead_letters", "Those that had come too often", lambda: self._revivals.buried),
            Gauge("pop_messages_unreadable", "Those that could not be read", lambda: self._revivals.unreadable),
            Gauge(
                "pop_messages_ended", "Popped messages that a reset, trim or deletion ended", lambda: table.table.ended
            ),
        )

    def release(self) -> None:
        """See `Part.release`."""
        self.accepts_waiting = False
        self.held.release_all()

    def close(self) -> None:
        """See `Part.close`."""
        self._revivals.close()

    def arrived(self, queues: Sequence[QueueState]) -> None:
        """Messages can be read in these queues; one may be named more than once."""
        if len(self.held):
            self.held.arrived(queue.topic for queue in queues)

    # ---------------------------------------------------------------- pops

    def pop(self, request: Request) -> None:
        """200050: take messages, at once or when they come."""
        header = decode_ext(PopHeader, request.ext)
        ask = self._asked(request, header)
        if ask is not None and (request.has_polled or self._is_within_quotas(request, header)):
            self._pop(request, header, ask, None)

    def _is_within_quotas(self, request: Request, header: PopHeader) -> bool:
        return self._quotas.takes(request, header.topic, 0, 0, _polls_s(header))

    def _asked(self, request: Request, header: PopHeader) -> PopAsk | None:
        """What a pop wants; None while its group is being made. Raises `RemotingError` with RocketMQ's code."""
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
        return PopAsk(
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
        )

    def _filter(self, header: PopHeader) -> MessageFilter | None:
        try:
            return self._subscriptions.parse(header.exp_type, header.exp or "*")
        except UnknownExpressionType as error:
            raise SubscriptionParseFailed(error.remark) from error  # RocketMQ answers pops so, and pulls 1

    def _readable(self, name: str, queue_id: int) -> TopicState:
        """A topic that may be popped. Raises `RemotingError`."""
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
        """Whether a group is there; else the request is handled again once it is made. Raises `RemotingError`."""
        group = self._machine.state.table(GROUPS).by_name.get(name)
        if group is None:
            if not self._reader_groups.has_to_be_made(name):
                raise InvalidParameter(f"{name} is a group of the system, which pops nothing: name another one")
            self._reader_groups.make(request, name)
            return False
        if not group.consume_enable:
            raise NoPermission(f"consumer group {name} may not consume: its consumeEnable is false")
        return True

    def _pop(self, request: Request, header: PopHeader, ask: PopAsk, read: Read | None) -> None:
        """Choose and propose. The request may be of a leader that is none any more, if something was read for it."""
        if not self._group.ready:
            self._requests.pass_on(request)
            return
        now_ms = self._clock.reckoned_from_ms()
        if now_ms is None:
            self._clock.hold(request, self._requests)
            return
        choice = self._chooser.choose(ask, read)
        may_bring = choice.cold or any(each.records for each in choice.taken)
        if may_bring and not self._is_within_quotas(request, header):
            return
        if choice.cold and (read is None or not choice.taken):
            self._requests.spawn(request, self._pop_cold(request, header, ask, choice.cold[0]))
        elif (committed := self._commit_under_way(ask.group, choice.taken)) is not None:
            self._commits.flush(partial(self._requests.resume, request), committed)
        elif choice.taken:
            self._propose(request, header, ask, choice, now_ms)
        else:
            self._wait(request, header, ask, choice, now_ms)

    async def _pop_cold(self, request: Request, header: PopHeader, ask: PopAsk, wanted: Wanted) -> None:
        """Read on a worker what is not in the page cache."""
        self._counters.cold_reads += 1
        read = await self._reads.later(wanted)
        self._pop(request, header, ask, read)

    def _commit_under_way(self, group: str, taken: Sequence[Taken]) -> PopQueueKey | None:
        """A queue whose first pop must not overtake what consumers that pull have committed."""
        for each in taken:
            key = PopQueueKey(group, each.row.topic, each.row.queue_id)
            if each.row.expected == NO_ROW and self._commits.pending(*key) is not None:
                return key
        return None

    def _propose(self, request: Request, header: PopHeader, ask: PopAsk, choice: Choice, now_ms: int) -> None:
        keys = [PopQueueKey(ask.group, each.row.topic, each.row.queue_id) for each in choice.taken]
        pop_time_ms = max([now_ms, *(self.changes.last_pop_ms(key) + 1 for key in keys)])
        invisible_ms = invisible_ms_of(header.invisible_time)
        rows = tuple(each.row for each in choice.taken)
        command = Pop(ask.group, pop_time_ms, invisible_ms, rows, ask.is_ordered, ask.attempt_id)
        self.changes.pop(command, partial(self._popped, request, ask, choice, command))

    def _popped(self, request: Request, ask: PopAsk, choice: Choice, command: Pop, error: LogError | None) -> None:
        """Answer with what is the group's now: a trim or a deletion may have come before."""
        if error is not None:
            self._requests.fail(request, error)
            return
        table, time_ms = self.changes.table, command.pop_time_ms
        taken = [
            each
            for each in choice.taken
            if each.records and table.delivery(PopQueueKey(ask.group, each.row.topic, each.row.queue_id), time_ms)
        ]
        if not taken:
            self._requests.run(request)
            return
        count = sum(len(each.records) for each in taken)
        self.popped += count
        for each in taken:
            size = sum(map(len, each.records))
            self._counters.count_delivery(ask.group, each.row.topic, len(each.records), size)
            self._quotas.charge(request, ask.topic, len(each.records), size)
        invisible_ms, is_ordered = command.invisible_ms, ask.is_ordered
        body = found_body(
            taken, ask.topic, self._live.config.broker_group, time_ms, invisible_ms, is_ordered=is_ordered
        )
        ext = found_ext(taken, time_ms, invisible_ms, choice.rest, is_ordered=is_ordered)
        request.respond(ResponseCode.SUCCESS, FOUND, ext, body)

    # ---------------------------------------------------------------- waiting

    def _wait(self, request: Request, header: PopHeader, ask: PopAsk, choice: Choice, now_ms: int) -> None:
        """Nothing is there: let a pop wait, or say so."""

        def answer(code: int, why: str) -> None:
            invisible_ms = invisible_ms_of(header.invisible_time)
            request.respond(code, why, nothing_ext(now_ms, invisible_ms, choice.rest, is_ordered=ask.is_ordered))

        if choice.is_full:
            self._counters.max_pop_in_flight += 1
            limit = self._live.config.max_pop_in_flight
            answer(
                ResponseCode.POLLING_FULL,
                f"{limit} messages of a queue are popped by group {ask.group} and not acknowledged, which is the limit"
                " max_pop_in_flight: acknowledge some",
            )
        elif header.poll_time <= 0 or not self.accepts_waiting:
            answer(ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
        elif not self._may_wait(request):
            answer(ResponseCode.POLLING_FULL, "too many requests of this connection wait: ask without a poll time")
        else:
            expire = partial(answer, ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
            wait = wait_of(ask.group, ask.topic, ask.queue_id, has_filter=ask.message_filter is not None)
            # Others may have used the quotas up when something comes that it may have.
            request.within_quotas, request.has_polled = False, True
            self.held.hold(request, wait, request.received + _polls_s(header), expire)

    def _may_wait(self, request: Request) -> bool:
        if len(request.header) + len(request.body) > MAX_HELD_BYTES:
            return False
        if request.origin.held >= self._live.config.max_held_pulls:
            self._counters.max_held_pulls += 1
            return False
        return True

    def _leadership_changed(self) -> None:
        """A node that no longer leads lets its clients look for the one that does."""
        was_ready, self._was_ready = self._was_ready, self._group.ready
        if was_ready and not self._group.ready:
            self.held.release_all()

    def _topics_changed(self) -> None:
        topics = self._machine.state.topics
        self.held.look_again(lambda wait: wait.topic not in topics)

    def _groups_changed(self) -> None:
        groups = self._machine.state.table(GROUPS).by_name
        self.held.look_again(lambda wait: wait.group not in groups or not groups[wait.group].consume_enable)

    # ---------------------------------------------------------------- questions

    def peek(self, request: Request) -> None:
        """200052: the messages that a pop would get now, which stay where they are."""
        header = decode_ext(PeekHeader, request.ext)
        if not 1 <= header.max_msg_nums <= MAX_POP_MESSAGES:
            raise InvalidParameter(f"maxMsgNums {header.max_msg_nums} is outside 1..{MAX_POP_MESSAGES}")
        if self._quotas.takes(request, header.topic, 0, 0):
            self._peek(request, header, None)

    def _peek(self, request: Request, header: PeekHeader, read: Read | None) -> None:
        self._readable(header.topic, header.queue_id)
        if not self._has_group(request, header.consumer_group):
            return
        group, topic = header.consumer_group, header.topic
        ask = question_of(group, topic, header.queue_id, header.max_msg_nums)
        ask = ask._replace(reads_v1=self._shared_names.may_read(group, topic))
        choice = self._chooser.choose(ask, read, is_question=True)
        taken = [each for each in choice.taken if each.records]
        if choice.cold and (read is None or not taken):
            self._requests.spawn(request, self._peek_cold(request, header, choice.cold[0]))
            return
        now_ms = self._env.wall_ms()
        if taken:
            ext = found_ext(taken, now_ms, 0, choice.rest, is_ordered=False)
            body = b"".join(record for each in taken for record in each.records)
            self._quotas.charge(request, topic, sum(len(each.records) for each in taken), len(body))
            request.respond(ResponseCode.SUCCESS, FOUND, ext, body)
        else:
            ext = nothing_ext(now_ms, 0, choice.rest, is_ordered=False)
            request.respond(ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", ext)

    async def _peek_cold(self, request: Request, header: PeekHeader, wanted: Wanted) -> None:
        self._counters.cold_reads += 1
        self._peek(request, header, await self._reads.later(wanted))

    def notify(self, request: Request) -> None:
        """200054: whether there is something to pop, at once or when it comes; filters are not looked at."""
        header = decode_ext(NotificationHeader, request.ext)
        self._readable(header.topic, header.queue_id)
        if not self._has_group(request, header.consumer_group):
            return
        group, topic = header.consumer_group, header.topic
        ask = question_of(group, topic, header.queue_id, 1, is_ordered=header.order)
        ask = ask._replace(reads_v1=self._shared_names.may_read(group, topic))

        def answer(*, has_message: bool, is_full: bool = False) -> None:
            request.respond(ext=encode_ext(NotificationResponseHeader(has_message, is_full)))

        if self._chooser.has_some(ask):
            answer(has_message=True)
        elif header.poll_time <= 0 or not self.accepts_waiting:
            answer(has_message=False)
        elif not self._may_wait(request):
            answer(has_message=False, is_full=True)
        else:
            wait = wait_of(ask.group, ask.topic, ask.queue_id, has_filter=False)
            expire: Callable[[], None] = partial(answer, has_message=False)
            self.held.hold(request, wait, request.received + _polls_s(header), expire)

    def polling_info(self, request: Request) -> None:
        """200055: how many pops of a group wait at this leader."""
        header = decode_ext(PollingInfoHeader, request.ext)
        self._readable(header.topic, header.queue_id)
        count = self.held.count_of(header.consumer_group, header.topic, max(header.queue_id, -1))
        request.respond(ext=encode_ext(PollingInfoResponseHeader(count)))

    def move_nothing(self, request: Request) -> None:
        """200056: RocketMQ moves what it keeps of pops from one kind of store to the other; here it is in the log."""
        request.respond()


def wait_of(group: str, topic: str, queue_id: int, *, has_filter: bool) -> PopWait:
    """What a pop waits for: messages of its topic, and those that come again."""
    topics = tuple(pop_retry_topic(group, topic, retry) for retry in Retry)
    return PopWait(group, topic, queue_id, topics, has_filter)


def question_of(group: str, topic: str, queue_id: int, count: int, *, is_ordered: bool = False) -> PopAsk:
    """A pop of which it is only asked what it would get."""
    return PopAsk(group, topic, max(queue_id, -1), count, MAX_ANSWER_BYTES, None, 0, is_ordered, "")


def _polls_s(header: PopHeader | NotificationHeader) -> float:
    """How long a request asks to wait for messages."""
    return min(max(0, header.poll_time) / 1000, MAX_SUSPEND_S)


def _poll_s(request: Request) -> float:
    """How long a pop that is passed on may be held by the leader; one that cannot be read is not."""
    text = request.ext.get("pollTime", "")
    asked_ms = int(text) if text.isascii() and text.isdecimal() and len(text) < MAX_DIGITS else 0
    return min(asked_ms / 1000, MAX_SUSPEND_S)


def _nothing_popped(request: Request) -> None:
    """The leader did not answer: what it may have taken comes again when its time is over."""
    ext = nothing_ext(0, 0, 0, is_ordered=False)
    request.respond(ResponseCode.POLLING_TIMEOUT, "the leader did not answer, pop again", ext)


def _nothing_known(request: Request) -> None:
    request.respond(ext=encode_ext(NotificationResponseHeader(has_msg=False)))


HELD: Final = Effect(changes=False, unanswered=_nothing_popped, held_s=_poll_s)
"""Later requests need not wait for the answer to a pop."""
HELD_QUESTION: Final = Effect(changes=False, unanswered=_nothing_known, held_s=_poll_s)

"""Pulls: codes 11 and 361, from memory and page cache on the spot, from disk in a task, held while there is nothing.

Checks, codes and the table of statuses are RocketMQ's `PullMessageProcessor`'s. Any node answers what it has; what only
an up-to-date node can know (a missing topic or group, an offset beyond the end, messages that are gone) is confirmed
first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from dledger.environment import Environment, called_back
from dledger.errors import LogError, NotLeaderError, TrimmedError
from dledger.log import Log
from dledger_broker.clients.gossip import Gossip
from dledger_broker.clients.readers import Readers
from dledger_broker.features.class_filters.judging import ClassFilters, Verdicts
from dledger_broker.features.groups.proposals import GroupProposals
from dledger_broker.features.offsets.requests import OffsetRequests
from dledger_broker.features.pulling.limits import MAX_HELD_BYTES, max_bytes, max_messages, polls_s
from dledger_broker.features.pulling.longpoll import HeldPull, LongPolls
from dledger_broker.features.pulling.passed_on import passed_on
from dledger_broker.features.pulling.permits import READING, ReadPermits
from dledger_broker.features.pulling.placement import Placement
from dledger_broker.features.pulling.properties import Matcher, choose
from dledger_broker.features.pulling.reader_groups import ReaderGroups
from dledger_broker.features.pulling.reads import QueueReads
from dledger_broker.features.pulling.subscriptions import Subscriptions
from dledger_broker.features.pulling.turn_reads import TurnReads
from dledger_broker.features.quotas.admission import Admission
from dledger_broker.kernel import rights
from dledger_broker.kernel.access import Access
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.leadership import Group
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Gauge, Part
from dledger_broker.kernel.queues import QueueState
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.roles import Roles
from dledger_broker.kernel.routes import NO_EFFECT, Needs, Route
from dledger_broker.views.reading import GetResult, ReadStatus
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.errors import ReadBehind, RemotingError
from dledger_remoting.filters.classes import ClassFilter
from dledger_remoting.filters.sql92 import SqlFilter
from dledger_remoting.filters.subscriptions import MessageFilter
from dledger_remoting.headers import PullMessageHeader, decode_ext
from dledger_remoting.headers_consume import PULL_COMMIT_OFFSET
from dledger_remoting.hotpath import PullFields, pull_response_head
from dledger_remoting.record import physical_offset_of

_CODES: Final = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}

_UNSURE: Final = frozenset(
    {
        ReadStatus.MESSAGE_WAS_REMOVING,
        ReadStatus.NO_MESSAGE_IN_QUEUE,
        ReadStatus.OFFSET_OVERFLOW_BADLY,
        ReadStatus.OFFSET_TOO_SMALL,
    }
)
"""These send a reader elsewhere in the queue: a log that has not caught up, or has lost its beginning, must not."""


class PullRequests(Part):
    """Answers pulls; `take_over` answers one in another way, if it returns True."""

    def __init__(
        self,
        machine: BrokerMachine,
        log: Log,
        env: Environment,
        group: Group,
        live: LiveConfig,
        counters: BrokerCounters,
        requests: Requests,
        gossip: Gossip,
        offsets: OffsetRequests,
        readers: Readers,
        roles: Roles,
        group_proposals: GroupProposals,
        classes: ClassFilters,
        access: Access,
        quotas: Admission,
    ) -> None:
        self._quotas = quotas
        self._placement = Placement(env, log, group, live, gossip, access)
        self._held = passed_on(self._placement)
        self._machine = machine
        self._log = log
        self._env = env
        self._group = group
        self._max_held_pulls = live.own.max_held_pulls
        self._counters = counters
        self._requests = requests
        self._reads = QueueReads(machine)
        self._turn_reads = TurnReads(machine, log, env.native)
        self._subscriptions = Subscriptions(live, counters, gossip, classes)
        self._classes = classes
        self._offsets = offsets
        self._roles = roles
        self._reader_groups = ReaderGroups(live, group, requests, group_proposals)
        self._permits = ReadPermits(machine, access, self._reader_groups)
        self._was_ready = False
        self._readers = readers
        self.held = LongPolls(env, self._retry, self._expire, gossip.hold_changed)
        gossip.attach_pulls(self.held)
        self.accepts_waiting = True
        self.take_over: Callable[[Request, PullFields], bool] = _nobody
        machine.on_topics_changed.append(self.held.release_dropped)
        group.listeners.append(self._on_leadership)

    @property
    def routes(self) -> Mapping[int, Route]:
        """See `Part.routes`."""
        pulls = Route(self.handle, Needs.NOTHING, self._held, rights=READING, behind_sends=True)
        return {
            RequestCode.PULL_MESSAGE: pulls,
            RequestCode.LITE_PULL_MESSAGE: pulls,
            RequestCode.CHECK_CLIENT_CONFIG: Route(
                self._subscriptions.check, Needs.NOTHING, NO_EFFECT, forwarded=False, rights=rights.ANY_ACCOUNT
            ),
        }

    @property
    def gauges(self) -> Sequence[Gauge]:
        """See `Part.gauges`."""
        return (Gauge("held_pulls", "Long polls that wait for messages", self.held.__len__),)

    def release(self) -> None:
        """See `Part.release`."""
        self.accepts_waiting = False
        self.held.release_all()

    def handle(self, request: Request) -> None:
        """A pull by the general path.

        One with `min_commit` is answered here or refused: what its reader knows of is applied, so that no answer can
        mislead it, and none is left to the leader.
        """
        header = decode_ext(PullMessageHeader, request.ext)
        if header.min_commit is not None:
            if self._machine.applied_position < header.min_commit:
                raise self._roles.behind(header.min_commit)
            request.confirmed = True
        fields = PullFields(
            header.consumer_group,
            header.topic,
            header.queue_id,
            header.queue_offset,
            header.max_msg_nums,
            header.sys_flag,
            header.commit_offset,
            header.suspend_timeout_millis,
            header.sub_version,
            header.subscription,
            header.expression_type,
            header.max_msg_bytes or 0,
            header.roles,
        )
        self.pull(request, fields, is_bound=header.min_commit is not None)

    def pull(self, request: Request, fields: PullFields, *, is_bound: bool = False) -> None:
        """Check a pull, then read; one that is bound to this node reads nowhere but where it says.

        Raises `RemotingError` with RocketMQ's code.
        """
        if fields.roles is not None:
            self._roles.require(fields.roles)
        topic, group, has_to_be_made = self._permits.judge(fields)
        message_filter = self._subscriptions.filter_of(fields, group)
        if has_to_be_made:  # behind all checks: a pull that is refused has made no group
            self._reader_groups.make(request, fields.consumer_group)
            return
        if group is not None:
            name, offset = group.group_name, fields.queue_offset
            self._readers.note(name, fields.topic, fields.queue_id, request.origin, request.received, offset)
        if not is_bound and self.take_over(request, fields):
            return
        commits = fields.sys_flag & PULL_COMMIT_OFFSET and fields.commit_offset >= 0
        if commits and not request.confirmed and not request.committed:
            # Once: while the leader was confirmed, or the pull waited, the client may have committed a newer one.
            request.committed = True
            self._offsets.commit_by_pull(request, fields)
        if not request.origin.is_open:  # it committed what it had to, and nobody would read an answer
            request.origin.settle()
            return
        if not self._quotas.takes(request, fields.topic, 0, 0, polls_s(fields)):
            return
        queue = topic.queue(fields.queue_id)
        # With a quota each pull is charged with what it has read before the next one is asked whether it may.
        if self._quotas.limits((fields.topic,)) or not self._turn_reads.take(request, fields, queue, message_filter):
            self._read(request, fields, queue, message_filter)

    def begin_turn(self) -> None:
        """See `PullsOfTurn`."""
        self._turn_reads.begin()

    def end_turn(self) -> None:
        """See `PullsOfTurn`."""
        for (request, fields, queue, message_filter, _, _), result, records in self._turn_reads.end():
            if result is None or records is None:
                self._requests.guard(request, self._read, request, fields, queue, message_filter)
            else:
                self._requests.guard(request, self._answer_found, request, fields, result, [records])

    # ---------------------------------------------------------------- reading

    def _read(
        self, request: Request, fields: PullFields, queue: QueueState, message_filter: MessageFilter | None
    ) -> None:
        result = self._reads.get_messages(
            queue, fields.queue_offset, max_messages(fields), max_bytes(fields), message_filter
        )
        if result.status is ReadStatus.FOUND:
            self._deliver(request, fields, message_filter, result, fields.queue_offset)
        elif result.status is ReadStatus.COLD:
            self._requests.spawn(request, self._read_cold(request, fields, queue, message_filter))
        else:
            self._conclude(request, fields, queue, message_filter, result)

    async def _read_cold(
        self, request: Request, fields: PullFields, queue: QueueState, message_filter: MessageFilter | None
    ) -> None:
        """Read the queue's units on a worker."""
        self._counters.cold_reads += 1
        offset, count, size = fields.queue_offset, max_messages(fields), max_bytes(fields)
        started = self._env.now()
        result: GetResult = await called_back(
            lambda done: self._reads.get_messages_later(queue, offset, count, size, message_filter, done)
        )
        self._counters.count_cold_time(self._env.now() - started)
        self._conclude(request, fields, queue, message_filter, result)

    def _conclude(
        self,
        request: Request,
        fields: PullFields,
        queue: QueueState,
        message_filter: MessageFilter | None,
        result: GetResult,
    ) -> None:
        """Answer with what was read, or let the pull wait."""
        if result.status is ReadStatus.FOUND:
            self._deliver(request, fields, message_filter, result, fields.queue_offset)
            return
        if result.status is ReadStatus.NOT_REBUILT:
            self._elsewhere(request, fields)
            return
        code = _CODES[result.status]
        if result.status is ReadStatus.NO_MESSAGE_IN_QUEUE and fields.queue_offset == 0:
            code = ResponseCode.PULL_NOT_FOUND
        if result.status in _UNSURE and not request.confirmed and code != ResponseCode.PULL_NOT_FOUND:
            self._requests.confirm(request)
        elif code == ResponseCode.PULL_NOT_FOUND and not queue.dropped and self._may_wait(request, fields):
            deadline = request.received + polls_s(fields)
            self.held.hold(HeldPull(request, fields, queue, fields.queue_offset, message_filter, deadline))
        else:
            self._answer_nothing(request, fields, code, result.next_begin, result)

    def _elsewhere(self, request: Request, fields: PullFields) -> None:
        """The leader answers; a reader that wants no answer of another node is refused. Raises `ReadBehind`."""
        why = f"queue {fields.queue_id} of {fields.topic} is not rebuilt here up to offset {fields.queue_offset} yet"
        if request.confirmed:
            raise ReadBehind(f"{why}: ask another node, or later")
        self._requests.fail(request, NotLeaderError(None, 0, why))

    def _may_wait(self, request: Request, fields: PullFields) -> bool:
        if not polls_s(fields) or not self.accepts_waiting:
            return False
        if len(request.header) + len(request.body) > MAX_HELD_BYTES:
            return False
        if request.origin.held >= self._max_held_pulls:
            self._counters.max_held_pulls += 1
            return False
        return True

    def _deliver(
        self, request: Request, fields: PullFields, message_filter: MessageFilter | None, result: GetResult, asked: int
    ) -> None:
        """Answer with what was found at offset `asked`, as far as its properties match."""
        if isinstance(message_filter, ClassFilter):
            self._requests.spawn(request, self._deliver_later(request, fields, message_filter, result, asked))
            return
        try:
            pieces = self._pieces(result)
        except TrimmedError:
            # Only some of the records may be gone: the next pull from the same offset is told which are kept.
            self._answer_nothing(request, fields, ResponseCode.PULL_RETRY_IMMEDIATELY, asked, result)
            return
        if pieces is None:
            self._counters.cold_reads += 1
            self._requests.spawn(request, self._deliver_later(request, fields, message_filter, result, asked))
        elif isinstance(message_filter, SqlFilter):
            self._answer(request, fields, *self._chosen(fields, message_filter, result, pieces, asked))
        else:
            self._answer_found(request, fields, result, pieces)

    async def _deliver_later(
        self,
        request: Request,
        fields: PullFields,
        message_filter: MessageFilter | None,
        result: GetResult,
        asked: int,
        *,
        waits_in: QueueState | None = None,
    ) -> None:
        """Read the records on a worker, and have them judged if a class says what matches.

        A pull that waits in a queue waits on behind them if nothing matches.
        """
        started = self._env.now()
        try:
            pieces = [await self._log.read(position, size) for position, size in result.runs]
        except TrimmedError:
            # Only some of the records may be gone: the next pull from the same offset is told which are kept.
            self._answer_nothing(request, fields, ResponseCode.PULL_RETRY_IMMEDIATELY, asked, result)
            return
        self._counters.count_cold_time(self._env.now() - started)
        matcher: Matcher | MessageFilter | None = message_filter
        if isinstance(message_filter, ClassFilter):
            matcher = await self._classes.judge(message_filter, result.message_count, pieces)
        chosen, parts = self._chosen(fields, matcher, result, pieces, asked)
        if waits_in is not None and chosen.status is ReadStatus.NO_MATCHED_MESSAGE:
            # What came meanwhile has woken nobody: it is read first.
            self._read(request, replace(fields, queue_offset=chosen.next_begin), waits_in, message_filter)
        else:
            self._answer(request, fields, chosen, parts)

    def _pieces(self, result: GetResult) -> list[bytes] | None:
        """The bytes of what was found, None if reading them would block. Raises `TrimmedError`."""
        pieces: list[bytes] = []
        for position, size in result.runs:
            data = self._log.read_nowait(position, size)
            if data is None:
                return None
            pieces.append(data)
        return pieces

    def _chosen(
        self,
        fields: PullFields,
        matcher: Matcher | MessageFilter | None,
        result: GetResult,
        pieces: list[bytes],
        asked: int,
    ) -> tuple[GetResult, list[bytes]]:
        """Of what was read what matches, which all does unless the filter looks at records."""
        if not isinstance(matcher, SqlFilter | Verdicts):
            return result, pieces
        self._counters.records_examined += result.message_count
        return choose(result, pieces, asked, matcher, max_messages(fields), max_bytes(fields))

    def _answer(self, request: Request, fields: PullFields, result: GetResult, parts: list[bytes]) -> None:
        if result.status is ReadStatus.FOUND:
            self._answer_found(request, fields, result, parts)
        else:
            self._answer_nothing(request, fields, _CODES[result.status], result.next_begin, result)

    def _answer_found(self, request: Request, fields: PullFields, result: GetResult, parts: list[bytes]) -> None:
        self._counters.count_delivery(fields.consumer_group, fields.topic, result.message_count, result.size)
        self._quotas.charge(request, fields.topic, result.message_count, result.size)
        if request.is_oneway:
            request.origin.settle()
            return
        behind_bytes = self._machine.applied_position - physical_offset_of(parts[0])
        head = pull_response_head(
            request.opaque,
            ResponseCode.SUCCESS,
            result.next_begin,
            result.min_offset,
            result.max_offset,
            self._placement.next_id(fields.topic, fields.queue_id, behind_bytes),
            body_bytes=result.size,
            remark=ReadStatus.FOUND,
            serialize_type=request.serialize_type,
        )
        request.origin.answer((head, *parts))

    def _answer_nothing(
        self, request: Request, fields: PullFields, code: int, next_begin: int, result: GetResult
    ) -> None:
        self._counters.reads_missed += 1
        if request.is_oneway:
            request.origin.settle()
            return
        behind_bytes = None if code == ResponseCode.PULL_RETRY_IMMEDIATELY else 0
        request.origin.answer_frame(
            pull_response_head(
                request.opaque,
                code,
                next_begin,
                result.min_offset,
                result.max_offset,
                self._placement.next_id(fields.topic, fields.queue_id, behind_bytes),
                remark=result.status,
                serialize_type=request.serialize_type,
            )
        )

    def answer_reset(self, request: Request, fields: PullFields, offset: int) -> None:
        """21: the group goes on at an offset, whatever the pull asked for."""
        topic = self._machine.topic(fields.topic)
        queue = None if topic is None else topic.queue(fields.queue_id)
        low, high = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        result = GetResult(ReadStatus.OFFSET_RESET, offset, low, high, [])
        self._answer_nothing(request, fields, ResponseCode.PULL_OFFSET_MOVED, offset, result)

    # ---------------------------------------------------------------- waiting

    def _retry(self, pull: HeldPull) -> bool:
        """Look again for a held pull, if it may still read; True if it waits for messages no more."""
        try:
            return self._has_ended(pull)
        except (LogError, RemotingError) as error:  # also that this node cannot judge: an exception here would end it
            self._requests.fail(pull.request, error)
            return True

    def _has_ended(self, pull: HeldPull) -> bool:
        if not self._permits.judge_again(pull.request, pull.fields):
            self._expire(pull)  # its client's next pull makes the group
            return True
        while True:
            result = self._look_again(pull)
            if result is None:
                return True
            if result.status is not ReadStatus.NO_MATCHED_MESSAGE:
                break
            pull.offset = result.next_begin
        if result.status in (ReadStatus.OFFSET_OVERFLOW_ONE, ReadStatus.NO_MESSAGE_IN_QUEUE):
            return False
        self._answer_nothing(pull.request, pull.fields, ResponseCode.PULL_RETRY_IMMEDIATELY, pull.offset, result)
        return True

    def _look_again(self, pull: HeldPull) -> GetResult | None:
        """What there is where a held pull waits; None if it was answered, or waits for a quota of what there is."""
        fields, message_filter, offset = pull.fields, pull.message_filter, pull.offset
        result = self._reads.get_messages(pull.queue, offset, max_messages(fields), max_bytes(fields), message_filter)
        if result.status is not ReadStatus.FOUND:
            return result
        if isinstance(message_filter, SqlFilter):
            try:
                pieces = self._pieces(result)
            except TrimmedError:
                return result._replace(status=ReadStatus.MESSAGE_WAS_REMOVING)
            if pieces is None:
                if self._is_within_quotas(pull):
                    self._counters.cold_reads += 1
                    self._requests.spawn(
                        pull.request, self._deliver_later(pull.request, fields, message_filter, result, offset)
                    )
                return None
            chosen, parts = self._chosen(fields, message_filter, result, pieces, offset)
            if chosen.status is not ReadStatus.FOUND:
                return chosen
            if self._is_within_quotas(pull):
                self._answer_found(pull.request, fields, chosen, parts)
            return None
        if self._is_within_quotas(pull):
            if isinstance(message_filter, ClassFilter):
                work = self._deliver_later(pull.request, fields, message_filter, result, offset, waits_in=pull.queue)
                self._requests.spawn(pull.request, work)
            else:
                self._deliver(pull.request, fields, message_filter, result, offset)
        return None

    def _is_within_quotas(self, pull: HeldPull) -> bool:
        """Whether a held pull may have what was found; else it waits once more."""
        return self._quotas.takes_again(pull.request, pull.fields.topic, polls_s(pull.fields))

    def _expire(self, pull: HeldPull) -> None:
        """Nothing came in time: the client goes on behind what its filter rejected."""
        queue = pull.queue
        result = GetResult(ReadStatus.OFFSET_OVERFLOW_ONE, pull.offset, queue.min_offset, queue.max_offset, [])
        self._answer_nothing(pull.request, pull.fields, ResponseCode.PULL_NOT_FOUND, pull.offset, result)

    def _on_leadership(self) -> None:
        """A node that no longer leads lets its clients look for the one that does."""
        was_ready, self._was_ready = self._was_ready, self._group.ready
        if was_ready and not self._group.ready:
            self.held.release_all()


def _nobody(_request: Request, _fields: PullFields) -> bool:
    return False

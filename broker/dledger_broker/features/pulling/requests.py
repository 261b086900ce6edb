"""Pulls (11, 361): read from memory and page cache at once, from disk in a task, and held while there is nothing.

Checks, codes and the table of statuses follow RocketMQ's `PullMessageProcessor`. Any node answers from its own state.
Only an up-to-date node can know that a topic, group or message is missing, or that an offset is beyond the end. So the
leader has to confirm these answers first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
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
from dledger_broker.features.offsets.reset_rules import ResetRules
from dledger_broker.features.pulling.answers import CODES, PullAnswers
from dledger_broker.features.pulling.earlier_reads import EarlierReads
from dledger_broker.features.pulling.limits import (
    MAX_HELD_BYTES,
    UNHEARD_S,
    fields_of,
    max_bytes,
    max_messages,
    polls_s,
)
from dledger_broker.features.pulling.longpoll import HeldPull, LongPolls
from dledger_broker.features.pulling.permits import READING, ReaderGroups, ReadPermits
from dledger_broker.features.pulling.placement import Placement, passed_on
from dledger_broker.features.pulling.properties import Matcher, choose
from dledger_broker.features.pulling.reads import QueueReads, verify_records
from dledger_broker.features.pulling.subscriptions import Subscriptions
from dledger_broker.features.pulling.turn_reads import TurnReads
from dledger_broker.features.quotas.gate import QuotaGate
from dledger_broker.kernel import rights
from dledger_broker.kernel.access import Access
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Gauge, Part, Parts
from dledger_broker.kernel.queues import QueueState
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.roles import Roles
from dledger_broker.kernel.routes import NO_EFFECT, Needs, Route
from dledger_broker.views.reading import GetResult, ReadStatus
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.errors import ReadBehind, RemotingError, SystemBusy
from dledger_remoting.filters.sql92 import SqlFilter
from dledger_remoting.filters.subscriptions import ClassFilter, MessageFilter
from dledger_remoting.headers import PullMessageHeader, decode_ext
from dledger_remoting.headers_consume import PULL_COMMIT_OFFSET
from dledger_remoting.hotpath import PullFields

_UNSURE: Final = frozenset(
    {
        ReadStatus.MESSAGE_WAS_REMOVING,
        ReadStatus.NO_MESSAGE_IN_QUEUE,
        ReadStatus.OFFSET_OVERFLOW_BADLY,
        ReadStatus.OFFSET_TOO_SMALL,
    }
)
"""Statuses that move a reader's offset. A log that lags or has lost its beginning must not answer so unconfirmed."""


class PullRequests(Part):
    """Handler of pulls. Pulls of groups that are reset follow `ResetRules`."""

    def __init__(
        self,
        machine: BrokerMachine,
        log: Log,
        env: Environment,
        group: LeadershipView,
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
        quotas: QuotaGate,
    ) -> None:
        self._quotas = quotas
        self._placement = Placement(env, log, group, live, gossip, access)
        self._held = passed_on(self._placement)
        self.answers = PullAnswers(machine, counters, requests, self._placement, readers, quotas)
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
        self._earlier = EarlierReads(log, env, requests, self._read_for_leader)
        self.held = LongPolls(env, requests.held, self._retry, self._expire, gossip.hold_changed)
        gossip.attach_pulls(self.held)
        self.accepts_waiting = True
        self._resets = ResetRules()

    def meet(self, parts: Parts) -> None:
        self._resets = parts.find(ResetRules) or self._resets

    @property
    def routes(self) -> Mapping[int, Route]:
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
        return (Gauge("held_pulls", "Long polls that wait for messages", self.held.__len__),)

    def release(self) -> None:
        self.accepts_waiting = False
        self.held.release_all()

    def handle(self, request: Request) -> None:
        """Handle a pull whose header is decoded in full.

        A pull with `min_commit` is answered or refused by this node, and never left to the leader. Everything that its
        reader knows of is applied here, so that no answer can mislead the reader.
        """
        header = decode_ext(PullMessageHeader, request.ext)
        if header.min_commit is not None:
            self._roles.require_group(header.group_identity)
            if self._machine.applied_position < header.min_commit:
                raise self._roles.behind(header.min_commit)
            request.confirmed = True
        fields = fields_of(header)
        if header.verify:
            self._requests.spawn(request, self._verify(request, fields))
            return
        self.pull(request, fields, is_bound=header.min_commit is not None)

    async def _verify(self, request: Request, fields: PullFields) -> None:
        """Check the records of a pull before answering it. Raises `ReadBehind` if a record is damaged on this node."""
        topic, _, _ = self._permits.judge(fields, is_bound=True)
        count, size = max_messages(fields), max_bytes(fields)
        result: GetResult = await called_back(
            lambda done: self._reads.get_messages_later(
                topic.queue(fields.queue_id), fields.queue_offset, count, size, None, done
            )
        )
        if result.status is ReadStatus.FOUND:
            await verify_records(self._log, result.runs)
        self.pull(request, fields, is_bound=True)

    def pull(self, request: Request, fields: PullFields, *, is_bound: bool = False) -> None:
        """Check a pull, then read. Raises `RemotingError` with RocketMQ's code.

        A pull that is bound to this node reads at the offset that it names, whatever resets say.
        """
        wait_s = polls_s(fields)
        if self._env.now() - request.received > wait_s + UNHEARD_S:
            raise SystemBusy("this pull waited until its client gave it up: pull again")
        if fields.roles is not None:
            self._roles.require(fields.roles)
        topic, group, has_to_be_made = self._permits.judge(fields, is_bound=is_bound)
        message_filter = self._subscriptions.filter_of(fields, group)
        if has_to_be_made:  # This follows all checks, so that a refused pull creates no group.
            self._reader_groups.make(request, fields.consumer_group)
            return
        if group is not None:
            name, offset, created = group.group_name, fields.queue_offset, topic.created_position
            is_of_this = self._readers.note(
                name, fields.topic, fields.queue_id, request.origin, request.received, offset, created
            )
            if not is_of_this or (fields.topic_created is not None and fields.topic_created != created):
                self.answers.made_again(request, fields, topic)
                return
        if not is_bound and self._resets.take_pull(request, fields):
            return
        commits = fields.sys_flag & PULL_COMMIT_OFFSET and fields.commit_offset >= 0
        if commits and not request.confirmed and not request.committed:
            # Commit only once. While this pull waited, its client may have committed a newer offset.
            request.committed = True
            self._offsets.commit_by_pull(request, fields)
        if not request.origin.is_open:  # The offset is committed, and nobody would read an answer.
            request.origin.settle()
            return
        if not self._quotas.admits(request, fields.topic, 0, 0, wait_s):
            return
        queue = topic.queue(fields.queue_id)
        # With a quota, a pull must be charged for what it read before the next pull is admitted. So these are not
        # gathered.
        if self._quotas.limits((fields.topic,)) or not self._turn_reads.take(request, fields, queue, message_filter):
            self._read(request, fields, queue, message_filter)

    def start(self) -> None:
        self._earlier.start()

    def _read_for_leader(self, request: Request) -> None:
        """Read what the leader's log lacks, for a pull that the leader has checked. Raises `RemotingError`."""
        fields = fields_of(decode_ext(PullMessageHeader, request.ext))
        topic = self._machine.topic(fields.topic)
        if topic is None:
            raise SystemBusy(f"topic {fields.topic} is not known here yet")
        self._read(request, fields, topic.queue(fields.queue_id), self._subscriptions.filter_of(fields, None))

    def begin_turn(self) -> None:
        """Begin to gather the pulls of a turn, which may be answered as late as in `end_turn`."""
        self._turn_reads.begin()

    def end_turn(self) -> None:
        """Answer the pulls that were gathered since `begin_turn`."""
        for (request, fields, queue, message_filter, _, _), result, records in self._turn_reads.end():
            if result is None or records is None:
                self._requests.guard(request, self._read, request, fields, queue, message_filter)
            else:
                self._requests.guard(request, self.answers.found, request, fields, result, [records])

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
            self._pass_on_not_rebuilt(request, fields, queue, message_filter)
            return
        code = CODES[result.status]
        if fields.queue_offset < queue.first_offset:
            result = result._replace(next_begin=queue.first_offset)  # this log may begin later than that of others
        if result.status is ReadStatus.NO_MESSAGE_IN_QUEUE and fields.queue_offset == 0:
            code = ResponseCode.PULL_NOT_FOUND
        if result.status in _UNSURE and not request.confirmed and code != ResponseCode.PULL_NOT_FOUND:
            self._requests.confirm(request)
        elif code == ResponseCode.PULL_OFFSET_MOVED and self._is_elsewhere(request, fields, queue, result, code):
            return
        elif code == ResponseCode.PULL_NOT_FOUND and not queue.dropped and self._may_wait(request, fields):
            deadline = request.received + polls_s(fields)
            self.held.hold(HeldPull(request, fields, queue, fields.queue_offset, message_filter, deadline))
        else:
            self.answers.nothing(request, fields, code, result.next_begin, result)

    def _is_elsewhere(
        self, request: Request, fields: PullFields, queue: QueueState, result: GetResult, code: int
    ) -> bool:
        """Return whether the pull was sent to another node, because the group keeps messages that this leader's log
        lacks.
        """
        if not self._group.ready or not queue.first_offset <= fields.queue_offset < queue.view.start:
            return False
        moved = partial(self.answers.nothing, request, fields, code, result.next_begin, result)
        return self._earlier.ask(request, moved)

    def _pass_on_not_rebuilt(
        self, request: Request, fields: PullFields, queue: QueueState, message_filter: MessageFilter | None
    ) -> None:
        """Pass a pull on to the leader, because the queue is not rebuilt here up to its offset. Raises `ReadBehind`.

        The leader itself answers once it has mended the queue. A confirmed pull, which wants no other node's answer, is
        refused.
        """
        if self._group.ready and queue.view.damaged:
            self._requests.spawn(request, self._read_mended(request, fields, queue, message_filter))
            return
        why = f"queue {fields.queue_id} of {fields.topic} is not rebuilt here up to offset {fields.queue_offset} yet"
        if request.confirmed:
            raise ReadBehind(f"{why}: ask another node, or later")
        self._requests.fail(request, NotLeaderError(None, 0, why))

    async def _read_mended(
        self, request: Request, fields: PullFields, queue: QueueState, message_filter: MessageFilter | None
    ) -> None:
        if not await self._machine.queues.wait_for_mending(queue.view):
            raise SystemBusy(f"the files of {queue} are written anew from the log: ask again")
        self._read(request, fields, queue, message_filter)

    def _may_wait(self, request: Request, fields: PullFields) -> bool:
        if not polls_s(fields) or not self.accepts_waiting:
            return False
        if len(request.header) + len(request.body) > MAX_HELD_BYTES:
            return False
        if request.origin.held >= self._max_held_pulls or not self._requests.held.has_room(request):
            self._counters.max_held_pulls += 1
            return False
        return True

    def _deliver(
        self, request: Request, fields: PullFields, message_filter: MessageFilter | None, result: GetResult, asked: int
    ) -> None:
        """Answer with the messages found at offset `asked` whose records the filter accepts."""
        if isinstance(message_filter, ClassFilter):
            self._requests.spawn(request, self._deliver_later(request, fields, message_filter, result, asked))
            return
        try:
            pieces = self._pieces(result)
        except TrimmedError:
            # Perhaps only some of the records are gone. The next pull from the same offset gets those that are kept.
            self.answers.nothing(request, fields, ResponseCode.PULL_RETRY_IMMEDIATELY, asked, result)
            return
        if pieces is None:
            self._counters.cold_reads += 1
            self._requests.spawn(request, self._deliver_later(request, fields, message_filter, result, asked))
        elif isinstance(message_filter, SqlFilter):
            self.answers.read(request, fields, *self._chosen(fields, message_filter, result, pieces, asked))
        else:
            self.answers.found(request, fields, result, pieces)

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
        """Read the records on a worker, and judge them if the filter is a class.

        If no record matches, a pull that waits in the queue `waits_in` keeps waiting behind these records.
        """
        started = self._env.now()
        try:
            pieces = [await self._log.read(position, size) for position, size in result.runs]
        except TrimmedError:
            # Perhaps only some of the records are gone. The next pull from the same offset gets those that are kept.
            self.answers.nothing(request, fields, ResponseCode.PULL_RETRY_IMMEDIATELY, asked, result)
            return
        self._counters.count_cold_time(self._env.now() - started)
        matcher: Matcher | MessageFilter | None = message_filter
        if isinstance(message_filter, ClassFilter):
            matcher = await self._classes.judge(message_filter, result.message_count, pieces)
        chosen, parts = self._chosen(fields, matcher, result, pieces, asked)
        if waits_in is not None and chosen.status is ReadStatus.NO_MATCHED_MESSAGE:
            # Messages that arrived meanwhile did not wake this pull, so read them before waiting.
            self._read(request, replace(fields, queue_offset=chosen.next_begin), waits_in, message_filter)
        else:
            self.answers.read(request, fields, chosen, parts)

    def _pieces(self, result: GetResult) -> list[bytes] | None:
        """Return the bytes that were found, or None if reading them would block. Raises `TrimmedError`."""
        return self._log.read_runs_nowait(result.runs)

    def _chosen(
        self,
        fields: PullFields,
        matcher: Matcher | MessageFilter | None,
        result: GetResult,
        pieces: list[bytes],
        asked: int,
    ) -> tuple[GetResult, list[bytes]]:
        """Keep the messages that match.

        Only SQL and class filters examine records; all other filters keep everything that was read.
        """
        if not isinstance(matcher, SqlFilter | Verdicts):
            return result, pieces
        self._counters.records_examined += result.message_count
        return choose(result, pieces, asked, matcher, max_messages(fields), max_bytes(fields))

    # ---------------------------------------------------------------- waiting

    def _retry(self, pull: HeldPull) -> bool:
        """Search again for messages for a held pull, if it may still read. Return True if its wait has ended."""
        try:
            return self._has_ended(pull)
        # The error may say that this node cannot judge. An exception that escapes from here would end the node.
        except (LogError, RemotingError) as error:
            self._requests.fail(pull.request, error)
            return True

    def _has_ended(self, pull: HeldPull) -> bool:
        if not self._permits.judge_again(pull.request, pull.fields):
            self._expire(pull)  # The client's next pull makes the group.
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
        self.answers.nothing(pull.request, pull.fields, ResponseCode.PULL_RETRY_IMMEDIATELY, pull.offset, result)
        return True

    def _look_again(self, pull: HeldPull) -> GetResult | None:
        """Return what is found where a held pull waits, or None if the pull was answered or waits for a quota."""
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
                self.answers.found(pull.request, fields, chosen, parts)
            return None
        if self._is_within_quotas(pull):
            if isinstance(message_filter, ClassFilter):
                work = self._deliver_later(pull.request, fields, message_filter, result, offset, waits_in=pull.queue)
                self._requests.spawn(pull.request, work)
            else:
                self._deliver(pull.request, fields, message_filter, result, offset)
        return None

    def _is_within_quotas(self, pull: HeldPull) -> bool:
        """Return whether a held pull may have what was found. If not, it waits once more."""
        return self._quotas.admits_again(pull.request, pull.fields.topic, polls_s(pull.fields))

    def _expire(self, pull: HeldPull) -> None:
        """Answer that no message arrived in time. The client continues behind the messages that its filter rejected."""
        queue = pull.queue
        result = GetResult(ReadStatus.OFFSET_OVERFLOW_ONE, pull.offset, queue.min_offset, queue.max_offset, [])
        self.answers.nothing(pull.request, pull.fields, ResponseCode.PULL_NOT_FOUND, pull.offset, result)

    def topics_changed(self) -> None:
        self.held.release_dropped()

    def messages_arrived(self, queues: Sequence[QueueState]) -> None:
        self.held.arrived(queues)

    def leader_changed(self) -> None:
        """Release the waiting clients of a deposed leader, so that they find the new leader."""
        self._placement.leader_changed()
        was_ready, self._was_ready = self._was_ready, self._group.ready
        if was_ready and not self._group.ready:
            self.held.release_all()

"""Requests that send messages back (36): a message that a consumer could not handle is redelivered or a dead letter.

A repeated request makes no further copy. A stored copy is charged to the account as a debt, for which its next sends
wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, cast

from dledger.environment import Cancellable, Environment
from dledger.errors import LogError
from dledger_base.invariants import invariant
from dledger_broker.features.delay.asked import Due, RequestedDelay
from dledger_broker.features.delay.messages import NAME as DELAY_FEATURE
from dledger_broker.features.delay.messages import DueMessages
from dledger_broker.features.groups.proposals import GroupProposals
from dledger_broker.features.groups.retry_topics import retry_limit, retry_topic_config
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.features.quotas.gate import QuotaGate
from dledger_broker.features.retries.pace import Pace
from dledger_broker.features.retries.policies import check_policy, retry_delay
from dledger_broker.features.retries.records import sent_back, topic_of
from dledger_broker.features.retries.repeats import Repeats, SentBack
from dledger_broker.kernel import rights
from dledger_broker.kernel.access import Access
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.held_memory import request_bytes
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Gauge, Part
from dledger_broker.kernel.queues import TopicState
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.rights import Action, Demand, ResourceKind
from dledger_broker.kernel.routes import CHANGES, Needs, Route
from dledger_broker.kernel.units import Stored, UnitOutcome, failure
from dledger_broker.kernel.writer import LogWriter
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import (
    GroupNotExist,
    MessageIllegal,
    OutcomeUnknown,
    QuorumTimeout,
    RemotingError,
    ServerError,
)
from dledger_remoting.headers import ConsumerSendBackHeader, decode_ext
from dledger_remoting.record import MessageRecord, decode_record
from dledger_remoting.retry_policies import GroupRetryPolicy
from dledger_remoting.topics import (
    PERM_READ_WRITE,
    SubscriptionGroupConfig,
    TopicConfig,
    dead_letter_topic,
    retry_topic,
    validate_group,
)

GROUPS_WITHOUT_RETRIES: Final = 0
"""Value of `retryQueueNums` of a group that wants no message again."""


class RetryRequests(Part):
    """Handler of messages that are sent back. `retried` and `dead_letters` count what this node has stored."""

    def __init__(
        self,
        machine: BrokerMachine,
        writer: LogWriter,
        env: Environment,
        live: LiveConfig,
        requests: Requests,
        groups: GroupProposals,
        due_messages: DueMessages,
        access: Access,
        counters: BrokerCounters,
        quotas: QuotaGate,
    ) -> None:
        self._quotas = quotas
        self.repeats = Repeats(env.now)
        self._pace = Pace(env, live, counters)
        self._access = access
        self._machine = machine
        self._writer = writer
        self._env = env
        self._live = live
        self._requests = requests
        self._group_proposals = groups
        self._due_messages = due_messages
        self._sent_back = counters.sent_back
        self._waiting: dict[Request, Cancellable] = {}
        self.retried = self.dead_letters = 0

    @property
    def routes(self) -> Mapping[int, Route]:
        return {
            RequestCode.CONSUMER_SEND_MSG_BACK: Route(
                self.send_back,
                Needs.LEADER,
                CHANGES,
                rights=(rights.group("group", Action.SUB), rights.later("that of the message", Action.SUB)),
            )
        }

    @property
    def gauges(self) -> tuple[Gauge, ...]:
        return (
            Gauge(
                "messages_retried", "Messages that consumers have sent back, to be redelivered", lambda: self.retried
            ),
            Gauge(
                "dead_letters",
                "Messages that became dead letters because consumers sent them back too often",
                lambda: self.dead_letters,
            ),
        )

    def prepare_deletion(self) -> None:
        self.repeats.forget()

    def group_reset(self) -> None:
        self.repeats.forget()

    def close(self) -> None:
        for request, timer in list(self._waiting.items()):
            timer.cancel()
            self._requests.fail(request, OutcomeUnknown("this node is stopping: the message may have been sent back"))
        self._waiting.clear()

    def check_settings(self, config: SubscriptionGroupConfig) -> None:
        """Refuse a retry policy by which no message could wait.

        An older build ignores a policy, and its state would differ from then on. Such a build does not know due
        messages either. So no older build is in a group where the feature of due messages is active.
        """
        if isinstance(config.group_retry_policy, GroupRetryPolicy):
            check_policy(config.group_retry_policy, self._live.config.timer_max_delay_s)
            self._machine.activation.require(DELAY_FEATURE)

    def send_back(self, request: Request) -> None:
        """Have a message redelivered to a group later (36)."""
        header = decode_ext(ConsumerSendBackHeader, request.ext)
        group = self._group(header.group)
        if group is None:
            self._require_may_be_made(header.group)
        elif group.retry_queue_nums == GROUPS_WITHOUT_RETRIES:
            request.respond()
            return
        self._requests.spawn(request, self._send_back(request, header))

    def _group(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group, or None if it does not exist or its deletion is in flight.

        Nothing may be stored for it then.
        """
        return None if self._group_proposals.is_deleting(name) else self._machine.state.table(GROUPS).by_name.get(name)

    def _require_may_be_made(self, name: str) -> None:
        """Raise `RemotingError` if a missing group must not be created."""
        validate_group(name)
        if not self._live.config.auto_create_group:
            raise GroupNotExist(f"consumer group {name} does not exist: create it first")

    async def _send_back(self, request: Request, header: ConsumerSendBackHeader) -> None:
        """Continue in a task, because the message may have to be read from disk."""
        record = await self._record(request, header)
        group = self._group(header.group)
        what = SentBack(header.group, header.offset)
        if group is not None and not request.within_quotas and not self.repeats.is_stored(what):
            owner, size, waiting_bytes = request.account or header.group, _size(record), request_bytes(request)
            wait_s = self._pace.charge(owner, size, waiting_bytes)
            # A resumed request gets here again, and is charged once. Group and memory may have changed meanwhile.
            request.within_quotas = True
            if wait_s > 0:
                del record  # thousands of requests may wait, and a message is large
                await self._pace.wait(waiting_bytes, wait_s)
                record = await self._record(request, header)
            group = self._group(header.group)
        if group is None:  # The group may have been deleted since the request arrived.
            self._require_may_be_made(header.group)
            self._group_proposals.require_room(request, header.group)
            again = partial(self._requests.resume, request)
            self._group_proposals.ensure_group(SubscriptionGroupConfig(header.group), again)
            return
        if self.repeats.is_stored(what):
            request.respond()
            return
        limit = retry_limit(header.max_reconsume_times, group)
        if header.delay_level < 0 or record.reconsume_times >= limit:
            self._store_dead_letter(request, record, group.group_name, header.failure_reason)
        else:
            max_delay_s = self._live.config.timer_max_delay_s
            times, requested_ms, level = record.reconsume_times, header.delay_time_millis, header.delay_level
            delay = retry_delay(requested_ms, level, times, group, max_delay_s)
            self._retry(request, record, group, delay, header.failure_reason)

    async def _record(self, request: Request, header: ConsumerSendBackHeader) -> MessageRecord:
        """Return the message that is sent back. Raises `RemotingError`, also if the account may not read it."""
        data = await self._machine.lookup.message_at(header.offset) if header.offset >= 0 else None
        if data is None:
            raise ServerError(f"look message by offset failed, {header.offset}")
        record = decode_record(data)
        self._access.require(request, Demand((Action.SUB,), ResourceKind.TOPIC, record.topic))
        return record

    def _retry(
        self,
        request: Request,
        record: MessageRecord,
        group: SubscriptionGroupConfig,
        delay: RequestedDelay,
        reason: str | None,
    ) -> None:
        topic = self._topic(request, retry_topic(group.group_name), retry_topic_config(group))
        if topic is None:
            return
        now_ms = self._due_messages.delay_base_ms()
        if now_ms is None:
            self._due_messages.wait_for_time(request)
        else:
            self._store_retry(request, record, topic, delay, self._due_messages.due(delay, now_ms), reason)

    def _store_retry(
        self,
        request: Request,
        record: MessageRecord,
        topic: TopicState,
        delay: RequestedDelay,
        due: Due | None,
        reason: str | None,
    ) -> None:
        """Store a message that waits until it is due. Without room for the due time, it is redelivered at once.

        If it were refused, its consumer could never finish it. A message that the client sends to the retry topic by
        itself has no room either.
        """
        invariant(due is not None, "what comes again waits for a time to come", delay=delay)
        due = cast(Due, due)
        if self._due_messages.topic_missing(due, partial(self._requests.resume, request)) or not self._begin(request):
            return
        try:
            queue_id = self._env.random().randrange(max(1, topic.config.write_queue_nums))
            done = partial(self._retry_stored, request, record)
            try:
                message = sent_back(record, topic.config.topic_name, queue_id, delay, reason)
                waiting = self._due_messages.waiting(message, due)
            except MessageIllegal:
                self._writer.write((sent_back(record, topic.config.topic_name, queue_id, None, reason),), done=done)
            else:
                self._due_messages.store((waiting,), done, sent_back=True)
        except (RemotingError, LogError) as error:
            self._end(request, stored=False)
            self._requests.fail(request, error)
            return
        self._wait(request)

    def _store_dead_letter(self, request: Request, record: MessageRecord, group: str, reason: str | None) -> None:
        """Store a message as a dead letter."""
        name = dead_letter_topic(group)
        config = TopicConfig(name, read_queue_nums=1, write_queue_nums=1, perm=PERM_READ_WRITE)
        if self._topic(request, name, config) is not None and self._begin(request):
            letter = sent_back(record, name, 0, None, reason)
            try:
                self._writer.write((letter,), done=partial(self._dead_letter_stored, request, record))
            except (RemotingError, LogError) as error:
                self._end(request, stored=False)
                self._requests.fail(request, error)
                return
            self._wait(request)

    def _begin(self, request: Request) -> bool:
        """Return whether a request stores the copy. If not, it waits for a request that already does."""
        if self.repeats.begin(_sent_back(request), request):
            return True
        self._wait(request)
        return False

    def _end(self, request: Request, *, stored: bool) -> None:
        """Answer the requests that repeat this request, or handle them again, now that the outcome is certain."""
        for repeat in self.repeats.end(_sent_back(request), stored=stored):
            timer = self._waiting.pop(repeat, None)
            if timer is not None:
                timer.cancel()
                self._requests.run(repeat)

    def _topic(self, request: Request, name: str, config: TopicConfig) -> TopicState | None:
        """Return a topic, or None while the topic is being created. The request is handled again after that."""
        topic = self._machine.topic(name)
        if topic is None:
            self._machine.proposals.ensure_topic(config, partial(self._requests.resume, request))
        return topic

    def _wait(self, request: Request) -> None:
        timeout_s = self._live.config.quorum_timeout_ms / 1000
        self._waiting[request] = self._env.call_later(timeout_s, partial(self._timed_out, request))

    def _timed_out(self, request: Request) -> None:
        del self._waiting[request]
        limit = self._live.config.quorum_timeout_ms
        self._requests.fail(
            request, QuorumTimeout(f"no majority stored the message within {limit} ms: it may have been sent back")
        )

    def _retry_stored(self, request: Request, record: MessageRecord, outcome: UnitOutcome) -> None:
        self.retried += _is_stored(outcome)
        self._answer(request, record, outcome)

    def _dead_letter_stored(self, request: Request, record: MessageRecord, outcome: UnitOutcome) -> None:
        self.dead_letters += _is_stored(outcome)
        self._answer(request, record, outcome)

    def _answer(self, request: Request, record: MessageRecord, outcome: UnitOutcome) -> None:
        if _is_stored(outcome):
            self._sent_back.count(request.ext["group"], topic_of(record), 1, len(record.body))
            self._quotas.charge_account(request.account, 1, _size(record))
        self._end(request, stored=_is_stored(outcome))
        timer = self._waiting.pop(request, None)
        if timer is None:
            return  # The request was already answered that its outcome is unknown.
        timer.cancel()
        if _is_stored(outcome):
            request.respond()
        else:
            unknown = "leadership was lost before a majority had the message: it may be sent back"
            self._requests.fail(request, failure(outcome, unknown))


def _sent_back(request: Request) -> SentBack:
    return SentBack(request.ext["group"], int(request.ext["offset"]))


def _size(record: MessageRecord) -> int:
    """Return the size of a message as it is charged, in bytes."""
    return len(record.body) + len(record.properties)


def _is_stored(outcome: UnitOutcome) -> bool:
    return isinstance(outcome, Stored) and outcome.places[0] is not None

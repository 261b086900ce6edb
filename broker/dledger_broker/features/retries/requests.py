"""Send-back of messages (36): a consumer could not handle one, and it comes again later or becomes a dead letter.

A repeated request makes another copy, as it does in RocketMQ: consumers must expect a message twice in any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, cast

from dledger.environment import Cancellable, Environment
from dledger.errors import LogError
from dledger.invariants import invariant
from dledger_broker.features.delay.asked import Asked, Due
from dledger_broker.features.delay.messages import NAME as DELAY_FEATURE
from dledger_broker.features.delay.messages import DueMessages
from dledger_broker.features.groups.proposals import GroupProposals
from dledger_broker.features.groups.retry_topics import retry_limit, retry_topic_config
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.features.retries.policies import asked_for_retry, check_policy
from dledger_broker.features.retries.records import sent_back, topic_of
from dledger_broker.kernel import rights
from dledger_broker.kernel.access import Access
from dledger_broker.kernel.deliveries import Deliveries
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
"""`retryQueueNums` of a group that wants no message again."""


class RetryRequests(Part):
    """Stores what comes back. `retried` and `dead_letters` count what was stored by this node."""

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
        sent_back_counts: Deliveries,
    ) -> None:
        self._access = access
        self._machine = machine
        self._writer = writer
        self._env = env
        self._live = live
        self._requests = requests
        self._group_proposals = groups
        self._due_messages = due_messages
        self._sent_back = sent_back_counts
        self._waiting: dict[Request, Cancellable] = {}
        self.retried = self.dead_letters = 0

    @property
    def routes(self) -> Mapping[int, Route]:
        """See `Part.routes`."""
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
        """See `Part.gauges`."""
        return (
            Gauge("messages_retried", "Messages that consumers have sent back, to come again", lambda: self.retried),
            Gauge("dead_letters", "Messages that were sent back too often", lambda: self.dead_letters),
        )

    def close(self) -> None:
        """See `Part.close`."""
        for request, timer in list(self._waiting.items()):
            timer.cancel()
            self._requests.fail(request, OutcomeUnknown("this node is stopping: the message may have been sent back"))
        self._waiting.clear()

    def check_settings(self, config: SubscriptionGroupConfig) -> None:
        """Refuse a retry policy by which no message could wait.

        An older build reads over a policy, and would not have the state of the others from then on. It knows no due
        messages either: where these are active there is none.
        """
        if isinstance(config.group_retry_policy, GroupRetryPolicy):
            check_policy(config.group_retry_policy, self._live.config.timer_max_delay_s)
            self._machine.activation.require(DELAY_FEATURE)

    def send_back(self, request: Request) -> None:
        """36: have a message delivered to a group again, later."""
        header = decode_ext(ConsumerSendBackHeader, request.ext)
        group = self._group(header.group)
        if group is None:
            self._require_may_be_made(header.group)
        elif group.retry_queue_nums == GROUPS_WITHOUT_RETRIES:
            request.respond()
            return
        self._requests.spawn(request, self._send_back(request, header))

    def _group(self, name: str) -> SubscriptionGroupConfig | None:
        """A group that anything may be stored for: None if its deletion is in flight."""
        return None if self._group_proposals.is_deleting(name) else self._machine.state.table(GROUPS).by_name.get(name)

    def _require_may_be_made(self, name: str) -> None:
        """Raise `RemotingError` if a group that is not there is not to be made."""
        validate_group(name)
        if not self._live.config.auto_create_group:
            raise GroupNotExist(f"consumer group {name} does not exist: create it first")

    async def _send_back(self, request: Request, header: ConsumerSendBackHeader) -> None:
        """Go on in a task: the message may have to be read from the disk."""
        data = await self._machine.lookup.message_at(header.offset) if header.offset >= 0 else None
        if data is None:
            raise ServerError(f"look message by offset failed, {header.offset}")
        record = decode_record(data)
        self._access.require(request, Demand((Action.SUB,), ResourceKind.TOPIC, record.topic))
        group = self._group(header.group)
        if group is None:  # it may have been deleted since the request came
            self._require_may_be_made(header.group)
            again = partial(self._requests.resume, request)
            self._group_proposals.ensure_group(SubscriptionGroupConfig(header.group), again)
            return
        limit = retry_limit(header.max_reconsume_times, group)
        if header.delay_level < 0 or record.reconsume_times >= limit:
            self._bury(request, record, group.group_name)
        else:
            max_delay_s = self._live.config.timer_max_delay_s
            times, asked_ms, level = record.reconsume_times, header.delay_time_millis, header.delay_level
            self._retry(request, record, group, asked_for_retry(asked_ms, level, times, group, max_delay_s))

    def _retry(self, request: Request, record: MessageRecord, group: SubscriptionGroupConfig, asked: Asked) -> None:
        topic = self._topic(request, retry_topic(group.group_name), retry_topic_config(group))
        if topic is None:
            return
        now_ms = self._due_messages.reckoned_from_ms()
        if now_ms is None:
            self._due_messages.wait_for_time(request)
        else:
            self._store_retry(request, record, topic, asked, self._due_messages.due(asked, now_ms))

    def _store_retry(
        self, request: Request, record: MessageRecord, topic: TopicState, asked: Asked, due: Due | None
    ) -> None:
        """Store a message that waits until it is due; one that has no room to say that comes again at once.

        Refused, it could never be finished: what its client sends to the retry topic by itself has no room either.
        """
        invariant(due is not None, "what comes again waits for a time to come", asked=asked)
        due = cast(Due, due)
        try:
            if self._due_messages.topic_missing(due, partial(self._requests.resume, request)):
                return
            queue_id = self._env.random().randrange(max(1, topic.config.write_queue_nums))
            done = partial(self._retry_stored, request, record)
            try:
                message = sent_back(record, topic.config.topic_name, queue_id, asked)
                waiting = self._due_messages.waiting(message, due)
            except MessageIllegal:
                self._writer.write((sent_back(record, topic.config.topic_name, queue_id, None),), done=done)
            else:
                self._due_messages.store((waiting,), done, sent_back=True)
        except (RemotingError, LogError) as error:
            self._requests.fail(request, error)
            return
        self._wait(request)

    def _bury(self, request: Request, record: MessageRecord, group: str) -> None:
        """Make it a dead letter."""
        name = dead_letter_topic(group)
        config = TopicConfig(name, read_queue_nums=1, write_queue_nums=1, perm=PERM_READ_WRITE)
        if self._topic(request, name, config) is not None:
            letter = sent_back(record, name, 0, None)
            self._writer.write((letter,), done=partial(self._dead_letter_stored, request, record))
            self._wait(request)

    def _topic(self, request: Request, name: str, config: TopicConfig) -> TopicState | None:
        """The topic; None if it is being made, after which the request is handled again."""
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
        timer = self._waiting.pop(request, None)
        if timer is None:
            return  # it was answered that its outcome is unknown
        timer.cancel()
        if _is_stored(outcome):
            request.respond()
        else:
            unknown = "leadership was lost before a majority had the message: it may be sent back"
            self._requests.fail(request, failure(outcome, unknown))


def _is_stored(outcome: UnitOutcome) -> bool:
    return isinstance(outcome, Stored) and outcome.places[0] is not None

"""Targets of sends: topics that are checked, created if need be, and prepared for encoding, once per topic."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from dledger.errors import LogError
from dledger_broker.features.groups.proposals import GroupProposals
from dledger_broker.features.groups.retry_topics import retry_limit, retry_topic_config
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.features.locks.requests import LockRequests
from dledger_broker.features.topics.system_topics import auto_create_example
from dledger_broker.kernel.announcements import Announcements
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.names_made import NamesMade
from dledger_broker.kernel.queues import QueueState, TopicState
from dledger_broker.kernel.records import magic_of
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.state import BrokerState
from dledger_remoting.errors import GroupNotExist, NoPermission, TopicNotExist
from dledger_remoting.hotpath import SendV2Fields
from dledger_remoting.record import topic_field
from dledger_remoting.topics import (
    AUTO_CREATE_TOPIC,
    DLQ_PREFIX,
    IDEMPOTENT_ATTRIBUTE,
    PERM_INHERIT,
    PERM_READ_WRITE,
    RETRY_PREFIX,
    SubscriptionGroupConfig,
    TopicConfig,
    dead_letter_topic,
    is_inherited,
    is_retry_topic,
    is_send_forbidden,
    is_system_topic,
    is_writable,
    validate_group,
    validate_topic,
)


class PropertiesLayout(NamedTuple):
    """Common parts of messages whose properties differ only in the unique key."""

    before: bytes
    """Properties before the unique key's value."""
    behind: bytes
    """Properties behind the unique key's value."""
    key_end: int
    """Offset in the properties at which the unique key's value ends."""
    head: bytes
    """Part of the record before the properties: the topic and the length."""
    added: bytes
    """Properties that the broker adds."""
    tag_code: int


class SendTarget:
    """Topic that takes messages, with all data for their encoding. Valid until topics or leadership change.

    - `retry_group` is the consumer group of a retry topic.
    - `redirected` is True if the client named another topic, so that its queue number means nothing.
    - `may_be_idempotent` is True if the broker itself makes no records for the topic, so that sends to it can opt in.
    - `idempotent` is True if all sends to it opt in.
    - `by_id` has the queues that `queue` has returned.
    - `state` is the topic, which is `dropped` once it is deleted.
    - `layouts` has, for each length of properties, their most recent layout.
    """

    __slots__ = (
        "by_id",
        "created_position",
        "idempotent",
        "layouts",
        "magic",
        "may_be_idempotent",
        "queue_count",
        "redirected",
        "retry_group",
        "state",
        "topic",
        "topic_field",
        "write_queues",
    )

    def __init__(self, state: TopicState, retry_group: str | None = None, *, redirected: bool = False) -> None:
        config = state.config
        name = config.topic_name.encode()
        self.topic = config.topic_name
        self.topic_field = topic_field(name)
        self.magic = magic_of(name)
        self.queue_count = state.queue_count
        self.write_queues = max(1, config.write_queue_nums)
        self.created_position = state.created_position
        self.may_be_idempotent = not (
            retry_group is not None or self.topic.startswith(DLQ_PREFIX) or is_system_topic(self.topic)
        )
        self.idempotent = self.may_be_idempotent and config.attributes.get(IDEMPOTENT_ATTRIBUTE) == "true"
        self.retry_group = retry_group
        self.redirected = redirected
        self.layouts: dict[int, PropertiesLayout] = {}
        self.state = state
        self.by_id: list[QueueState | None] = [None] * max(self.queue_count, self.write_queues)

    def queue(self, queue_id: int) -> QueueState:
        """Return a queue of the topic, which is in `by_id` from now on."""
        self.by_id[queue_id] = queue = self.state.queue(queue_id)
        return queue


class SendTargets:
    """Finder of targets, which creates topics if clients may create them by sending.

    `resume(request, error)` handles a request again that has waited for a topic.
    """

    def __init__(
        self,
        machine: BrokerMachine,
        live: LiveConfig,
        announcements: Announcements,
        requests: Requests,
        group_proposals: GroupProposals,
        locks: LockRequests,
        names: NamesMade,
    ) -> None:
        self._names = names
        self._machine = machine
        self._deleting = machine.proposals.deleting
        machine.on_state(self._keep_table)
        self._live = live
        self._announcements = announcements
        self._requests = requests
        self._group_proposals = group_proposals
        self._locks = locks
        self._targets: dict[str, SendTarget] = {}

    def _keep_table(self, state: BrokerState) -> None:
        self._groups = state.table(GROUPS).by_name

    def forget(self) -> None:
        """Forget all targets, because topics, groups or the leadership changed."""
        self._targets.clear()

    def known(self, topic: str) -> SendTarget | None:
        """Return the target of a send to an ordinary topic that was sent to before, or None if its topic is being
        deleted.
        """
        target = self._targets.get(topic)
        if target is None or target.retry_group is not None or topic in self._deleting:
            return None
        return target

    def get(self, request: Request, fields: SendV2Fields) -> SendTarget | None:
        """Return the target of a send, or None if the request waits for its topic. Raises `RemotingError`."""
        target = self._targets.get(fields.topic)
        if target is None or fields.topic in self._deleting:
            target = self._find(request, fields)
            if target is None:
                return None
            self._targets[fields.topic] = target
        if target.retry_group is not None:
            return self._retry_or_dead_letter(request, fields, target, target.retry_group)
        return target

    def _find(self, request: Request, fields: SendV2Fields) -> SendTarget | None:
        name = fields.topic
        validate_topic(name)
        if is_send_forbidden(name):
            raise NoPermission(f"topic {name} is written by the broker itself: send to another one")
        state = self._machine.topic(name)
        if state is None:
            self._create(request, fields)
            return None
        if self._announcements.holds(name, partial(self._on_announced, request)):
            return None
        if not is_writable(state.config.perm):
            raise NoPermission(f"topic {name} has perm {state.config.perm}, which does not allow writing")
        return SendTarget(state, name.removeprefix(RETRY_PREFIX) if is_retry_topic(name) else None)

    def _create(self, request: Request, fields: SendV2Fields) -> None:
        """Create a topic, by the example topic that the client names. After that the send continues."""
        name = fields.topic
        if is_retry_topic(name):
            self._create_retry(request, name.removeprefix(RETRY_PREFIX))
            return
        example = self._machine.topic(fields.default_topic) if self._live.config.auto_create_topic else None
        if example is None and self._live.config.auto_create_topic and fields.default_topic == AUTO_CREATE_TOPIC:
            # The first leader of a group takes sends while its system topics are in flight.
            self._machine.proposals.ensure_topic(
                auto_create_example(self._live.config), lambda error: self._requests.resume(request, error)
            )
            return
        if example is None or not is_inherited(example.config.perm):
            raise TopicNotExist(f"topic {name} does not exist: create it first")
        queues = max(1, min(fields.default_topic_queue_nums, example.config.write_queue_nums))
        config = TopicConfig(
            name,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=example.config.perm & ~PERM_INHERIT,
            topic_filter_type=example.config.topic_filter_type,
            topic_sys_flag=example.config.topic_sys_flag,
        )
        self._names.make_topic(request, name)
        self._machine.proposals.ensure_topic(config, partial(self._created, request, name))

    def _created(self, request: Request, name: str, error: LogError | None) -> None:
        """Continue a send once its topic can be found by every client that learns of the stored message."""
        if error is None:
            self._announcements.announce((name,), partial(self._on_announced, request))
        else:
            self._requests.resume(request, error)

    def _on_announced(self, request: Request, _missing: str) -> None:
        """Continue a send. Its answer is about a message, and does not mention name servers."""
        self._requests.resume(request, None)

    def _create_retry(self, request: Request, group_name: str) -> None:
        group = self._groups.get(group_name)
        if group is None:
            validate_group(group_name)
            if not self._live.config.auto_create_group:
                raise GroupNotExist(f"consumer group {group_name} does not exist: create it first")
            self._group_proposals.require_room(request, group_name)
            self._group_proposals.ensure_group(
                SubscriptionGroupConfig(group_name), lambda error: self._requests.resume(request, error)
            )
            return
        self._machine.proposals.ensure_topic(
            retry_topic_config(group), lambda error: self._requests.resume(request, error)
        )

    def _retry_or_dead_letter(
        self, request: Request, fields: SendV2Fields, target: SendTarget, group_name: str
    ) -> SendTarget | None:
        """Return the target of a send to a retry topic: that topic, or the dead-letter topic of the group.

        A message that was retried too often goes to the dead letters, as does every message of a group that consumes in
        order. Members of an ordered group try again in place, and send here the messages that they give up, as with
        RocketMQ.
        """
        group = self._groups.get(group_name)
        if group is None:
            self._create_retry(request, group_name)
            return None
        if fields.reconsume_times <= retry_limit(fields.max_reconsume_times, group) and not self._locks.holds_any(
            group_name
        ):
            return target
        name = dead_letter_topic(group_name)
        state = self._machine.topic(name)
        if state is None:
            config = TopicConfig(name, read_queue_nums=1, write_queue_nums=1, perm=PERM_READ_WRITE)
            self._machine.proposals.ensure_topic(config, lambda error: self._requests.resume(request, error))
            return None
        return SendTarget(state, group_name, redirected=True)

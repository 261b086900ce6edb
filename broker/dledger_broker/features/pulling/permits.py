"""Judge of whether a pull may read: when it arrives, and again when there are messages for a waiting pull.

While a pull waits, its group may be paused or deleted, its topic be closed or shrunk, or its account lose rights. Then
the pull must not get messages that have arrived since. A group is made by its first read, which the leader does if the
configuration allows it.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from dledger_broker.errors import NoSuchQueue
from dledger_broker.features.groups.proposals import GroupProposals
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.kernel import rights
from dledger_broker.kernel.access import Access
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.queues import TopicState
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.state import BrokerState
from dledger_remoting.errors import GroupNotExist, NoPermission, TopicNotExist
from dledger_remoting.hotpath import PullFields
from dledger_remoting.topics import (
    SubscriptionGroupConfig,
    is_readable,
    is_system_group,
    require_readable,
    validate_group,
)


class ReaderGroups:
    """Creator of the groups of readers."""

    def __init__(self, live: LiveConfig, group: LeadershipView, requests: Requests, proposals: GroupProposals) -> None:
        self._live = live
        self._group = group
        self._requests = requests
        self._proposals = proposals

    def has_to_be_made(self, name: str) -> bool:
        """Return whether a read has to make a group that does not exist.

        Raises `RemotingError` if the group may not be made.
        """
        validate_group(name)
        if is_system_group(name):
            return False
        if not self._live.config.auto_create_group:
            raise GroupNotExist(f"consumer group {name} does not exist: create it first")
        return True

    def make(self, request: Request, name: str) -> None:
        """Make a group, and handle the request again after that."""
        if not self._group.ready:
            self._requests.confirm(request)
            return
        self._proposals.require_room(request, name)
        self._proposals.ensure_group(SubscriptionGroupConfig(name), partial(self._requests.resume, request))


READING: Final = (rights.topic("topic", Action.SUB), rights.group("consumerGroup", Action.SUB))
"""Rights that an account needs to pull."""


class ReadPermits:
    """Judge of pulls by the present state of topics, groups and rights."""

    def __init__(self, machine: BrokerMachine, access: Access, reader_groups: ReaderGroups) -> None:
        self._machine = machine
        self._access = access
        self._reader_groups = reader_groups
        machine.on_state(self._keep_table)

    def judge(
        self, fields: PullFields, *, is_bound: bool = False
    ) -> tuple[TopicState, SubscriptionGroupConfig | None, bool]:
        """Return the topic, the group, and whether the group has to be made. Raises `RemotingError` with RocketMQ's
        code.

        A pull that is bound to this node may read messages left in a queue that its topic no longer has.
        """
        require_readable(fields.topic)
        group = self._groups.get(fields.consumer_group)
        has_to_be_made = group is None and self._reader_groups.has_to_be_made(fields.consumer_group)
        if group is not None and not group.consume_enable:
            raise NoPermission(f"consumer group {group.group_name} may not consume: its consumeEnable is false")
        topic = self._machine.state.topics.get(fields.topic)
        if topic is None:
            raise TopicNotExist(f"topic {fields.topic} does not exist: create it first")
        config = topic.config
        if not is_readable(config.perm):
            raise NoPermission(f"topic {fields.topic} has perm {config.perm}, which does not allow reading")
        is_left = is_bound and fields.queue_id in topic.queues
        if not 0 <= fields.queue_id < config.read_queue_nums and not is_left:
            raise NoSuchQueue(fields.topic, fields.queue_id, config.read_queue_nums)
        return topic, group, has_to_be_made

    def judge_again(self, request: Request, fields: PullFields) -> bool:
        """Return whether a pull that has waited may still read, or False if its group has to be made anew.

        Raises `RemotingError` with RocketMQ's code, also if this node cannot judge.
        """
        self._access.admit(request, READING)
        _, _, has_to_be_made = self.judge(fields)
        return not has_to_be_made

    def _keep_table(self, state: BrokerState) -> None:
        self._groups = state.table(GROUPS).by_name

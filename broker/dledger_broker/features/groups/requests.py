"""Requests about the configuration of consumer groups: 200, 201, 207, 225, 352.

The leader handles all of them, and changes are replicated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from dledger.errors import LogError
from dledger_broker.features.groups.proposals import GroupProposals
from dledger_broker.features.groups.retry_topics import retry_topic_config
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.features.topics.configuration import (
    MAX_QUEUES,
    ConfigChange,
    changed_attributes,
    check_attributes,
    data_version,
    outcome_of_all,
    require_few,
    signed_changes,
)
from dledger_broker.kernel import rights
from dledger_broker.kernel.announcements import Announcements
from dledger_broker.kernel.audit import SubjectState
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Part
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import CHANGES, NO_EFFECT, Needs, Route
from dledger_remoting.bodies import decode_body, encode_body
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import GroupNotExist, InvalidParameter
from dledger_remoting.headers import DeleteSubscriptionGroupHeader, GroupHeader, decode_ext
from dledger_remoting.registration import DataVersion
from dledger_remoting.retry_policies import GroupRetryPolicy
from dledger_remoting.topics import SubscriptionGroupConfig, is_system_group, validate_group


class SubscriptionGroupTable(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the answer to 201."""

    subscription_group_table: dict[str, SubscriptionGroupConfig]
    forbidden_table: dict[str, dict[str, int]] = {}
    data_version: DataVersion = DataVersion()


class GroupConfigList(msgspec.Struct, frozen=True, rename="camel"):
    """Body of request 225."""

    group_config_list: list[SubscriptionGroupConfig] = []


def _group_in(request: Request) -> tuple[str, ...]:
    return (decode_body(SubscriptionGroupConfig, request.body).group_name,)


def _groups_in(request: Request) -> list[str]:
    return [config.group_name for config in decode_body(GroupConfigList, request.body).group_config_list]


class GroupRequests(Part):
    """Part that creates, changes, deletes and lists consumer groups.

    `checks` are called with settings before they are stored. Other features add them; a check refuses settings by
    raising `RemotingError`.
    """

    def __init__(
        self,
        machine: BrokerMachine,
        group: LeadershipView,
        announcements: Announcements,
        requests: Requests,
        proposals: GroupProposals,
    ) -> None:
        self._machine = machine
        self._group = group
        self._announcements = announcements
        self._requests = requests
        self.proposals = proposals
        self.checks: list[Callable[[SubscriptionGroupConfig], None]] = []

    @property
    def routes(self) -> Mapping[int, Route]:
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP: Route(
                self.put_group,
                Needs.LEADER,
                CHANGES,
                rights=(rights.groups_in("groupName in the body", _group_in, Action.CREATE, Action.UPDATE),),
            ),
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP_LIST: Route(
                self.put_groups,
                Needs.LEADER,
                CHANGES,
                rights=(rights.groups_in("all in the body", _groups_in, Action.CREATE, Action.UPDATE),),
            ),
            RequestCode.GET_ALL_SUBSCRIPTION_GROUP_CONFIG: Route(
                self.all_groups, Needs.CONFIRMED_LEADER, NO_EFFECT, rights=(rights.cluster(Action.LIST, Action.GET),)
            ),
            RequestCode.GET_SUBSCRIPTION_GROUP_CONFIG: Route(
                self.one_group, Needs.CONFIRMED_LEADER, NO_EFFECT, rights=(rights.group("group", Action.GET),)
            ),
            RequestCode.DELETE_SUBSCRIPTION_GROUP: Route(
                self.delete_group, Needs.LEADER, CHANGES, rights=(rights.group("groupName", Action.DELETE),)
            ),
        }

    @property
    def audited(self) -> Mapping[int, SubjectState]:
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP: lambda request: self._group_states(
                [decode_body(SubscriptionGroupConfig, request.body).group_name]
            ),
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP_LIST: lambda request: self._group_states(
                [config.group_name for config in decode_body(GroupConfigList, request.body).group_config_list]
            ),
            RequestCode.DELETE_SUBSCRIPTION_GROUP: lambda request: self._group_states(
                [request.ext.get("groupName", "")]
            ),
        }

    def _group_states(self, names: Sequence[str]) -> object:
        groups = self._machine.state.table(GROUPS).by_name
        return {name: msgspec.to_builtins(groups[name]) if name in groups else None for name in names}

    def put_group(self, request: Request) -> None:
        """Handle 200: create or change a consumer group."""
        self._put([self._validate(decode_body(SubscriptionGroupConfig, request.body))], request)

    def put_groups(self, request: Request) -> None:
        """Handle 225: create or change several groups, or no group if any is refused.

        If a group is named twice, its last configuration counts.
        """
        configs = decode_body(GroupConfigList, request.body).group_config_list
        require_few(len(configs), "groups")
        if not configs:
            raise InvalidParameter("groupConfigList is empty: name at least one group")
        self._put(list({config.group_name: self._validate(config) for config in configs}.values()), request)

    def _put(self, changes: Sequence[ConfigChange[SubscriptionGroupConfig]], request: Request) -> None:
        """Store groups and make their missing retry topics.

        A consumer asks for the route of its retry topic when it starts. If the topic is missing, it asks again only
        after 30 s. Until then it gets no messages that it has sent back. A heartbeat makes the topic as well, and may
        have been first.
        """
        configs = [change.config for change in changes]
        for config in configs:
            self.proposals.require_room(request, config.group_name)
        new_topics = [retry_topic_config(config) for config in configs if not is_system_group(config.group_name)]
        new_topics = [topic for topic in new_topics if self._is_missing(topic.topic_name)]
        finish = self._finish(request, [topic.topic_name for topic in new_topics])
        refusals: list[InvalidParameter] = []
        outcomes: list[LogError | None] = []

        def on_done(error: LogError | None) -> None:
            outcomes.append(error)
            if len(outcomes) == len(configs) + len(new_topics):
                finish(outcome_of_all(outcomes) or (refusals[0] if refusals else None))

        for change in changes:
            self.proposals.change_group(change.config.group_name, partial(change.apply, refusals), on_done)
        for topic in new_topics:
            self._machine.proposals.ensure_topic(topic, on_done)

    def _is_missing(self, topic: str) -> bool:
        return topic not in self._machine.state.topics or self._machine.proposals.topic_deleting(topic)

    def _validate(self, config: SubscriptionGroupConfig) -> ConfigChange[SubscriptionGroupConfig]:
        """Return the checked change that a request demands. Raises `RemotingError` if it is refused.

        Attributes that the request does not name keep their values, as in RocketMQ.
        """
        validate_group(config.group_name)
        if not 0 <= config.retry_queue_nums <= MAX_QUEUES:
            raise InvalidParameter(f"retryQueueNums {config.retry_queue_nums} is outside 0..{MAX_QUEUES}")
        if config.retry_max_times < 0:
            raise InvalidParameter(f"retryMaxTimes {config.retry_max_times} is below 0")
        changes = signed_changes(config.attributes)
        current = self._machine.state.table(GROUPS).by_name.get(config.group_name)
        check_attributes(changed_attributes({} if current is None else current.attributes, changes))
        policy = config.group_retry_policy
        if not isinstance(policy, GroupRetryPolicy) or policy.is_default:
            config = msgspec.structs.replace(config, group_retry_policy=msgspec.UNSET)
        for check in self.checks:
            check(config)
        return ConfigChange(msgspec.structs.replace(config, attributes={}), changes)

    def delete_group(self, request: Request) -> None:
        """Handle 207: delete a consumer group, and its offsets if requested. Succeeds also if the group is missing."""
        header = decode_ext(DeleteSubscriptionGroupHeader, request.ext)
        if is_system_group(header.group_name):
            raise InvalidParameter(f"consumer group {header.group_name} belongs to the system, it cannot be deleted")
        validate_group(header.group_name)
        clean = bool(header.clean_offset)
        self.proposals.delete_group(header.group_name, self._finish(request, ()), clean_offsets=clean)

    def one_group(self, request: Request) -> None:
        """Handle 352: answer with the configuration of a group."""
        name = decode_ext(GroupHeader, request.ext).group
        config = self._machine.state.table(GROUPS).by_name.get(name)
        if config is None:
            raise GroupNotExist(f"consumer group {name} does not exist")
        self._requests.respond(request, encode_body(config))

    def all_groups(self, request: Request) -> None:
        """Handle 201: answer with the configuration of every group."""
        state = self._machine.state
        version = data_version(self._group.term, state.topic_table)
        table = SubscriptionGroupTable(dict(state.table(GROUPS).by_name), data_version=version)
        self._requests.respond(request, encode_body(table))

    def _finish(self, request: Request, new_topics: Sequence[str]) -> Callable[[Exception | None], None]:
        """Return a callback that answers a failed change, or an applied change once name servers have its topics."""

        def done(error: Exception | None) -> None:
            if error is None:
                self._announcements.answer(request, new_topics)
            else:
                self._requests.fail(request, error)

        return done

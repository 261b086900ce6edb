"""Topics and consumer groups: 17, 18, 21, 215, 351 and 200, 201, 207, 352. All on the leader, all replicated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from dledger.errors import LogError, OutcomeUnknownError
from dledger_broker.announcements import Announcements
from dledger_broker.kernel.leadership import Group
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.machine import BrokerMachine
from dledger_broker.state.groups import GROUPS
from dledger_remoting.bodies import decode_body, encode_body
from dledger_remoting.errors import GroupNotExist, InvalidParameter, TopicNotExist
from dledger_remoting.headers import (
    CreateTopicHeader,
    DeleteSubscriptionGroupHeader,
    DeleteTopicHeader,
    GroupHeader,
    TopicHeader,
    decode_ext,
)
from dledger_remoting.registration import DataVersion, TopicConfigSerializeWrapper
from dledger_remoting.topics import (
    MAX_PERM,
    SubscriptionGroupConfig,
    TopicConfig,
    is_system_group,
    is_system_topic,
    validate_group,
    validate_topic,
)

MAX_QUEUES: Final = 65_536
"""Queues of one topic."""
FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")
MAX_ATTRIBUTES_BYTES: Final = 4_096
"""Names and values of one topic's or group's attributes: name servers are sent all topics in one frame."""

MAX_CHANGES_CHARS: Final = 8 * MAX_ATTRIBUTES_BYTES
"""A text of changes: enough to remove all attributes and add as many."""


class TopicConfigList(msgspec.Struct, frozen=True, rename="camel"):
    """The body of 18."""

    topic_config_list: list[TopicConfig] = []


class SubscriptionGroupTable(msgspec.Struct, frozen=True, rename="camel"):
    """The answer to 201."""

    subscription_group_table: dict[str, SubscriptionGroupConfig]
    forbidden_table: dict[str, dict[str, int]] = {}
    data_version: DataVersion = DataVersion()


class TopicProcessor:
    """Creates, changes, deletes and lists topics and groups."""

    def __init__(self, machine: BrokerMachine, group: Group, announcements: Announcements, requests: Requests) -> None:
        self._machine = machine
        self._group = group
        self._announcements = announcements
        self._requests = requests

    def data_version(self) -> DataVersion:
        """The age of the topics: the term, and how often they changed since this node started."""
        return DataVersion(state_version=self._group.term, counter=self._machine.state.topic_table.version)

    # ---------------------------------------------------------------- topics

    def put_topic(self, request: Request) -> None:
        """17: create or change one topic."""
        header = decode_ext(CreateTopicHeader, request.ext)
        changes = _attribute_changes(header.attributes or "")
        config = TopicConfig(
            header.topic,
            header.read_queue_nums,
            header.write_queue_nums,
            header.perm,
            header.topic_filter_type,
            header.topic_sys_flag or 0,
            bool(header.order),
        )
        _check_topic(config)
        known = self._machine.state.topics.get(header.topic)
        _check_attributes(_changed({} if known is None else known.config.attributes, changes))

        refusals: list[InvalidParameter] = []
        done = self._finish_topics(request, [header.topic])

        def make(known: TopicConfig | None) -> TopicConfig:
            attributes = _changed({} if known is None else known.attributes, changes)
            try:
                _check_attributes(attributes)
            except InvalidParameter as refusal:  # together with a change that was ahead of this one
                refusals.append(refusal)
                return known or config
            return msgspec.structs.replace(config, attributes=attributes)

        self._machine.proposals.change_topic(
            header.topic, make, lambda error: done(refusals[0] if error is None and refusals else error)
        )

    def put_topics(self, request: Request) -> None:
        """18: create or change several topics; of one that is named twice the last form counts."""
        configs = decode_body(TopicConfigList, request.body).topic_config_list
        if not configs:
            raise InvalidParameter("topicConfigList is empty: name at least one topic")
        for config in configs:
            _check_topic(config)
        configs = list({config.topic_name: config for config in configs}.values())
        done = self._finish_topics(request, [config.topic_name for config in configs])
        outcomes: list[LogError | None] = []

        def one_done(error: LogError | None) -> None:
            outcomes.append(error)
            if len(outcomes) == len(configs):
                done(_of_all(outcomes))

        for config in configs:
            self._machine.proposals.put_topic(config, one_done)

    def delete_topic(self, request: Request) -> None:
        """215: delete a topic with its queues and the offsets on it.

        One that is not there is deleted, too: it may be on its way, or a later leader may have it.
        """
        name = decode_ext(DeleteTopicHeader, request.ext).topic
        if not name.strip():
            raise InvalidParameter("The specified topic is blank.")
        validate_topic(name)
        if is_system_topic(name):
            raise InvalidParameter(f"The topic[{name}] is conflict with system topic, it cannot be deleted")
        self._machine.proposals.delete_topic(name, self._finish_topics(request, []))

    def topic(self, request: Request) -> None:
        """351: one topic's configuration."""
        name = decode_ext(TopicHeader, request.ext).topic
        state = self._machine.state.topics.get(name)
        if state is None:
            raise TopicNotExist(f"topic {name} does not exist")
        self._requests.respond(request, encode_body(state.config))

    def all_topics(self, request: Request) -> None:
        """21: the configuration of every topic."""
        table = {name: topic.config for name, topic in self._machine.state.topics.items()}
        self._requests.respond(request, encode_body(TopicConfigSerializeWrapper(table, self.data_version())))

    # ---------------------------------------------------------------- groups

    def put_group(self, request: Request) -> None:
        """200: create or change a consumer group."""
        config = decode_body(SubscriptionGroupConfig, request.body)
        validate_group(config.group_name)
        if not 0 <= config.retry_queue_nums <= MAX_QUEUES:
            raise InvalidParameter(f"retryQueueNums {config.retry_queue_nums} is outside 0..{MAX_QUEUES}")
        if config.retry_max_times < 0:
            raise InvalidParameter(f"retryMaxTimes {config.retry_max_times} is below 0")
        _check_attributes(config.attributes)
        self._machine.proposals.put_group(config, self._finish(request))

    def delete_group(self, request: Request) -> None:
        """207: delete a consumer group, there or not, with its offsets if asked."""
        header = decode_ext(DeleteSubscriptionGroupHeader, request.ext)
        if is_system_group(header.group_name):
            raise InvalidParameter(f"consumer group {header.group_name} belongs to the system, it cannot be deleted")
        validate_group(header.group_name)
        clean = bool(header.clean_offset)
        self._machine.proposals.delete_group(header.group_name, self._finish(request), clean_offsets=clean)

    def one_group(self, request: Request) -> None:
        """352: one group's configuration."""
        name = decode_ext(GroupHeader, request.ext).group
        config = self._machine.state.table(GROUPS).by_name.get(name)
        if config is None:
            raise GroupNotExist(f"consumer group {name} does not exist")
        self._requests.respond(request, encode_body(config))

    def all_groups(self, request: Request) -> None:
        """201: the configuration of every group."""
        table = SubscriptionGroupTable(
            dict(self._machine.state.table(GROUPS).by_name), data_version=self.data_version()
        )
        self._requests.respond(request, encode_body(table))

    def _finish_topics(self, request: Request, names: Sequence[str]) -> Callable[[Exception | None], None]:
        """As `_finish`, once the name servers know of it too. Nothing is sent to those that are new before that."""
        new = [name for name in names if name not in self._machine.state.topics]

        def done(error: Exception | None) -> None:
            if error is None:
                self._announcements.announce(new, request.respond)
            else:
                self._requests.fail(request, error)

        return done

    def _finish(self, request: Request) -> Callable[[Exception | None], None]:
        """Answers when a change is applied, or has failed."""

        def done(error: Exception | None) -> None:
            if error is None:
                request.respond()
            else:
                self._requests.fail(request, error)

        return done


def _check_topic(config: TopicConfig) -> None:
    """Raise `InvalidParameter` unless a user may have such a topic."""
    validate_topic(config.topic_name)
    if is_system_topic(config.topic_name):
        raise InvalidParameter(f"The topic[{config.topic_name}] is conflict with system topic, choose another name")
    for field, queues in (("readQueueNums", config.read_queue_nums), ("writeQueueNums", config.write_queue_nums)):
        if not 1 <= queues <= MAX_QUEUES:
            raise InvalidParameter(f"{field} {queues} is outside 1..{MAX_QUEUES}")
    if not 0 <= config.perm <= MAX_PERM:
        raise InvalidParameter(f"perm {config.perm} is outside 0..{MAX_PERM}: 4 read + 2 write + 1 inherit")
    if config.topic_filter_type not in FILTER_TYPES:
        what = repr(config.topic_filter_type[:32])
        raise InvalidParameter(f"topicFilterType {what} is none of {', '.join(FILTER_TYPES)}")
    _check_attributes(config.attributes)


def _check_attributes(attributes: Mapping[str, str]) -> None:
    """Raise `InvalidParameter` if a topic's or group's attributes are too long."""
    size = sum(len(name.encode()) + len(value.encode()) for name, value in attributes.items())
    if size > MAX_ATTRIBUTES_BYTES:
        raise InvalidParameter(f"attributes have {size} bytes, the limit is {MAX_ATTRIBUTES_BYTES}")


def _of_all(outcomes: Sequence[LogError | None]) -> LogError | None:
    """The outcome of several changes: only if all were refused may the request be handled again elsewhere."""
    errors = [error for error in outcomes if error is not None]
    if not errors or (len(errors) == len(outcomes) and not any(isinstance(e, OutcomeUnknownError) for e in errors)):
        return errors[0] if errors else None
    return OutcomeUnknownError(f"some of the changes may have taken effect, others not: {errors[0]}")


def _attribute_changes(text: str) -> list[tuple[str, str | None]]:
    """Changes written as `+key=value,-key`, each with the value or None. Raises `InvalidParameter`."""
    if len(text) > MAX_CHANGES_CHARS:
        raise InvalidParameter(f"attributes: a text of {len(text)} characters, the limit is {MAX_CHANGES_CHARS}")
    changes: list[tuple[str, str | None]] = []
    parts: Sequence[str] = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        name, separator, value = part[1:].partition("=")
        if part[0] == "+" and name and separator:
            changes.append((name, value))
        elif part[0] == "-" and name and not separator:
            changes.append((name, None))
        else:
            raise InvalidParameter(f"attributes {text!r}: {part!r} is neither +key=value nor -key")
    return changes


def _changed(known: dict[str, str], changes: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    attributes = known | dict(changes)
    return {name: value for name, value in attributes.items() if value is not None}

"""Requests about topics: 17, 18, 21, 215, 351.

All of them are handled by the leader, and all changes are replicated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from dledger.errors import LogError
from dledger_broker.features.topics.configuration import (
    AttributeChanges,
    ConfigChange,
    attribute_changes,
    changed_attributes,
    check_attributes,
    check_storage,
    check_topic,
    data_version,
    outcome_of_all,
    require_few,
    signed_changes,
)
from dledger_broker.features.topics.write_aliases import check_write_aliases
from dledger_broker.kernel import rights
from dledger_broker.kernel.announcements import Announcements
from dledger_broker.kernel.audit import SubjectState
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.names_made import NamesMade
from dledger_broker.kernel.parts import Part
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import CHANGES, NO_EFFECT, Needs, Route
from dledger_remoting.bodies import decode_body, encode_body
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import InvalidParameter, TopicNotExist
from dledger_remoting.headers import CreateTopicHeader, DeleteTopicHeader, TopicHeader, decode_ext
from dledger_remoting.message_types import check_message_type
from dledger_remoting.pop import validate_stored_topic
from dledger_remoting.registration import TopicConfigSerializeWrapper
from dledger_remoting.topics import TopicConfig, is_system_topic


class TopicConfigList(msgspec.Struct, frozen=True, rename="camel"):
    """Body of request 18."""

    topic_config_list: list[TopicConfig] = []


def _topics_in(request: Request) -> list[str]:
    return [config.topic_name for config in decode_body(TopicConfigList, request.body).topic_config_list]


class TopicRequests(Part):
    """Handler of requests that create, change, delete and list topics."""

    def __init__(
        self,
        machine: BrokerMachine,
        group: LeadershipView,
        announcements: Announcements,
        requests: Requests,
        names: NamesMade,
    ) -> None:
        self._names = names
        self._machine = machine
        self._group = group
        self._announcements = announcements
        self._requests = requests

    @property
    def routes(self) -> Mapping[int, Route]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: Route(
                self.put_topic, Needs.LEADER, CHANGES, rights=(rights.topic("topic", Action.CREATE, Action.UPDATE),)
            ),
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: Route(
                self.put_topics,
                Needs.LEADER,
                CHANGES,
                rights=(rights.topics_in("all in the body", _topics_in, Action.CREATE, Action.UPDATE),),
            ),
            RequestCode.DELETE_TOPIC_IN_BROKER: Route(
                self.delete_topic, Needs.LEADER, CHANGES, rights=(rights.topic("topic", Action.DELETE),)
            ),
            RequestCode.GET_TOPIC_CONFIG: Route(
                self.topic, Needs.CONFIRMED_LEADER, NO_EFFECT, rights=(rights.topic("topic", Action.GET),)
            ),
            RequestCode.GET_ALL_TOPIC_CONFIG: Route(
                self.all_topics, Needs.CONFIRMED_LEADER, NO_EFFECT, rights=(rights.cluster(Action.LIST, Action.GET),)
            ),
        }

    @property
    def audited(self) -> Mapping[int, SubjectState]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._topic_state,
            RequestCode.DELETE_TOPIC_IN_BROKER: self._topic_state,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: lambda request: self._topic_states(_topics_in(request)),
        }

    def _topic_state(self, request: Request) -> object:
        return self._topic_states([request.ext.get("topic", "")])

    def _topic_states(self, names: Sequence[str]) -> object:
        topics = self._machine.state.topics
        return {name: msgspec.to_builtins(topics[name].config) if name in topics else None for name in names}

    def put_topic(self, request: Request) -> None:
        """Create or change a topic (17)."""
        header = decode_ext(CreateTopicHeader, request.ext)
        changes = attribute_changes(header.attributes or "")
        config = TopicConfig(
            header.topic,
            header.read_queue_nums,
            header.write_queue_nums,
            header.perm,
            header.topic_filter_type,
            header.topic_sys_flag or 0,
            bool(header.order),
        )
        self._put(request, [self._validate(config, changes)])

    def put_topics(self, request: Request) -> None:
        """Create or change several topics, or no topic if any is refused (18).

        If a topic is named twice, its last form counts. Attributes that the request does not name keep their values, as
        with 17.
        """
        configs = decode_body(TopicConfigList, request.body).topic_config_list
        require_few(len(configs), "topics")
        if not configs:
            raise InvalidParameter("topicConfigList is empty: name at least one topic")
        changes = [
            self._validate(msgspec.structs.replace(config, attributes={}), signed_changes(config.attributes))
            for config in configs
        ]
        self._put(request, list({change.config.topic_name: change for change in changes}.values()))

    def _validate(self, config: TopicConfig, changes: AttributeChanges) -> ConfigChange[TopicConfig]:
        """Return the requested change of a topic.

        `config` has no attributes. Raises `InvalidParameter` if the request is refused.
        """
        check_topic(config)
        check_storage(dict(changes))
        check_write_aliases(dict(changes))
        check_message_type(dict(changes))
        current = self._machine.state.topics.get(config.topic_name)
        check_attributes(changed_attributes({} if current is None else current.config.attributes, changes))
        return ConfigChange(config, changes)

    def _put(self, request: Request, changes: Sequence[ConfigChange[TopicConfig]]) -> None:
        """Change each topic, from its configuration at that time, and answer when all changes are done."""
        for change in changes:
            self._names.make_topic(request, change.config.topic_name)
        finish = self._finish_topics(request, [change.config.topic_name for change in changes])
        refusals: list[InvalidParameter] = []
        outcomes: list[LogError | None] = []

        def on_done(error: LogError | None) -> None:
            outcomes.append(error)
            if len(outcomes) == len(changes):
                finish(outcome_of_all(outcomes) or (refusals[0] if refusals else None))

        for change in changes:
            self._machine.proposals.change_topic(change.config.topic_name, partial(change.apply, refusals), on_done)

    def delete_topic(self, request: Request) -> None:
        """Delete a topic with its queues and the offsets on it (215).

        A missing topic is deleted, too, because the topic may be in flight, or a later leader may have it.
        """
        name = decode_ext(DeleteTopicHeader, request.ext).topic
        if not name.strip():
            raise InvalidParameter("The specified topic is blank.")
        if name not in self._machine.state.topics:
            validate_stored_topic(name)
        if is_system_topic(name):
            raise InvalidParameter(f"The topic[{name}] is conflict with system topic, it cannot be deleted")
        self._machine.proposals.delete_topic(name, self._finish_topics(request, []))

    def topic(self, request: Request) -> None:
        """Answer with one topic's configuration (351)."""
        name = decode_ext(TopicHeader, request.ext).topic
        state = self._machine.state.topics.get(name)
        if state is None:
            raise TopicNotExist(f"topic {name} does not exist")
        self._requests.respond(request, encode_body(state.config))

    def all_topics(self, request: Request) -> None:
        """Answer with the configuration of every topic (21)."""
        table = {name: topic.config for name, topic in self._machine.state.topics.items()}
        version = data_version(self._group.term, self._machine.state.topic_table)
        self._requests.respond(request, encode_body(TopicConfigSerializeWrapper(table, version)))

    def _finish_topics(self, request: Request, names: Sequence[str]) -> Callable[[Exception | None], None]:
        """Return a callback that answers when a change is applied and announced to the name servers, or has failed.

        No client sends to a new topic before that.
        """
        new_topics = [name for name in names if name not in self._machine.state.topics]

        def done(error: Exception | None) -> None:
            if error is None:
                self._announcements.answer(request, new_topics)
            else:
                self._requests.fail(request, error)

        return done

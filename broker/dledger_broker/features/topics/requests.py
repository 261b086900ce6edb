"""Requests about topics: 17, 18, 21, 215, 351. All on the leader, all replicated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from dledger.errors import LogError
from dledger_broker.features.topics.configuration import (
    Asked,
    AttributeChanges,
    attribute_changes,
    changed_attributes,
    check_attributes,
    check_storage,
    check_topic,
    data_version,
    outcome_of_all,
    signed_changes,
)
from dledger_broker.features.topics.write_aliases import check_write_aliases
from dledger_broker.kernel import rights
from dledger_broker.kernel.announcements import Announcements
from dledger_broker.kernel.leadership import Group
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Part
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import CHANGES, NO_EFFECT, Needs, Route
from dledger_remoting.bodies import decode_body, encode_body
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import InvalidParameter, TopicNotExist
from dledger_remoting.headers import CreateTopicHeader, DeleteTopicHeader, TopicHeader, decode_ext
from dledger_remoting.pop import validate_stored_topic
from dledger_remoting.registration import TopicConfigSerializeWrapper
from dledger_remoting.topics import TopicConfig, is_system_topic


class TopicConfigList(msgspec.Struct, frozen=True, rename="camel"):
    """The body of 18."""

    topic_config_list: list[TopicConfig] = []


def _topics_in(request: Request) -> list[str]:
    return [config.topic_name for config in decode_body(TopicConfigList, request.body).topic_config_list]


class TopicRequests(Part):
    """Creates, changes, deletes and lists topics."""

    def __init__(self, machine: BrokerMachine, group: Group, announcements: Announcements, requests: Requests) -> None:
        self._machine = machine
        self._group = group
        self._announcements = announcements
        self._requests = requests

    @property
    def routes(self) -> Mapping[int, Route]:
        """See `Part.routes`."""
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

    def put_topic(self, request: Request) -> None:
        """17: create or change one topic."""
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
        self._put(request, [self._checked(config, changes)])

    def put_topics(self, request: Request) -> None:
        """18: create or change several topics, none if one is refused; of one that is named twice the last form counts.

        Attributes that it does not name stay, as with 17.
        """
        configs = decode_body(TopicConfigList, request.body).topic_config_list
        if not configs:
            raise InvalidParameter("topicConfigList is empty: name at least one topic")
        asked = [
            self._checked(msgspec.structs.replace(config, attributes={}), signed_changes(config.attributes))
            for config in configs
        ]
        self._put(request, list({one.config.topic_name: one for one in asked}.values()))

    def _checked(self, config: TopicConfig, changes: AttributeChanges) -> Asked[TopicConfig]:
        """What a request asks of a topic; `config` has no attributes. Raises `InvalidParameter` for what is refused."""
        check_topic(config)
        check_storage(dict(changes))
        check_write_aliases(dict(changes))
        known = self._machine.state.topics.get(config.topic_name)
        check_attributes(changed_attributes({} if known is None else known.config.attributes, changes))
        return Asked(config, changes)

    def _put(self, request: Request, asked: Sequence[Asked[TopicConfig]]) -> None:
        """Change each topic as it stands by then, and answer when all are done."""
        done = self._finish_topics(request, [one.config.topic_name for one in asked])
        refusals: list[InvalidParameter] = []
        outcomes: list[LogError | None] = []

        def one_done(error: LogError | None) -> None:
            outcomes.append(error)
            if len(outcomes) == len(asked):
                done(outcome_of_all(outcomes) or (refusals[0] if refusals else None))

        for one in asked:
            self._machine.proposals.change_topic(one.config.topic_name, partial(one.applied_to, refusals), one_done)

    def delete_topic(self, request: Request) -> None:
        """215: delete a topic with its queues and the offsets on it.

        One that is not there is deleted, too: it may be on its way, or a later leader may have it.
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
        """351: one topic's configuration."""
        name = decode_ext(TopicHeader, request.ext).topic
        state = self._machine.state.topics.get(name)
        if state is None:
            raise TopicNotExist(f"topic {name} does not exist")
        self._requests.respond(request, encode_body(state.config))

    def all_topics(self, request: Request) -> None:
        """21: the configuration of every topic."""
        table = {name: topic.config for name, topic in self._machine.state.topics.items()}
        version = data_version(self._group.term, self._machine.state.topic_table)
        self._requests.respond(request, encode_body(TopicConfigSerializeWrapper(table, version)))

    def _finish_topics(self, request: Request, names: Sequence[str]) -> Callable[[Exception | None], None]:
        """Answers when a change is applied and the name servers know of it, or it has failed.

        Nothing is sent to topics that are new before that.
        """
        new = [name for name in names if name not in self._machine.state.topics]

        def done(error: Exception | None) -> None:
            if error is None:
                self._announcements.answer(request, new)
            else:
                self._requests.fail(request, error)

        return done

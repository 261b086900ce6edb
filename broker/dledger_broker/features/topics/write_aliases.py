"""Topics whose routes also list write aliases: by an attribute of the topic, or by the node's configuration.

Some topics never have write aliases. A send to an alias may go to another queue than the client's choice. That would be
wrong in ordered topics and topics of one queue. Only the service itself writes to retry topics, dead-letter topics and
its own topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from dledger_broker.config import BrokerConfig
from dledger_broker.features.topics.system_topics import system_topics
from dledger_remoting.errors import InvalidParameter
from dledger_remoting.topics import (
    WRITE_ALIASES_ATTRIBUTE,
    TopicConfig,
    is_dead_letter_topic,
    is_ordered,
    is_retry_topic,
    is_system_topic,
)

_TRUE: Final = "true"
_FALSE: Final = "false"


def check_write_aliases(attributes: Mapping[str, str | None]) -> None:
    """Raise `InvalidParameter` if a topic's attribute for write aliases has an invalid value."""
    value = attributes.get(WRITE_ALIASES_ATTRIBUTE)
    if value not in (None, _TRUE, _FALSE):
        raise InvalidParameter(f"attribute {WRITE_ALIASES_ATTRIBUTE}={value[:32]}: set it to {_TRUE} or {_FALSE}")


class AliasedTopics:
    """Decision which topics have write aliases, by a node's configuration and the topics' attributes."""

    def __init__(self, config: BrokerConfig) -> None:
        self._by_default = config.write_aliases
        self._own_topics = frozenset(topic.topic_name for topic in system_topics(config))

    def has(self, topic: TopicConfig) -> bool:
        """Return whether a topic has write aliases."""
        attribute = topic.attributes.get(WRITE_ALIASES_ATTRIBUTE)
        if attribute != _TRUE and (attribute is not None or not self._by_default):
            return False
        name = topic.topic_name
        return not (
            is_ordered(topic)
            or topic.write_queue_nums < 2
            or name in self._own_topics
            or is_system_topic(name)
            or is_retry_topic(name)
            or is_dead_letter_topic(name)
        )

    def with_aliases(self, topic: TopicConfig) -> TopicConfig:
        """Return a topic as it is registered with name servers: its attribute is true only if it really has aliases."""
        has = self.has(topic)
        attribute = topic.attributes.get(WRITE_ALIASES_ATTRIBUTE)
        if has == (attribute == _TRUE):
            return topic
        return msgspec.structs.replace(
            topic, attributes=topic.attributes | {WRITE_ALIASES_ATTRIBUTE: _TRUE if has else _FALSE}
        )

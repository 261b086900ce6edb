"""Topics whose routes also list write aliases: those whose attribute says so, or that the node's configuration means.

Never those where another queue than the client chose would be wrong, or where nobody but the service writes: ordered
topics and those of one queue, retry and dead letter topics, the service's own.
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
    """Raise `InvalidParameter` if a topic's attributes neither want write aliases nor do not."""
    value = attributes.get(WRITE_ALIASES_ATTRIBUTE)
    if value not in (None, _TRUE, _FALSE):
        raise InvalidParameter(f"attribute {WRITE_ALIASES_ATTRIBUTE}={value[:32]}: set it to {_TRUE} or {_FALSE}")


class AliasedTopics:
    """Which topics have write aliases, by a node's configuration."""

    def __init__(self, config: BrokerConfig) -> None:
        self._by_default = config.write_aliases
        self._own_topics = frozenset(topic.topic_name for topic in system_topics(config))

    def has(self, topic: TopicConfig) -> bool:
        """Whether a topic has them."""
        wanted = topic.attributes.get(WRITE_ALIASES_ATTRIBUTE)
        if wanted != _TRUE and (wanted is not None or not self._by_default):
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

    def told(self, topic: TopicConfig) -> TopicConfig:
        """A topic as a name server is told of it: its attribute says whether it has aliases, for whatever reason."""
        has = self.has(topic)
        given = topic.attributes.get(WRITE_ALIASES_ATTRIBUTE)
        if has == (given == _TRUE):
            return topic
        return msgspec.structs.replace(
            topic, attributes=topic.attributes | {WRITE_ALIASES_ATTRIBUTE: _TRUE if has else _FALSE}
        )

"""Topics that a broker has from the start, because clients or other features expect them."""

from __future__ import annotations

from dledger_broker.config import BrokerConfig
from dledger_remoting.topics import (
    AUTO_CREATE_TOPIC,
    HALF_TOPIC,
    MAX_PERM,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    PERM_INHERIT,
    PERM_READ_WRITE,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    TRACE_TOPIC,
    TopicConfig,
    reply_topic,
)

_DELAY_LEVELS = 18


def system_topics(config: BrokerConfig) -> list[TopicConfig]:
    """Return the system topics, with RocketMQ's queue numbers.

    TBW102 lets clients create topics, so it is present only if that is allowed. The trace topic is the topic to which
    clients send traces. They cannot create it, and Go clients write no trace without it.
    """
    topics = [
        _topic(SELF_TEST_TOPIC, 1),
        _topic(config.cluster, 16, PERM_READ_WRITE | PERM_INHERIT),
        _topic(config.broker_group, 1, PERM_READ_WRITE | PERM_INHERIT),
        _topic(reply_topic(config.cluster), 1),
        _topic(OFFSET_MOVED_TOPIC, 1),
        _topic(SCHEDULE_TOPIC, _DELAY_LEVELS),
        _topic(HALF_TOPIC, 1),
        _topic(OP_HALF_TOPIC, 1),
    ]
    if config.trace_topic:
        topics.append(_topic(TRACE_TOPIC, 1))
    if config.auto_create_topic:
        topics.append(auto_create_example(config))
    return topics


def auto_create_example(config: BrokerConfig) -> TopicConfig:
    """Return the topic whose configuration is the model for topics that clients create by sending."""
    return _topic(AUTO_CREATE_TOPIC, config.default_topic_queues, MAX_PERM)


def _topic(name: str, queues: int, perm: int = PERM_READ_WRITE) -> TopicConfig:
    return TopicConfig(name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)

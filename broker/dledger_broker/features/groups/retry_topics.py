"""Configuration of the retry topics of consumer groups, and how often a message comes again."""

from __future__ import annotations

from dledger_remoting.topics import PERM_READ_WRITE, SubscriptionGroupConfig, TopicConfig, retry_topic


def retry_topic_config(group: SubscriptionGroupConfig) -> TopicConfig:
    """The retry topic of a consumer group."""
    queues = max(1, group.retry_queue_nums)
    return TopicConfig(
        retry_topic(group.group_name), read_queue_nums=queues, write_queue_nums=queues, perm=PERM_READ_WRITE
    )


def retry_limit(asked: int | None, group: SubscriptionGroupConfig) -> int:
    """How often a message is delivered again at most: what the client asks for, unless that is nothing or below 0."""
    return group.retry_max_times if asked is None or asked < 0 else asked

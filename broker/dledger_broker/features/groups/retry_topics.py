"""Retry topics of consumer groups: their configuration, and the limit of redeliveries."""

from __future__ import annotations

from dledger_remoting.topics import PERM_READ_WRITE, SubscriptionGroupConfig, TopicConfig, retry_topic


def retry_topic_config(group: SubscriptionGroupConfig) -> TopicConfig:
    """Return the configuration of a consumer group's retry topic."""
    queues = max(1, group.retry_queue_nums)
    return TopicConfig(
        retry_topic(group.group_name), read_queue_nums=queues, write_queue_nums=queues, perm=PERM_READ_WRITE
    )


def retry_limit(asked: int | None, group: SubscriptionGroupConfig) -> int:
    """Return the maximum number of redeliveries: the client's value, or the group's if that is missing or negative."""
    return group.retry_max_times if asked is None or asked < 0 else asked

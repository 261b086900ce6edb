"""Headers of administration at a broker: requests about topics, groups and statistics, and questions to one
consumer.
"""

from __future__ import annotations

import msgspec

from .integers import Int32


class CreateTopicHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Creates or changes a topic (17). `attributes` is `+key=value,-key`."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    topic_sys_flag: Int32 | None = None
    order: bool | None = None
    attributes: str | None = None
    force: bool | None = None


class DeleteTopicHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Deletes a topic with its queues (215)."""

    topic: str


class TopicHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Names one topic: asks for its configuration (351), its statistics (202) or the groups that consume it (300)."""

    topic: str


class GroupHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Names one consumer group: asks for its configuration (352) or its topics (343)."""

    group: str


class DeleteSubscriptionGroupHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Deletes a consumer group, with its offsets if asked (207)."""

    group_name: str
    clean_offset: bool | None = None


class ProducerGroupHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Asks for the connected members of a producer group (204)."""

    producer_group: str


class TopicOfGroupHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Names a group and a topic: asks for the group's progress in time (303) or its subscription to the topic (345)."""

    topic: str
    group: str


class StatsHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Asks for the counts under a name (315). The key is a topic, `topic@group`, or the cluster's name."""

    stats_name: str
    stats_key: str


class GroupsConsumeStatsHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Asks for the progress of all groups (317), in ordered topics only if `is_order`."""

    is_order: bool = False


class ConsumerRunningInfoHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Asks a consumer for its running state (307), with the stacks of its threads if asked."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeDirectlyHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Has a consumer consume the message with an offset message id (309)."""

    consumer_group: str
    msg_id: str
    client_id: str = ""

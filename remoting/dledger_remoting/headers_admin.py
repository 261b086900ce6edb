"""Headers of administration at a broker: of topics, groups, statistics, and questions to one consumer."""

from __future__ import annotations

import msgspec

from .integers import Int32


class CreateTopicHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Create or change a topic (17). `attributes` is `+key=value,-key`."""

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
    """Delete a topic with its queues (215)."""

    topic: str


class TopicHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A request about one topic: its configuration (351), its statistics (202), who consumes it (300)."""

    topic: str


class GroupHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A request about one consumer group: its configuration (352), its topics (343)."""

    group: str


class DeleteSubscriptionGroupHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Delete a consumer group, with its offsets if asked (207)."""

    group_name: str
    clean_offset: bool | None = None


class ProducerGroupHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Who is connected of a producer group (204)."""

    producer_group: str


class TopicOfGroupHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """How far a group is in a topic, in time (303); what it subscribes to of it (345)."""

    topic: str
    group: str


class StatsHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """What was counted under a name (315); the key is a topic, `topic@group`, or the cluster's name."""

    stats_name: str
    stats_key: str


class GroupsConsumeStatsHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """How far all groups are (317); of ordered topics only, if asked."""

    is_order: bool = False


class ConsumerRunningInfoHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """What a consumer is doing (307), with the stacks of its threads if asked."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeDirectlyHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Have a consumer consume the message with an offset message id (309)."""

    consumer_group: str
    msg_id: str
    client_id: str = ""

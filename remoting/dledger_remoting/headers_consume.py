"""Headers of consuming: codes 11, 14, 15, 35, 38, 40, 203, 208."""

from __future__ import annotations

from typing import Final

import msgspec

from .integers import Int32, Int64

PULL_COMMIT_OFFSET: Final = 1
PULL_SUSPEND: Final = 2
PULL_SUBSCRIPTION: Final = 4
PULL_CLASS_FILTER: Final = 8
PULL_LITE: Final = 16
"""Bits of `PullMessageHeader.sys_flag`: commit the given offset, long poll, use the subscription in the header, class
filter (not supported), lite pull."""


class PullMessageHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Read messages of one queue from `queue_offset` on (11, 361); `suspend_timeout_millis` bounds a long poll.

    `roles`, which is ours, says from which roles of a node the client takes messages, as in `ReadRangeHeader`. So is
    `min_commit`, of 361 only: the node answers from what it has applied, which must reach so far, and asks no other.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    sub_version: Int64
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    proxy_froward_client_id: str | None = None
    roles: str | None = None
    min_commit: Int64 | None = None


class PullResponseHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """All four fields go with every answer 0, 19, 20 and 21: clients of C++ and Go read them without asking."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64


class QueryConsumerOffsetHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The committed offset of a group (14). An explicit `set_zero_if_not_found=False` asks for code 22 instead of 0."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Commit a group's offset (15); a negative one means nothing and is ignored.

    `reset`, which is ours, says that the group is to go on there even in a queue that it pops.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64
    reset: bool | None = None


class OffsetResponseHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """An offset: the answer to 14, 29, 30 and 31."""

    offset: Int64


class UnregisterClientHeader(msgspec.Struct, frozen=True, gc=False):
    """A client leaves (35); an absent or empty group means none."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = msgspec.field(name="producerGroup", default=None)
    consumer_group: str | None = msgspec.field(name="consumerGroup", default=None)


class ConsumerGroupHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A consumer group: asks for its client ids (38) or connections (203), or tells its members of a change (40)."""

    consumer_group: str


class ConsumeStatsHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """How far a group is (208) in one topic; an absent or empty one means all that it reads."""

    consumer_group: str
    topic: str | None = None

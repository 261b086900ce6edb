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
"""Bits of `PullMessageHeader.sys_flag`, in this order: commit the given offset, long poll, use the subscription in the
header, class filter (not supported), lite pull.
"""


TOPIC_CREATED_FIELD: Final = "topicCreated"
"""Ext field of ours: names one of the creations of a topic, where a topic was deleted and created again."""


class PullMessageHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Reads messages of one queue from `queue_offset` on (11, 361). `suspend_timeout_millis` bounds a long poll.

    Five fields are ours:

    - `roles`: the roles in which a node may serve this client, as in `ReadRangeHeader`.
    - `min_commit`, of 361 only: the node must have applied the log up to here. It answers from its own log and asks no
      other node.
    - `verify`: the node answers only if the CRCs of the records are right, and otherwise repairs its log.
    - `topic_created`: the creation of the topic to which the offset belongs (`OffsetResponseHeader`).
    - `group_identity`: a node of another group refuses the pull.
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
    verify: bool = False
    topic_created: Int64 | None = None
    group_identity: str | None = None


class PullResponseHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Every answer 0, 19, 20 and 21 has the first four fields, because C++ and Go clients read them without a check.

    `topic_created`, which is ours, comes with a 21 for a topic that was created again.
    """

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    topic_created: Int64 | None = None


class QueryConsumerOffsetHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Asks for the committed offset of a group (14).

    An explicit `set_zero_if_not_found=False` asks for code 22 instead of 0 if no offset is committed.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Commits a group's offset (15). A negative offset is ignored.

    Two fields are ours. `reset` says that the group is to continue at the offset even in a queue that it pops.
    `topic_created` names the creation of the topic to which the offset belongs; an offset of an earlier creation is not
    committed.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64
    reset: bool | None = None
    topic_created: Int64 | None = None


class OffsetResponseHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """An offset: answer to 14, 29, 30 and 31.

    `topic_created`, which is ours, distinguishes this creation of the topic from others.
    """

    offset: Int64
    topic_created: Int64 | None = None


class UnregisterClientHeader(msgspec.Struct, frozen=True, gc=False):
    """Reports that a client leaves (35). An absent or empty group means none."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = msgspec.field(name="producerGroup", default=None)
    consumer_group: str | None = msgspec.field(name="consumerGroup", default=None)


class ConsumerGroupHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Names a consumer group, to ask for its client ids (38) or connections (203), or to report a change of it (40)."""

    consumer_group: str


class ConsumeStatsHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Asks for the progress of a group (208) in one topic. An absent or empty topic means all that the group reads."""

    consumer_group: str
    topic: str | None = None

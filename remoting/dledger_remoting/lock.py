"""Bodies of queue locks: 41 (lock) and 42 (unlock)."""

from __future__ import annotations

import msgspec

from .topics import MessageQueue


class LockBatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The queues that one client of a consumer group wants to lock or unlock."""

    consumer_group: str = msgspec.field(name="consumerGroup")
    client_id: str = msgspec.field(name="clientId")
    only_this_broker: bool = msgspec.field(name="onlyThisBroker", default=False)
    mq_set: list[MessageQueue] = msgspec.field(name="mqSet", default_factory=list)


class LockBatchResponse(msgspec.Struct, frozen=True):
    """The queues that the client now holds."""

    lock_ok_mq_set: list[MessageQueue] = msgspec.field(name="lockOKMQSet", default_factory=list)

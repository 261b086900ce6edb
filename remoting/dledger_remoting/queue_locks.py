"""Bodies of requests about queue locks: asked for (41), given up (42).

Format: RocketMQ's `LockBatchRequestBody`, `LockBatchResponseBody` and `UnlockBatchRequestBody`. Clients ask for many
queues at once or for one at a time; `onlyThisBroker`, which some of them send, means nothing here.
"""

from __future__ import annotations

import msgspec

from .topics import MessageQueue


class QueueLocksBody(msgspec.Struct, frozen=True, rename="camel"):
    """Lock, or give up, these queues for one member of a consumer group."""

    consumer_group: str
    client_id: str
    mq_set: list[MessageQueue] = []


class LockedQueuesBody(msgspec.Struct, frozen=True):
    """The answer to 41: the queues among those asked for that the client has locked."""

    queues: list[MessageQueue] = msgspec.field(name="lockOKMQSet")

"""Bodies of requests about queue locks: lock queues (41), unlock queues (42).

Format: RocketMQ's `LockBatchRequestBody`, `LockBatchResponseBody` and `UnlockBatchRequestBody`. Clients ask for many
queues at once or for one at a time. Some of them send `onlyThisBroker`, which is ignored here.
"""

from __future__ import annotations

from typing import Final

import msgspec

from .integers import Int64
from .topics import MessageQueue

MAX_SESSION_CHARS: Final = 64
"""Maximum length of `LockNumberHeader.lock_session`."""


class LockNumberHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Order of a client's requests about locks (41 and 42). Both fields are ours, and stock clients send neither.

    A session is one run of a client, named at random. The client numbers the requests of a session upwards, and a
    repeated request keeps its number. The broker gives them the effect that they would have in this order.
    """

    lock_session: str | None = None
    lock_number: Int64 | None = None


class QueueLocksBody(msgspec.Struct, frozen=True, rename="camel"):
    """Queues to lock or unlock for one member of a consumer group."""

    consumer_group: str
    client_id: str
    mq_set: list[MessageQueue] = []


class LockedQueuesBody(msgspec.Struct, frozen=True):
    """Answer to 41: the requested queues that the client has locked now."""

    queues: list[MessageQueue] = msgspec.field(name="lockOKMQSet")

"""Header of the replies that a broker pushes to the client that waits for them: code 326."""

from __future__ import annotations

import msgspec

from .integers import Int32, Int64


class PushReplyHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A reply: the fields that the replier sent, with addresses as `ip:port` and times (ms), as in a message that is
    read.
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    born_host: str
    store_host: str
    store_timestamp: Int64
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None

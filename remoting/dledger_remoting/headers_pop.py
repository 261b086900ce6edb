"""Headers of POP: codes 200050 to 200055. Field names: RocketMQ's `PopMessageRequestHeader` and its siblings."""

from __future__ import annotations

from typing import Final

import msgspec

from .integers import Int32, Int64

FAILURE_REASON_FIELD: Final = "failureReason"
"""Ext field of a change of invisible time (200053): why the delivery has failed, for the message that comes again."""
UNTAKEN_FIELD: Final = "dledgerUntaken"
"""Ext field of a change of invisible time (200053). "true" means that no consumer has received the message.

The broker then delivers the message again at once, and does not count the unused delivery. A broker that does not know
the field hides the message for `invisible_time`. Our broker does the same if the message was popped in order.
"""


LEASE_FIELD: Final = "dledgerLease"
"""Ext field of a pop (200050) with a client id: its messages stay hidden while heartbeats of that client come.

`invisible_time` is how long they stay hidden after the last heartbeat, 300,000 ms at most. In the answer the field is
"true". A broker that does not know the field hides the messages for `invisible_time`, and does not answer with the
field.
"""
CONFIRMS_FIELD: Final = "dledgerConfirms"
"""Ext field of a pop under a lease. "true" means that the lease is to begin only with a confirmation (20021).

Until then the messages are hidden for 30 s at most, whatever their client does. `LEASE_FIELD` of the answer is then
`UNCONFIRMED`. A group that does not know confirmations begins the lease at once, and answers "true".
"""
UNCONFIRMED: Final = "unconfirmed"


class PopHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Takes messages of a topic and hides them from the group for `invisible_time` ms (200050).

    `queue_id` below 0 means any queue. `poll_time` is the maximum wait of the request in ms, from its arrival on. If
    `init_mode` is 0, a group that never popped a queue begins at its start. `attempt_id` names an ordered pop that is
    repeated because its answer was lost.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64
    init_mode: Int32
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


class PopResponseHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Answer to a pop. Clients require the first four fields in every answer, even if nothing was popped (209, 210)."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    rest_num: Int64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Acknowledges a popped message (200051). `extra_info` is the text of its check point (module `pop`)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64


class ChangeInvisibleHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Hides a popped message for `invisible_time` ms from now (200053)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64


class ChangeInvisibleResponseHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Answer to 200053: the fields of the message's next check point."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32


class LeaseHeardHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Says that the owner of a lease has sent a heartbeat or, with `has_left`, that its client has left (20020)."""

    owner: str
    has_left: bool = False


class ConfirmLeaseHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Begins the lease of popped messages, because they have reached the client that they are for (20021).

    `invisible_time` is the length of the lease in ms, as for the pop. `deliveries` are as of `pop.deliveries_info`.
    """

    consumer_group: str
    topic: str
    client_id: str
    invisible_time: Int64
    deliveries: str


class PeekHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Asks which messages a pop would take, and takes none (200052)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32


class NotificationHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Asks whether a pop would find a message, and waits up to `poll_time` ms for one (200054)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64
    order: bool = False
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


class NotificationResponseHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Answer to 200054: whether there is a message.

    `polling_full` means that the broker cannot let the request wait: too many wait already, or this one is too large.
    """

    has_msg: bool
    polling_full: bool = False


class PollingInfoHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Asks how many pops of a group wait (200055)."""

    consumer_group: str
    topic: str
    queue_id: Int32


class PollingInfoResponseHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Answer to 200055: the number of waiting pops."""

    polling_num: Int32

"""Headers of POP: codes 200050 to 200055. Field names: RocketMQ's `PopMessageRequestHeader` and its siblings."""

from __future__ import annotations

import msgspec

from .integers import Int32, Int64


class PopHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Take messages of a topic and hide them from the group for `invisible_time` ms (200050).

    `queue_id` below 0 means any queue. `poll_time` ms is how long the request may wait, from its arrival on; a group
    that never popped a queue begins at its start if `init_mode` is 0. `attempt_id` names an ordered pop that is
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
    """What was popped, or that nothing was: clients require the first four fields in every answer, 209 and 210 too."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    rest_num: Int64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A popped message is done with (200051); `extra_info` is the text of its check point."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64


class ChangeInvisibleHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Hide a popped message for `invisible_time` ms from now (200053)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64


class ChangeInvisibleResponseHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """What the message's next check point says."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32


class PeekHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Show what a pop would take, and take nothing (200052)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32


class NotificationHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Ask whether a pop would find something, and wait for it up to `poll_time` ms (200054)."""

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
    """Whether there is something; `polling_full`: the request could not wait."""

    has_msg: bool
    polling_full: bool = False


class PollingInfoHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Ask how many pops of a group wait (200055)."""

    consumer_group: str
    topic: str
    queue_id: Int32


class PollingInfoResponseHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """How many do."""

    polling_num: Int32

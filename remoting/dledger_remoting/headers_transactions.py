"""Headers of transactions: codes 37, 39, 323."""

from __future__ import annotations

import msgspec

from .integers import Int32, Int64


class EndTransactionHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Ends a half message (37): 8 commits it, 12 rolls it back, 0 leaves it open.

    `tran_state_table_offset` is its offset in the half queue, `commit_log_offset` its position in the log.
    """

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    from_transaction_check: bool | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    topic: str | None = None


class CheckTransactionHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Asks a producer for the outcome of a half message (39). `bname` is the broker group."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    topic: str
    bname: str
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class ResumeHalfHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Reopens a half message that was given up (323). `msg_id` is the id of its copy in `CHECK_MAX_TIME_TOPIC`."""

    msg_id: str
    topic: str | None = None

"""Headers of sends, send-backs, replies and transactions: codes 10, 310, 320, 324, 325, 326, 36, 37, 370, 39, 323."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from .header_codec import decode_ext, encode_ext
from .integers import Int32, Int64

_LETTER_BY_NAME: Final = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
    "brokerName": "n",
}
WRITE_ALIAS_FIELD: Final = "writeAlias"
_NAME_BY_LETTER: Final = {letter: name for name, letter in _LETTER_BY_NAME.items()}


class SendMessageHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A send, with the long field names of code 10. Codes 310, 320 and 325 use one letter per field.

    `queue_id` below 0 lets the broker choose; `born_timestamp` is in ms; `reconsume_times` counts earlier deliveries,
    and is used by sends to retry topics only. `record` has the bits of `sys_flag`. Two fields are ours, and have no
    letter. `idempotent` asks the broker to answer a repeated send as it answered the first. `write_alias` is the number
    of the write alias that took the send (`route.alias_name`). A node adds it; the queue then follows from the alias,
    and `queue_id` means nothing.
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    batch: bool | None = None
    broker_name: str | None = None
    idempotent: bool | None = None
    write_alias: Int32 | None = None

    @classmethod
    def decode(cls, ext: Mapping[str, str]) -> SendMessageHeader:
        """Decode either form: letters if there is a field `b` but no `topic`. Raises `HeaderFieldError`."""
        if "topic" not in ext and "b" in ext:
            ext = {_NAME_BY_LETTER.get(key, key): value for key, value in ext.items()}
        return decode_ext(cls, ext)

    def encode_letters(self) -> dict[str, str]:
        """Return the ext fields in the one-letter form of codes 310, 320 and 325."""
        return {_LETTER_BY_NAME.get(name, name): value for name, value in encode_ext(self).items()}


class SendMessageResponseHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Place where a message was stored. For a batch, `msg_id` holds all ids joined by commas, and `queue_offset` is the
    first.

    C++ and Go clients fail if one of the first three fields is missing from a successful answer. Answers to sends with
    the field `idempotent` have two fields of ours. `remembered` says whether the leader will know a repetition of the
    send. `repeated` says whether the send was a repetition. Leaders of earlier versions send neither field.
    """

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    remembered: bool | None = None
    repeated: bool | None = None


class RecallMessageHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Recalls a message that waits until it is due (370), by the handle from the answer to its send."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


class RecallMessageResponseHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Answer to 370: the unique key of the recalled message."""

    msg_id: str


class ConsumerSendBackHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Sends a consumed message back for another delivery (36). `offset` is its physical offset.

    Two fields are ours. `delay_time_millis` is the time that the message waits; it replaces a level above 0.
    `failure_reason` says why the delivery failed.
    """

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    delay_time_millis: Int64 | None = None
    failure_reason: str | None = None


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

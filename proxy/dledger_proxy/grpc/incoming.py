"""Messages as gRPC clients receive them, made from stored ones.

Bodies come decompressed and are therefore IDENTITY. Their digest is MD5 in upper-case hex, because clients write CRC-32
in different forms.
"""

from __future__ import annotations

from hashlib import md5
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from dledger_client.messages import ReceivedMessage
from dledger_remoting import properties as names
from dledger_remoting.errors import InvalidParameter
from dledger_remoting.ids import parse_offset_message_id
from dledger_remoting.message_types import MessageType, type_of_message
from dledger_remoting.properties import RESERVED_NAMES
from dledger_remoting.topics import is_dead_letter_topic

from .definition import messaging_pb2 as pb
from .outgoing import BORN_HOST, TRACE_CONTEXT

TYPES: Final = {
    MessageType.NORMAL: pb.NORMAL,
    MessageType.FIFO: pb.FIFO,
    MessageType.DELAY: pb.DELAY,
    MessageType.TRANSACTION: pb.TRANSACTION,
}
"""Types of messages on this wire, by RocketMQ's words."""


def incoming(topic: pb.Resource, message: ReceivedMessage) -> pb.Message:
    """Return a stored message of a topic, without what a delivery adds."""
    properties, body = message.properties, message.body
    system = pb.SystemProperties(
        keys=message.keys,
        message_id=message.message_id,
        body_digest=pb.Digest(type=pb.MD5, checksum=md5(body).hexdigest().upper()),
        body_encoding=pb.IDENTITY,
        message_type=TYPES[type_of_message(properties)],
        born_timestamp=timestamp(message.born_timestamp_ms),
        born_host=properties.get(BORN_HOST, ""),
        store_timestamp=timestamp(message.stored_timestamp_ms),
        store_host=_store_host(message),
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        delivery_attempt=message.reconsume_times + 1,
    )
    if message.tags:
        system.tag = message.tags
    if (group := properties.get(names.SHARDING_KEY)) is not None:
        system.message_group = group
    if (context := properties.get(TRACE_CONTEXT)) is not None:
        system.trace_context = context
    due = properties.get(names.TIMER_DELIVER_MS, "")
    if due.isascii() and due.isdecimal() and len(due) <= 18:
        system.delivery_timestamp.CopyFrom(timestamp(int(due)))
    if is_dead_letter_topic(message.queue.topic):
        origin = properties.get(names.DLQ_ORIGIN_TOPIC) or properties.get(names.RETRY_TOPIC, "")
        origin_id = properties.get(names.DLQ_ORIGIN_MESSAGE_ID) or properties.get(names.ORIGIN_MESSAGE_ID, "")
        system.dead_letter_queue.CopyFrom(pb.DeadLetterQueue(topic=origin, message_id=origin_id))
    user = {name: value for name, value in properties.items() if name not in RESERVED_NAMES}
    return pb.Message(topic=topic, user_properties=user, system_properties=system, body=body)


def add_delivery(message: pb.Message, handle: str, invisible_ms: int) -> None:
    """Note in a message its receipt handle, and the time for which it is hidden from the group."""
    message.system_properties.receipt_handle = handle
    message.system_properties.invisible_duration.CopyFrom(duration(invisible_ms))


def timestamp(milliseconds: int) -> Timestamp:
    """Return a time in ms since 1970, cut to the range of the type."""
    milliseconds = max(0, min(milliseconds, _MAX_TIMESTAMP_MS))
    return Timestamp(seconds=milliseconds // 1_000, nanos=milliseconds % 1_000 * 1_000_000)


def duration(milliseconds: int) -> Duration:
    """Return a time span of ms."""
    return Duration(seconds=milliseconds // 1_000, nanos=milliseconds % 1_000 * 1_000_000)


def milliseconds_of(span: Duration) -> int:
    """Return the ms of a time span, within the numbers of the wire."""
    return max(-(2**50), min(span.seconds * 1_000 + span.nanos // 1_000_000, 2**50))


_MAX_TIMESTAMP_MS: Final = 253_402_300_799_000
"""The last second of the year 9999, in ms since 1970."""


def _store_host(message: ReceivedMessage) -> str:
    try:
        return str(parse_offset_message_id(message.offset_message_id)[0])
    except InvalidParameter:
        return ""

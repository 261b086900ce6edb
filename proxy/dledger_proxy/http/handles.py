"""Opaque handles that the front gives out: receipts of taken messages, and cursors of tails.

A handle carries all that it stands for, so any proxy takes it, also after a restart. Its text is Base64url without
padding of these bytes:

| bytes | |
|---|---|
| 1 | kind: 1 receipt, 2 cursor |
| 4 | CRC-32 of the rest, big-endian |
| rest | MessagePack: an array of the fields of `_ReceiptFields` or `_CursorFields` |

The CRC finds mistakes, and is no protection. Brokers judge the account's rights to the group and topic in a handle. So
a forged handle opens nothing that its account could not have opened.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Annotated, Final, NamedTuple, TypeVar
from zlib import crc32

import msgspec

from dledger_client import MessageQueue, ReceivedMessage
from dledger_remoting.errors import InvalidParameter
from dledger_remoting.integers import MAX_INT64
from dledger_remoting.pop import CheckPoint, parse_check_point, pop_retry_topic
from dledger_remoting.properties import POP_CHECK_POINT

MAX_RECEIPT_CHARS: Final = 2_048
MAX_CURSOR_CHARS: Final = 8_000
"""Maximum size of a cursor, in characters. It fits in a header of a request."""
_HEAD_BYTES: Final = 5

FieldsT = TypeVar("FieldsT")


class HandleError(ValueError):
    """A text that is no handle, or is the handle of something else. The text says which."""


class _Kind(IntEnum):
    RECEIPT = 1
    CURSOR = 2


class _ReceiptFields(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    group: str
    topic: str
    message_id: str
    check_point: str


class _CursorFields(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    topic: str
    offsets: dict[str, list[Annotated[int, msgspec.Meta(ge=0, le=MAX_INT64)]]]


class Receipt(NamedTuple):
    """A taken message, as a client names it to acknowledge it.

    Each delivery of the message has another receipt, and so has each change of its invisible time.
    """

    group: str
    topic: str
    message_id: str
    point: CheckPoint

    @property
    def text(self) -> str:
        """The opaque text."""
        return _seal(_Kind.RECEIPT, _ReceiptFields(self.group, self.topic, self.message_id, self.point.text))

    @property
    def visible_again_ms(self) -> int:
        """The end of the message's invisible time, in ms since 1970."""
        return self.point.pop_time_ms + self.point.invisible_ms

    @property
    def message(self) -> ReceivedMessage:
        """The message as our client acknowledges it. Its check point says all, so it has no body and no times."""
        queue = MessageQueue(
            pop_retry_topic(self.group, self.topic, self.point.retry), self.point.broker_name, self.point.queue_id
        )
        properties = {POP_CHECK_POINT: self.point.text}
        offset = self.point.queue_offset
        return ReceivedMessage(self.topic, b"", None, (), properties, queue, offset, self.message_id, "", 0, 0, 0, 0)


def receipt_of(group: str, topic: str, message: ReceivedMessage) -> Receipt:
    """Return the receipt of a message that was taken with `SimpleConsumer`."""
    return Receipt(group, topic, message.message_id, parse_check_point(message.properties[POP_CHECK_POINT]))


def open_receipt(text: str, group: str, topic: str) -> Receipt:
    """Return the receipt of a text. Raises `HandleError` if it is none, or belongs to another group or topic."""
    if len(text) > MAX_RECEIPT_CHARS:
        raise HandleError(f"a receipt has at most {MAX_RECEIPT_CHARS} characters, this text has {len(text)}")
    fields = _open(_Kind.RECEIPT, text, _ReceiptFields)
    if (fields.group, fields.topic) != (group, topic):
        raise HandleError(f"the receipt is of group {fields.group!r} and topic {fields.topic!r}")
    try:
        return Receipt(group, topic, fields.message_id, parse_check_point(fields.check_point))
    except InvalidParameter as error:
        raise HandleError(error.remark) from error


class Cursor(NamedTuple):
    """The next offset of each queue of a topic, by broker group. A queue's place in the list is its number."""

    topic: str
    offsets: Mapping[str, Sequence[int]]

    @property
    def text(self) -> str:
        """The opaque text. Raises `HandleError` if the topic has too many queues for a cursor."""
        text = _seal(_Kind.CURSOR, _CursorFields(self.topic, {name: list(each) for name, each in self.offsets.items()}))
        if len(text) > MAX_CURSOR_CHARS:
            raise HandleError(f"topic {self.topic!r} has too many queues to be tailed: read it with a client instead")
        return text

    def offset_of(self, queue: MessageQueue) -> int | None:
        """Return the next offset of a queue, None if the queue was not there."""
        offsets = self.offsets.get(queue.broker_group, ())
        return offsets[queue.queue_id] if queue.queue_id < len(offsets) else None


def cursor_at(topic: str, positions: Mapping[MessageQueue, int]) -> Cursor:
    """Return the cursor of a topic's positions. Queues of a broker group are numbered from 0 on."""
    offsets: dict[str, list[int]] = {}
    for queue in sorted(positions):
        listed = offsets.setdefault(queue.broker_group, [])
        listed += [0] * (queue.queue_id - len(listed))
        listed.append(positions[queue])
    return Cursor(topic, offsets)


def open_cursor(text: str, topic: str) -> Cursor:
    """Return the cursor of a text. Raises `HandleError` if it is none, or belongs to another topic."""
    if len(text) > MAX_CURSOR_CHARS:
        raise HandleError(f"a cursor has at most {MAX_CURSOR_CHARS} characters, this text has {len(text)}")
    fields = _open(_Kind.CURSOR, text, _CursorFields)
    if fields.topic != topic:
        raise HandleError(f"the cursor is of topic {fields.topic!r}")
    return Cursor(topic, fields.offsets)


def _seal(kind: _Kind, fields: msgspec.Struct) -> str:
    packed = msgspec.msgpack.encode(fields)
    head = bytes((kind,)) + crc32(packed).to_bytes(4, "big")
    return urlsafe_b64encode(head + packed).rstrip(b"=").decode()


def _open(kind: _Kind, text: str, fields_type: type[FieldsT]) -> FieldsT:
    name = kind.name.lower()
    try:
        packed = b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error):
        packed = b""
    head, rest = packed[:_HEAD_BYTES], packed[_HEAD_BYTES:]
    if head != bytes((kind,)) + crc32(rest).to_bytes(4, "big"):
        raise HandleError(f"{text[:64]!r} is no {name}: pass on the whole text that the front gave")
    try:
        return msgspec.msgpack.decode(rest, type=fields_type)
    except msgspec.MsgspecError as error:
        raise HandleError(f"the {name} cannot be read: {error}") from error

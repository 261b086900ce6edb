"""Fast codec for sends and pulls: decodes their requests from bytes, and formats their answers as bytes.

A JSON header is decoded straight into one typed struct (about 1.5 µs). If it does not fit, the result is None. The
caller then uses the general path, `command.decode_command` and `headers.decode_ext`, which know every variant and say
what is wrong. Answers are the frames of the general path, apart from optional fields.

These structs have no fields for access control. A server that checks signatures therefore uses the general path.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Final, TypeAlias

import msgspec

from .codes import PROTOCOL_VERSION, LanguageCode, ResponseCode
from .command import FLAG_ONEWAY, FLAG_RESPONSE
from .frame import SerializeType
from .integers import Int32, Int64
from .properties import MSG_REGION, TRACE_ON
from .traces import DEFAULT_REGION

Buffer: TypeAlias = bytes | bytearray | memoryview


class SendV2Fields(
    msgspec.Struct,
    frozen=True,
    gc=False,
    rename={
        "producer_group": "a",
        "topic": "b",
        "default_topic": "c",
        "default_topic_queue_nums": "d",
        "queue_id": "e",
        "sys_flag": "f",
        "born_timestamp": "g",
        "user_flag": "h",
        "properties": "i",
        "reconsume_times": "j",
        "unit_mode": "k",
        "max_reconsume_times": "l",
        "batch": "m",
        "write_alias": "writeAlias",
    },
):
    """Ext fields of a send with one-letter names. Their meaning is that of `headers.SendMessageHeader`."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    user_flag: Int32
    properties: str = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False
    idempotent: bool = False
    write_alias: Int32 | None = None


class SendV2(msgspec.Struct, frozen=True, gc=False):
    """A whole request of code 310, 320 or 325."""

    code: Int32
    opaque: Int32
    ext: SendV2Fields = msgspec.field(name="extFields")
    flag: Int32 = 0
    version: Int32 = 0
    language: str = "JAVA"

    @property
    def is_oneway(self) -> bool:
        """True if the request must not be answered."""
        return bool(self.flag & FLAG_ONEWAY)


class PullFields(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Ext fields of a pull. Their meaning is that of `headers.PullMessageHeader`."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    sub_version: Int64
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int32 = 0
    roles: str | None = None
    topic_created: Int64 | None = None


class Pull(msgspec.Struct, frozen=True, gc=False):
    """A whole request of code 11 or 361."""

    code: Int32
    opaque: Int32
    ext: PullFields = msgspec.field(name="extFields")
    flag: Int32 = 0
    version: Int32 = 0
    language: str = "JAVA"

    @property
    def is_oneway(self) -> bool:
        """True if the request must not be answered."""
        return bool(self.flag & FLAG_ONEWAY)


_decode_send: Final = msgspec.json.Decoder(SendV2, strict=False).decode
_decode_pull: Final = msgspec.json.Decoder(Pull, strict=False).decode
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode_send_v2_json(header: Buffer) -> SendV2 | None:
    """Decode a send with one-letter fields from its JSON header, whose code the caller has checked.

    Returns None if the header does not fit `SendV2`.
    """
    try:
        return _decode_send(header)
    except _UNREADABLE:
        return None


def decode_pull_json(header: Buffer) -> Pull | None:
    """Decode a pull from its JSON header, whose code the caller has checked.

    Returns None if the header does not fit `Pull`.
    """
    try:
        return _decode_pull(header)
    except _UNREADABLE:
        return None


_PREFIX: Final = Struct(">II").pack
_BINARY_FLAG: Final = SerializeType.ROCKETMQ << 24
_LENGTH: Final = Struct(">i").pack
_BINARY_HEAD: Final = Struct(">hbhii").pack
_KEY_LENGTH: Final = Struct(">h").pack
_escape: Final = msgspec.json.Encoder().encode

_SEND_JSON: Final = (
    b'{"code":%%d,"extFields":{"msgId":"%%b","queueId":"%%d","queueOffset":"%%d"%%b},"flag":1,"language":"JAVA",'
    b'"opaque":%%d%%b,"serializeTypeCurrentRPC":"JSON","version":%d}' % PROTOCOL_VERSION
)
_STORED_JSON: Final = (
    b'{"code":0,"extFields":{"msgId":"%%b%%016X","queueId":"%%d","queueOffset":"%%d","transactionId":"%%b"%%b},"flag":1,'
    b'"language":"JAVA","opaque":%%d,"serializeTypeCurrentRPC":"JSON","version":%d}' % PROTOCOL_VERSION
)
_TRACE_SWITCH: Final = [(MSG_REGION.encode(), DEFAULT_REGION.encode()), (TRACE_ON.encode(), b"true")]
_REMEMBERED: Final[dict[bool | None, list[tuple[bytes, bytes]]]] = {
    None: [],
    True: [(b"remembered", b"true")],
    False: [(b"remembered", b"false")],
}
_REPEATED: Final = (b"repeated", b"true")
_REMEMBERED_JSON: Final[dict[bool | None, bytes]] = {
    remembered: b"".join([b',"%b":"%b"' % field for field in fields]) for remembered, fields in _REMEMBERED.items()
}
_REPEATED_JSON: Final = b',"%b":"%b"' % _REPEATED
_TRACE_SWITCH_JSON: Final = b"".join([b',"%b":"%b"' % field for field in _TRACE_SWITCH])
_PULL_JSON: Final = (
    b'{"code":%%d,"extFields":{"maxOffset":"%%d","minOffset":"%%d","nextBeginOffset":"%%d",'
    b'"suggestWhichBrokerId":"%%d"},"flag":1,"language":"JAVA","opaque":%%d%%b,'
    b'"serializeTypeCurrentRPC":"JSON","version":%d}' % PROTOCOL_VERSION
)


def stored_response_frame(
    opaque: int,
    id_prefix: bytes,
    position: int,
    queue_id: int,
    queue_offset: int,
    unique_key: bytes,
    remembered: bool | None = None,
) -> bytes:
    """Return the frame that `send_response_frame` returns for one stored message with a unique key, to a JSON client.

    `id_prefix` and the physical offset `position` make the offset message id (`ids.offset_message_id_prefix`).
    """
    if not unique_key.isalnum():
        message_id = b"%b%016X" % (id_prefix, position)
        return send_response_frame(opaque, message_id, queue_id, queue_offset, unique_key, remembered=remembered)
    remembered_json = _REMEMBERED_JSON[remembered]
    header = _STORED_JSON % (id_prefix, position, queue_id, queue_offset, unique_key, remembered_json, opaque)
    size = len(header)
    return _PREFIX(size + 4, size) + header


def send_response_frame(
    opaque: int,
    msg_id: bytes,
    queue_id: int,
    queue_offset: int,
    transaction_id: bytes = b"",
    code: int = ResponseCode.SUCCESS,
    remark: str | None = None,
    serialize_type: int = SerializeType.JSON,
    recall_handle: bytes = b"",
    *,
    remembered: bool | None = None,
    repeated: bool = False,
    with_trace_switch: bool = False,
) -> bytes:
    """Return the frame that answers a stored message.

    `msg_id` is the offset message id in ASCII. `transaction_id` is the message's unique key as its properties hold it,
    a client's text of any content. `recall_handle` is Base64. Both are left out when empty. Codes 10, 11 and 12 also
    mean "stored". Only clients that ask for idempotent sends get `remembered` and `repeated`
    (`SendMessageResponseHeader`). `with_trace_switch` adds the fields without which RocketMQ's Go client does not trace
    a send.
    """
    if serialize_type == SerializeType.ROCKETMQ:
        fields = [(b"msgId", msg_id), (b"queueId", b"%d" % queue_id), (b"queueOffset", b"%d" % queue_offset)]
        if transaction_id:
            fields.append((b"transactionId", transaction_id))
        if recall_handle:
            fields.append((b"recallHandle", recall_handle))
        fields += _REMEMBERED[remembered]
        if repeated:
            fields.append(_REPEATED)
        if with_trace_switch:
            fields += _TRACE_SWITCH
        return _binary_frame(code, opaque, remark, fields, 0)
    if not transaction_id:
        extra = b""
    elif transaction_id.isalnum():
        extra = b',"transactionId":"%b"' % transaction_id
    else:
        extra = b',"transactionId":%b' % _escape(transaction_id.decode(errors="replace"))
    if recall_handle:
        extra += b',"recallHandle":"%b"' % recall_handle
    extra += _REMEMBERED_JSON[remembered]
    if repeated:
        extra += _REPEATED_JSON
    if with_trace_switch:
        extra += _TRACE_SWITCH_JSON
    note = b',"remark":%b' % _escape(remark) if remark else b""
    header = _SEND_JSON % (code, msg_id, queue_id, queue_offset, extra, opaque, note)
    size = len(header)
    return _PREFIX(size + 4, size) + header


def pull_response_head(
    opaque: int,
    code: int,
    next_begin_offset: int,
    min_offset: int,
    max_offset: int,
    suggest_broker_id: int = 0,
    body_bytes: int = 0,
    remark: str | None = None,
    serialize_type: int = SerializeType.JSON,
) -> bytes:
    """Return a pull's answer up to its body. The caller writes the `body_bytes` bytes of the body right behind it."""
    if serialize_type == SerializeType.ROCKETMQ:
        fields = [
            (b"maxOffset", b"%d" % max_offset),
            (b"minOffset", b"%d" % min_offset),
            (b"nextBeginOffset", b"%d" % next_begin_offset),
            (b"suggestWhichBrokerId", b"%d" % suggest_broker_id),
        ]
        return _binary_frame(code, opaque, remark, fields, body_bytes)
    note = _remark_json(remark) if remark else b""
    header = _PULL_JSON % (code, max_offset, min_offset, next_begin_offset, suggest_broker_id, opaque, note)
    size = len(header)
    return _PREFIX(size + 4 + body_bytes, size) + header


@lru_cache(maxsize=64)
def _remark_json(remark: str) -> bytes:
    return b',"remark":%b' % _escape(remark)


def _binary_frame(
    code: int, opaque: int, remark: str | None, fields: list[tuple[bytes, bytes]], body_bytes: int
) -> bytes:
    ext = b"".join([_KEY_LENGTH(len(key)) + key + _LENGTH(len(value)) + value for key, value in fields])
    note = (remark or "").encode()
    head = _BINARY_HEAD(code, LanguageCode.JAVA, PROTOCOL_VERSION, opaque, FLAG_RESPONSE)
    header = b"".join((head, _LENGTH(len(note)), note, _LENGTH(len(ext)), ext))
    size = len(header)
    return _PREFIX(size + 4 + body_bytes, _BINARY_FLAG | size) + header

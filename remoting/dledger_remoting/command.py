"""One request or response: its header is decoded into plain fields, its ext fields stay texts.

JSON header: keys `code`, `language` (name), `version`, `opaque`, `flag` (bit 0 response, bit 1 oneway), `remark`,
`extFields`. Values of `extFields` are read as strings, numbers, booleans or null. They are always written as strings:
C++ clients ignore other values, and Go clients refuse them.

Binary header, integers big-endian:

| bytes | field |
|---|---|
| 2 | code |
| 1 | language |
| 2 | version |
| 4 | opaque |
| 4 | flag |
| 4 + n | remark, length 0 = none |
| 4 + n | ext entries: key length 2, key, value length 4, value, until the length is used up |

Bytes of the header's texts that are not UTF-8 become U+FFFD, as in Java.

Format: RocketMQ's remoting protocol, serializers JSON and ROCKETMQ.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from struct import Struct
from typing import Final, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from .codes import PROTOCOL_VERSION, LanguageCode
from .errors import FrameError
from .frame import Frame, SerializeType, frame_prefix
from .integers import Int32

UNCOPIED_BYTES: Final = 64 << 10
"""Minimum size of a body that is not copied into the frame of an answer, in bytes."""
MAX_MENDED_BYTES: Final = 128 << 10
"""Maximum size, in bytes, of a header that is not JSON and is corrected, so that it is read as Java reads it."""
FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2

_MAX_INT16: Final = 2**15 - 1

_ExtValue: TypeAlias = str | int | float | bool | None


class RemotingCommand(msgspec.Struct, gc=False):
    """A request or a response. `ext` holds header fields by their names on the wire; `headers` gives them types."""

    code: int
    opaque: int = 0
    flag: int = 0
    language: LanguageCode = LanguageCode.JAVA
    version: int = PROTOCOL_VERSION
    remark: str | None = None
    ext: dict[str, str] = msgspec.field(default_factory=dict)
    body: bytes = b""
    serialize_type: int = SerializeType.JSON

    @property
    def is_response(self) -> bool:
        """True for a response, False for a request."""
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """True for a request that must not be answered."""
        return self.flag & (FLAG_ONEWAY | FLAG_RESPONSE) == FLAG_ONEWAY


class _JsonHeaderIn(msgspec.Struct, gc=False):
    code: Int32
    opaque: Int32 = 0
    flag: Int32 = 0
    language: str | int | None = None
    version: Int32 | None = 0
    remark: str | None = None
    extFields: dict[str, _ExtValue] | None = None  # noqa: N815 (wire name)


class _JsonHeaderOut(msgspec.Struct, gc=False, omit_defaults=True):
    """The JSON header as it is written, with its fields in the alphabetical order that Java uses."""

    code: int
    extFields: dict[str, str] | UnsetType  # noqa: N815 (wire name)
    flag: int
    language: str
    opaque: int
    remark: str | UnsetType
    serializeTypeCurrentRPC: str  # noqa: N815 (wire name)
    version: int


_decode_json: Final = msgspec.json.Decoder(_JsonHeaderIn, strict=False).decode
_encode_json: Final = msgspec.json.Encoder().encode

_BINARY_HEAD: Final = Struct(">hbhii")
_INT32_FIELD: Final = Struct(">i")
_INT16_FIELD: Final = Struct(">h")


def decode_command(frame: Frame) -> RemotingCommand:
    """Decode the command in a frame, of either serializer. Raises `FrameError` if the header cannot be read."""
    if frame.serialize_type == SerializeType.JSON:
        return _decode_json_header(frame.header, frame.body)
    if frame.serialize_type == SerializeType.ROCKETMQ:
        try:
            return _decode_binary_header(frame.header, frame.body)
        except struct.error as error:
            raise FrameError(f"binary header cannot be read: {error}") from error
    raise FrameError(f"serialize type {frame.serialize_type} is neither 0 (JSON) nor 1 (binary)")


def encode_command(command: RemotingCommand) -> bytes:
    """Encode a command as a frame, with the serializer that it names.

    A code that does not fit the binary header's 16 bits is written with the JSON header. Raises `FrameError` if the
    frame is larger than 16 MiB.
    """
    return b"".join(encode_command_parts(command))


def encode_command_parts(command: RemotingCommand) -> tuple[bytes, ...]:
    """Encode as `encode_command` does, but return a body that is too large to copy as a part of its own."""
    if command.serialize_type == SerializeType.ROCKETMQ and -_MAX_INT16 <= command.code <= _MAX_INT16:
        serialize_type, header = SerializeType.ROCKETMQ, encode_binary_header(command)
    else:
        serialize_type, header = SerializeType.JSON, encode_json_header(command)
    body = command.body
    prefix = frame_prefix(serialize_type, len(header), len(body))
    return (prefix + header + body,) if len(body) < UNCOPIED_BYTES else (prefix + header, body)


def make_response(
    request: RemotingCommand,
    code: int,
    remark: str | None = None,
    ext: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> RemotingCommand:
    """Return the response to `request`, with the same opaque and the same serializer."""
    return RemotingCommand(
        code=code,
        opaque=request.opaque,
        flag=FLAG_RESPONSE,
        remark=remark,
        ext=dict(ext) if ext else {},
        body=body,
        serialize_type=request.serialize_type,
    )


def encode_json_header(command: RemotingCommand) -> bytes:
    """Encode the JSON header of a command: compact, fields in Java's order, absent fields left out."""
    return _encode_json(
        _JsonHeaderOut(
            code=command.code,
            extFields=command.ext or UNSET,
            flag=command.flag,
            language=command.language.name,
            opaque=command.opaque,
            remark=UNSET if command.remark is None else command.remark,
            serializeTypeCurrentRPC="JSON",
            version=command.version,
        )
    )


def encode_binary_header(command: RemotingCommand) -> bytes:
    """Encode the binary header of a command whose code fits 16 bits."""
    remark = (command.remark or "").encode()
    entries: list[bytes] = []
    for key, value in command.ext.items():
        key_bytes, value_bytes = key.encode(), value.encode()
        if len(key_bytes) > _MAX_INT16:
            raise FrameError(f"ext field name of {len(key_bytes)} bytes is longer than {_MAX_INT16}")
        entries += (_INT16_FIELD.pack(len(key_bytes)), key_bytes, _INT32_FIELD.pack(len(value_bytes)), value_bytes)
    ext = b"".join(entries)
    head = _BINARY_HEAD.pack(command.code, command.language, command.version, command.opaque, command.flag)
    return b"".join((head, _INT32_FIELD.pack(len(remark)), remark, _INT32_FIELD.pack(len(ext)), ext))


def _decode_json_header(header: bytes, body: bytes) -> RemotingCommand:
    try:
        try:
            parsed = _decode_json(header)
        except msgspec.DecodeError as error:
            if isinstance(error, msgspec.ValidationError) or len(header) > MAX_MENDED_BYTES:
                raise
            parsed = _decode_json(_mend_json(header))
    except (ValueError, RecursionError) as error:
        raise FrameError(f"JSON header cannot be read: {error}") from error
    return RemotingCommand(
        parsed.code,
        parsed.opaque,
        parsed.flag,
        LanguageCode.from_wire(parsed.language),
        parsed.version or 0,
        parsed.remark,
        {
            key: value if type(value) is str else _ext_text(value)
            for key, value in parsed.extFields.items()
            if value is not None
        }
        if parsed.extFields
        else {},
        body,
        SerializeType.JSON,
    )


def _mend_json(header: bytes) -> bytes:
    """Turn a header that is not JSON, but that Java can read, into JSON.

    Java accepts bare control characters and halves of surrogate pairs; the halves become `?`. Clients in JavaScript
    write them when a text was cut within an emoji.
    """
    return json.dumps(json.loads(header.decode(), strict=False), ensure_ascii=False).encode(errors="replace")


def _ext_text(value: str | float | bool) -> str:
    """Return an ext value in the form of its text: decimal digits, `true` or `false`."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return str(int(value)) if value.is_integer() else str(value)


def _decode_binary_header(header: bytes, body: bytes) -> RemotingCommand:
    code, language, version, opaque, flag = _BINARY_HEAD.unpack_from(header)
    remark, position = _read_part(header, _BINARY_HEAD.size, _INT32_FIELD)
    fields, _ = _read_part(header, position, _INT32_FIELD)
    ext: dict[str, str] = {}
    position = 0
    while position < len(fields):
        key, position = _read_part(fields, position, _INT16_FIELD)
        value, position = _read_part(fields, position, _INT32_FIELD)
        ext[key.decode(errors="replace")] = value.decode(errors="replace")
    return RemotingCommand(
        code,
        opaque,
        flag,
        LanguageCode.from_wire(language),
        version,
        remark.decode(errors="replace") if remark else None,
        ext,
        body,
        SerializeType.ROCKETMQ,
    )


def _read_part(data: bytes, position: int, length_field: Struct) -> tuple[bytes, int]:
    """Return the bytes after a length field at `position`, and the position behind them."""
    (length,) = length_field.unpack_from(data, position)
    start = position + length_field.size
    if length < 0 or length > len(data) - start:
        raise FrameError(f"binary header cannot be read: length {length} at byte {position} exceeds the header")
    return data[start : start + length], start + length

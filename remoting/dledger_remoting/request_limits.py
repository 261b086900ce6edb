"""Limits of a request's header, checked on its bytes before anything of it is decoded.

A header's cost depends on the number of its fields, not on its bytes. A header of 16 MiB holds more than a million
fields, which take seconds of a core. Headers of RocketMQ's clients have at most 30 fields. Their longest text is the
properties of a message; a server refuses these with 13 beyond 32,767 bytes. Both limits are wide enough for properties
that are too long.

A request beyond a limit is answered without being decoded. This works because every client writes code and number at an
end of the header, before or behind the ext fields. A header that has neither there closes its connection.
"""

from __future__ import annotations

import re
import struct
from itertools import islice
from struct import Struct
from typing import Final

from .codes import PROTOCOL_VERSION, LanguageCode
from .command import RemotingCommand
from .frame import SerializeType

MAX_REQUEST_HEADER_BYTES: Final = 256 << 10
MAX_EXT_FIELDS: Final = 256

SMALL_HEADER_BYTES: Final = 5 * MAX_EXT_FIELDS
"""Maximum size of a header that cannot have too many fields, in bytes: the shortest field takes five bytes, `"":0,`."""

_TOP_FIELDS: Final = 16
"""Maximum number of fields of a JSON header beside the ext fields."""
_END_BYTES: Final = 512
"""Size of each end of a JSON header in which code and number are searched, in bytes."""
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"\s*+(:)?)?', re.DOTALL)
"""A string, and the colon behind it if it is a name.

A string without an end reaches to the end of the text, so that a search takes linear time.
"""
_EXT: Final = b'"extFields"'
_NUMBERS: Final = {
    name: re.compile(rb'[{,]\s*"%b"\s*:\s*"?(-?\d{1,10})\b' % name) for name in (b"code", b"opaque", b"flag")
}
_BINARY_HEAD: Final = Struct(">hbhii")
_LENGTH: Final = Struct(">i")
_KEY_LENGTH: Final = Struct(">h")


def header_fault(serialize_type: int, header: bytes) -> str:
    """Describe the limit that a header breaks. Returns an empty text if it breaks none, or cannot be read at all."""
    size = len(header)
    if size <= SMALL_HEADER_BYTES:
        return ""
    if size > MAX_REQUEST_HEADER_BYTES:
        return f"the header has {size} bytes, the limit is {MAX_REQUEST_HEADER_BYTES}: send shorter fields"
    if serialize_type == SerializeType.JSON:
        has_many = _has_many_json_fields(header)
    else:
        has_many = _has_many_binary_fields(header)
    return f"the header has more than {MAX_EXT_FIELDS} ext fields: send fewer" if has_many else ""


def undecoded(serialize_type: int, header: bytes) -> RemotingCommand | None:
    """Return code, number and flags of a request from the ends of its header; None if they are not there."""
    if serialize_type != SerializeType.JSON:
        if len(header) < _BINARY_HEAD.size:
            return None
        code, _, _, opaque, flag = _BINARY_HEAD.unpack_from(header)
        return _command(code, opaque, flag, serialize_type)
    before, _, behind = header[:_END_BYTES].partition(_EXT)
    last = header[-_END_BYTES:]
    ends = (before, last[last.rfind(b"}", 0, -1) + 1 :] if behind else b"")
    matches = {
        name: next(filter(None, (number.search(end) for end in ends)), None) for name, number in _NUMBERS.items()
    }
    code, opaque, flags = matches[b"code"], matches[b"opaque"], matches[b"flag"]
    if code is None or opaque is None:
        return None
    return _command(int(code[1]), int(opaque[1]), int(flags[1]) if flags else 0, serialize_type)


def _command(code: int, opaque: int, flag: int, serialize_type: int) -> RemotingCommand:
    return RemotingCommand(code, opaque, flag, LanguageCode.JAVA, PROTOCOL_VERSION, serialize_type=serialize_type)


def _has_many_json_fields(header: bytes) -> bool:
    most = MAX_EXT_FIELDS + _TOP_FIELDS
    if header.count(b":") <= most:
        return False  # each field has a colon, and texts may have more
    names = (match for match in _STRING.finditer(header) if match[1])
    return next(islice(names, most, None), None) is not None


def _has_many_binary_fields(header: bytes) -> bool:
    end = len(header)
    try:
        remark_bytes = int(_LENGTH.unpack_from(header, _BINARY_HEAD.size)[0])
        position = _BINARY_HEAD.size + 2 * _LENGTH.size + max(0, remark_bytes)
        for _ in range(MAX_EXT_FIELDS + 1):
            for length_field in (_KEY_LENGTH, _LENGTH):
                length = int(length_field.unpack_from(header, position)[0])
                position += length_field.size + max(0, length)
    except struct.error:
        return False
    return position <= end

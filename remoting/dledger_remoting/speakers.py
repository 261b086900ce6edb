"""Detection of the peer on a connection, from the first bytes that it sends.

A wrong port is the most common mistake in an address: the HTTP port of a node, its peer port, a port with TLS. Each of
them sends bytes that are not a frame, or a frame of another protocol. A user can correct the address at once if the
error names the protocol that answers. Both directions are recognised: a server's answers, and a client's first bytes.

| first bytes | speaker |
|---|---|
| a frame of this protocol, see `frame`, with a JSON header or one of at least 21 bytes in binary | `REMOTING` |
| a frame of type 1 without a body, its header a MessagePack array of a number and 32 bytes | `PEER`: a greeting |
| `HTTP/`, or a method and a blank, or a page of HTML, as some answer what is no request | `HTTP` |
| a SETTINGS frame, or `PRI * HTTP/2` | `HTTP2`, which gRPC uses |
| a record of type 20 to 23, version 3.x | `TLS` |
| `SSH-` | `SSH` |
| anything else | `OTHER` |
"""

from __future__ import annotations

from enum import Enum
from struct import Struct
from typing import Final

from .errors import FrameError
from .frame import MAX_FRAME_BYTES, PREFIX_BYTES, SerializeType

ENOUGH_BYTES: Final = 12
"""Number of bytes with which `speaker_of` always has a verdict."""

CLOSES_UNHEARD: Final = "says nothing, and closes the connection when it is spoken to, as a TLS port does"
"""Description of a server that closes connections before it sends a byte. Most TLS servers do so, without an alert."""

TLS_ALERT: Final = bytes.fromhex("15030300020246")
"""Answer of OpenSSL to a peer that speaks no TLS: a fatal alert, `protocol_version`.

A client that speaks TLS to a plain port gets the same alert, because its library can explain it.
"""

_PREFIX: Final = Struct(">II")
_TLS_RECORDS: Final = range(20, 24)
_TLS_MAJOR: Final = 3
_SETTINGS: Final = b"\x04\x00\x00\x00\x00\x00"
"""Type, flags and stream of the frame with which HTTP/2 begins, after three bytes of length."""
_GREETING_TAGS: Final = (0x92, 0xC4, 0x20)
"""MessagePack: an array of two, and, after the protocol's version, 32 bytes."""
_MIN_BINARY_HEADER_BYTES: Final = 21


class Speaker(Enum):
    """Kind of peer at the other end. The value describes it for people."""

    REMOTING = "a broker or name server"
    BROKER = "a broker"
    """Never detected from bytes, but from requests that a server of this protocol does not know."""
    PEER = "the peer port of a node, whose client port is one lower"
    HTTP = "an HTTP server"
    HTTP2 = "an HTTP/2 or gRPC server"
    TLS = "a TLS server"
    SSH = "an SSH server"
    OTHER = "a server of another protocol"


_BEGINNINGS: Final = (
    (b"HTTP/", Speaker.HTTP),
    *((f"{method} ".encode(), Speaker.HTTP) for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "PATCH")),
    *((beginning, Speaker.HTTP) for beginning in (b"<!DOCTYPE", b"<html")),
    (b"PRI * HTTP/2", Speaker.HTTP2),
    (b"SSH-", Speaker.SSH),
)


def speaker_of(first: bytes) -> Speaker | None:
    """Return the peer that sent these first bytes of a connection; None while there are too few bytes to decide."""
    for beginning, speaker in _BEGINNINGS:
        if first.startswith(beginning):
            return speaker
    if len(first) > 1 and first[0] in _TLS_RECORDS and first[1] == _TLS_MAJOR:
        return Speaker.TLS
    if len(first) < ENOUGH_BYTES:
        return None
    if first[3:9] == _SETTINGS:
        return Speaker.HTTP2
    return _speaker_of_frame(first)


def tls_refusal(first: bytes) -> FrameError | None:
    """Return the error for a client that begins with these bytes on a plain port, if it speaks TLS."""
    if speaker_of(first) is not Speaker.TLS:
        return None
    return FrameError("it speaks TLS, which is off on this port: set tls here, or turn it off there")


def _speaker_of_frame(first: bytes) -> Speaker:
    total, word = _PREFIX.unpack_from(first)
    header_bytes = word & 0xFFFFFF
    if not 4 <= total <= MAX_FRAME_BYTES or word >> 24 > SerializeType.ROCKETMQ or header_bytes > total - 4:
        return Speaker.OTHER
    if word >> 24 == SerializeType.JSON:
        return Speaker.REMOTING if first[PREFIX_BYTES] == ord("{") else Speaker.OTHER
    if total == 4 + header_bytes and (first[8], first[10], first[11]) == _GREETING_TAGS:
        return Speaker.PEER
    return Speaker.REMOTING if header_bytes >= _MIN_BINARY_HEADER_BYTES else Speaker.OTHER

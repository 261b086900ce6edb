"""Recognition of strangers: the protocol at the other end of a peer connection that is not a node of this group.

A node that was dialled speaks first. Most other servers wait for the client to speak. So a dialler that has received
nothing asks a last question, `QUESTION`: a request of RocketMQ's protocol that contains an end of line. Each of the
servers below answers it in a recognizable way. The first bytes of a client that dials a wrong port show its protocol as
well.

| first bytes | stranger |
|---|---|
| `HTTP/`, a method and a blank, `<!DOCTYPE`, `<html` | HTTP |
| a SETTINGS frame, or `PRI * HTTP/2` | HTTP/2, which gRPC uses |
| a record of type 20 to 23, version 3.x | TLS |
| `SSH-` | SSH |
| a frame with a JSON header | RocketMQ's protocol, which brokers and name servers speak on their client ports |
"""

from __future__ import annotations

from struct import Struct
from typing import Final

QUESTION_HEADER: Final = b'{"code":106,"language":"PYTHON","opaque":1,\r\n\r\n"version":479}'
"""Header of GET_BROKER_CLUSTER_INFO. A name server answers it, a broker refuses it, and it has no effect on either."""

_PREFIX: Final = Struct(">II")
QUESTION: Final = _PREFIX.pack(4 + len(QUESTION_HEADER), len(QUESTION_HEADER)) + QUESTION_HEADER

TELLING_BYTES: Final = 16
"""Number of first bytes that `protocol_of` uses."""

_HTTP: Final = "HTTP"
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "PATCH")
_BEGINNINGS: Final = (
    *((beginning, _HTTP) for beginning in (b"HTTP/", b"<!DOCTYPE", b"<html")),
    *((f"{method} ".encode(), _HTTP) for method in _METHODS),
    (b"PRI * HTTP/2", "HTTP/2 or gRPC"),
    (b"SSH-", "SSH"),
)
_TLS_RECORDS: Final = range(20, 24)
_TLS_MAJOR: Final = 3
_SETTINGS: Final = b"\x04\x00\x00\x00\x00\x00"
_MAX_FRAME_BYTES: Final = 16 << 20
_REMOTING: Final = "RocketMQ's protocol (a broker's peer port is one above its client port)"


def protocol_of(first: bytes) -> str | None:
    """Return the protocol of a stranger by its first bytes, of which `TELLING_BYTES` are enough; None if unknown."""
    for beginning, protocol in _BEGINNINGS:
        if first.startswith(beginning):
            return protocol
    if len(first) > 1 and first[0] in _TLS_RECORDS and first[1] == _TLS_MAJOR:
        return "TLS"
    if first[3:9] == _SETTINGS:
        return "HTTP/2 or gRPC"
    if len(first) >= _PREFIX.size and _is_remoting(first):
        return _REMOTING
    return None


def _is_remoting(first: bytes) -> bool:
    # the highest byte of `header_bytes` is the serialize type, 0 for JSON
    total, header_bytes = _PREFIX.unpack_from(first)
    return bool(0 < header_bytes <= total - 4 <= _MAX_FRAME_BYTES)

"""Limits of a request's body by its code, checked on its bytes before rights are checked and before it is decoded.

A body in JSON costs by its values, not by its bytes: 16 MiB hold eight million of them. It has at most as many values
as commas and opening brackets. Bodies of messages are not JSON. Their size is checked where they are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from dledger_remoting.codes import RequestCode, request_code_name
from dledger_remoting.errors import BodyError
from dledger_remoting.request_limits import MAX_REQUEST_HEADER_BYTES

KIB: Final = 1 << 10
MIB: Final = 1 << 20


class BodyLimit(NamedTuple):
    """Maximum size in bytes and maximum number of values of a body. Errors name it by `name`, or by its code."""

    size: int
    values: int
    name: str = ""


DEFAULT: Final = BodyLimit(64 * KIB, 4_096)
"""Limit for every code that is not named below. Most of these have no body."""
MAX_HEARTBEAT_BYTES: Final = 1 << 20
"""Maximum size in bytes: room for thousands of subscriptions. A node reports a client's heartbeat to the leader in one
message.
"""
_LISTS: Final = BodyLimit(MIB, 16_384)
"""Limit of about as many topics, groups or rules as fit into a change of the group's state."""
_BY_CODE: Final[Mapping[int, BodyLimit | None]] = {
    RequestCode.SEND_MESSAGE: None,
    RequestCode.SEND_MESSAGE_V2: None,
    RequestCode.SEND_BATCH_MESSAGE: None,
    RequestCode.SEND_REPLY_MESSAGE: None,
    RequestCode.SEND_REPLY_MESSAGE_V2: None,
    RequestCode.HEART_BEAT: BodyLimit(MAX_HEARTBEAT_BYTES, 16_384, "heartbeat"),
    RequestCode.LOCK_BATCH_MQ: BodyLimit(2 * MIB, 32_768, "queue locks"),
    RequestCode.UNLOCK_BATCH_MQ: BodyLimit(2 * MIB, 32_768, "queue locks"),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: _LISTS,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP_LIST: _LISTS,
    RequestCode.AUTH_CREATE_ACL: _LISTS,
    RequestCode.AUTH_UPDATE_ACL: _LISTS,
    RequestCode.BATCH_ACK_MESSAGE: BodyLimit(MIB, 16_384, "batch ack"),
}


def require_bounded(code: int, body: bytes) -> None:
    """Raise `BodyError` for a body beyond a limit of its code."""
    size = len(body)
    if size <= _SMALL_BYTES:
        return
    limit = _BY_CODE.get(code, DEFAULT)
    if limit is None:
        return
    what = limit.name or request_code_name(code)
    if size > limit.size:
        raise BodyError(f"{what} body: {size} bytes, the limit is {limit.size}")
    values = body.count(b",") + body.count(b"{") + body.count(b"[")
    if values > limit.values:
        raise BodyError(f"{what} body: up to {values} values, the limit is {limit.values}: send fewer at once")


def stranger_frame_bytes(code: int) -> int | None:
    """Return the maximum size of a frame of a code from a client that has signed nothing yet. None: as for any
    frame.
    """
    if code not in _BY_CODE:
        return STRANGER_BYTES
    limit = _BY_CODE[code]
    return None if limit is None else limit.size + MAX_REQUEST_HEADER_BYTES


STRANGER_BYTES: Final = 64 * KIB
"""Maximum size in bytes of a stranger's frame whose code has no large body. A stranger is a client that has signed
nothing yet.
"""

_SMALL_BYTES: Final = DEFAULT.values
"""Size in bytes up to which no body breaks a limit."""

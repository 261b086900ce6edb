"""Formats in which `consume` and `message get` show a message: kcat's format strings, and JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import msgspec

from dledger_client import ReceivedMessage

from ..errors import AdminError


def _properties(message: ReceivedMessage) -> bytes:
    return ",".join(f"{name}={value}" for name, value in message.properties.items()).encode()


TOKENS: Mapping[str, tuple[str, Callable[[ReceivedMessage], bytes]]] = {
    "s": ("body", lambda message: message.body),
    "S": ("length of the body in bytes", lambda message: b"%d" % len(message.body)),
    "k": ("keys, separated by spaces", lambda message: " ".join(message.keys).encode()),
    "g": ("tag", lambda message: (message.tags or "").encode()),
    "t": ("topic", lambda message: message.topic.encode()),
    "b": ("broker group", lambda message: message.queue.broker_group.encode()),
    "p": ("queue id", lambda message: b"%d" % message.queue_id),
    "o": ("queue offset", lambda message: b"%d" % message.queue_offset),
    "T": ("time stored, in ms since 1970", lambda message: b"%d" % message.stored_timestamp_ms),
    "h": ("properties, name=value,...", _properties),
    "i": ("message id (the unique key)", lambda message: message.message_id.encode()),
    "%": ("a percent sign", lambda _: b"%"),
}
"""Token to meaning and value; kcat's letters where it has one."""

_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_PIECE = re.compile(r"%(.)|\\(.)|([^%\\]+)", re.DOTALL)


class MessageView(msgspec.Struct, frozen=True):
    """A message as JSON. `body` is text if it is UTF-8, else null, and then `body_base64` is there."""

    topic: str
    broker_group: str
    queue_id: int
    queue_offset: int
    message_id: str
    offset_message_id: str
    keys: tuple[str, ...]
    tag: str | None
    properties: Mapping[str, str]
    born_timestamp_ms: int
    stored_timestamp_ms: int
    reconsume_times: int
    body: str | None
    body_base64: bytes | None = None


def view(message: ReceivedMessage) -> MessageView:
    """Return a message as JSON shows it."""
    try:
        text: str | None = message.body.decode()
    except UnicodeDecodeError:
        text = None
    return MessageView(
        message.topic,
        message.queue.broker_group,
        message.queue_id,
        message.queue_offset,
        message.message_id,
        message.offset_message_id,
        message.keys,
        message.tags,
        message.properties,
        message.born_timestamp_ms,
        message.stored_timestamp_ms,
        message.reconsume_times,
        text,
        message.body if text is None else None,
    )


def formatter(pattern: str) -> Callable[[ReceivedMessage], bytes]:
    r"""Return what shows a message by a format string such as `%k\t%s\n`; raises `AdminError` for an unknown token."""
    parts: list[bytes | Callable[[ReceivedMessage], bytes]] = []
    end = 0
    for match in _PIECE.finditer(pattern):
        token, escape, plain = match.groups()
        if token is not None and token in TOKENS:
            parts.append(TOKENS[token][1])
        elif escape is not None and escape in _ESCAPES:
            parts.append(_ESCAPES[escape])
        elif plain is not None:
            parts.append(plain.encode())
        else:
            break
        end = match.end()
    if end < len(pattern):
        known = ", ".join(f"%{token} {meaning}" for token, (meaning, _) in TOKENS.items())
        raise AdminError(
            f"--format {pattern!r}: {pattern[end : end + 2]!r} means nothing; known are {known}, \\n, \\t, \\r"
        )
    return lambda message: b"".join(part if isinstance(part, bytes) else part(message) for part in parts)


def json_line(message: ReceivedMessage) -> bytes:
    """Return a message as one line of JSON."""
    return msgspec.json.encode(view(message)) + b"\n"

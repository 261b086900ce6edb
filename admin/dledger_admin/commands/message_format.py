"""Formats in which commands show a message, and `produce` reads one: kcat's strings, text, and JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

import msgspec

from dledger_client import ReceivedMessage

from ..errors import WrongUsageError


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


def render(one: MessageView, place: str, more: Sequence[str] = ()) -> str:
    """Return a message for people: where it is, what is known of it, with `more` lines, and its body."""
    body = one.body if one.body is not None else f"{len(one.body_base64 or b'')} bytes that are not UTF-8"
    lines = [
        place,
        f"  offset id   {one.offset_message_id}",
        f"  unique key  {one.message_id}",
        f"  keys        {' '.join(one.keys) or '-'}",
        f"  tag         {one.tag or '-'}",
        f"  stored      {_time(one.stored_timestamp_ms)}",
        f"  born        {_time(one.born_timestamp_ms)}",
        *more,
        f"  body        {body}",
    ]
    return "\n".join(lines)


def _time(ms: int) -> str:
    try:
        readable = datetime.fromtimestamp(ms / 1000, tz=UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # a producer may have sent any number
        return f"{ms} ms since 1970"
    return f"{readable} ({ms} ms since 1970)"


def formatter(pattern: str) -> Callable[[ReceivedMessage], bytes]:
    r"""Return what shows a message by a format string such as `%k\t%s\n`. Raises `WrongUsageError`."""
    parts = [TOKENS[part][1] if isinstance(part, str) else part for part in _parts(pattern)]
    return lambda message: b"".join(part if isinstance(part, bytes) else part(message) for part in parts)


def keyed(delimiter: str) -> Callable[[ReceivedMessage], bytes]:
    """Return what shows a message as a line of its keys and its body, with something between."""
    keys, between = TOKENS["k"][1], delimiter.encode()
    return lambda message: keys(message) + between + message.body + b"\n"


class Line(NamedTuple):
    """What of a message a line of input holds; the others are None."""

    body: bytes
    key: bytes | None = None
    tag: bytes | None = None


def line_reader(pattern: str) -> Callable[[bytes], Line | None]:
    r"""Return what takes a line, without its end, apart by a format string such as `%k\t%s`, None if it does not fit.

    What stands between two tokens ends the first one where it comes first. Raises `WrongUsageError` for a format string
    by which no line can be read.
    """
    parts = _parts(pattern)
    if parts and isinstance(parts[-1], bytes):
        parts[-1] = parts[-1].removesuffix(b"\n")
    tokens = [part for part in parts if isinstance(part, str)]
    joined = any(isinstance(one, str) and isinstance(next_one, str) for one, next_one in pairwise(parts))
    literal = b"".join(part for part in parts if isinstance(part, bytes))
    if len(set(tokens)) < len(tokens) or not {"s"} <= set(tokens) <= set("skg") or joined or b"\n" in literal:
        raise WrongUsageError(
            f"--format {pattern!r}: lines are read by %s body, and %k keys and %g tag if they are there, each once, "
            "with something other than a line's end between them"
        )
    fields = {"s": "body", "k": "key", "g": "tag"}
    expression = b"".join(
        re.escape(part)
        if isinstance(part, bytes)
        else b"(?P<%s>.*%s)" % (fields[part].encode(), b"" if part == tokens[-1] else b"?")
        for part in parts
    )
    compiled = re.compile(expression, re.DOTALL)

    def read(line: bytes) -> Line | None:
        found = compiled.fullmatch(line)
        return None if found is None else Line(**found.groupdict())

    return read


def _parts(pattern: str) -> list[str | bytes]:
    """Return the tokens of a format string as texts, what stands between them as bytes. Raises `WrongUsageError`."""
    parts: list[str | bytes] = []
    end = 0
    for match in _PIECE.finditer(pattern):
        token, escape, plain = match.groups()
        if match[0] == "%%":
            _add(parts, b"%")
        elif token is not None and token in TOKENS:
            parts.append(token)
        elif escape is not None and escape in _ESCAPES:
            _add(parts, _ESCAPES[escape])
        elif plain is not None:
            _add(parts, plain.encode())
        else:
            break
        end = match.end()
    if end < len(pattern):
        known = ", ".join(f"%{token} {meaning}" for token, (meaning, _) in TOKENS.items())
        raise WrongUsageError(
            f"--format {pattern!r}: {pattern[end : end + 2]!r} means nothing; known are {known}, \\n, \\t, \\r"
        )
    return parts


def _add(parts: list[str | bytes], literal: bytes) -> None:
    """Add what stands between tokens, to what stands there already."""
    if parts and isinstance(parts[-1], bytes):
        parts[-1] += literal
    else:
        parts.append(literal)


def json_line(message: ReceivedMessage) -> bytes:
    """Return a message as one line of JSON."""
    return msgspec.json.encode(view(message)) + b"\n"

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
from ..operations.messages import MessageView, UnreadableView, view


def _format_properties(message: ReceivedMessage) -> bytes:
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
    "h": ("properties, name=value,...", _format_properties),
    "i": ("message id (the unique key)", lambda message: message.message_id.encode()),
    "%": ("a percent sign", lambda _: b"%"),
}
"""Token to meaning and value; kcat's letters where it has one."""

_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_PATTERN_PART = re.compile(r"%(.)|\\(.)|([^%\\]+)", re.DOTALL)


def exit_code(views: Sequence[MessageView]) -> int:
    """Return the exit code of a command that shows messages: 1 if one of them cannot be read."""
    return int(any(isinstance(message_view, UnreadableView) for message_view in views))


def render(message_view: MessageView, place: str, more: Sequence[str] = ()) -> str:
    """Return a message for people: where it is, what is known of it, with `more` lines, and its body."""
    body = message_view.body
    if body is None:
        body = f"{len(message_view.body_base64 or b'')} bytes that are not UTF-8"
    if isinstance(message_view, UnreadableView):
        body = f"cannot be read: {message_view.fault}"
    lines = [
        place,
        f"  offset id   {message_view.offset_message_id}",
        f"  unique key  {message_view.message_id}",
        f"  keys        {' '.join(message_view.keys) or '-'}",
        f"  tag         {message_view.tag or '-'}",
        f"  stored      {_format_time(message_view.stored_timestamp_ms)}",
        f"  born        {_format_time(message_view.born_timestamp_ms)}",
        *more,
        f"  body        {body}",
    ]
    return "\n".join(lines)


def _format_time(ms: int) -> str:
    try:
        readable = datetime.fromtimestamp(ms / 1000, tz=UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # a producer may have sent any number
        return f"{ms} ms since 1970"
    return f"{readable} ({ms} ms since 1970)"


def formatter(pattern: str) -> Callable[[ReceivedMessage], bytes]:
    r"""Return what shows a message by a format string such as `%k\t%s\n`. Raises `WrongUsageError`."""
    parts = [TOKENS[part][1] if isinstance(part, str) else part for part in _parse_pattern(pattern)]
    return lambda message: b"".join(part if isinstance(part, bytes) else part(message) for part in parts)


def keyed(delimiter: str) -> Callable[[ReceivedMessage], bytes]:
    """Return what shows a message as a line of its keys and its body, with something between."""
    keys, separator = TOKENS["k"][1], delimiter.encode()
    return lambda message: keys(message) + separator + message.body + b"\n"


class Line(NamedTuple):
    """The parts of a message that a line of input holds; the others are None."""

    body: bytes
    key: bytes | None = None
    tag: bytes | None = None


def line_reader(pattern: str) -> Callable[[bytes], Line | None]:
    r"""Return a function that splits a line by a format string such as `%k\t%s`.

    The function returns None if the line does not fit. The line has no line end. Text between two tokens ends the first
    token where it first occurs. Raises `WrongUsageError` for a format string by which no line can be read.
    """
    parts = _parse_pattern(pattern)
    if parts and isinstance(parts[-1], bytes):
        parts[-1] = parts[-1].removesuffix(b"\n")
    tokens = [part for part in parts if isinstance(part, str)]
    has_adjacent_tokens = any(
        isinstance(former, str) and isinstance(following, str) for former, following in pairwise(parts)
    )
    literal = b"".join(part for part in parts if isinstance(part, bytes))
    if (
        len(set(tokens)) < len(tokens)
        or not {"s"} <= set(tokens) <= set("skg")
        or has_adjacent_tokens
        or b"\n" in literal
    ):
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
        match = compiled.fullmatch(line)
        return None if match is None else Line(**match.groupdict())

    return read


def _parse_pattern(pattern: str) -> list[str | bytes]:
    """Return the tokens of a format string as texts, what stands between them as bytes. Raises `WrongUsageError`."""
    parts: list[str | bytes] = []
    end = 0
    for match in _PATTERN_PART.finditer(pattern):
        token, escape, plain = match.groups()
        if match[0] == "%%":
            _add_literal(parts, b"%")
        elif token is not None and token in TOKENS:
            parts.append(token)
        elif escape is not None and escape in _ESCAPES:
            _add_literal(parts, _ESCAPES[escape])
        elif plain is not None:
            _add_literal(parts, plain.encode())
        else:
            break
        end = match.end()
    if end < len(pattern):
        known = ", ".join(f"%{token} {meaning}" for token, (meaning, _) in TOKENS.items())
        raise WrongUsageError(
            f"--format {pattern!r}: {pattern[end : end + 2]!r} means nothing; known are {known}, \\n, \\t, \\r"
        )
    return parts


def _add_literal(parts: list[str | bytes], literal: bytes) -> None:
    """Add what stands between tokens, to what stands there already."""
    if parts and isinstance(parts[-1], bytes):
        parts[-1] += literal
    else:
        parts.append(literal)


def json_line(message: ReceivedMessage) -> bytes:
    """Return a message as one line of JSON."""
    return msgspec.json.encode(view(message)) + b"\n"

"""Requests about messages that wait: delayed ones (20033) and halves of transactions (20034). RocketMQ has neither."""

from __future__ import annotations

from typing import Final

import msgspec

MAX_ROWS: Final = 100
"""Maximum number of messages in an answer."""


class ListDelayedHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Asks for the delayed messages that are due next, behind a due time (ms since 1970) and a position."""

    after_due_ms: int = -1
    after_position: int = -1
    max_rows: int = MAX_ROWS


class DelayedRow(msgspec.Struct, frozen=True, rename="camel"):
    """A delayed message: its topic and queue, when it is due, its unique key, and its record in the log."""

    topic: str
    queue_id: int
    due_ms: int
    unique_key: str
    position: int
    size: int


class DelayedRows(msgspec.Struct, frozen=True):
    """Answer to 20033: the next messages by their due times. `pending` counts all that wait."""

    rows: list[DelayedRow]
    pending: int


class ListHalvesHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Asks for the open halves whose records are behind a position."""

    after_position: int = -1
    max_rows: int = MAX_ROWS


class HalfRow(msgspec.Struct, frozen=True, rename="camel"):
    """An open half: its topic, its producer group, its unique key, when it was born, and its checks.

    `checks` counts those so far; the next one is at `next_check_ms`, in ms since 1970.
    """

    topic: str
    group: str
    unique_key: str
    born_ms: int
    checks: int
    next_check_ms: int
    position: int
    size: int


class HalfRows(msgspec.Struct, frozen=True):
    """Answer to 20034: open halves, the oldest first. `pending` counts all of them."""

    rows: list[HalfRow]
    pending: int

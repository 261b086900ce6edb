"""Delay levels and recall handles of delayed messages.

Messages name a delay by its number in a table of levels, from 1 on. A producer keeps the handle of a message that waits
until it is due, to recall the message.

A handle is URL-safe base64 of five words separated by blanks, as RocketMQ's `RecallMessageHandle` has them:

| word | |
|---|---|
| `v1` | |
| topic | that the message is for |
| broker group | that has it |
| milliseconds | since 1970, one more than when it is due |
| unique key | of the message; the rest of the text, where RocketMQ reads one word |
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

from .errors import IllegalOperation

_VERSION: Final = "v1"
_WORDS: Final = 5
_MAX_DIGITS: Final = 18


class RecallHandle(NamedTuple):
    """Content of a handle; `due_ms` is the time when the message is due, in ms since 1970."""

    topic: str
    broker_group: str
    due_ms: int
    unique_key: str

    def encode(self) -> str:
        """Return the text of the handle."""
        words = (_VERSION, self.topic, self.broker_group, str(self.due_ms + 1), self.unique_key)
        return base64.urlsafe_b64encode(" ".join(words).encode()).decode()

    @classmethod
    def decode(cls, text: str) -> RecallHandle:
        """Decode a handle. The padding of its base64 may be missing. Raises `IllegalOperation`."""
        try:
            padded = text + "=" * (-len(text) % 4)
            words = base64.b64decode(padded, altchars=b"-_", validate=True).decode().split(" ", _WORDS - 1)
        except (binascii.Error, ValueError):
            words = []
        if len(words) != _WORDS or words[0] != _VERSION or not all(words):
            raise IllegalOperation("recall handle is invalid: take the one that the answer to the send had")
        _, topic, broker_group, milliseconds, unique_key = words
        if not (milliseconds.isascii() and milliseconds.isdigit()) or len(milliseconds) > _MAX_DIGITS:
            raise IllegalOperation(f"recall failed, timestamp invalid: {milliseconds[:_MAX_DIGITS]} is no number of ms")
        return cls(topic, broker_group, int(milliseconds) - 1, unique_key)


DEFAULT_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
MAX_LEVELS: Final = 64
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the delays of a table in ms, level 1 first. Raises ValueError that says what is wrong."""
    delays: list[int] = []
    for word in text.split():
        number, unit = word[:-1], word[-1:]
        if unit not in _UNITS_MS or not (number.isascii() and number.isdigit() and int(number)):
            raise ValueError(f"{word!r} is no delay: expected a whole number above 0 and one of s, m, h, d")
        delays.append(int(number) * _UNITS_MS[unit])
    if not 1 <= len(delays) <= MAX_LEVELS:
        raise ValueError(f"{len(delays)} levels, expected 1 to {MAX_LEVELS}")
    return tuple(delays)

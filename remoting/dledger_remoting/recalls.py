"""Recall handles: a producer keeps the handle of a message that waits until it is due, to recall the message.

URL-safe base64 of five words separated by blanks, as RocketMQ's `RecallMessageHandle` has them:

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

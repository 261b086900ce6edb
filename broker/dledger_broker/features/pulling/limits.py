"""Limits of one pull: what an answer holds, and how long it waits for messages."""

from __future__ import annotations

from typing import Final

from dledger_remoting.headers_consume import PULL_SUSPEND
from dledger_remoting.hotpath import PullFields

MAX_ANSWER_BYTES: Final = 256 << 10
"""Most record bytes in one answer, unless a single record is larger."""
MAX_MESSAGES: Final = 1_024
MAX_SUSPEND_S: Final = 60.0
"""A long poll waits no longer, whatever the client says."""
MAX_HELD_BYTES: Final = 64 << 10
"""A larger pull does not wait, because its bytes would wait in memory."""


def max_messages(fields: PullFields) -> int:
    """How many messages a pull gets at most, one at least."""
    return max(1, min(fields.max_msg_nums, MAX_MESSAGES))


def max_bytes(fields: PullFields) -> int:
    """How many bytes of records a pull gets at most, unless a single record is larger."""
    return min(fields.max_msg_bytes, MAX_ANSWER_BYTES) if fields.max_msg_bytes > 0 else MAX_ANSWER_BYTES


def polls_s(fields: PullFields) -> float:
    """How long a pull asks to wait for messages; 0: not at all."""
    if not fields.sys_flag & PULL_SUSPEND or fields.suspend_timeout_millis <= 0:
        return 0.0
    return min(fields.suspend_timeout_millis / 1000, MAX_SUSPEND_S)

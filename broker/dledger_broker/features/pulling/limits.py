"""Fields of a pull and their limits: the size of its answer, and the time for which it waits for messages."""

from __future__ import annotations

from typing import Final

from dledger_remoting.headers import PullMessageHeader
from dledger_remoting.headers_consume import PULL_SUSPEND
from dledger_remoting.hotpath import PullFields

MAX_ANSWER_BYTES: Final = 256 << 10
"""Maximum number of record bytes in an answer, unless a single record is larger."""
MAX_MESSAGES: Final = 1_024
MAX_SUSPEND_S: Final = 60.0
"""Maximum time for which a long poll waits, even if its client requests more."""
UNHEARD_S: Final = 30.0
"""Time beyond its own wait after which no client waits for the answer to a pull. RocketMQ's clients wait 10 to 15 s."""
MAX_HELD_BYTES: Final = 64 << 10
"""Maximum size of a pull that may wait, because its bytes stay in memory meanwhile."""


def max_messages(fields: PullFields) -> int:
    """Return the maximum number of messages for a pull, at least 1."""
    return max(1, min(fields.max_msg_nums, MAX_MESSAGES))


def max_bytes(fields: PullFields) -> int:
    """Return the maximum number of record bytes for a pull. A single record may be larger."""
    return min(fields.max_msg_bytes, MAX_ANSWER_BYTES) if fields.max_msg_bytes > 0 else MAX_ANSWER_BYTES


def polls_s(fields: PullFields) -> float:
    """Return the time in seconds for which a pull is to wait for messages, or 0 if it does not wait."""
    if not fields.sys_flag & PULL_SUSPEND or fields.suspend_timeout_millis <= 0:
        return 0.0
    return min(fields.suspend_timeout_millis / 1000, MAX_SUSPEND_S)


def fields_of(header: PullMessageHeader) -> PullFields:
    """Return the fields of a pull from its decoded header."""
    return PullFields(
        header.consumer_group,
        header.topic,
        header.queue_id,
        header.queue_offset,
        header.max_msg_nums,
        header.sys_flag,
        header.commit_offset,
        header.suspend_timeout_millis,
        header.sub_version,
        header.subscription,
        header.expression_type,
        header.max_msg_bytes or 0,
        header.roles,
        header.topic_created,
    )

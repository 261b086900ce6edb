"""Flow control of a consumer: reading of a queue stops while too much of it is unfinished.

| reason | a queue is not read on while |
|---|---|
| `count` | `max_outstanding` messages, or its share of `max_topic_outstanding`, lie at or beyond the offset to commit |
| `bytes` | the bodies of unfinished messages have `max_outstanding_bytes`, or its share of `max_topic_bytes` |
| `span` | the newest message read lies more than `max_span` offsets beyond the oldest that is not finished |

A queue's share of a topic's limit is the limit divided by the number of the topic's queues that the consumer reads. A
stalled queue thus leaves other queues their shares. One pull may exceed a limit by the messages that it brings.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from ..arguments import at_least
from .progress import QueueProgress

FlowReason: TypeAlias = Literal["count", "bytes", "span"]

DEFAULT_OUTSTANDING: Final = 1000
DEFAULT_OUTSTANDING_BYTES: Final = 100 * 1024 * 1024


class ReadAhead(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on the part of a queue that is read ahead of the work on it. None is no limit.

    A pull brings at most `pull_batch_size` messages. Reading of a queue stops at `max_outstanding` messages, at
    `max_outstanding_bytes` bytes of bodies, or at `max_span` offsets between the oldest unfinished message and the
    newest. All queues of a topic together are limited by `max_topic_outstanding` and `max_topic_bytes`, in equal
    shares. `flow_stops` counts the stops, and the module's docstring has the exact rules.
    """

    pull_batch_size: int = 32
    max_outstanding: int = DEFAULT_OUTSTANDING
    max_outstanding_bytes: int = DEFAULT_OUTSTANDING_BYTES
    max_span: int | None = None
    max_topic_outstanding: int | None = None
    max_topic_bytes: int | None = None

    def check(self) -> None:
        """Raise `InvalidArgumentError` for a limit below 1."""
        at_least(1, **msgspec.structs.asdict(self))


class FlowControl:
    """The limits of one consumer, and how often each has stopped the reading of a queue."""

    def __init__(self, limits: ReadAhead) -> None:
        self._limits = limits
        self.stops: dict[FlowReason, int] = {"count": 0, "bytes": 0, "span": 0}

    def reason(self, progress: QueueProgress, queues: int) -> FlowReason | None:
        """Return why reading of a queue stops, None if it does not.

        `queues` is the number of the topic's queues that are read.
        """
        limits = self._limits
        if progress.span >= _effective_limit(limits.max_outstanding, limits.max_topic_outstanding, queues):
            return "count"
        if progress.outstanding_bytes >= _effective_limit(limits.max_outstanding_bytes, limits.max_topic_bytes, queues):
            return "bytes"
        if limits.max_span is not None and progress.offset_span > limits.max_span:
            return "span"
        return None


def _effective_limit(queue_limit: int, topic_limit: int | None, queues: int) -> int:
    return queue_limit if topic_limit is None else min(queue_limit, max(1, topic_limit // queues))

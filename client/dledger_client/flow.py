"""Flow control of a consumer: a queue is not read on while too much of it is not finished.

| reason | a queue is not read on while |
|---|---|
| `count` | `max_outstanding` messages, or its share of `max_topic_outstanding`, lie at or beyond the offset to commit |
| `bytes` | the bodies of those that are not finished have `max_outstanding_bytes`, or its share of `max_topic_bytes` |
| `span` | the newest message read lies more than `max_span` offsets beyond the oldest that is not finished |

A queue's share of a topic's limit is that limit divided by how many queues of the topic the consumer reads, so that one
queue that stands still leaves the others theirs. One pull may go beyond a limit by what it brings.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from .arguments import at_least
from .progress import QueueProgress

FlowReason: TypeAlias = Literal["count", "bytes", "span"]

DEFAULT_OUTSTANDING: Final = 1000
DEFAULT_OUTSTANDING_BYTES: Final = 100 * 1024 * 1024


class FlowLimits(msgspec.Struct, frozen=True):
    """How much of a queue may be unfinished; None is no limit. See the table above."""

    max_outstanding: int = DEFAULT_OUTSTANDING
    max_outstanding_bytes: int = DEFAULT_OUTSTANDING_BYTES
    max_span: int | None = None
    max_topic_outstanding: int | None = None
    max_topic_bytes: int | None = None

    def check(self) -> FlowLimits:
        """The limits themselves. Raises `InvalidArgumentError` for one below 1."""
        at_least(1, **msgspec.structs.asdict(self))
        return self


class FlowControl:
    """The limits of one consumer, and how often each has stopped the reading of a queue."""

    def __init__(self, limits: FlowLimits) -> None:
        self._limits = limits
        self.stops: dict[FlowReason, int] = {"count": 0, "bytes": 0, "span": 0}

    def reason(self, progress: QueueProgress, queues: int) -> FlowReason | None:
        """Why a queue is not read on, None if it is; the consumer reads `queues` queues of its topic."""
        limits = self._limits
        if progress.span >= _smaller(limits.max_outstanding, limits.max_topic_outstanding, queues):
            return "count"
        if progress.outstanding_bytes >= _smaller(limits.max_outstanding_bytes, limits.max_topic_bytes, queues):
            return "bytes"
        if limits.max_span is not None and progress.offset_span > limits.max_span:
            return "span"
        return None


def _smaller(of_queue: int, of_topic: int | None, queues: int) -> int:
    return of_queue if of_topic is None else min(of_queue, max(1, of_topic // queues))

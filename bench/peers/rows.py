"""Rows of the comparison: what is asked of every service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from bench.cluster import Flush

TOPIC: Final = "bench"
BACKLOG_TOPIC: Final = "backlog"
"""Has nothing but what the consumer is to find; what the other rows sent would lie between it in a common log."""
QUEUES: Final = 4
"""Queues or partitions of the topic, where a service has them."""
BODY_BYTES: Final = 1024
RATE_PER_S: Final = 1000
"""Messages a second of the rows that measure latency."""


@dataclass(frozen=True, slots=True)
class Row:
    """One load: `connections` × `requests` in flight, each of `batch` messages; `flush` is what a send waits for."""

    flush: Flush
    mode: Literal["send", "pull", "latency"]
    about: str
    connections: int = 1
    requests: int = 1
    batch: int = 1

    @property
    def topic(self) -> str:
        """Where it sends to or reads from."""
        return BACKLOG_TOPIC if self.mode == "pull" else TOPIC


def _sends(flush: Flush) -> dict[str, Row]:
    return {
        f"{flush}-1x64": Row(flush, "send", "1 connection, 64 in flight", requests=64),
        f"{flush}-64x1": Row(flush, "send", "64 connections, 1 in flight each", connections=64),
        f"{flush}-8x64": Row(flush, "send", "1 connection, 8 requests of 64 messages in flight", requests=8, batch=64),
        f"{flush}-latency": Row(flush, "latency", f"{RATE_PER_S:,} messages/s, from send to receipt"),
    }


ROWS: Final = {
    **_sends("sync"),
    **_sends("async"),
    "consume": Row("async", "pull", "one consumer reads a backlog"),
}
"""`sync` rows: a majority has the message on disk (fdatasync) when it is acknowledged; `async`: in its page cache."""

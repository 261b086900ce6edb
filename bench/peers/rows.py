"""Rows of the comparison: loads that are run on every service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from bench.cluster import Flush

TOPIC: Final = "bench"
BACKLOG_TOPIC: Final = "backlog"
"""Topic with nothing but the consumer's backlog. In a common log, messages of other rows would lie between."""
QUEUES: Final = 4
"""Number of queues or partitions of the topic, where a service has them."""
BODY_BYTES: Final = 1024
RATE_PER_S: Final = 1000
"""Rate of the rows that measure latency, in messages a second."""


@dataclass(frozen=True, slots=True)
class Row:
    """One load: `connections` × `requests` in flight, each of `batch` messages.

    `flush` is the disk write that a send waits for.
    """

    flush: Flush
    mode: Literal["send", "pull", "latency"]
    about: str
    connections: int = 1
    requests: int = 1
    batch: int = 1

    @property
    def topic(self) -> str:
        """The topic to which the row sends, or from which it reads."""
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
"""Rows by name.

At the acknowledgement of a `sync` row a majority has the message on disk (fdatasync), of an `async` row in its page
cache.
"""

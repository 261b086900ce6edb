"""Stalls of a consumer: queues whose messages are not worked on.

There are four causes: no task asks for messages, or finishes them, a failed message cannot be given back, or the queue
cannot be read. A message that is taken and never finished blocks commits. Once a limit of `flow` is reached, it also
blocks the reading of its queue permanently. That is right, since nothing may be skipped, but it must not happen in
silence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal, TypeAlias

import msgspec

from ..messages import MessageQueue
from .fetcher import QueueFetcher

logger = logging.getLogger(__name__)

Reason: TypeAlias = Literal["not finished", "not asked for", "not given back", "not read"]

_NOT_READ_SECONDS: Final = 15.0
"""Minimum time in seconds before a queue that cannot be read is reported: a failover is shorter."""


class QueueStall(msgspec.Struct, frozen=True):
    """A stalled queue: its oldest unfinished message, and the reason.

    - `"not finished"`: a task took it and neither asked for the next one nor called `ack` or `retry`.
    - `"not asked for"`: it waits, and no task takes it.
    - `"not given back"`: its work failed, and the brokers take no copy of it.
    - `"not read"`: reading fails, and `detail` says why. `offset` is -1 while the first offset is unknown.

    `taken` messages of the queue are in work, `waiting` messages are read ahead. With `reading_stopped` the queue's
    messages are at their limit, and no more are read until the oldest is finished.
    """

    queue: MessageQueue
    offset: int
    reason: Reason
    age_seconds: float
    taken: int
    waiting: int
    reading_stopped: bool
    detail: str = ""


def stall_of(fetcher: QueueFetcher, now: float, after_seconds: float) -> QueueStall | None:
    """Return the stall of one queue, None unless it has stalled for `after_seconds`."""
    for offset, reason, since in _find_causes(fetcher):
        min_seconds = max(after_seconds, _NOT_READ_SECONDS) if reason == "not read" else after_seconds
        if now - since >= min_seconds:
            return QueueStall(
                fetcher.queue,
                offset,
                reason,
                now - since,
                len(fetcher.in_work),
                len(fetcher.buffer),
                fetcher.reading_stopped,
                fetcher.trouble if reason == "not read" else "",
            )
    return None


def _find_causes(fetcher: QueueFetcher) -> Iterator[tuple[int, Reason, float]]:
    """Yield possible causes of a stall: offset, reason, and since when."""
    if fetcher.in_work:
        offset, oldest = min(fetcher.in_work.items(), key=lambda entry: entry[1].taken_at)
        yield offset, "not finished", oldest.taken_at
    if fetcher.retrying:
        offset, since = min(fetcher.retrying.items(), key=lambda entry: entry[1])
        yield offset, "not given back", since
    if fetcher.buffer and not fetcher.paused and not fetcher.in_work:
        yield fetcher.buffer[0].queue_offset, "not asked for", fetcher.waiting_since
    if fetcher.unread_since is not None and not (fetcher.paused or fetcher.revoked):
        yield -1 if fetcher.progress is None else fetcher.progress.next_offset, "not read", fetcher.unread_since


class StallWatch:
    """Checks all queues of a consumer every `after_seconds`, and logs those that stalled for that long.

    `seen` counts stalls. A queue that is stalled at one offset counts once, however often it is logged.
    """

    def __init__(self, client_id: str, fetchers: Callable[[], Iterable[QueueFetcher]], after_seconds: float) -> None:
        self.seen = 0
        self._client_id = client_id
        self._fetchers = fetchers
        self._after_seconds = after_seconds
        self._reported: set[tuple[MessageQueue, int]] = set()

    def stalled(self) -> list[QueueStall]:
        """Return the queues that are stalled now, the oldest stall first."""
        now = asyncio.get_running_loop().time()
        stalls = (stall_of(fetcher, now, self._after_seconds) for fetcher in self._fetchers())
        return sorted((stall for stall in stalls if stall is not None), key=lambda stall: -stall.age_seconds)

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await asyncio.sleep(self._after_seconds)
            stalled = self.stalled()
            places = {(stall.queue, stall.offset) for stall in stalled}
            self.seen += len(places - self._reported)
            self._reported = places
            if stalled:
                logger.warning("%s: %s", self._client_id, _describe_stalls(stalled))


def _describe_stalls(stalled: list[QueueStall]) -> str:
    """Return one line about the oldest stall, with the number of others."""
    worst = stalled[0]
    others = f"; {len(stalled) - 1} more queues stand still" if len(stalled) > 1 else ""
    age = f"{worst.age_seconds:.0f} s"
    if worst.reason == "not read":
        where = "" if worst.offset < 0 else f" at offset {worst.offset}"
        return f"{worst.queue} stands still: it has not been read{where} for {age}: {worst.detail}{others}"
    why = f"has waited for {age} and nobody asks for it"
    if worst.reason == "not finished":
        why = (
            f"was taken {age} ago and is not finished: its taker has to ask for the next one, or to ack() or retry() it"
        )
    elif worst.reason == "not given back":
        why = f"failed {age} ago, and its copy is not stored yet: the log says what the brokers answer"
    reading = ", and no more are read until then" if worst.reading_stopped else ""
    return (
        f"{worst.queue} stands still: the message at offset {worst.offset} {why}; {worst.taken} messages are in work, "
        f"{worst.waiting} wait{reading}{others}"
    )

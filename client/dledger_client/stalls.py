"""Stalls of a consumer: queues that stand still because nobody asks for their messages, or finishes one.

A message that is taken and never finished holds up what is committed, and, once a limit of `flow` is reached, the
reading of its queue, for good. That is right, since nothing may be skipped, but it must not happen in silence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

import msgspec

from .fetcher import QueueFetcher
from .messages import MessageQueue

logger = logging.getLogger(__name__)

Reason: TypeAlias = Literal["not finished", "not asked for"]


class QueueStall(msgspec.Struct, frozen=True):
    """A queue that stands still: the oldest message that is not finished, and why it is not.

    `"not finished"`: somebody took it and neither asked for the next one nor called `ack` or `retry`. `"not asked
    for"`: it waits, and nobody takes it. `taken` messages of the queue are in work, `waiting` ones are read ahead. With
    `reading_stopped` these are as many as may be, and no more are read until the oldest is finished.
    """

    queue: MessageQueue
    offset: int
    reason: Reason
    age_seconds: float
    taken: int
    waiting: int
    reading_stopped: bool


def stall_of(fetcher: QueueFetcher, now: float, after_seconds: float) -> QueueStall | None:
    """The stall of one queue, None if its oldest message was taken, or came, less than `after_seconds` ago."""
    reason: Reason
    if fetcher.in_work:
        offset, oldest = min(fetcher.in_work.items(), key=lambda entry: entry[1].taken_at)
        since, reason = oldest.taken_at, "not finished"
    elif fetcher.buffer and not fetcher.paused:
        offset, since, reason = fetcher.buffer[0].queue_offset, fetcher.waiting_since, "not asked for"
    else:
        return None
    if now - since < after_seconds:
        return None
    return QueueStall(
        fetcher.queue,
        offset,
        reason,
        now - since,
        len(fetcher.in_work),
        len(fetcher.buffer),
        fetcher.reading_stopped,
    )


class StallWatch:
    """Looks at all queues of a consumer every `after_seconds`, and says which stand still for so long: once each time.

    `seen` counts stalls: a queue that stands still at one offset is one, however often it is said.
    """

    def __init__(self, client_id: str, fetchers: Callable[[], Iterable[QueueFetcher]], after_seconds: float) -> None:
        self.seen = 0
        self._client_id = client_id
        self._fetchers = fetchers
        self._after_seconds = after_seconds
        self._known: set[tuple[MessageQueue, int]] = set()

    def stalled(self) -> list[QueueStall]:
        """The queues that stand still now, the oldest stall first."""
        now = asyncio.get_running_loop().time()
        found = (stall_of(fetcher, now, self._after_seconds) for fetcher in self._fetchers())
        return sorted((stall for stall in found if stall is not None), key=lambda stall: -stall.age_seconds)

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await asyncio.sleep(self._after_seconds)
            stalled = self.stalled()
            known = {(stall.queue, stall.offset) for stall in stalled}
            self.seen += len(known - self._known)
            self._known = known
            if stalled:
                logger.warning("%s: %s", self._client_id, _text(stalled))


def _text(stalled: list[QueueStall]) -> str:
    """One line about the oldest stall, and how many more there are."""
    worst = stalled[0]
    age = f"{worst.age_seconds:.0f} s"
    why = f"has waited for {age} and nobody asks for it"
    if worst.reason == "not finished":
        why = (
            f"was taken {age} ago and is not finished: its taker has to ask for the next one, or to ack() or retry() it"
        )
    reading = ", and no more are read until then" if worst.reading_stopped else ""
    others = f"; {len(stalled) - 1} more queues stand still" if len(stalled) > 1 else ""
    return (
        f"{worst.queue} stands still: the message at offset {worst.offset} {why}; {worst.taken} messages are in work, "
        f"{worst.waiting} wait{reading}{others}"
    )

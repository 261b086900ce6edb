"""Meters of quotas: how much may go through now, and which requests wait.

A meter is a pair of token buckets, one for messages and one for bytes. They fill by the leader's clock, and hold what a
second allows. A request goes through if both buckets have a token, and may leave a bucket below zero. So a batch larger
than a second's worth is not refused for ever. Later requests wait until the bucket has filled again.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from dledger_broker.features.quotas.table import PutQuota
from dledger_broker.kernel.requests import Request

BURST_S: Final = 1.0
"""Time in seconds whose inflow a full bucket holds."""

_ONE_TOKEN: Final = 1 - 1e-6
"""Value of one token, less the error of sums of fractions."""


class HeldSend(NamedTuple):
    """Send or read that waits. `deadline` is by the event loop's clock, and `number` ascends in the order of arrival.

    `size` is the number of bytes charged to the quota. `held_bytes` is the memory that the request takes while it
    waits.
    """

    number: int
    request: Request
    topic: str
    messages: int
    size: int
    held_bytes: int
    deadline: float


class _Bucket:
    __slots__ = ("_filled_at_s", "_level", "_rate")

    def __init__(self, rate: int, now: float) -> None:
        self._rate = rate
        self._level = rate * BURST_S
        self._filled_at_s = now

    def change(self, rate: int, now: float) -> None:
        """Change the rate. A bucket that had no limit before is full."""
        self._fill(now)
        self._level = min(self._level, rate * BURST_S) if self._rate else rate * BURST_S
        self._rate = rate

    def _fill(self, now: float) -> None:
        self._level = min(self._rate * BURST_S, self._level + (now - self._filled_at_s) * self._rate)
        self._filled_at_s = now

    def is_empty(self, now: float) -> bool:
        if not self._rate:
            return False
        self._fill(now)
        return self._level < _ONE_TOKEN

    def take(self, amount: int) -> None:
        if self._rate:
            self._level -= amount


class Meter:
    """Meter of a quota. `held` and `refused` count requests."""

    def __init__(self, quota: PutQuota, now: float) -> None:
        self.quota = quota
        self.waiting: deque[HeldSend] = deque()
        self.waiting_bytes = 0
        self.held = 0
        self.refused = 0
        self.fill(now)

    def fill(self, now: float) -> None:
        """Fill the buckets, as if nothing of the quota was used."""
        self._messages = _Bucket(self.quota.messages, now)
        self._bytes = _Bucket(self.quota.size, now)

    @property
    def is_deleted(self) -> bool:
        """True if the quota is deleted and limits nothing any more."""
        return not self.quota.messages and not self.quota.size

    def change(self, quota: PutQuota, now: float) -> None:
        """Change the quota. Tokens used under the old quota count for the new quota, too."""
        self.quota = quota
        self._messages.change(quota.messages, now)
        self._bytes.change(quota.size, now)

    def is_used_up(self, now: float) -> bool:
        """Return whether nothing may go through now."""
        return self._messages.is_empty(now) or self._bytes.is_empty(now)

    def take(self, messages: int, size: int) -> None:
        """Take tokens for messages that go through."""
        self._messages.take(messages)
        self._bytes.take(size)

    def wait(self, send: HeldSend) -> None:
        """Let a request wait, in the order of arrival. It may have waited for another quota before."""
        insort(self.waiting, send)
        self.waiting_bytes += send.held_bytes

    def take_next(self) -> HeldSend:
        """Take out and return the request that has waited longest."""
        send = self.waiting.popleft()
        self.waiting_bytes -= send.held_bytes
        return send

    def take_all(self) -> list[HeldSend]:
        """Take out and return all waiting requests."""
        sends = list(self.waiting)
        self.waiting.clear()
        self.waiting_bytes = 0
        return sends

    def take_overdue(self, now: float) -> list[HeldSend]:
        """Take out and return the requests whose deadlines have passed."""
        return self._take_matching(lambda send: send.deadline <= now)

    def take_disconnected(self) -> list[HeldSend]:
        """Take out and return the requests whose clients are gone."""
        return self._take_matching(lambda send: not send.request.origin.is_open)

    def _take_matching(self, matches: Callable[[HeldSend], bool]) -> list[HeldSend]:
        taken = [send for send in self.waiting if matches(send)]
        if taken:
            kept = [send for send in self.waiting if not matches(send)]
            self.waiting = deque(kept)
            self.waiting_bytes = sum(send.held_bytes for send in kept)
        return taken

    def refusal(self, now: float) -> str:
        """Return the reason why a request cannot go through."""
        quota = self.quota
        if self._bytes.is_empty(now) and not self._messages.is_empty(now):
            rate = f"{quota.size} bytes/s"
        else:
            rate = f"{quota.messages} messages/s" if quota.messages else f"{quota.size} bytes/s"
        return f"the quota of {quota.kind} {quota.name}, {rate}, is used up"

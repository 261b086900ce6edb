"""Meters of quotas: how much of each may go through now, and which sends wait for that.

A meter is a pair of token buckets, one for messages and one for bytes, which fill as the leader's clock goes and hold
what a second allows. A send goes through while there is one token in both, and may leave a bucket below zero, so that
a batch larger than a second's worth is not refused for ever; what it took in advance is missing to the next ones.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from dledger_broker.features.quotas.table import PutQuota
from dledger_broker.kernel.requests import Request

BURST_S: Final = 1.0
"""A bucket that nothing is taken from holds what flows into it in so long."""

_WHOLE: Final = 1 - 1e-6
"""One token, as far as sums of fractions are exact."""


class HeldSend(NamedTuple):
    """A send that waits, or a read; `deadline` by the clock of the event loop. `number` grows as they come.

    `size` is what it takes of the quota, in bytes, `held_bytes` what it takes of memory while it waits.
    """

    number: int
    request: Request
    topic: str
    messages: int
    size: int
    held_bytes: int
    deadline: float


class _Bucket:
    __slots__ = ("_level", "_rate", "_since")

    def __init__(self, rate: int, now: float) -> None:
        self._rate = rate
        self._level = rate * BURST_S
        self._since = now

    def change(self, rate: int, now: float) -> None:
        """Another rate from now on. One that had no limit before is full."""
        self._fill(now)
        self._level = min(self._level, rate * BURST_S) if self._rate else rate * BURST_S
        self._rate = rate

    def _fill(self, now: float) -> None:
        self._level = min(self._rate * BURST_S, self._level + (now - self._since) * self._rate)
        self._since = now

    def is_empty(self, now: float) -> bool:
        if not self._rate:
            return False
        self._fill(now)
        return self._level < _WHOLE

    def take(self, amount: int) -> None:
        if self._rate:
            self._level -= amount


class Meter:
    """How much of a quota is used. `held` and `refused` count sends."""

    def __init__(self, quota: PutQuota, now: float) -> None:
        self.quota = quota
        self.waiting: deque[HeldSend] = deque()
        self.waiting_bytes = 0
        self.held = 0
        self.refused = 0
        self.fill(now)

    def fill(self, now: float) -> None:
        """Nothing of the quota is used."""
        self._messages = _Bucket(self.quota.messages, now)
        self._bytes = _Bucket(self.quota.size, now)

    @property
    def is_taken_back(self) -> bool:
        """Whether it limits nothing any more."""
        return not self.quota.messages and not self.quota.size

    def change(self, quota: PutQuota, now: float) -> None:
        """The quota is another one; what was used of the old one is used of this."""
        self.quota = quota
        self._messages.change(quota.messages, now)
        self._bytes.change(quota.size, now)

    def is_used_up(self, now: float) -> bool:
        """Whether nothing may go through."""
        return self._messages.is_empty(now) or self._bytes.is_empty(now)

    def take(self, messages: int, size: int) -> None:
        """So much goes through."""
        self._messages.take(messages)
        self._bytes.take(size)

    def wait(self, send: HeldSend) -> None:
        """One more send waits, behind those that came before it: it may have waited for another quota."""
        insort(self.waiting, send)
        self.waiting_bytes += send.held_bytes

    def next(self) -> HeldSend:
        """The send that has waited longest, which waits no more."""
        send = self.waiting.popleft()
        self.waiting_bytes -= send.held_bytes
        return send

    def all(self) -> list[HeldSend]:
        """All that wait, which wait no more."""
        sends = list(self.waiting)
        self.waiting.clear()
        self.waiting_bytes = 0
        return sends

    def overdue(self, now: float) -> list[HeldSend]:
        """Those that have waited long enough, which wait no more."""
        return self._take_out(lambda send: send.deadline <= now)

    def gone(self) -> list[HeldSend]:
        """Those whose clients are gone, which wait no more."""
        return self._take_out(lambda send: not send.request.origin.is_open)

    def _take_out(self, which: Callable[[HeldSend], bool]) -> list[HeldSend]:
        found = [send for send in self.waiting if which(send)]
        if found:
            kept = [send for send in self.waiting if not which(send)]
            self.waiting = deque(kept)
            self.waiting_bytes = sum(send.held_bytes for send in kept)
        return found

    def refusal(self, now: float) -> str:
        """Why a request cannot go through."""
        quota = self.quota
        if self._bytes.is_empty(now) and not self._messages.is_empty(now):
            what = f"{quota.size} bytes/s"
        else:
            what = f"{quota.messages} messages/s" if quota.messages else f"{quota.size} bytes/s"
        return f"the quota of {quota.kind} {quota.name}, {what}, is used up"

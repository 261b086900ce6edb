"""Samples of numbers that only grow, and what they say of the last minute, hour and day, as RocketMQ counts it.

Every 10 s each number is looked at; of that one sample in 10 s, in 10 minutes and in an hour is kept, for a minute, an
hour and a day. A number that is new begins with what it is when it is first looked at. So does one that begins anew, as
that of a topic which was deleted and made again: the difference to what was before would be less than nothing. Whoever
counts does nothing beside counting; 10,000 numbers take about 12 MB.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

from dledger_remoting.statistics import BrokerStats, CountedSum

PERIOD_S: Final = 10.0
MAX_SERIES: Final = 20_000
"""So many numbers are followed; what comes later, while there are so many, is not."""

LOOKED_AT_A_TURN: Final = 512
"""All 20,000 at once would hold the event loop for 0.1 s."""

Key: TypeAlias = tuple[str, str]
"""What is counted, and of which topic, `topic@group` or cluster."""


class Total(NamedTuple):
    """A number as it is now, and how often something was added to it.

    `incarnation` tells it from numbers of the same key that were there before: of a topic, where the log has made it.
    """

    key: Key
    value: int
    times: int
    incarnation: int = 0


_FIELDS: Final = 3
"""A sample: when, in ms, the value, how many times."""


class _Window:
    """The newest samples, of which each comes `every` periods after the one before."""

    __slots__ = ("_samples", "every", "kept")

    def __init__(self, every: int, kept: int) -> None:
        self.every = every
        self.kept = kept
        self._samples = array("q")

    def add(self, now_ms: int, total: Total) -> None:
        self._samples.extend((now_ms, total.value, total.times))
        if len(self._samples) > self.kept * _FIELDS:
            del self._samples[:_FIELDS]

    def precedes(self, total: Total) -> bool:
        """Whether nothing of a number went back since the last sample."""
        return self._samples[-2] <= total.value and self._samples[-1] <= total.times

    def counted(self) -> CountedSum:
        """What was added between the first and the last sample."""
        if len(self._samples) <= _FIELDS:
            return CountedSum()
        first, last = self._samples[:_FIELDS], self._samples[-_FIELDS:]
        elapsed_ms, value, times = (new - old for old, new in zip(first, last, strict=True))
        return CountedSum(value / times if times else 0.0, value, value * 1000 / elapsed_ms if elapsed_ms else 0.0)


class _Series:
    """One number's samples."""

    __slots__ = ("incarnation", "windows")

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.windows = (_Window(1, 7), _Window(60, 7), _Window(360, 25))

    def goes_on_with(self, total: Total) -> bool:
        """Whether a total is the same number, which only grows, some time later."""
        return self.incarnation == total.incarnation and self.windows[0].precedes(total)

    def stats(self) -> BrokerStats:
        minute, hour, day = (window.counted() for window in self.windows)
        return BrokerStats(stats_day=day, stats_hour=hour, stats_minute=minute)


class Samples:
    """All numbers by their keys."""

    def __init__(self) -> None:
        self._series: dict[Key, _Series] = {}
        self._looks = 0

    def look(self, now_ms: int, totals: Iterable[Total]) -> Iterator[None]:
        """Take the numbers in as they are at a time of the monotonic clock, ms; those that are gone are forgotten.

        Yields after `LOOKED_AT_A_TURN` of them each, for others to go on; what is asked meanwhile is told as of before.
        """
        looked_at: dict[Key, _Series] = {}
        for number, total in enumerate(totals, 1):
            series = self._series.get(total.key)
            has_place = series is not None or len(looked_at) < MAX_SERIES
            is_new = series is None or not series.goes_on_with(total)
            if is_new and has_place:
                series = _Series(total.incarnation)
            if series is not None:
                looked_at[total.key] = series
                for window in series.windows:
                    if is_new or self._looks % window.every == 0:
                        window.add(now_ms, total)
            if number % LOOKED_AT_A_TURN == 0:
                yield
        self._series = looked_at
        self._looks += 1

    def will_follow(self, key: Key) -> bool:
        """Whether a number that is there when they are looked at next is followed from then on, as far as is known."""
        return key in self._series or len(self._series) < MAX_SERIES

    def stats(self, key: Key, incarnation: int = 0) -> BrokerStats | None:
        """What was counted; None if that is not followed."""
        series = self._find(key, incarnation)
        return None if series is None else series.stats()

    def per_second(self, key: Key, incarnation: int = 0) -> float:
        """How much was added a second in the last minute; 0 if that is not followed."""
        series = self._find(key, incarnation)
        return 0.0 if series is None else series.windows[0].counted().tps

    def _find(self, key: Key, incarnation: int) -> _Series | None:
        series = self._series.get(key)
        return series if series is not None and series.incarnation == incarnation else None

"""Samples of growing numbers: their growth in the last minute, hour and day, as RocketMQ counts it.

Each number is sampled every 10 s. Samples are kept in three windows: every sample for a minute, one per 10 minutes for
an hour, and one per hour for a day. Growth before the first sample of a number is not reported. If a number begins
anew, because its topic was deleted and created again, its former samples are dropped. Otherwise its growth would be
negative. Code that counts only adds to the number. 10,000 numbers take about 12 MB.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

from dledger_remoting.statistics import BrokerStats, CountedSum

PERIOD_S: Final = 10.0
MAX_SERIES: Final = 20_000
"""Maximum number of keys that are sampled. Further keys are ignored."""

LOOKED_AT_A_TURN: Final = 512
"""Number of keys sampled per turn of the event loop. All 20,000 at once would block it for 0.1 s."""

Key: TypeAlias = tuple[str, str]
"""Name of the number, with its topic, `topic@group` or cluster."""


class Total(NamedTuple):
    """Present value of a number, and how often something was added to it.

    `incarnation` distinguishes the number from earlier numbers of the same key. For a topic it is the position in the
    log at which the topic was created.
    """

    key: Key
    value: int
    times: int
    incarnation: int = 0


_FIELDS: Final = 3
"""Number of values per sample: time in ms, value, number of additions."""


class _Window:
    """The newest `kept` samples of a number, `every` periods apart."""

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
        """Return whether neither the value nor the number of additions is lower than in the last sample."""
        return self._samples[-2] <= total.value and self._samples[-1] <= total.times

    def counted(self) -> CountedSum:
        """Return what was added between the first and the last sample."""
        if len(self._samples) <= _FIELDS:
            return CountedSum()
        first, last = self._samples[:_FIELDS], self._samples[-_FIELDS:]
        elapsed_ms, value, times = (new - old for old, new in zip(first, last, strict=True))
        return CountedSum(value / times if times else 0.0, value, value * 1000 / elapsed_ms if elapsed_ms else 0.0)


class _Series:
    """Samples of one number."""

    __slots__ = ("incarnation", "windows")

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.windows = (_Window(1, 7), _Window(60, 7), _Window(360, 25))

    def goes_on_with(self, total: Total) -> bool:
        """Return whether a total is a later value of this number. A lower value means that the number begins anew."""
        return self.incarnation == total.incarnation and self.windows[0].precedes(total)

    def stats(self) -> BrokerStats:
        minute, hour, day = (window.counted() for window in self.windows)
        return BrokerStats(stats_day=day, stats_hour=hour, stats_minute=minute)


class Samples:
    """All numbers by their keys."""

    def __init__(self) -> None:
        self._series: dict[Key, _Series] = {}
        self._rounds = 0

    def look(self, now_ms: int, totals: Iterable[Total]) -> Iterator[None]:
        """Sample the numbers at a time of the monotonic clock in ms, and forget the numbers that are gone.

        Yield after each `LOOKED_AT_A_TURN` numbers, to let the event loop run other code. A new number is reported, and
        a deleted number is forgotten, only after the last of them.
        """
        looked_at: dict[Key, _Series] = {}
        first_seen: list[Key] = []
        for number, total in enumerate(totals, 1):
            series = self._series.get(total.key)
            has_place = series is not None or len(looked_at) < MAX_SERIES
            is_new = series is None or not series.goes_on_with(total)
            if series is None and has_place:
                first_seen.append(total.key)
            if is_new and has_place:
                series = _Series(total.incarnation)
            if series is not None:
                looked_at[total.key] = series
                for window in series.windows:
                    if is_new or self._rounds % window.every == 0:
                        window.add(now_ms, total)
            if number % LOOKED_AT_A_TURN == 0:
                yield
        # Numbers that were sampled before keep their places, also if new numbers precede them in this round.
        for key in first_seen[max(0, MAX_SERIES - len(looked_at) + len(first_seen)) :]:
            del looked_at[key]
        self._series = looked_at
        self._rounds += 1

    def will_follow(self, key: Key) -> bool:
        """Return whether a number that now exists will be sampled next time, judged by how many were last time."""
        return key in self._series or len(self._series) < MAX_SERIES

    def stats(self, key: Key, incarnation: int = 0) -> BrokerStats | None:
        """Return the growth of a number, or None if the number is not sampled."""
        series = self._find(key, incarnation)
        return None if series is None else series.stats()

    def per_second(self, key: Key, incarnation: int = 0) -> float:
        """Return how much was added per second in the last minute, or 0 if the number is not sampled."""
        series = self._find(key, incarnation)
        return 0.0 if series is None else series.windows[0].counted().tps

    def _find(self, key: Key, incarnation: int) -> _Series | None:
        series = self._series.get(key)
        return series if series is not None and series.incarnation == incarnation else None

"""Messages per second and per day that RocketMQ's tools show, over fixed windows whoever asks how often."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from dledger.environment import Cancellable, Environment
from dledger.replica.status import LoopLateness
from dledger_broker.kernel.counters import BrokerCounters

PERIOD_S: Final = 10.0
WINDOWS: Final = (1, 6, 60)
"""In periods: ten seconds, a minute, ten minutes."""
_DAY_MS: Final = 86_400_000


class Timers(NamedTuple):
    """Messages that waited until they were due: those that were ever there, and those of them that are gone."""

    stored: int
    gone: int


class Looks(NamedTuple):
    """What is looked at besides the counters."""

    timers: Callable[[], Timers]
    loop_late: Callable[[], LoopLateness | None]


class _Sample(NamedTuple):
    at: float
    stored: int
    delivered: int
    reads_found: int
    reads_missed: int
    timers: Timers
    loop_late: LoopLateness | None


class Throughput:
    """Looks at the counters every `PERIOD_S` once it is started; all averages are 0 without that."""

    def __init__(self, env: Environment, counters: BrokerCounters, looks: Looks) -> None:
        self._env = env
        self._counters = counters
        self._looks = looks
        self._put_counts: deque[list[int]] = deque(maxlen=WINDOWS[1] + 1)
        self._samples: deque[_Sample] = deque(maxlen=WINDOWS[-1] + 1)
        self._timer: Cancellable | None = None
        self._day = 0
        self._mornings = ((0, 0), (0, 0))
        """What was stored and delivered before yesterday and before today."""

    def start(self) -> None:
        """Begin to look."""
        self._begin_day(self._env.wall_ms() // _DAY_MS)
        counters, looks = self._counters, self._looks
        done = counters.messages_in, counters.messages_out, counters.reads_found, counters.reads_missed
        self._samples.append(_Sample(self._env.now(), *done, looks.timers(), looks.loop_late()))
        self._put_counts.append(list(counters.put_times.counts))
        self._timer = self._env.call_later(PERIOD_S, self.start)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def put_times(self) -> list[int]:
        """Messages that were stored in the last full minute, by how long they took (`PutTimes.counts`)."""
        if not self._put_counts:
            return [0] * len(self._counters.put_times.counts)
        return [new - old for old, new in zip(self._put_counts[0], self._put_counts[-1], strict=True)]

    def timers_stored(self) -> str:
        """Messages per second that began to wait, in the last full minute."""
        return self._of_a_minute([sample.timers.stored for sample in self._samples])

    def timers_delivered(self) -> str:
        """Messages per second that were delivered or taken back by this node, in the last full minute."""
        return self._of_a_minute([sample.timers.gone for sample in self._samples])

    def late_ms(self) -> int:
        """How late the event loop was on average in the last full ten seconds, ms: as long a request waited for it."""
        if len(self._samples) <= WINDOWS[0]:
            return 0
        old, new = self._samples[-1 - WINDOWS[0]].loop_late, self._samples[-1].loop_late
        if old is None or new is None or new.at_most[-1] == old.at_most[-1]:
            return 0
        return round((new.seconds - old.seconds) / (new.at_most[-1] - old.at_most[-1]) * 1000)

    def reads(self) -> dict[str, str]:
        """Reads of queues per second that found messages, that found none, and all, each as `a b c`."""
        found = [sample.reads_found for sample in self._samples]
        missed = [sample.reads_missed for sample in self._samples]
        total = [sum(both) for both in zip(found, missed, strict=True)]
        by_name = {"getFoundTps": found, "getMissTps": missed, "getTotalTps": total}
        return {name: _averages(self._samples, totals) for name, totals in by_name.items()}

    def _of_a_minute(self, totals: list[int]) -> str:
        return f"{max(0.0, _average(self._samples, totals, WINDOWS[1])):.1f}"

    def totals(self) -> dict[str, str]:
        """Messages stored and delivered since the start: in all, and before this day and the one before it, by UTC."""
        now = (self._counters.messages_in, self._counters.messages_out)
        times = {"YesterdayMorning": self._mornings[0], "TodayMorning": self._mornings[1], "TodayNow": now}
        return {
            f"{what}{time}": str(total[place])
            for place, what in enumerate(("msgPutTotal", "msgGetTotal"))
            for time, total in times.items()
        }

    def _begin_day(self, day: int) -> None:
        if self._day and day > self._day:
            self._mornings = (self._mornings[1], (self._counters.messages_in, self._counters.messages_out))
        self._day = max(self._day, day)

    def stored(self) -> str:
        """Messages stored per second in the last full ten seconds, minute and ten minutes, as `a b c`."""
        return _averages(self._samples, [sample.stored for sample in self._samples])

    def delivered(self) -> str:
        """Messages delivered per second, likewise."""
        return _averages(self._samples, [sample.delivered for sample in self._samples])


def _averages(samples: deque[_Sample], totals: list[int]) -> str:
    """Of a node that runs for less than a window, since its start."""
    return " ".join(f"{_average(samples, totals, periods):.1f}" for periods in WINDOWS)


def _average(samples: deque[_Sample], totals: list[int], periods: int) -> float:
    first = max(0, len(totals) - 1 - periods)
    seconds = samples[-1].at - samples[first].at if samples else 0.0
    return (totals[-1] - totals[first]) / seconds if seconds > 0 else 0.0

"""Messages per second and per day, as RocketMQ's tools show them, over windows that do not depend on the requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from dledger.environment import Cancellable, Environment
from dledger.replica.status import LoopLateness
from dledger_broker.kernel.counters import BrokerCounters

PERIOD_S: Final = 10.0
WINDOWS: Final = (1, 6, 60)
"""Lengths of the windows in periods: ten seconds, a minute, ten minutes."""
_DAY_MS: Final = 86_400_000


class Timers(NamedTuple):
    """Timer messages that were ever stored, and timer messages that have left."""

    stored: int
    gone: int


class Looks(NamedTuple):
    """Sources of the values that are measured besides the counters."""

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
    """Meter that reads the counters every `PERIOD_S` once it is started. Until then all averages are 0."""

    def __init__(self, env: Environment, counters: BrokerCounters, looks: Looks) -> None:
        self._env = env
        self._counters = counters
        self._looks = looks
        self._put_counts: deque[list[int]] = deque(maxlen=WINDOWS[1] + 1)
        self._samples: deque[_Sample] = deque(maxlen=WINDOWS[-1] + 1)
        self._timer: Cancellable | None = None
        self._day = 0
        self._midnight_totals = ((0, 0), (0, 0))
        """Messages stored and delivered before yesterday and before today."""

    def start(self) -> None:
        """Begin to measure."""
        self._begin_day(self._env.wall_ms() // _DAY_MS)
        counters, looks = self._counters, self._looks
        done = counters.messages_in, counters.messages_out, counters.reads_found, counters.reads_missed
        self._samples.append(_Sample(self._env.now(), *done, looks.timers(), looks.loop_late()))
        self._put_counts.append(list(counters.put_times.counts))
        self._timer = self._env.call_later(PERIOD_S, self.start)

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()

    def put_times(self) -> list[int]:
        """Return the messages stored in the last full minute, by how long they took (`PutTimes.counts`)."""
        if not self._put_counts:
            return [0] * len(self._counters.put_times.counts)
        return [new - old for old, new in zip(self._put_counts[0], self._put_counts[-1], strict=True)]

    def timers_stored(self) -> str:
        """Return the timer messages per second that were stored in the last full minute."""
        return self._minute_averages([sample.timers.stored for sample in self._samples])

    def timers_delivered(self) -> str:
        """Return the timer messages per second that this node delivered or recalled in the last full minute."""
        return self._minute_averages([sample.timers.gone for sample in self._samples])

    def late_ms(self) -> int:
        """Return the event loop's average lateness in ms in the last full ten seconds, which is how long a request
        waited.
        """
        if len(self._samples) <= WINDOWS[0]:
            return 0
        old, new = self._samples[-1 - WINDOWS[0]].loop_late, self._samples[-1].loop_late
        if old is None or new is None or new.at_most[-1] == old.at_most[-1]:
            return 0
        return round((new.seconds - old.seconds) / (new.at_most[-1] - old.at_most[-1]) * 1000)

    def reads(self) -> dict[str, str]:
        """Return the reads of queues per second with messages, without messages, and in all, each as `a b c`."""
        found = [sample.reads_found for sample in self._samples]
        missed = [sample.reads_missed for sample in self._samples]
        total = [sum(both) for both in zip(found, missed, strict=True)]
        by_name = {"getFoundTps": found, "getMissTps": missed, "getTotalTps": total}
        return {name: _averages(self._samples, totals) for name, totals in by_name.items()}

    def _minute_averages(self, totals: list[int]) -> str:
        return f"{max(0.0, _average(self._samples, totals, WINDOWS[1])):.1f}"

    def totals(self) -> dict[str, str]:
        """Return the messages stored and delivered since the start: in all, before today, and before yesterday, by
        UTC.
        """
        now = (self._counters.messages_in, self._counters.messages_out)
        times = {
            "YesterdayMorning": self._midnight_totals[0],
            "TodayMorning": self._midnight_totals[1],
            "TodayNow": now,
        }
        return {
            f"{what}{time}": str(total[place])
            for place, what in enumerate(("msgPutTotal", "msgGetTotal"))
            for time, total in times.items()
        }

    def _begin_day(self, day: int) -> None:
        if self._day and day > self._day:
            self._midnight_totals = (
                self._midnight_totals[1],
                (self._counters.messages_in, self._counters.messages_out),
            )
        self._day = max(self._day, day)

    def stored(self) -> str:
        """Return the messages stored per second in the last full ten seconds, minute and ten minutes, as `a b c`."""
        return _averages(self._samples, [sample.stored for sample in self._samples])

    def delivered(self) -> str:
        """Return the messages delivered per second in the same windows."""
        return _averages(self._samples, [sample.delivered for sample in self._samples])


def _averages(samples: deque[_Sample], totals: list[int]) -> str:
    """Return the averages over all windows, or since the start for a node that runs for less than a window."""
    return " ".join(f"{_average(samples, totals, periods):.1f}" for periods in WINDOWS)


def _average(samples: deque[_Sample], totals: list[int], periods: int) -> float:
    first = max(0, len(totals) - 1 - periods)
    seconds = samples[-1].at - samples[first].at if samples else 0.0
    return (totals[-1] - totals[first]) / seconds if seconds > 0 else 0.0

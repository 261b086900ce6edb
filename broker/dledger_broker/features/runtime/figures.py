"""Figures of a node as RocketMQ's brokers write them: how long sends took, how full disks are, how timers get on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dledger.store.disk import DiskSpace
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.put_times import quantile_ms, stock_counts

_TIMES: Final = (
    *("<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms"),
    *("500ms~1s", "1~2s", "2~3s", "3~4s", "4~5s", "5~10s", "10s~"),
)
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def put_figures(counters: BrokerCounters, last_minute: Sequence[int]) -> dict[str, str]:
    """What sends have stored since the start, and how long those of the last minute took."""
    times = zip(_TIMES, stock_counts(last_minute), strict=True)
    average = counters.bytes_in / counters.messages_in if counters.messages_in else 0.0
    return {
        "putMessageTimesTotal": str(counters.messages_in),
        "putMessageSizeTotal": str(counters.bytes_in),
        "putMessageAverageSize": str(round(average, 3)),
        "putMessageEntireTimeMax": str(round(counters.put_times.longest_ms)),
        "putMessageDistributeTime": "".join(f"[{time}]:{count} " for time, count in times),
        "putLatency99": str(quantile_ms(last_minute, 0.99)),
        "putLatency999": str(quantile_ms(last_minute, 0.999)),
    }


def disk_figures(used_ratio: float, data_dir: str, space: DiskSpace | None) -> dict[str, str]:
    """How full the disk is, on which log and queues lie."""
    ratio = str(used_ratio)
    found = {"commitLogDiskRatio": ratio, f"commitLogDiskRatio_{data_dir}": ratio, "consumeQueueDiskRatio": ratio}
    if space is not None:
        found["commitLogDirCapacity"] = f"Total : {_size(space.total_bytes)}, Free : {_size(space.free_bytes)}."
    return found


def timer_figures(gauges: Mapping[str, float], stored: str, delivered: str) -> dict[str, str]:
    """How many messages wait until they are due, how far the index of them is behind, how many came and went."""
    return {
        "timerCongestNum": str(int(gauges["timers_pending"])),
        "timerOffsetBehind": str(int(gauges["time_index_lag_bytes"])),
        "timerEnqueueTps": stored,
        "timerDequeueTps": delivered,
    }


def _size(count: float) -> str:
    """A size as Java's tools write it."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} B" if unit == 0 else f"{count:.1f} {_UNITS[unit]}"

"""Figures of a node in the form of RocketMQ's brokers: durations of sends, disk usage, and timers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dledger.store.disk import DiskSpace
from dledger_broker.kernel.counters import BrokerCounters, quantile_ms, stock_counts
from dledger_remoting.codes import PROTOCOL_VERSION

_TIMES: Final = (
    *("<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms"),
    *("500ms~1s", "1~2s", "2~3s", "3~4s", "4~5s", "5~10s", "10s~"),
)
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_NO_POOL_OF_BUFFERS: Final = 2**31 - 1
"""Value of RocketMQ's brokers whose writes take no buffers from a pool."""


def put_figures(counters: BrokerCounters, last_minute: Sequence[int]) -> dict[str, str]:
    """Return what sends have stored since the start, and how long the sends of the last minute took."""
    times = zip(_TIMES, stock_counts(last_minute), strict=True)
    average = counters.bytes_in / counters.messages_in if counters.messages_in else 0.0
    return {
        "putMessageTimesTotal": str(counters.messages_in),
        "putMessageFailedTimes": str(counters.sends_failed),
        "putMessageSizeTotal": str(counters.bytes_in),
        "putMessageAverageSize": str(round(average, 3)),
        "putMessageEntireTimeMax": str(round(counters.put_times.longest_ms)),
        "putMessageDistributeTime": "".join(f"[{time}]:{count} " for time, count in times),
        "putLatency99": str(quantile_ms(last_minute, 0.99)),
        "putLatency999": str(quantile_ms(last_minute, 0.999)),
    }


def disk_figures(used_ratio: float, data_dir: str, space: DiskSpace | None) -> dict[str, str]:
    """Return how full the disk with the log and the queues is."""
    ratio = str(used_ratio)
    found = {"commitLogDiskRatio": ratio, f"commitLogDiskRatio_{data_dir}": ratio, "consumeQueueDiskRatio": ratio}
    if space is not None:
        found["commitLogDirCapacity"] = f"Total : {size_text(space.total_bytes)}, Free : {size_text(space.free_bytes)}."
    return found


def timer_figures(gauges: Mapping[str, float], stored: str, delivered: str) -> dict[str, str]:
    """Return the number and lateness of waiting timer messages, the lag of their index, and their rates."""
    return {
        "timerReadBehind": str(int(gauges["timers_late_ms"]) // 1000),
        "timerCongestNum": str(int(gauges["timers_pending"])),
        "timerOffsetBehind": str(int(gauges["time_index_lag_bytes"])),
        "timerEnqueueTps": stored,
        "timerDequeueTps": delivered,
    }


def load_figures(unapplied: int, late_ms: int, capacity: int) -> dict[str, str]:
    """Return how long requests wait before they are handled.

    RocketMQ's brokers have a thread pool for each of five kinds of requests. Here one event loop handles all requests
    in the order of their arrival, so these queues do not exist. Only sends wait afterwards, until the log has them, so
    `unapplied` counts as their queue.
    """
    figures: dict[str, str] = {}
    for kind in ("send", "pull", "litePull", "query", "ack"):
        figures[f"{kind}ThreadPoolQueueSize"] = str(unapplied) if kind == "send" else "0"
        figures[f"{kind}ThreadPoolQueueCapacity"] = str(capacity)
        figures[f"{kind}ThreadPoolQueueHeadWaitTimeMills"] = str(late_ms)
    return figures | {"EndTransactionQueueSize": "0", "EndTransactionThreadPoolQueueCapacity": str(capacity)}


def fixed_figures() -> dict[str, str]:
    """Return figures that are the same for every node, because it lacks what they measure."""
    return {
        "brokerVersion": str(PROTOCOL_VERSION),
        "startAcceptSendRequestTimeStamp": "0",
        "pageCacheLockTimeMills": "0",
        "dispatchMaxBuffer": "0",
        "remainTransientStoreBufferNumbs": str(_NO_POOL_OF_BUFFERS),
    }


def size_text(count: float) -> str:
    """Return a size in the form of Java's tools."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} B" if unit == 0 else f"{count:.1f} {_UNITS[unit]}"

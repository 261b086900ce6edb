"""Results of the benchmarks: one structure per kind of measurement, medians over its runs, and their JSON form."""

import math
import statistics
from collections.abc import Callable, Sequence

import msgspec

from bench.generator import LoadResult
from bench.limits import MachineLimits


class NodeUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of one broker process during a measurement."""

    role: str
    cpu_us_per_message: float
    cpu_share: float
    rss_anon_mb: float


class LoadRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a load on a fresh cluster; the leader comes first in `nodes`."""

    start_s: float
    load: LoadResult
    nodes: list[NodeUsage]


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """All runs of one load scenario, and its targets (0 = none)."""

    flush: str
    target_messages_per_s: int
    target_p99_ms: float
    runs: list[LoadRun]

    def median(self, figure: Callable[[LoadRun], float]) -> float:
        """Return the median of one figure over the runs."""
        return statistics.median(figure(run) for run in self.runs)

    @property
    def messages_per_s(self) -> float:
        """Median rate."""
        return self.median(lambda run: run.load.messages_per_s)

    @property
    def p50_ms(self) -> float:
        """Median of the runs' median latencies per request."""
        return self.median(lambda run: run.load.p50_us) / 1000

    @property
    def p99_ms(self) -> float:
        """Median of the runs' 99th percentiles."""
        return self.median(lambda run: run.load.p99_us) / 1000

    @property
    def leader_cpu_us(self) -> float:
        """Median CPU time per message of the leader."""
        return self.median(lambda run: run.nodes[0].cpu_us_per_message)

    @property
    def follower_cpu_us(self) -> float:
        """Median CPU time per message of the busiest follower."""
        return self.median(lambda run: max(node.cpu_us_per_message for node in run.nodes[1:]))

    @property
    def rss_anon_mb(self) -> float:
        """Median over the runs of the largest node's own memory at the end of the load."""
        return self.median(lambda run: max(node.rss_anon_mb for node in run.nodes))

    @property
    def errors(self) -> int:
        """Number of unsuccessful answers of all runs."""
        return sum(sum(run.load.errors.values()) for run in self.runs)


class IdleRun(msgspec.Struct, frozen=True, kw_only=True):
    """An idle cluster, observed for `seconds`; `cpu_us_per_message` of its nodes is 0."""

    start_s: float
    seconds: float
    nodes: list[NodeUsage]


class FailoverReport(msgspec.Struct, frozen=True, kw_only=True):
    """Gaps from SIGKILL of the leader to the first acknowledgement of a later send, in milliseconds."""

    gaps_ms: list[float]
    failed_sends: int


class RestartReport(msgspec.Struct, frozen=True, kw_only=True):
    """Restart of a group that was killed as a whole, with `log_bytes` of log on each node.

    `seconds` count from the first start to the first acknowledged send.
    """

    log_bytes: int
    seconds: list[float]


class QueuesReport(msgspec.Struct, frozen=True, kw_only=True):
    """The same sends, spread over a few queues and over many, in turns on one cluster: messages per second."""

    few_queues: int
    many_queues: int
    few_per_s: list[float]
    many_per_s: list[float]

    @property
    def slowdown(self) -> float:
        """Loss of rate by the many queues, as a part of the rate with few; median over the turns."""
        return statistics.median(1 - many / few for few, many in zip(self.few_per_s, self.many_per_s, strict=True))


class Report(msgspec.Struct, kw_only=True):
    """All results of one invocation. Fields of scenarios that did not run are empty."""

    machine: dict[str, str]
    limits: MachineLimits
    loads: dict[str, LoadReport]
    idle: list[IdleRun]
    failover: FailoverReport | None
    restart: RestartReport | None = None
    queues: QueuesReport | None = None
    crowds: dict[str, list[LoadRun]] = {}

    def start_times_s(self) -> list[float]:
        """Return the time of each cluster from its first process to its first acknowledged send, in seconds."""
        starts = [run.start_s for report in self.loads.values() for run in report.runs]
        return starts + [run.start_s for run in self.idle]


def quantile(samples: Sequence[float], q: float) -> float:
    """Return the smallest sample that at least the fraction `q` of all samples does not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]

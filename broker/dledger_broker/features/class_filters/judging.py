"""Judging of messages by class filters, for pulls and pops. It runs on worker threads, never on the event loop."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from dledger.environment import FOREIGN, Environment, called_back
from dledger_broker.config import BrokerConfig
from dledger_broker.features.class_filters.worker import FilterFailedError, FilterWorker
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.parts import Gauge, Part
from dledger_remoting.errors import ServerError, SystemBusy
from dledger_remoting.filters.subscriptions import ClassFilter, class_name

_logger: Final = logging.getLogger(__name__)


class Verdicts:
    """Verdicts of a filter about records. They must be read one after another, in the order of the records."""

    def __init__(self, verdicts: bytes) -> None:
        self._verdicts: Iterator[int] = iter(verdicts)

    def matches_text(self, _properties: bytes) -> bool:
        """Return whether the next record matches."""
        return bool(next(self._verdicts))


class Worker(Protocol):
    """Worker of one filter, see `FilterWorker`."""

    @property
    def ended(self) -> int:
        """Number of processes that were ended because they failed."""
        ...

    def load(self) -> None:
        """Start the filter. Raises `FilterFailedError`."""
        ...

    def judge(self, count: int, pieces: Sequence[bytes]) -> bytes:
        """Return one byte for each of `count` records: 1 if it matches, else 0. Raises `FilterFailedError`."""
        ...

    def close(self) -> None:
        """End the process."""
        ...


class ClassFilters(Part):
    """Class filters of a node. Empty unless the configuration `class_filters` lists some.

    `workers` has the worker of each filter by name. Simulated nodes replace them before the start.
    """

    def __init__(self, config: BrokerConfig, env: Environment, counters: BrokerCounters) -> None:
        self._env = env
        self._counters = counters
        self._max_waits = config.max_class_filter_waits
        self._waits = 0
        timeout_ms, memory_bytes = config.class_filter_timeout_ms, config.class_filter_memory_bytes
        self.workers: Mapping[str, Worker] = {
            name: FilterWorker(target, timeout_ms, memory_bytes) for name, target in config.class_filters.items()
        }

    @property
    def gauges(self) -> Sequence[Gauge]:
        return (
            Gauge("class_filter_waits", "Pulls and pops that wait for code in class_filters", lambda: self._waits),
            Gauge(
                "class_filter_processes_ended",
                "Processes of class filters that died, hung or grew, and were replaced",
                lambda: sum(worker.ended for worker in self.workers.values()),
            ),
        )

    def start(self) -> None:
        """Load all filters, so that a filter that fails to load is logged at once, not at the first pull."""
        for name, worker in self.workers.items():
            self._env.run_blocking(FOREIGN, worker.load, partial(_loaded, name))

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()

    def named(self, text: str) -> ClassFilter:
        """Return the filter that a consumer names. Raises `ServerError` if the filter does not exist."""
        if not self.workers:
            raise ServerError("this broker does not filter by class: subscribe by tags")
        if text not in self.workers:
            raise ServerError(
                f"this broker has no class filter {class_name(text)!r}: its class_filters has "
                f"{', '.join(sorted(self.workers))}"
            )
        return ClassFilter(text)

    async def judge(self, wanted: ClassFilter, count: int, pieces: Sequence[bytes]) -> Verdicts:
        """Return the filter's verdicts about `count` records, whose bytes lie back to back in `pieces`. Raises
        `ServerError` if the filter failed, `SystemBusy` if too many calls wait for filters.
        """
        if self._waits >= self._max_waits:
            self._counters.max_class_filter_waits += 1
            raise SystemBusy(
                f"{self._waits} pulls wait for class filters, which is the limit max_class_filter_waits: try again"
            )
        work = partial(self.workers[wanted.name].judge, count, pieces)
        self._waits += 1
        try:
            verdicts: bytes = await called_back(lambda done: self._env.run_blocking(FOREIGN, work, done))
        except FilterFailedError as error:
            raise ServerError(f"class filter {wanted.name} failed: {error}") from error
        finally:
            self._waits -= 1
        return Verdicts(verdicts)


def _loaded(name: str, outcome: BaseException | None) -> None:
    if outcome is not None:
        _logger.error("event=class_filter_not_loaded name=%s reason=%r", name, str(outcome))

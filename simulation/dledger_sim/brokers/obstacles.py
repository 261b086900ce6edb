"""Obstacles for a broker besides the faults of its group: a busy log, and slow reads of the disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, TypeVar

from dledger.environment import COLD
from dledger.errors import BusyError
from dledger.net.transport import Buffer
from dledger_sim.log.environment import SimEnvironment
from dledger_sim.log.group import Life
from dledger_sim.log.node import SimulatedNode
from dledger_sim.log.scheduler import Scheduler

T = TypeVar("T")

BUSY_S: Final = 0.1
"""Length of each period in which the log is busy or not, in seconds."""
SLOW_SHARE: Final = 0.4
"""Share of the reads that begin late."""


@dataclass(slots=True)
class Obstacles:
    """Share of busy periods, and maximum delay of disk reads, until the obstacles are `over`."""

    busy_share: float = 0.0
    slow_reads_s: float = 0.0
    over: bool = False


class BusyNode(SimulatedNode):
    """Leader whose log refuses entries for a share of the time, as when too many bytes wait for a majority."""

    def __init__(self, life: Life, scheduler: Scheduler, obstacles: Obstacles) -> None:
        super().__init__(life)
        self._scheduler = scheduler
        self._seed = f"{life.node.name} {life.node.lives} busy"
        self._obstacles = obstacles

    def stage(
        self,
        size: int,
        fill: Callable[[int], Sequence[Buffer]] | None,
        *,
        commands: bytes | bytearray = b"",
        context: object = None,
        privileged: bool = False,
    ) -> int:
        if self.is_ready and self._is_busy():
            raise BusyError("too many bytes wait for a majority")
        return super().stage(size, fill, commands=commands, context=context, privileged=privileged)

    def _is_busy(self) -> bool:
        """Return whether the log is busy now. This depends on the time alone, so that looking changes nothing."""
        window = int(self._scheduler.now // BUSY_S)
        return not self._obstacles.over and Random(f"{self._seed} {window}").random() < self._obstacles.busy_share


def slow_down_reads(environment: SimEnvironment, random: Random, obstacles: Obstacles) -> None:
    """Delay the start of many works of the cold lane."""
    run_blocking = environment.run_blocking

    def later(lane: str, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        if lane == COLD and not obstacles.over and random.random() < SLOW_SHARE:
            environment.call_later(random.random() * obstacles.slow_reads_s, lambda: run_blocking(lane, work, done))
        else:
            run_blocking(lane, work, done)

    environment.run_blocking = later  # type: ignore[method-assign]

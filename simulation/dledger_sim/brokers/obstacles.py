"""Obstacles in a broker's way beside the faults of its group: a log that is busy, reads of the disk that take long."""

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
"""The log is busy, or it is not, for so long at a time."""
SLOW_SHARE: Final = 0.4
"""Share of the reads that begin late."""


@dataclass(slots=True)
class Obstacles:
    """How often the log is busy, and how late reads of the disk begin, until it is `over`."""

    busy_share: float = 0.0
    slow_reads_s: float = 0.0
    over: bool = False


class BusyNode(SimulatedNode):
    """A leader whose log takes nothing for a share of the time, as when too many bytes wait for a majority."""

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
        """See `Log.stage`."""
        if self.is_ready and self._is_busy():
            raise BusyError("too many bytes wait for a majority")
        return super().stage(size, fill, commands=commands, context=context, privileged=privileged)

    def _is_busy(self) -> bool:
        """Told by the time alone, so that looking changes nothing."""
        window = int(self._scheduler.now // BUSY_S)
        return not self._obstacles.over and Random(f"{self._seed} {window}").random() < self._obstacles.busy_share


def slow_down_reads(environment: SimEnvironment, random: Random, obstacles: Obstacles) -> None:
    """Have many works of the cold lane begin late."""
    run_blocking = environment.run_blocking

    def later(lane: str, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        if lane == COLD and not obstacles.over and random.random() < SLOW_SHARE:
            environment.call_later(random.random() * obstacles.slow_reads_s, lambda: run_blocking(lane, work, done))
        else:
            run_blocking(lane, work, done)

    environment.run_blocking = later  # type: ignore[method-assign]

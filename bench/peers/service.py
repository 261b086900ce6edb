"""Interface of a service that is measured, and the error of a service that cannot be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.cluster import Flush
from bench.generator import LoadResult
from bench.peers.rows import Row


class CannotRunError(Exception):
    """This machine cannot run a service, or not in this way. The text is the reason that the table shows."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of a row's measurement. `backlog` is the number of messages that a consumer finds."""

    seconds: float
    warmup_s: float
    backlog: int


@dataclass(frozen=True, slots=True)
class Edges:
    """Functions that are called when the measured time begins and ends."""

    begin: Callable[[], None]
    end: Callable[[], None]


class RunningService(Protocol):
    """Three nodes that take messages."""

    @property
    def pids(self) -> Sequence[int]:
        """The processes whose CPU time and memory count: the nodes, without name servers."""

    def fill(self, messages: int) -> None:
        """Create the backlog of the row that consumes. Raises `GeneratorError`."""

    def measure(self, row: Row, timing: Timing, edges: Edges) -> LoadResult:
        """Put one load on the service. Raises `GeneratorError`, or `CannotRunError` if it cannot run such a load."""


class Service(Protocol):
    """A service that this machine may or may not be able to run."""

    name: str
    about: str
    """Version and settings of the nodes."""

    def fetch(self) -> None:
        """Fetch the service's programs into `.peers/`. Raises `CannotRunError`."""

    def running(self, flush: Flush, directory: Path) -> AbstractContextManager[RunningService]:
        """Start three nodes with files in `directory`, and stop them at the end of the block.

        Raises `CannotRunError`.
        """

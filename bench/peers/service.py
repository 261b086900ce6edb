"""Interface of a service that is measured, and how it is told that it cannot be."""

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
    """This machine cannot run a service, or not in this way; the text is the reason that the table shows."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a row is measured; `backlog` is the number of messages that a consumer finds."""

    seconds: float
    warmup_s: float
    backlog: int


@dataclass(frozen=True, slots=True)
class Edges:
    """What is called when the measured time begins and ends."""

    begin: Callable[[], None]
    end: Callable[[], None]


class RunningService(Protocol):
    """Three nodes that take messages."""

    @property
    def pids(self) -> Sequence[int]:
        """The processes whose processor time and memory count: the nodes, without name servers."""

    def fill(self, messages: int) -> None:
        """Make the backlog of the row that consumes; raises `GeneratorError`."""

    def measure(self, row: Row, timing: Timing, edges: Edges) -> LoadResult:
        """Put one load on the service; raises `GeneratorError`, or `CannotRunError` if it has no such load."""


class Service(Protocol):
    """A service that may or may not be there."""

    name: str
    about: str
    """Version, and how its nodes are set."""

    def fetch(self) -> None:
        """Bring what it needs into `.peers/`; raises `CannotRunError`."""

    def running(self, flush: Flush, directory: Path) -> AbstractContextManager[RunningService]:
        """Start three nodes with files in `directory`, and stop them whatever happens; raises `CannotRunError`."""

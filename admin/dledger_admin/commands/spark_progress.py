"""The progress of a job on a terminal: what it is doing, and how many of its tasks are done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ..output import say

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS: Final = 0.25


@contextmanager
def job_progress(spark: SparkSession, name: str) -> Iterator[Callable[[str], None]]:
    """Show a bar on stderr if that is a terminal and `rich` is there, else one line for each phase.

    Gives the function that is told of phases.
    """
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        yield say
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield say
        return
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    ) as bars:
        bar = bars.add_task(name, total=None)
        stopped = threading.Event()

        def follow() -> None:
            while not stopped.wait(POLL_SECONDS):
                done, total = tasks_done(spark)
                if total:
                    bars.update(bar, completed=done, total=total)

        thread = threading.Thread(target=follow, name="progress", daemon=True)
        thread.start()
        try:
            yield lambda phase: bars.update(bar, description=f"{name}: {phase}", completed=0, total=None)
        finally:
            stopped.set()
            thread.join()


def tasks_done(spark: SparkSession) -> tuple[int, int]:
    """Return the number of finished tasks, and of all tasks, of the stages that run now."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)

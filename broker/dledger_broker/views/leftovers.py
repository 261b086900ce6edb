"""Files of consume queues that do not count any more: a start puts them aside, and they are removed while the node
runs.

A file system needs tens of seconds to remove the files of 20,000 queues, and a start does not wait for that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from dledger.environment import Environment
from dledger.store.disk import Disk
from dledger_broker.views.unitfiles import DIRECTORY
from dledger_broker.views.writer import ViewWriter

PREFIX: Final = "consumequeue.removed-"
QUEUES_PER_STEP: Final = 32
PAUSE_S: Final = 0.02
RETRY_S: Final = 60.0
"""Pause in seconds after an error of the disk."""

_logger = logging.getLogger(__name__)


def put_aside(disk: Disk) -> None:
    """Rename the directory of all consume queues. Blocks, but not for long."""
    names = set(disk.listdir("."))
    if DIRECTORY in names:
        number = sum(name.startswith(PREFIX) for name in names)
        while f"{PREFIX}{number}" in names:
            number += 1
        disk.rename(DIRECTORY, f"{PREFIX}{number}")


def remove_some(disk: Disk) -> bool:
    """Remove a few queues that were put aside. Return whether some are left."""
    left = QUEUES_PER_STEP
    for aside in sorted(name for name in disk.listdir(".") if name.startswith(PREFIX)):
        for topic in disk.listdir(aside):
            for queue in disk.listdir(f"{aside}/{topic}"):
                if not left:
                    return True
                left -= 1
                disk.rmtree(f"{aside}/{topic}/{queue}")
            disk.rmtree(f"{aside}/{topic}")
        disk.rmtree(aside)
    return False


def remove_slowly(disk: Disk, env: Environment, writer: ViewWriter, is_over: Callable[[], bool]) -> None:
    """Remove what was put aside, step by step between the writer's other jobs, until `is_over`."""

    def step() -> None:
        if not is_over():
            writer.submit(partial(remove_some, disk), done)

    def done(more: bool | BaseException) -> None:
        if isinstance(more, BaseException):
            _logger.warning("event=files_not_removed of='consume queues put aside' error=%r", str(more))
            env.call_later(RETRY_S, step)
        elif more:
            env.call_later(PAUSE_S, step)

    step()

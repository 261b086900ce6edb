"""Setup of a broker process around its event loop: memory, garbage collection, logs, the pid file."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import sys
from collections.abc import Callable
from logging.handlers import MemoryHandler, RotatingFileHandler
from pathlib import Path
from typing import Final

LOG_FILE_BYTES: Final = 16 << 20
LOG_FILES: Final = 5
EARLY_RECORDS: Final = 1_000
"""Log records kept while the file is not open yet."""
LOG_FORMAT: Final = "%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"
_LAYOUT: Final = logging.Formatter(LOG_FORMAT)
SWITCH_INTERVAL_S: Final = 0.0005
"""How long the event loop waits for a worker thread that holds the interpreter."""
IDLE_COLLECTION_S: Final = 30.0
_GC_THRESHOLDS: Final = (20_000, 20, 1_000_000)
"""Young objects are collected as usual, old ones only in idle times: a full collection under load stops everything."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_MALLOC_OPTIONS: Final = ((_M_MMAP_THRESHOLD, 4 << 20), (_M_TRIM_THRESHOLD, 32 << 20), (_M_ARENA_MAX, 2))
"""Entries of up to 1 MiB come and go all the time: with glibc's defaults each costs an mmap, page faults, an munmap."""


def tune_memory() -> None:
    """Raise glibc's thresholds; nothing happens with another C library."""
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in _MALLOC_OPTIONS:
            mallopt(option, value)


def tune_interpreter() -> None:
    """Hand over between threads quickly, and keep collections of what start-up made out of the way."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


class IdleCollector:
    """Runs a full garbage collection when there was work, and none in the last half minute."""

    def __init__(self, work_done: Callable[[], int]) -> None:
        self._work_done = work_done
        self._seen = self._collected = work_done()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look every half minute."""
        self._timer = asyncio.get_running_loop().call_later(IDLE_COLLECTION_S, self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        done = self._work_done()
        if done == self._seen and done != self._collected:
            gc.collect()
            self._collected = done
        self._seen = done
        self.start()


class Logs:
    """Warnings on stderr at once; everything from INFO on in `log/broker.log` below the data directory, as soon as that
    is known to be this node's.
    """

    def __init__(self) -> None:
        logging.raiseExceptions = False  # on a full disk every line would bring a traceback to the screen
        screen = logging.StreamHandler(sys.stderr)
        screen.setLevel(logging.WARNING)
        screen.setFormatter(_LAYOUT)
        self._early = MemoryHandler(EARLY_RECORDS, flushLevel=logging.CRITICAL + 1, flushOnClose=False)
        logging.basicConfig(level=logging.INFO, handlers=[self._early, screen], force=True)

    def open_file(self, data_dir: Path) -> None:
        """Write to the file from now on, beginning with what was logged before."""
        directory = data_dir / "log"
        directory.mkdir(parents=True, exist_ok=True)
        file = RotatingFileHandler(
            directory / "broker.log", maxBytes=LOG_FILE_BYTES, backupCount=LOG_FILES - 1, encoding="utf-8"
        )
        file.setFormatter(_LAYOUT)
        self._early.setTarget(file)
        self._early.flush()
        root = logging.getLogger()
        root.removeHandler(self._early)
        root.addHandler(file)


class PidFile:
    """`pid` in the data directory, while the process runs. A stale one is overwritten: what keeps a second process out
    is the directory's lock, which the kernel drops with its holder.
    """

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / "pid"

    def write(self) -> None:
        """Name this process; readers see the old file or the whole new one."""
        temporary = self._path.with_name(".pid.tmp")
        try:
            temporary.write_text(f"{os.getpid()}\n", encoding="ascii")
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        temporary.replace(self._path)

    def remove(self) -> None:
        """Take the file away, unless a process that was started meanwhile has put its own there."""
        try:
            owner = self._path.read_text(encoding="ascii").strip()
        except OSError:
            return
        if owner == str(os.getpid()):
            self._path.unlink(missing_ok=True)

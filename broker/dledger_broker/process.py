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
from pathlib import Path
from typing import Final

from dledger.log_writer import LogWriter
from dledger.logs import STDOUT, LogFormatter, open_log, set_levels
from dledger_broker.config import BrokerConfig

SWITCH_INTERVAL_S: Final = 0.0005
"""How long the event loop waits for a worker thread that holds the interpreter."""
IDLE_COLLECTION_S: Final = 30.0
STOP_REPORT_S: Final = 0.5
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
    """Warnings on stderr at once; everything from INFO on in `log_file`, by default `log/broker.log` below the data
    directory, as soon as that is known to be this node's. Threads write both: who reads a pipe may stand still, too.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._file = config.log_file or config.data_dir / "log" / "broker.log"
        formatter = LogFormatter(config.log_format, config.node_id)
        logging.raiseExceptions = False  # on a full disk every line would bring a traceback to the screen
        self._screen = LogWriter(formatter).write_to(logging.StreamHandler(sys.stderr))
        self._screen.setLevel(logging.WARNING)
        self._lines = LogWriter(formatter)
        logging.basicConfig(handlers=[self._lines, self._screen], force=True)
        set_levels(config.log_level, config.log_levels)

    def open(self) -> None:
        """Write to where the log goes from now on, beginning with what was logged before. Raises `OSError`."""
        self._lines.write_to(open_log(self._file))
        if self._file == STDOUT:
            logging.getLogger().removeHandler(self._screen)  # or whoever collects both would have warnings twice


class StopReport:
    """`stopping` in the data directory while the process stops: what it still waits for, in one line.

    Whoever stops it reads that, and waits as long as it changes. On a full disk there is none.
    """

    def __init__(self, data_dir: Path, what: Callable[[], str]) -> None:
        self._path = data_dir / "stopping"
        self._what = what
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Say it now, and whenever it has changed; a second call changes nothing."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._report())

    async def end(self) -> None:
        """There is nothing to wait for any more."""
        self._ended.set()
        if self._task is not None:
            await self._task
        await self.forget()

    async def forget(self) -> None:
        """Remove what a process that was killed has left."""
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self._path.unlink, missing_ok=True)

    async def _report(self) -> None:
        said = ""
        while not self._ended.is_set():
            text = self._what()
            if text != said:
                said = text
                with contextlib.suppress(OSError):
                    await asyncio.to_thread(self._path.write_text, text + "\n", encoding="utf-8")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_REPORT_S):
                    await self._ended.wait()


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

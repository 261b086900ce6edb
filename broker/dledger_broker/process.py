"""Setup of a broker process around its event loop: memory, garbage collection, logs and the pid file."""

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

from dledger_base.line_writer import LineWriter
from dledger_base.logs import STDOUT, LogFormatter, open_log, set_levels
from dledger_base.printed import PrintedLines
from dledger_base.room import FULL
from dledger_broker.config import BrokerConfig

SWITCH_INTERVAL_S: Final = 0.0005
"""Time in seconds for which the event loop waits for a worker thread that holds the interpreter."""
IDLE_COLLECTION_S: Final = 30.0
STOP_REPORT_S: Final = 0.5
_GC_THRESHOLDS: Final = (20_000, 20, 1_000_000)
"""Thresholds of the three generations. Young objects are collected as usual. Old objects are collected only in idle
times, because a full collection under load stops everything.
"""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_MALLOC_OPTIONS: Final = ((_M_MMAP_THRESHOLD, 4 << 20), (_M_TRIM_THRESHOLD, 32 << 20), (_M_ARENA_MAX, 2))
"""Options of glibc's malloc. Entries of up to 1 MiB are allocated and freed all the time. With glibc's defaults each of
them costs an mmap, page faults and an munmap.
"""


def tune_memory() -> None:
    """Raise glibc's thresholds. Do nothing with another C library."""
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in _MALLOC_OPTIONS:
            mallopt(option, value)


def tune_interpreter() -> None:
    """Shorten the switch interval of threads, and exclude the objects of the start-up from garbage collection."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


class IdleCollector:
    """Collector that runs a full garbage collection once a half minute passes without work, after some work."""

    def __init__(self, work_done: Callable[[], int]) -> None:
        self._work_done = work_done
        self._last_work_done = self._collected = work_done()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to check every half minute."""
        self._timer = asyncio.get_running_loop().call_later(IDLE_COLLECTION_S, self._collect_if_idle)

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()

    def _collect_if_idle(self) -> None:
        done = self._work_done()
        if done == self._last_work_done and done != self._collected:
            gc.collect()
            self._collected = done
        self._last_work_done = done
        self.start()


class Logs:
    """The logs of the process: warnings on stderr, and everything from INFO on in `log_file`.

    Stderr gets warnings at once. The log file is by default `log/broker.log` below the data directory. It is opened
    once the start has verified that the directory is this node's. Threads write both, because a reader of a pipe may
    stop reading.
    """

    def __init__(self, config: BrokerConfig, printed_to: Path | None = None) -> None:
        self._file = config.log_file or config.data_dir / "log" / "broker.log"
        formatter = LogFormatter(config.log_format, config.node_id)
        logging.raiseExceptions = False  # on a full disk every line would bring a traceback to the screen
        self._screen = LineWriter(formatter).write_to(PrintedLines(printed_to))
        self._screen.setLevel(logging.WARNING)
        self._lines = LineWriter(formatter)
        logging.basicConfig(handlers=[self._lines, self._screen], force=True)
        set_levels(config.log_level, config.log_levels)

    def open(self) -> None:
        """Open the log file and write to it from now on, beginning with what was logged before. Raises `OSError`."""
        self._lines.write_to(open_log(self._file))
        if self._file == STDOUT:
            # otherwise a collector of both streams would have warnings twice
            logging.getLogger().removeHandler(self._screen)


class StopReport:
    """The file `stopping` in the data directory while the process stops: one line about what it still waits for.

    Commands that stop the process read the file, and wait while it changes. On a full disk the file is missing.
    """

    def __init__(self, data_dir: Path, describe: Callable[[], str]) -> None:
        self._path = data_dir / "stopping"
        self._describe = describe
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Write the line now, and whenever it has changed. A second call changes nothing."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._report())

    async def end(self) -> None:
        """Stop writing, and remove the file."""
        self._ended.set()
        if self._task is not None:
            await self._task
        await self.forget()

    async def forget(self) -> None:
        """Remove the file, also if it is from a process that was killed."""
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self._path.unlink, missing_ok=True)

    async def _report(self) -> None:
        last_text = ""
        while not self._ended.is_set():
            text = self._describe()
            if text != last_text:
                last_text = text
                with contextlib.suppress(OSError):
                    await asyncio.to_thread(self._path.write_text, text + "\n", encoding="utf-8")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_REPORT_S):
                    await self._ended.wait()


class PidFile:
    """The file `pid` in the data directory, while the process runs. A stale file is overwritten.

    The directory's lock keeps a second process out. The kernel releases that lock when its holder ends.
    """

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / "pid"

    def write(self) -> None:
        """Write this process's id. Readers see either the old file or the whole new file."""
        text = f"{os.getpid()}\n"
        temporary = self._path.with_name(".pid.tmp")
        try:
            temporary.write_text(text, encoding="ascii")
        except OSError as error:
            temporary.unlink(missing_ok=True)
            if error.errno not in FULL or not self._path.exists():
                raise
            self._overwrite(text)
        else:
            temporary.replace(self._path)

    def _overwrite(self, text: str) -> None:
        """Write into the file of a killed process, which takes no new space. A full disk must not stop a start."""
        with self._path.open("r+b", buffering=0) as file:
            file.write(text.encode().ljust(self._path.stat().st_size, b"\n"))
            file.truncate(len(text))

    def remove(self) -> None:
        """Remove the file, unless a process that was started meanwhile has put its own there."""
        try:
            owner = self._path.read_text(encoding="ascii").strip()
        except OSError:
            return
        if owner == str(os.getpid()):
            self._path.unlink(missing_ok=True)

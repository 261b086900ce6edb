"""Guard that finds disk work on event loops, in tests and in simulations.

While an event loop waits for a disk, it handles nothing: no heartbeat, no vote, no client. So a loop may write entries
(into the page cache) and read cached data. All other work on files is for workers.

The disk interface (`dledger.store.disk`, `dledger.testing.disk`) reports each operation to `disk_work`. That raises if
the calling thread runs an event loop.

The guard is switched on by `watched`, and by the environment variable `DLEDGER_WATCH_LOOPS`, which tests set for
themselves and for every process that they start. The simulator always checks (`refuse_on_loop`). Otherwise the guard
costs one look at a flag.
"""

from __future__ import annotations

import os
import sys
import threading
from asyncio.events import _get_running_loop, _set_running_loop
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

WATCH_VARIABLE: Final = "DLEDGER_WATCH_LOOPS"

OWN_WRITES: Final = ("commitlog/", "raft/mark", "raft/commit")
"""Paths that a loop may write to without a sync: entries, the durable mark behind them, the saved commit index."""

NEVER_BLOCK: Final = frozenset(("size",))
"""Operations that only look at the kernel's memory."""

violations: list[str] = []
"""Refused operations so far. Code that catches every exception must not hide them from a test."""

_is_watching = bool(os.environ.get(WATCH_VARIABLE))


_is_tolerated: Callable[[FrameType], bool] | None = None


class _Thread(threading.local):
    """State of the calling thread."""

    def __init__(self) -> None:
        self.excepted = 0


_thread = _Thread()


class DiskWorkOnLoopError(AssertionError):
    """Some work blocked, or might have blocked, an event loop."""


def disk_work(operation: str, path: str) -> None:
    """Report that an operation on a file is about to begin. Raises `DiskWorkOnLoopError` on a watched loop."""
    if _is_watching:
        refuse_on_loop(operation, path)


def refuse_on_loop(operation: str, path: str) -> None:
    """Check like `disk_work`, whether loops are watched or not."""
    if operation in NEVER_BLOCK or not is_on_loop():
        return
    if operation == "pwrite" and path.startswith(OWN_WRITES):
        return
    caller = sys._getframe(1)  # noqa: SLF001 - the documented way to look at the callers
    if _is_tolerated is not None and _is_tolerated(caller):
        return
    violations.append(f"{operation} of {path}")
    raise DiskWorkOnLoopError(f"{operation} of {path} on an event loop: give it to a worker (`run_blocking`)")


def is_on_loop() -> bool:
    """Return whether the calling thread runs an event loop without a reason (`excepted`) to work on files there."""
    return _get_running_loop() is not None and not _thread.excepted


@contextmanager
def excepted(reason: str) -> Iterator[None]:
    """Let this thread do disk work on its loop, for a reason. Nothing may be awaited inside.

    For the start and the end of a process, when it serves nothing yet, or no longer.
    """
    _ = reason
    _thread.excepted += 1
    try:
        yield
    finally:
        _thread.excepted -= 1


@contextmanager
def as_worker() -> Iterator[None]:
    """Let the inside count as a worker, although it runs on a loop's thread: for simulated jobs."""
    loop = _get_running_loop()
    _set_running_loop(None)
    try:
        yield
    finally:
        _set_running_loop(loop)


@contextmanager
def watched() -> Iterator[None]:
    """Watch the loops of this process inside this context."""
    global _is_watching  # noqa: PLW0603 - one switch for the process, so that it costs nothing when it is off
    was_watching, _is_watching = _is_watching, True
    try:
        yield
    finally:
        _is_watching = was_watching


def watch(is_tolerated: Callable[[FrameType], bool] | None = None) -> None:
    """Watch the loops of this process, and of the processes that it starts, from now on.

    `is_tolerated(caller)` may allow disk work of this process, because a test may look at files on a loop that serves
    nobody.
    """
    global _is_watching, _is_tolerated
    _is_watching, _is_tolerated = True, is_tolerated
    os.environ[WATCH_VARIABLE] = "1"

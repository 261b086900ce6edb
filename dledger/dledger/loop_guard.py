"""Guard that finds disk work on event loops, in tests and in simulations.

An event loop that waits for a disk answers nobody meanwhile: no heartbeat, no vote, no client.  So a loop writes
entries (into the page cache) and reads what is there already, and everything else that touches files is a worker's.
The disk boundary (`dledger.store.disk`, `dledger.testing.disk`) tells each operation to `disk_work`, which raises where
the calling thread runs an event loop.

It is switched on by the environment variable `DLEDGER_WATCH_LOOPS`, which tests set for themselves and for every
process they start, and by `watched`; the simulator always asks (`refuse_on_loop`).  Otherwise it costs a look at one
flag.
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
"""Where a loop may write, without a sync: entries, the durable mark behind them, the saved commit index."""

NEVER_BLOCK: Final = frozenset(("size",))
"""Operations that look at what the kernel has in memory."""

violations: list[str] = []
"""What was refused so far: code that catches every exception must not hide it from a test."""

_watching = bool(os.environ.get(WATCH_VARIABLE))


_tolerated: Callable[[FrameType], bool] | None = None


class _Thread(threading.local):
    """What holds for the calling thread."""

    def __init__(self) -> None:
        self.excepted = 0


_thread = _Thread()


class DiskWorkOnLoopError(AssertionError):
    """Something blocked, or might have blocked, an event loop."""


def disk_work(operation: str, path: str) -> None:
    """An operation on a file is about to begin.  Raises `DiskWorkOnLoopError` on a loop that is watched."""
    if _watching:
        refuse_on_loop(operation, path)


def refuse_on_loop(operation: str, path: str) -> None:
    """As `disk_work`, whether loops are watched or not."""
    if operation in NEVER_BLOCK or not is_on_loop():
        return
    if operation == "pwrite" and path.startswith(OWN_WRITES):
        return
    caller = sys._getframe(1)  # noqa: SLF001 - the documented way to look at the callers
    if _tolerated is not None and _tolerated(caller):
        return
    violations.append(f"{operation} of {path}")
    raise DiskWorkOnLoopError(f"{operation} of {path} on an event loop: give it to a worker (`run_blocking`)")


def is_on_loop() -> bool:
    """Whether the calling thread runs an event loop, and no reason is given why it may work on files there."""
    return _get_running_loop() is not None and not _thread.excepted


@contextmanager
def excepted(reason: str) -> Iterator[None]:
    """Let this thread do disk work on its loop, for a reason; nothing may be awaited inside.

    For the start and the end of a process, when nothing is served yet, or any more.
    """
    _ = reason
    _thread.excepted += 1
    try:
        yield
    finally:
        _thread.excepted -= 1


@contextmanager
def as_worker() -> Iterator[None]:
    """What runs inside is a worker's, although it runs on the thread of a loop: a simulated job."""
    loop = _get_running_loop()
    _set_running_loop(None)
    try:
        yield
    finally:
        _set_running_loop(loop)


@contextmanager
def watched() -> Iterator[None]:
    """Watch the loops of this process meanwhile."""
    global _watching  # noqa: PLW0603 - one switch for the process, so that it costs nothing when it is off
    before, _watching = _watching, True
    try:
        yield
    finally:
        _watching = before


def watch(tolerated: Callable[[FrameType], bool] | None = None) -> None:
    """Watch the loops of this process, and of those that it starts, from now on.

    `tolerated(caller)` may let disk work of this process pass: a test looks at files on a loop that serves nobody.
    """
    global _watching, _tolerated
    _watching, _tolerated = True, tolerated
    os.environ[WATCH_VARIABLE] = "1"

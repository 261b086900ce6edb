"""Native thread that syncs the log for an event loop, in place of a Python thread.

It replaces the lane `flush` for syncs that consist of `fdatasync` only. A Python thread that returns from `fdatasync`
competes with the event loop for the interpreter's lock, and every acknowledgement waits for the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from dledger_base.invariants import invariant, known
from dledger_base.native_part import SyncThread


class Sync(Protocol):
    """One sync of written data; see `dledger.store.sync.SyncTicket`."""

    @property
    def descriptors(self) -> Sequence[int] | None:
        """Descriptors whose fdatasync does all that `run` does; None if `run` does more."""

    def run(self) -> None:
        """Do the whole sync. Blocks."""

    def finish(self, error: OSError | None) -> None:
        """Take the result of a sync that the native thread did in place of `run`. Raises as `run` does."""


class NativeSyncs:
    """Runs syncs on a native thread, one at a time, and reports their results on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: SyncThread) -> None:
        self._loop = loop
        self._thread = thread
        self._pending: tuple[Sync, Callable[[BaseException | None], None]] | None = None
        loop.add_reader(thread.fileno(), self._on_readable)

    def submit(self, sync: Sync, descriptors: Sequence[int], done: Callable[[BaseException | None], None]) -> None:
        """Sync the descriptors of `sync`, call its `ended`, and then call `done(None or exception)` on the loop."""
        invariant(self._pending is None, "one sync at a time")
        self._thread.submit(list(descriptors))
        self._pending = sync, done

    def close(self) -> None:
        """Wait for the running sync and call its `ended`, so that its files are released. Blocks until then.

        Its `done` is still called if the event loop continues to run.
        """
        self._thread.close()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._thread.fileno())
        report = self._take_result()
        if report is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                self._loop.call_soon_threadsafe(report)

    def _on_readable(self) -> None:
        report = self._take_result()
        if report is not None:
            report()

    def _take_result(self) -> Callable[[], None] | None:
        """Call `finish` of the sync that has finished, and return its `done` with the result. None if none has."""
        code = self._thread.take()
        if code is None:
            return None
        sync, done = known(self._pending, "an outcome belongs to a sync")
        self._pending = None
        try:
            sync.finish(OSError(code, os.strerror(code)) if code else None)
        except BaseException as error:  # as on a thread, the waiting caller is told of any exception
            return partial(done, error)
        return partial(done, None)

"""The native thread of an event loop, which syncs the log without a thread of Python's.

It is what the flush lane is for syncs that are nothing but `fdatasync`. A Python thread that comes back from that call
competes for the interpreter's lock with the loop that waits for it, and every acknowledgement waits for the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from dledger.invariants import invariant, known
from dledger.native_part import SyncThread


class Sync(Protocol):
    """One sync of what was written, see `dledger.store.sync.SyncTicket`."""

    @property
    def descriptors(self) -> Sequence[int] | None:
        """Descriptors whose fdatasync is all that `run` does; None where it does more."""

    def run(self) -> None:
        """Do it all; blocks."""

    def ended(self, error: OSError | None) -> None:
        """The descriptors were synced by somebody else, or not, in place of `run`; raises what that raises."""


class NativeSyncs:
    """Syncs on a native thread, one at a time, whose outcomes are told on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: SyncThread) -> None:
        self._loop = loop
        self._thread = thread
        self._pending: tuple[Sync, Callable[[BaseException | None], None]] | None = None
        loop.add_reader(thread.fileno(), self._ready)

    def submit(self, sync: Sync, descriptors: Sequence[int], done: Callable[[BaseException | None], None]) -> None:
        """Sync the descriptors of `sync`, end it, and then call `done(None or exception)` on the loop."""
        invariant(self._pending is None, "one sync at a time")
        self._thread.submit(list(descriptors))
        self._pending = sync, done

    def close(self) -> None:
        """Wait for the sync that runs and end it, so that its files are given back; blocks that long.

        It is still told if the event loop goes on running.
        """
        self._thread.close()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._thread.fileno())
        report = self._take()
        if report is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                self._loop.call_soon_threadsafe(report)

    def _ready(self) -> None:
        report = self._take()
        if report is not None:
            report()

    def _take(self) -> Callable[[], None] | None:
        """End the sync whose outcome is there; what is returned tells of it."""
        code = self._thread.take()
        if code is None:
            return None
        sync, done = known(self._pending, "an outcome belongs to a sync")
        self._pending = None
        try:
            sync.ended(OSError(code, os.strerror(code)) if code else None)
        except BaseException as error:  # whatever it was, as on a thread: who waits is told
            return partial(done, error)
        return partial(done, None)

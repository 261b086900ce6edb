"""Meter of the work that holds an event loop: the time of each part of a node, and its longest work.

A long turn of the loop delays everybody, and an observer cannot see which part caused it. So the few places where a
node's work begins name the part it belongs to:

    with holds.part(APPLY):
        ...

Work that is put off to the end of a turn counts for the part that its function names (`works_for`). If it names none,
that is the function's module, such as `features.pop.changes`. Work inside another part's work counts for the inner part
only. Work on a worker's thread does not hold the loop, except garbage collections, which stop every thread.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Final, TypeVar

import msgspec

F = TypeVar("F", bound=Callable[..., Any])
_PART: Final = "_loop_part"

REQUESTS: Final = "requests"
"""Part that handles the clients' requests of a turn, until their units are staged."""
ANSWERS: Final = "answers"
"""Part that passes answers to the sockets."""
PEERS: Final = "peers"
"""Part that handles messages of the group's other nodes, up to the writing of entries."""
PROPOSE: Final = "propose"
"""Part that seals, writes and sends an entry."""
APPLY: Final = "apply"
"""Part that applies committed entries to the state machine."""
TICK: Final = "tick"
"""Part of the replica's clock: heartbeats and elections."""
HOUSEKEEPING: Final = "housekeeping"
"""Part of the replica's work that is due a few times a second."""
SNAPSHOT: Final = "snapshot"
"""Part that encodes a slice of a snapshot."""
TRIM: Final = "trim"
"""Part that removes old data from the log and the views."""
VIEWS: Final = "views"
"""Part in which views take the files that a worker has written, and prepare the files to write next."""
SCRAPE: Final = "scrape"
"""Part that shows metrics and the status."""
SYNC: Final = "sync"
"""Part that acknowledges entries after a sync of the log."""
RESULTS: Final = "results"
"""Part of callbacks with the results of workers."""
TIMERS: Final = "timers"
"""Part of the callbacks of timers."""
UNKNOWN: Final = "unknown"
"""Part of work at the end of a turn whose module is not known."""
COLLECTION: Final = "collection"
"""Part of garbage collections, on any thread."""
LONGEST_WINDOW_S: Final = 60.0
"""Length in seconds of the windows for the longest work.

The reported work is from the present window or the previous one.
"""


def works_for(part: str) -> Callable[[F], F]:
    """Name the part for which a function works at the end of a turn."""

    def mark(function: F) -> F:
        function.__dict__[_PART] = part
        return function

    return mark


def _name_of_part(function: object) -> str:
    """Return the part of a function: the one that it names, or its module without the component's package."""
    module = getattr(function, "__module__", None) or UNKNOWN
    return getattr(function, _PART, None) or module.partition(".")[2] or module


class Held(msgspec.Struct, frozen=True):
    """Number of times that a part held the loop, total time, and longest time within the last one or two minutes."""

    part: str
    times: int
    seconds: float
    longest_seconds: float


class _EnteredParts:
    """Contexts that are entered now.

    `counted_s` is the total work of all contexts that have ended. `starts`, outermost first, holds the clock minus
    `counted_s` at each entry. So work that has ended inside a context is not counted for that context as well.
    """

    __slots__ = ("counted_s", "starts")

    def __init__(self) -> None:
        self.counted_s = 0.0
        self.starts: list[float] = []


class LoopPart:
    """Context in which the loop works for a part. Contexts nest, also within themselves."""

    __slots__ = ("_clock", "_entered", "longest_before_s", "longest_s", "seconds", "times")

    def __init__(self, clock: Callable[[], float], entered: _EnteredParts) -> None:
        self._clock = clock
        self._entered = entered
        self.times = 0
        self.seconds = self.longest_s = self.longest_before_s = 0.0

    def __enter__(self) -> None:
        entered = self._entered
        entered.starts.append(self._clock() - entered.counted_s)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entered = self._entered
        duration_s = self._clock() - entered.counted_s - entered.starts.pop()
        entered.counted_s += duration_s
        self.times += 1
        self.seconds += duration_s
        self.longest_s = max(self.longest_s, duration_s)

    def count(self, seconds: float) -> None:
        """Count one more time that the part held the loop, and its duration."""
        self.times += 1
        self.seconds += seconds
        self.longest_s = max(self.longest_s, seconds)


class LoopHolds:
    """Meter of one event loop. Its methods and contexts are for that loop's thread."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._entered = _EnteredParts()
        self._parts: dict[str, LoopPart] = {}
        self._parts_of_code: dict[object, LoopPart] = {}
        self._loop_thread_id = 0
        self._collection_started_at = 0.0
        self._window_end = clock() + LONGEST_WINDOW_S

    def part(self, name: str) -> LoopPart:
        """Return the context of a part. There is one for each name, so names must be few."""
        part = self._parts.get(name)
        if part is None:
            part = self._parts[name] = LoopPart(self._clock, self._entered)
        return part

    def run_for_its_part(self, callback: Callable[[], None]) -> None:
        """Call a callback, and count its time for its part. This is what an environment does at the end of turns."""
        part = self._parts_of_code.get(getattr(callback, "__code__", None)) or self.part_of(callback)
        entered = self._entered
        entered.starts.append(self._clock() - entered.counted_s)
        try:
            callback()
        finally:
            part.__exit__(None, None, None)

    def part_of(self, callback: Callable[..., object]) -> LoopPart:
        """Return the part of a callback: that of its function, whatever arguments it is bound to."""
        while isinstance(callback, partial):
            callback = callback.func
        code = getattr(callback, "__code__", None)  # a closure is made anew for each call, and its code is not
        part = self._parts_of_code.get(code)
        if part is None:
            part = self.part(_name_of_part(callback))
            if code is not None:
                self._parts_of_code[code] = part
        return part

    def begin(self) -> None:
        """Count garbage collections, too, until `end`. Call it on the loop's thread."""
        self._loop_thread_id = threading.get_ident()
        self.part(COLLECTION)
        if self._on_collection not in gc.callbacks:
            gc.callbacks.append(self._on_collection)

    def end(self) -> None:
        """Stop counting garbage collections."""
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)

    def turn_window(self) -> None:
        """Begin a new window once the present window has ended.

        Call it at least several times a minute, so that old maxima are forgotten.
        """
        now = self._clock()
        if now >= self._window_end:
            self._window_end = now + LONGEST_WINDOW_S
            for part in self._parts.values():
                part.longest_before_s, part.longest_s = part.longest_s, 0.0

    def held(self) -> list[Held]:
        """Return the counts of each part that held the loop, sorted by name."""
        return [
            Held(name, part.times, part.seconds, max(part.longest_s, part.longest_before_s))
            for name, part in sorted(self._parts.items())
            if part.times
        ]

    def _on_collection(self, phase: str, _info: dict[str, int]) -> None:
        """Count a collection. The collector calls this on the thread whose allocation caused it."""
        part = self._parts[COLLECTION]
        if threading.get_ident() != self._loop_thread_id:
            if phase == "start":
                self._collection_started_at = self._clock()
            else:
                part.count(self._clock() - self._collection_started_at)
        elif phase == "start":
            part.__enter__()
        else:
            part.__exit__(None, None, None)

"""Meter of what holds an event loop: how long the work of each part of a node took, and the longest of it.

A turn of the loop that takes long makes everybody wait, and nothing outside tells whose turn it was. So the few places
where a node's work begins name the part that it is of:

    with holds.part(APPLY):
        ...

What is put off to the end of a turn counts for the module that does it, as `features.pop.changes`, see `module_of`.
Work inside another part's work counts for the inner one alone. What a part does in a worker's thread is no concern of
the loop, except collections of garbage, which stop every thread.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Final

import msgspec

REQUESTS: Final = "requests"
"""What clients have sent in a turn, up to the units that are staged."""
ANSWERS: Final = "answers"
"""Handing answers to the sockets."""
PEERS: Final = "peers"
"""What the group's other nodes have sent, up to the writing of entries."""
PROPOSE: Final = "propose"
"""An entry is sealed, written and sent."""
APPLY: Final = "apply"
"""Committed entries reach the state machine."""
TICK: Final = "tick"
"""The replica's clock: heartbeats and elections."""
HOUSEKEEPING: Final = "housekeeping"
"""What is due a few times a second."""
SNAPSHOT: Final = "snapshot"
"""A slice of a snapshot is encoded."""
TRIM: Final = "trim"
"""Old data leaves the log and the views."""
VIEWS: Final = "views"
"""Views take what a worker has written, and what it is to write next is made up."""
SCRAPE: Final = "scrape"
"""Metrics and the status are shown."""
SYNC: Final = "sync"
"""A sync of the log has ended, and what it covered is acknowledged."""
RESULTS: Final = "results"
"""What workers have brought for any other part."""
TIMERS: Final = "timers"
"""Timers of any other part."""
UNKNOWN: Final = "unknown"
"""Work for the end of a turn whose module cannot be told."""
COLLECTION: Final = "collection"
"""Collections of garbage, on whichever thread."""
LONGEST_WINDOW_S: Final = 60.0
"""The longest work that is told is of the present window of this length and the one before."""


def module_of(callback: Callable[..., object]) -> str:
    """The part that a callback is of: its module, without the package that is all of the component."""
    while isinstance(callback, partial):
        callback = callback.func
    module = getattr(callback, "__module__", None) or UNKNOWN
    return module.partition(".")[2] or module


class Held(msgspec.Struct, frozen=True):
    """How often a part held the loop, for how long in all, and at the longest within the last one or two minutes."""

    part: str
    times: int
    seconds: float
    longest_seconds: float


class _Running:
    """The contexts that are entered. `counted_s` is the work of all that have ended. A start, outermost first, is the
    clock less `counted_s` as the context was entered: so what has ended inside it is not counted for it, too.
    """

    __slots__ = ("counted_s", "starts")

    def __init__(self) -> None:
        self.counted_s = 0.0
        self.starts: list[float] = []


class LoopPart:
    """A context in which the loop works for a part; it nests, also in itself."""

    __slots__ = ("_clock", "_running", "longest_before_s", "longest_s", "seconds", "times")

    def __init__(self, clock: Callable[[], float], running: _Running) -> None:
        self._clock = clock
        self._running = running
        self.times = 0
        self.seconds = self.longest_s = self.longest_before_s = 0.0

    def __enter__(self) -> None:
        running = self._running
        running.starts.append(self._clock() - running.counted_s)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        running = self._running
        took = self._clock() - running.counted_s - running.starts.pop()
        running.counted_s += took
        self.count(took)

    def count(self, seconds: float) -> None:
        """It held the loop for so long."""
        self.times += 1
        self.seconds += seconds
        self.longest_s = max(self.longest_s, seconds)


class LoopHolds:
    """The meter of one event loop; its methods, and contexts, are for that loop's thread."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._running = _Running()
        self._parts: dict[str, LoopPart] = {}
        self._thread = 0
        self._collecting_since = 0.0
        self._window_ends = clock() + LONGEST_WINDOW_S

    def part(self, name: str) -> LoopPart:
        """The context of a part; one for each name, which there are few of."""
        found = self._parts.get(name)
        if found is None:
            found = self._parts[name] = LoopPart(self._clock, self._running)
        return found

    def begin(self) -> None:
        """Count collections of garbage, too, until `end`; on the loop's thread."""
        self._thread = threading.get_ident()
        self.part(COLLECTION)
        if self._on_collection not in gc.callbacks:
            gc.callbacks.append(self._on_collection)

    def end(self) -> None:
        """Count them no more."""
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)

    def turn_window(self) -> None:
        """To be called a few times a minute: what was longest is forgotten once it is old."""
        now = self._clock()
        if now >= self._window_ends:
            self._window_ends = now + LONGEST_WINDOW_S
            for part in self._parts.values():
                part.longest_before_s, part.longest_s = part.longest_s, 0.0

    def held(self) -> list[Held]:
        """What was counted of each part that held the loop, in the order of their names."""
        return [
            Held(name, part.times, part.seconds, max(part.longest_s, part.longest_before_s))
            for name, part in sorted(self._parts.items())
            if part.times
        ]

    def _on_collection(self, phase: str, _info: dict[str, int]) -> None:
        """A callback of the collector, which runs on the thread that made the one object too many."""
        part = self._parts[COLLECTION]
        if threading.get_ident() != self._thread:
            if phase == "start":
                self._collecting_since = self._clock()
            else:
                part.count(self._clock() - self._collecting_since)
        elif phase == "start":
            part.__enter__()
        else:
            part.__exit__(None, None, None)

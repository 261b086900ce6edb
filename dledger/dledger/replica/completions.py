"""Queue of calls into the service: each runs only where nothing of the replica is half done.

A callback of the service may stage another unit, ask for a read or hand leadership over.  Run inside `stage`, it would
do so while the entry that is being sealed is half written:

1. One voter, `flush = "async"`: the open entry is full, and `stage` seals it to open another one.
2. The sealed entry is written, hence committed, hence applied; its callback stages a unit, which opens an entry.
3. The outer `stage` goes on, and no check of size or space stands before what it adds to that entry, which crosses the
   end of its segment: what was acknowledged cannot be read after a restart.

So whatever tells the service something is added here, and is called at the end of the same turn of the event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType

from dledger.invariants import invariant


class Completions:
    """Calls in the order in which they were added.  `failed` is told the exception of one; those behind it still run.

    `with completions.executing:` marks work of the replica that no callback may interrupt; it nests.
    """

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = False
        self.executing = Executing()

    def add(self, completion: Callable[[], None]) -> None:
        """Call it at the next `run`, which whoever adds sees to."""
        self._waiting.append(completion)

    def run(self) -> None:
        """Call what waits, and what that adds.  Inside a completion nothing is done: the outer `run` goes on."""
        if self._running or not self._waiting:
            return
        self.require_outside("completions")
        self._running = True
        try:
            while self._waiting:
                try:
                    self._waiting.popleft()()
                except Exception as error:
                    self._failed(error)
        finally:
            self._running = False

    def require_outside(self, call: str) -> None:
        """Raise `InvariantError` inside an execution: `call` calls the service, or the service calls it."""
        invariant(not self.executing.depth, "the service is called, and calls, between executions only", call=call)


class Executing:
    """A context that nests: `depth` executions are under way."""

    __slots__ = ("depth",)

    def __init__(self) -> None:
        self.depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.depth -= 1

"""Queue of calls into the service. Each call runs only while no work of the replica is half done.

A callback of the service may stage another unit, ask for a read or hand leadership over. If it ran inside `stage`, it
would do so while the entry that is being sealed is half written:

1. One voter, `flush = "async"`: the open entry is full, and `stage` seals it to open another one.
2. The sealed entry is written, hence committed, hence applied. Its callback stages a unit, which opens an entry.
3. The outer `stage` continues and adds its unit to that entry without checking size or space again. The entry crosses
   the end of its segment, and acknowledged data cannot be read after a restart.

So every call that notifies the service is added here. It is made at the end of the same turn of the event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType

from dledger_base.invariants import InvariantError


class Completions:
    """Calls in the order in which they were added.

    `on_failure` is told the exception of a call; the calls behind it still run.

    `with completions.executing:` marks work of the replica that no callback may interrupt. It nests.
    """

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._calls: deque[Callable[[], None]] = deque()
        self._running = False
        self.executing = Executing()

    def add(self, completion: Callable[[], None]) -> None:
        """Add a call for the next `run`. The caller must make sure that `run` is called."""
        self._calls.append(completion)

    def run(self) -> None:
        """Make all waiting calls, also calls that these add.

        Inside a completion this does nothing: the outer `run` continues.
        """
        if self._running or not self._calls:
            return
        self.require_outside("completions")
        self._running = True
        try:
            while self._calls:
                try:
                    self._calls.popleft()()
                except Exception as error:
                    self._on_failure(error)
        finally:
            self._running = False

    def require_outside(self, call: str) -> None:
        """Raise `InvariantError` inside an execution, where calls to and from the service are forbidden.

        `call` names the call.
        """
        if self.executing.depth:
            raise InvariantError(f"the service is called, and calls, between executions only: call={call!r}")


class Executing:
    """Nestable context; `depth` is the number of executions under way."""

    __slots__ = ("depth",)

    def __init__(self) -> None:
        self.depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.depth -= 1

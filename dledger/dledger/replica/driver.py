"""Driver and completions: how the parts of a replica have work done, and how they call into the service.

A callback of the service may stage another unit, ask for a read or hand leadership over. If it ran inside `stage`, it
would do so while the entry that is being sealed is half written:

1. One voter, `flush = "async"`: the open entry is full, and `stage` seals it to open another one.
2. The sealed entry is written, hence committed, hence applied. Its callback stages a unit, which opens an entry.
3. The outer `stage` continues and adds its unit to that entry without checking size or space again. The entry crosses
   the end of its segment, and acknowledged data cannot be read after a restart.

So every call that notifies the service waits in `Completions`, and runs only while no work of the replica is half done.
It is made at the end of the same turn of the event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from dledger.consensus.effects import Output
from dledger_base.invariants import InvariantError


class Driver(Protocol):
    """The interface of `dledger.replica.replica.Replica` to its parts. Each part gets the engine separately.

    A part is made before its replica is complete, so it must not call the driver until it is called itself.
    """

    def fail(self, error: BaseException) -> None:
        """End this replica: after `error` it cannot continue safely."""

    def retire(self, error: BaseException) -> None:
        """End this replica for a fault of its disk that leaves time to hand leadership over first."""

    def run(self, work: Callable[[], object]) -> None:
        """Run `work`, which gives the engine something to do, then carry out the engine's effects.

        A stopped replica does nothing.
        """

    def pump(self) -> None:
        """Carry out the engine's effects until there are none, then the calls into the service."""

    def execute(self, output: Output) -> None:
        """Carry out these effects before returning, or after a rewriting of the log that is under way."""

    def suspect(self, index: int) -> None:
        """Have the log checked from entry `index` on, because a read there did not verify."""


class Completions:
    """Calls in the order in which they were added.

    `on_failure` is told the exception of a call; the calls behind it still run.

    `executing` counts the works under way that no callback may interrupt. Such a work adds 1 when it begins, and
    subtracts 1 in a `finally` clause when it ends.
    """

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._calls: deque[Callable[[], None]] = deque()
        self._running = False
        self.executing = 0

    def add(self, completion: Callable[[], None]) -> None:
        """Add a call for the next `run`. The caller must make sure that `run` is called."""
        self._calls.append(completion)

    def run(self) -> None:
        """Make all waiting calls, also calls that these add.

        Inside a completion this does nothing: the outer `run` continues.
        """
        if self._running or not self._calls:
            return
        if self.executing:
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
        if self.executing:
            raise InvariantError(f"the service is called, and calls, between executions only: call={call!r}")

"""Turns of requests that continue in tasks, because their answers may need the disk.

Most often the data for such a request is in memory. Then its task never waits, and takes milliseconds for a large
message. One read of a connection holds thousands of these requests. Their tasks would all run in one turn of the event
loop, and all answers would be collected before any is written.

The time of each step of a task is measured. Once a turn has spent `SLICE_S`, further steps wait for later turns, in the
order in which they began to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, TypeVar

from dledger.environment import Environment, called_back

T = TypeVar("T")

SLICE_S: Final = 0.02
"""Maximum time in seconds of a turn for steps of tasks. The last step may take longer."""
WOKEN_PER_TURN: Final = 32
"""Maximum number of tasks that a turn lets go on. Those that find no time left wait again."""


class TaskTurns:
    """Turns of all tasks of a node."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._spent_s = 0.0
        """Time in seconds of the steps since a step last had to wait."""
        self._step_began: float | None = None
        """Beginning of the step that runs, None between two steps."""
        self._waiting: list[tuple[int, Callable[[None], None]]] = []
        """Heap of the steps that wait, by their numbers."""
        self._numbers = count()
        self._is_turn_due = False

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work of a task, in turns that have time for it."""
        try:
            await self.give_way()
            await _Measured(work, self)
        finally:
            work.close()  # for work that was cancelled before it began

    async def give_way(self) -> None:
        """Wait for a later turn if the time of this turn is over. A task calls this between two parts of its work."""
        if self._is_over():
            number = next(self._numbers)  # kept if it finds no time once more: a dear task must not stay ahead of it
            while self._is_over():
                await called_back(partial(self._wait, number))

    def step(self, go_on: Callable[[], T]) -> T:
        """Run one step of a task, and count its time."""
        began = self._step_began = self._env.now()
        try:
            return go_on()
        finally:
            self._step_began = None
            self._spent_s += self._env.now() - began

    def _is_over(self) -> bool:
        running_s = 0.0 if self._step_began is None else self._env.now() - self._step_began
        return self._spent_s + running_s > SLICE_S

    def _wait(self, number: int, go_on: Callable[[None], None]) -> None:
        heappush(self._waiting, (number, go_on))
        if not self._is_turn_due:
            self._have_turn()

    def _have_turn(self) -> None:
        self._is_turn_due = True
        self._env.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_turn_due = False
        self._spent_s = 0.0
        for _ in range(min(len(self._waiting), WOKEN_PER_TURN)):
            _, go_on = heappop(self._waiting)
            go_on(None)
        if self._waiting:
            self._have_turn()


class _Measured:
    """Work of a task whose steps are measured. Each step behind the first gives way if the time of its turn is over."""

    def __init__(self, work: Coroutine[Any, Any, None], turns: TaskTurns) -> None:
        self._work = work
        self._turns = turns

    def __await__(self) -> Generator[Any, Any, None]:
        """Do the work."""
        go_on: Callable[[], Any] = partial(self._work.send, None)
        while True:
            try:
                future = self._turns.step(go_on)
            except StopIteration:
                return
            try:
                go_on = partial(self._work.send, (yield future))
                yield from self._turns.give_way().__await__()
            except GeneratorExit:
                raise
            except BaseException as error:  # also a cancellation, which the work may have to handle
                go_on = partial(self._work.throw, error)

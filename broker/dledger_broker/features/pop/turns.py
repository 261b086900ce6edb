"""Turns of pops that search many queues: each turn of the event loop handles a few of these pops.

Consumers that find nothing ask again at once. Take a dozen members of a group and a topic of 10,000 queues. Without
turns, their pops would block the event loop, and all other clients, for a fifth of a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from dledger.environment import Environment
from dledger_broker.kernel.requests import Request

FEW_QUEUES: Final = 100
"""Maximum number of queues that a pop may search without waiting for its turn."""
QUEUES_A_TURN: Final = 20_000
"""Number of queues after which pops wait for the next turn. Searching this many takes about 10 ms."""


class PopTurns:
    """Pops of one node that wait for their turn.

    `run` handles a request again, which then calls `may_run` once more.
    """

    def __init__(self, env: Environment, run: Callable[[Request], None]) -> None:
        self._env = env
        self._run = run
        self._waiting: deque[Request] = deque()
        self._queues_left = QUEUES_A_TURN
        self._is_scheduled = False
        self._is_running = False

    def may_run(self, request: Request, queue_count: int) -> bool:
        """Return whether a pop may search this many queues now. If not, the pop is handled in a later turn."""
        if queue_count <= FEW_QUEUES:
            return True
        self._schedule_turn()
        if self._queues_left <= 0 or (self._waiting and not self._is_running):
            self._waiting.append(request)
            return False
        self._queues_left -= queue_count
        return True

    def _schedule_turn(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._env.call_soon(self._run_turn)

    def _run_turn(self) -> None:
        self._is_scheduled, self._queues_left = False, QUEUES_A_TURN
        self._is_running = True
        try:
            while self._waiting and self._queues_left > 0:
                request = self._waiting.popleft()
                if request.origin.is_open:
                    self._run(request)
        finally:
            self._is_running = False
        if self._waiting:
            self._schedule_turn()

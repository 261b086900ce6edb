"""Saver: makes term and vote durable, and holds back the messages that reflect them until then."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

from dledger.consensus.engine import Engine
from dledger.environment import HARD_STATE, Environment
from dledger.replica.driver import Driver
from dledger.replica.outbox import Outbox, Send
from dledger.store.hardstate import HardStateFile
from dledger.types import HardState


class HardStateSaver:
    """Saves in order, on a thread of its own.

    The engine is notified of each state that has become durable. The outbox gets the messages that waited for it.
    """

    def __init__(
        self, environment: Environment, file: HardStateFile, outbox: Outbox, engine: Engine, driver: Driver
    ) -> None:
        self._environment = environment
        self._file = file
        self._outbox = outbox
        self._engine = engine
        self._driver = driver
        self._started_saves = 0
        self._completed_saves = 0
        self._held_sends: deque[tuple[int, Send]] = deque()
        self._stopped = False
        self._save_start_times: deque[float] = deque()

    @property
    def outstanding_s(self) -> float:
        """Seconds that the oldest save has taken so far; 0 if none is under way."""
        return self._environment.now() - self._save_start_times[0] if self._save_start_times else 0.0

    def save(self, state: HardState) -> None:
        """Begin to make `state` durable."""
        self._started_saves += 1
        number = self._started_saves
        self._save_start_times.append(self._environment.now())

        def done(result: object) -> None:
            self._save_start_times.popleft()
            if isinstance(result, BaseException):
                self._driver.fail(result)
            elif not self._stopped:
                self._completed_saves = number
                self._on_saved(state)

        self._environment.run_blocking(HARD_STATE, partial(self._file.save, state), done)

    def _on_saved(self, state: HardState) -> None:
        self._engine.hard_state_saved(state, self._environment.now())
        self.release()
        self._driver.pump()

    def hold(self, sends: Sequence[Send]) -> None:
        """Send once everything begun so far is durable, which may be at once."""
        for send in sends:
            self._held_sends.append((self._started_saves, send))
        self.release()

    def release(self) -> None:
        """Send the messages that need not wait any longer, in order."""
        held = self._held_sends
        while held and held[0][0] <= self._completed_saves:
            self._outbox.send(held.popleft()[1])

    def stop(self) -> None:
        """Stop reporting and sending."""
        self._stopped = True
        self._held_sends.clear()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

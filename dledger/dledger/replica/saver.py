"""Makes term and vote durable, and holds back the messages that reflect them until they are."""

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

    The engine is told each state that is durable, the outbox gets the messages that waited for it.
    """

    def __init__(
        self, environment: Environment, file: HardStateFile, outbox: Outbox, engine: Engine, driver: Driver
    ) -> None:
        self._environment = environment
        self._file = file
        self._outbox = outbox
        self._engine = engine
        self._driver = driver
        self._begun = 0
        self._done = 0
        self._held: deque[tuple[int, Send]] = deque()
        self._stopped = False

    def save(self, state: HardState) -> None:
        """Begin to make `state` durable."""
        self._begun += 1
        number = self._begun

        def done(result: object) -> None:
            if isinstance(result, BaseException):
                self._driver.fail(result)
            elif not self._stopped:
                self._done = number
                self._saved(state)

        self._environment.run_blocking(HARD_STATE, partial(self._file.save, state), done)

    def _saved(self, state: HardState) -> None:
        self._engine.hard_state_saved(state, self._environment.now())
        self.release()
        self._driver.pump()

    def hold(self, sends: Sequence[Send]) -> None:
        """Send once everything begun so far is durable, which may be now."""
        for send in sends:
            self._held.append((self._begun, send))
        self.release()

    def release(self) -> None:
        """Send what need not wait any longer, in the order in which it came."""
        held = self._held
        while held and held[0][0] <= self._done:
            self._outbox.send(held.popleft()[1])

    def stop(self) -> None:
        """Tell and send nothing more."""
        self._stopped = True
        self._held.clear()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

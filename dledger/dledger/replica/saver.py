"""Makes term and vote durable, and holds back the messages that reflect them until they are."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from dledger.core.effects import SendCatchUp, SendEntries, SendMessage
from dledger.environment import HARD_STATE, Environment
from dledger.store.hardstate import HardStateFile
from dledger.types import HardState


class HardStateSaver:
    """Saves in order, on a thread of its own.

    `saved(state)` is told each state that is durable, `send` gets the messages that waited for it, `failed` the error
    that ends this replica.
    """

    def __init__(
        self,
        environment: Environment,
        file: HardStateFile,
        *,
        send: Callable[[SendMessage | SendEntries | SendCatchUp], None],
        saved: Callable[[HardState], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._environment = environment
        self._file = file
        self._send = send
        self._saved = saved
        self._failed = failed
        self._begun = 0
        self._done = 0
        self._held: deque[tuple[int, SendMessage | SendEntries | SendCatchUp]] = deque()
        self._stopped = False

    def save(self, state: HardState) -> None:
        """Begin to make `state` durable."""
        self._begun += 1
        number = self._begun

        def done(result: object) -> None:
            if isinstance(result, BaseException):
                self._failed(result)
            elif not self._stopped:
                self._done = number
                self._saved(state)

        self._environment.run_blocking(HARD_STATE, partial(self._file.save, state), done)

    def hold(self, sends: Sequence[SendMessage | SendEntries | SendCatchUp]) -> None:
        """Send once everything begun so far is durable, which may be now."""
        for send in sends:
            self._held.append((self._begun, send))
        self.release()

    def release(self) -> None:
        """Send what need not wait any longer, in the order in which it came."""
        held = self._held
        while held and held[0][0] <= self._done:
            self._send(held.popleft()[1])

    def stop(self) -> None:
        """Tell and send nothing more."""
        self._stopped = True
        self._held.clear()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

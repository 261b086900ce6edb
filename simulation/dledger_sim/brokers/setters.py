"""Administrators who set something and query it. With their judge.

Every leader reports the last setting until another is set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dledger_remoting.codes import ResponseCode
from dledger_sim.brokers.clients import Client
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.expected import Change
from dledger_sim.brokers.history import History
from dledger_sim.brokers.tenants import NOT_DONE
from dledger_sim.brokers.workload import Workload
from dledger_sim.log.invariants import require

T = TypeVar("T")
Told = Callable[[Answer], None]
"""Callback for a successful answer."""


class Setter(Client):
    """Administrator of settings. A subclass chooses the setting in `act`."""

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self._numbers = 0

    def next_number(self) -> int:
        """Return a number that identifies a change among all administrators."""
        self._numbers += 1
        return 1_000 * self._numbers + self.number

    def change(self, code: int, change: Change, told: Told, *, ext: dict[str, str], body: bytes = b"") -> None:
        """Request a change, and continue after its answer."""
        expected = self.workload.truth.expected
        expected.attempt(change)

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                told(answer)
            elif answer is not None and answer.code in NOT_DONE:
                expected.refuse(change)
            self.pause()

        if not self.call(code, ext, done, body=body):
            expected.refuse(change)
            self.pause()

    def ask(self, code: int, told: Told, *, body: bytes = b"") -> None:
        """Ask a question, and continue after its answer."""

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                told(answer)
            self.pause()

        if not self.call(code, {}, done, body=body):
            self.pause()

    def require_known(self, history: History[T], found: T, answer: Answer, promise: str, **facts: object) -> None:
        """Check that the value in an answer held at some moment since the question."""
        if answer.seen is not None:
            known = history.during(answer.seen.asked_at, self.workload.group.scheduler.now)
            require(found in known, promise, found=found, known=known, **facts)

"""Driver for a part that is tested alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from dledger.consensus.effects import Output
from dledger.replica.standing import ConnectedPeers
from dledger.types import ReplicaId
from dledger_base.loop_guard import as_worker


class FakeDriver:
    """Driver that runs work at once and lists the failures and suspects that a part reports. See `Driver`."""

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self.suspects: list[int] = []

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)

    def retire(self, error: BaseException) -> None:
        self.fail(error)

    def run(self, work: Callable[[], object]) -> None:
        work()

    def pump(self) -> None:
        """Do nothing."""

    def execute(self, output: Output) -> None:
        """Do nothing, as for an engine without effects."""

    def suspect(self, index: int) -> None:
        self.suspects.append(index)


def connected_to(*peers: ReplicaId) -> ConnectedPeers:
    """Return the peers of a replica that is connected to these."""
    connected = ConnectedPeers()
    for peer in peers:
        connected.note_connected(peer)
    return connected


class Unfailing(FakeDriver):
    """Driver that raises failures in the test, for parts that have no reason to fail."""

    def fail(self, error: BaseException) -> None:
        raise error


class HeldWork:
    """Workers of an environment that work when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.given: deque[tuple[str, Callable[[], Any], Callable[[Any], None]]] = deque()

    def run_blocking(self, lane: str, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.given.append((lane, work, done))

    def work_once(self) -> str:
        """Do the work that waits longest, and return its lane."""
        lane, work, done = self.given.popleft()
        try:
            with as_worker():
                result = work()
        except Exception as error:
            result = error
        done(result)
        return lane

    def work_all(self) -> None:
        while self.given:
            self.work_once()

"""Driver: the interface through which the parts of a replica ask something of that replica."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dledger.consensus.effects import Output


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

"""Driver of a replica, as its parts see it: what any of them may ask of the replica that it is a part of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dledger.consensus.effects import Output
from dledger.replica.proposer import Fill


class Driver(Protocol):
    """`dledger.replica.replica.Replica` to its parts, which get the engine beside it.

    A part is made before its replica is whole: it asks nothing of the driver until it is called itself.
    """

    @property
    def is_ready(self) -> bool:
        """Leads, has applied its own no-op, and takes proposals."""

    @property
    def is_stopped(self) -> bool:
        """Takes part no more: nothing is told to anybody, and what a worker brings is dropped."""

    def fail(self, error: BaseException) -> None:
        """End this replica: `error` leaves no safe way on."""

    def run(self, work: Callable[[], object]) -> None:
        """Do something that gives the engine work, and carry out what it makes of it, unless this replica stopped."""

    def pump(self) -> None:
        """Carry out the engine's effects until there are none, then what the service is to be told."""

    def execute(self, output: Output) -> None:
        """Carry out these effects before it returns, or behind a rewriting of the log that is under way."""

    def suspect(self, index: int) -> None:
        """A read of the log from entry `index` on did not verify: have it found out what is corrupt there."""

    def stage(
        self,
        size: int,
        fill: Fill | None,
        commands: bytes | bytearray,
        context: object,
        *,
        privileged: bool = False,
        own: bool = False,
    ) -> int:
        """Put a unit into this turn's entry; see `dledger.replica.leading.Leading.stage`."""

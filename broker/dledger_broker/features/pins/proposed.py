"""Overlay of the leader's pins: changes that are proposed and not yet applied."""

from __future__ import annotations

from dledger.errors import LogError
from dledger_broker.features.pins.table import PINS, DeletePins, Pin, PutPin
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.kernel.machine import BrokerMachine


class ProposedPins:
    """Proposer of changes of pins, whose answers take the changes in flight into account.

    Every `done` is called exactly once, as `BrokerMachine.stage_command` says.
    """

    def __init__(self, machine: BrokerMachine) -> None:
        self._machine = machine
        self._put: list[PutPin] = []
        self._given_up: list[DeletePins] = []

    def put(self, pin: PutPin, done: Done) -> None:
        """Make or renew a pin. The pin holds from now on, because its request may be acknowledged at any moment."""
        self._put.append(pin)

        def finished(error: LogError | None) -> None:
            self._put.remove(pin)
            done(error)

        self._machine.stage_command(pin, finished)

    def delete(self, names: tuple[str, ...], done: Done, by: JobHandle | None = None) -> None:
        """Delete pins, even if the disk is full, because that makes room. Names without a pin are ignored.

        `by` is the handle of the job that deletes, or None for a client.
        """
        command = DeletePins(names)
        pins = self._machine.state.table(PINS)
        makes_room = any(pins.get(name) for name in names)
        self._given_up.append(command)

        def finished(error: LogError | None) -> None:
            self._given_up.remove(command)
            done(error)

        try:
            (by or self._machine).stage_command(command, finished, privileged=makes_room)
        except BaseException:
            self._given_up.remove(command)  # Otherwise nobody could renew these pins any more.
            raise

    def lasting(self, name: str) -> Pin | None:
        """Return a pin that is applied and has no deletion in flight, or None."""
        given_up = any(name in command.names for command in self._given_up)
        return None if given_up else self._machine.state.table(PINS).get(name)

    def lowest(self, now_ms: int) -> int | None:
        """Return the lowest position of a pin whose lease has not ended, or None."""
        positions = [pin.position for pin in self._put]
        applied = self._machine.state.table(PINS).lowest(now_ms)
        if applied is not None:
            positions.append(applied)
        return min(positions, default=None)

    def expired(self, now_ms: int) -> tuple[str, ...]:
        """Return the pins whose leases are over and that have no renewal or deletion in flight."""
        changing = {pin.name for pin in self._put}.union(*(command.names for command in self._given_up))
        return tuple(name for name in self._machine.state.table(PINS).expired(now_ms) if name not in changing)

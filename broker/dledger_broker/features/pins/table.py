"""Table of pins: positions from which readers need the log kept, each with a lease that the leader ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from dledger.statemachine import CommittedEntry
from dledger_broker.kernel.commands import Command, Kinds
from dledger_broker.kernel.digest import MASK, item_hash
from dledger_broker.kernel.tables import Changes, Frame, Table, TableKey, in_slices


class PutPin(msgspec.Struct, frozen=True):
    """Command that keeps the log from `position` on for `lease_ms` after `renewed_ms`, the leader's clock.

    For an existing pin, the lower position stays and the lease starts anew.
    """

    name: str
    position: int
    lease_ms: int
    renewed_ms: int


class DeletePins(msgspec.Struct, frozen=True):
    """Command that deletes pins. Names without a pin are ignored."""

    names: tuple[str, ...]


PIN_COMMANDS: Final[Kinds] = {25: PutPin, 26: DeletePins}


class Pin(msgspec.Struct, frozen=True, array_like=True):
    """Pin of the log from `position` on until `lease_ms` after `renewed_ms`, by the leader's clock."""

    name: str
    position: int
    lease_ms: int
    renewed_ms: int

    @property
    def expires_ms(self) -> int:
        """Time at which the lease ends, in milliseconds since the epoch."""
        return self.renewed_ms + self.lease_ms


class PinFrame(msgspec.Struct, frozen=True, tag="pins"):
    """Snapshot frame with pins."""

    rows: list[Pin]


class PinTable(Table):
    """Table of all pins by name. `digest` is order-independent. No clock decides which pins are in the table."""

    __slots__ = ("_pins", "digest")

    digest: int

    frames = (PinFrame,)

    def __init__(self) -> None:
        self._pins: dict[str, Pin] = {}
        self.digest = 0

    def __iter__(self) -> Iterator[Pin]:
        return iter(self._pins.values())

    def __len__(self) -> int:
        return len(self._pins)

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        _ = entry, changes
        match command:
            case PutPin(name=name, position=position, lease_ms=lease_ms, renewed_ms=renewed_ms):
                self.put(Pin(name, position, lease_ms, renewed_ms))
            case DeletePins(names=names):
                self.remove(names)

    def get(self, name: str) -> Pin | None:
        """Return a pin, or None."""
        return self._pins.get(name)

    def put(self, pin: Pin) -> None:
        """Make or renew a pin. The lower of two positions and the later of two renewals count."""
        before = self._pins.get(pin.name)
        if before is not None:
            self.digest -= _hash(before)
            pin = Pin(
                pin.name,
                min(before.position, pin.position),
                pin.lease_ms,
                max(before.renewed_ms, pin.renewed_ms),
            )
        self._pins[pin.name] = pin
        self.digest = (self.digest + _hash(pin)) & MASK

    def remove(self, names: Iterable[str]) -> None:
        """Delete pins. Names without a pin are ignored."""
        for name in names:
            pin = self._pins.pop(name, None)
            if pin is not None:
                self.digest = (self.digest - _hash(pin)) & MASK

    def expired(self, now_ms: int) -> tuple[str, ...]:
        """Return the pins whose leases are over."""
        return tuple(pin.name for pin in self if pin.expires_ms <= now_ms)

    def lowest(self, now_ms: int) -> int | None:
        """Return the lowest position of a pin whose lease has not ended, or None."""
        return min((pin.position for pin in self if pin.expires_ms > now_ms), default=None)

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        _ = now
        return {"pins": map(PinFrame, in_slices(list(self)))}

    def restore_frame(self, frame: Frame, now: float) -> None:
        _ = now
        match frame:
            case PinFrame(rows=rows):
                for pin in rows:
                    self.put(pin)


PINS: Final = TableKey("pins", PinTable)


def _hash(pin: Pin) -> int:
    return item_hash("pin", pin.name, pin.position, pin.lease_ms, pin.renewed_ms)

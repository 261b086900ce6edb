"""Cases: a run as a value that repeats it exactly and from which shorter runs are made."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from dledger.types import NATIVE_ENGINE
from dledger_sim.log.faults import FAULTS, Fault

DEFAULT_SECONDS = 20.0


class Limits(NamedTuple):
    """Limits of a run while a failure is being shrunk. None means as drawn."""

    clients: int | None = None
    operations: int | None = None
    usual: bool = False
    """True if nodes have the usual limits for clients instead of those that the seed draws."""


class Strike(msgspec.Struct, frozen=True):
    """Fault that was injected: its time, its kind and its value (see `fault_of`)."""

    at: float
    kind: str
    fault: dict[str, object]


class Case(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run. Without `strikes` the seed draws the faults; with them exactly these are injected.

    `kinds` are the kinds of faults that the seed draws from, by default all. With explicit kinds a seed keeps its
    meaning when new kinds are added.
    """

    scenario: str
    seed: int
    seconds: float = DEFAULT_SECONDS
    strikes: tuple[Strike, ...] | None = None
    clients: int | None = None
    operations: int | None = None
    kinds: tuple[str, ...] | None = None
    engine: str = NATIVE_ENGINE
    """Name of the engine that all nodes have."""
    usual: bool = False
    """True if the machines are the usual ones, not those that the seed draws (see `dledger_sim.log.surroundings`)."""

    @property
    def limits(self) -> Limits:
        """Limits for the clients."""
        return Limits(self.clients, self.operations, self.has_usual_machines)

    @property
    def has_usual_machines(self) -> bool:
        """True if only those things are drawn that older seeds drew as well."""
        return self.usual or self.kinds is not None


def strike_of(at: float, kind: str, fault: Fault) -> Strike:
    """Return a fault in the form in which a case stores it."""
    return Strike(at, kind, {"type": type(fault).__name__, **msgspec.to_builtins(fault)})


def fault_of(strike: Strike) -> Fault:
    """Return the fault that a strike stores. Raises `msgspec.ValidationError` if it is invalid."""
    fields = dict(strike.fault)
    name = str(fields.pop("type", ""))
    if name not in FAULTS:
        raise msgspec.ValidationError(f"fault {name!r} is unknown: expected one of {sorted(FAULTS)}")
    return msgspec.convert(fields, FAULTS[name])


def encode_case(case: Case) -> bytes:
    """Return a case as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(case), indent=1) + b"\n"


def decode_case(data: bytes | str) -> Case:
    """Return a case from its JSON. Raises `msgspec.ValidationError`."""
    return msgspec.json.decode(data, type=Case)

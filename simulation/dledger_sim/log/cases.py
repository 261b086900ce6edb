"""A run as a value: what repeats it exactly, and what a shorter one is made from."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from dledger.types import NATIVE_ENGINE
from dledger_sim.log.faults import FAULTS, Fault

DEFAULT_SECONDS = 20.0


class Limits(NamedTuple):
    """What a run is cut down to while a failure is being shrunk; None means as drawn."""

    clients: int | None = None
    operations: int | None = None


class Strike(msgspec.Struct, frozen=True):
    """A fault that was injected: when, as which kind, and what it was (see `fault_of`)."""

    at: float
    kind: str
    fault: dict[str, object]


class Case(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run.  Without `strikes` the seed draws the faults; with them exactly these are injected.

    `kinds` are those that a seed draws from, by default all: it keeps its meaning when there are more.
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

    @property
    def limits(self) -> Limits:
        """How much the clients may do."""
        return Limits(self.clients, self.operations)


def strike_of(at: float, kind: str, fault: Fault) -> Strike:
    """A fault as it is written down."""
    return Strike(at, kind, {"type": type(fault).__name__, **msgspec.to_builtins(fault)})


def fault_of(strike: Strike) -> Fault:
    """The fault that was written down.  Raises `msgspec.ValidationError` if it is none."""
    fields = dict(strike.fault)
    name = str(fields.pop("type", ""))
    if name not in FAULTS:
        raise msgspec.ValidationError(f"fault {name!r} is unknown: expected one of {sorted(FAULTS)}")
    return msgspec.convert(fields, FAULTS[name])


def encode_case(case: Case) -> bytes:
    """JSON, indented."""
    return msgspec.json.format(msgspec.json.encode(case), indent=1) + b"\n"


def decode_case(data: bytes | str) -> Case:
    """A case from its JSON.  Raises `msgspec.ValidationError`."""
    return msgspec.json.decode(data, type=Case)

"""Every fault there is, by family: what a fault does to a cluster, and how one is drawn.

`base` says what a fault is; `KINDS` is the registry.  Faults know a cluster only as a `Target`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..errors import ChaosError
from . import clock, composed, disk, members, network, power, process
from .base import Fault, FaultKind, Surroundings, as_json

KINDS: Final[dict[str, FaultKind]] = {
    kind.name: kind for family in (process, network, disk, power, clock, members, composed) for kind in family.KINDS
}

__all__ = ["KINDS", "Fault", "FaultKind", "Surroundings", "as_json", "kinds_named"]


def kinds_named(names: Iterable[str], capabilities: frozenset[str]) -> list[FaultKind]:
    """Return the kinds that `names` name: a kind, a family, or `all` that a target with these capabilities can take.

    Raises `ChaosError` for a name that is none, and for a kind that the target cannot take.
    """
    chosen: dict[str, FaultKind] = {}
    for name in names:
        found = [kind for kind in KINDS.values() if name in (kind.name, kind.family, "all")]
        if not found:
            raise ChaosError(f"there is no fault or family {name!r}: `dledger chaos faults` lists them")
        possible = [kind for kind in found if {kind.family, *kind.needs} <= capabilities]
        if not possible:
            raise ChaosError(f"this target cannot take {name!r}: it can take {', '.join(sorted(capabilities))}")
        chosen |= {kind.name: kind for kind in possible}
    return list(chosen.values())

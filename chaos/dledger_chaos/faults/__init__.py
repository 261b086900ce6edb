"""Faults by family: their effects on a cluster, and how they are drawn.

`base` defines faults, and `KINDS` is the registry. Faults know a cluster only as a `Target`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..errors import ChaosError
from . import clock, composed, derived, disk, files, founding, grey, members, network, power, process, proxies, together
from .base import Fault, FaultKind, Surroundings, as_json

KINDS: Final[dict[str, FaultKind]] = {
    kind.name: kind
    for module in (
        *(process, network, disk, derived, files, power, clock, members, founding, composed, grey, together),
        proxies,
    )
    for kind in module.KINDS
}

__all__ = ["KINDS", "Fault", "FaultKind", "Surroundings", "as_json", "kinds_named"]


def kinds_named(names: Iterable[str], capabilities: frozenset[str]) -> list[FaultKind]:
    """Return the kinds that `names` name: each is a kind, a family, or `all`.

    A family and `all` stand for the kinds that a target with these capabilities can take.

    Raises `ChaosError` for an unknown name, and if a target with these capabilities can take no kind of a name.
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

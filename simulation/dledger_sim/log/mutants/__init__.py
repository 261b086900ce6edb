"""Known bugs, to be switched on one by one. A simulator that does not catch them proves nothing.

Each replaces one or two small functions of the real code from outside, and restores them afterwards. The other modules
of this package list the bugs of the log. `apply` puts a bug into a real process.
"""

from __future__ import annotations

from typing import Final

from dledger_sim.log.mutants import (
    answers,
    changes,
    core,
    durability,
    limits,
    members,
    modes,
    names,
    replica,
    rewriting,
    rot,
    sectors,
    space,
    starts,
    store,
    threads,
    transfers,
)
from dledger_sim.log.mutants.catalogue import Mutant

MUTANTS: Final[dict[str, Mutant]] = {
    **core.CATALOGUE,
    **members.CATALOGUE,
    **replica.CATALOGUE,
    **answers.CATALOGUE,
    **store.CATALOGUE,
    **durability.CATALOGUE,
    **starts.CATALOGUE,
    **modes.CATALOGUE,
    **changes.CATALOGUE,
    **rewriting.CATALOGUE,
    **space.CATALOGUE,
    **transfers.CATALOGUE,
    **threads.CATALOGUE,
    **rot.CATALOGUE,
    **sectors.CATALOGUE,
    **limits.CATALOGUE,
    **names.CATALOGUE,
}


def apply(name: str) -> None:
    """Put a bug permanently into this process. Raises `KeyError` if there is no bug of that name."""
    MUTANTS[name].apply()


__all__ = ["MUTANTS", "Mutant", "apply"]

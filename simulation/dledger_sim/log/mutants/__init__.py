"""Known bugs, to be switched on one by one: a simulator that does not catch them proves nothing.

Each replaces one or two small functions of the real code from outside, and puts them back afterwards.  The modules
beside this one list those of the log; `apply` puts one into a real process.
"""

from __future__ import annotations

from typing import Final

from dledger_sim.log.mutants import (
    answers,
    changes,
    core,
    durability,
    members,
    modes,
    replica,
    rewriting,
    rot,
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
}


def apply(name: str) -> None:
    """Put a bug into this process for good.  Raises `KeyError` if there is none of that name."""
    MUTANTS[name].apply()


__all__ = ["MUTANTS", "Mutant", "apply"]

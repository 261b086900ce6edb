"""Known bugs in real processes: a rig that finds nothing must first show that it can.

The bugs are those of the simulator (`dledger_sim.brokers.mutants`), put into a node from outside:
`preload/sitecustomize.py` is found by every interpreter whose PYTHONPATH begins there, and acts in nodes
only.  No product code knows.  `registers` has the one that nodes of registers have in a form of their own, `trials`
what convicts which.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from dledger_sim.brokers.mutants import MUTANTS

from ..errors import ChaosError

VARIABLE: Final = "DLEDGER_CHAOS_MUTANT"
"""Names the bug, in the environment of the nodes."""

_PRELOAD: Final = Path(__file__).with_name("preload")


def mutant_environment(name: str) -> dict[str, str]:
    """Return the variables with which nodes have a bug; raises `ChaosError` for one that is not known."""
    if name not in MUTANTS:
        raise ChaosError(f"there is no mutant {name!r}: `dledger chaos mutants` lists them")
    path = os.pathsep.join(filter(None, [str(_PRELOAD), os.environ.get("PYTHONPATH")]))
    return {VARIABLE: name, "PYTHONPATH": path}

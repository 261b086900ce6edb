"""Known bugs in real processes, which prove that the checks can convict a node.

The bugs are those of the simulator (`dledger_sim.brokers.mutants`), put into a node from outside. `preload/` comes
first in the node's PYTHONPATH, so its interpreter runs `preload/sitecustomize.py`. No product code knows of it.

- `registers` has the form of one bug for register nodes.
- `clients` has bugs of our client library.
- `trials` lists the faults and workloads that convict each bug.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from dledger_sim.brokers.mutants import MUTANTS

from ..errors import ChaosError

VARIABLE: Final = "DLEDGER_CHAOS_MUTANT"
"""Environment variable of the nodes with the name of the bug."""

_PRELOAD: Final = Path(__file__).with_name("preload")


def mutant_environment(name: str) -> dict[str, str]:
    """Return the variables with which nodes have a bug; raises `ChaosError` for an unknown bug."""
    if name not in MUTANTS:
        raise ChaosError(f"there is no mutant {name!r}: `dledger chaos mutants` lists them")
    path = os.pathsep.join(filter(None, [str(_PRELOAD), os.environ.get("PYTHONPATH")]))
    return {VARIABLE: name, "PYTHONPATH": path}

"""Command line that switches the known bugs of the pipeline on one by one. The exit code is 1 if a bug escapes.

`python -m dledger_sim.spark [NAME …]` tries the named bugs, or all.
"""

from __future__ import annotations

import sys

from dledger_sim.spark.mutants import CATALOGUE


def main(names: list[str]) -> int:
    """Print what catches each bug, and return the exit code."""
    escaped = 0
    for name in names or list(CATALOGUE):
        mutant = CATALOGUE[name]
        how = mutant.caught()
        escaped += not how
        print(f"{mutant.name:44} {f'caught by {how}' if how else 'NOT CAUGHT'}", flush=True)
    print(f"{escaped} mutants of the pipeline were not caught")
    return int(escaped > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

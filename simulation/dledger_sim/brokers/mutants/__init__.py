"""Known bugs of the broker and of the client library, besides those of the log. The simulator must catch each.

`apply` puts a bug into a real process. The modules by subject:

- `requests`: answers to clients
- `polls`: long polls
- `filters`: expressions in SQL92
- `classes`: class filters
- `commits`: consumer offsets
- `repeats`: idempotent sends
- `delays`: delayed messages
- `retries`: messages that are sent back
- `units`: units that the broker itself writes
- `locks`: queue locks
- `halves`: transactions
- `pops`: popped messages
- `replies`: replies
- `busy`: operations that the log refused
- `incarnations`: names that were deleted and made again
- `clocks`: group time
- `upgrades`: nodes of different versions
- `assignments`: request modes of consumer groups
- `resets`: groups that are reset
- `retention`: retention
- `quotas`: quotas
- `accounts`: access control
- `aliases`: write aliases, and the nodes to which readers are sent
- `library`: our client library
- `views`: rotten views
- `state`: other state and views
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dledger_sim.brokers.mutants import (
    accounts,
    aliases,
    assignments,
    busy,
    classes,
    clocks,
    commits,
    delays,
    filters,
    halves,
    incarnations,
    library,
    locks,
    polls,
    pops,
    quotas,
    repeats,
    replies,
    requests,
    resets,
    retention,
    retries,
    state,
    units,
    upgrades,
    views,
)
from dledger_sim.log.mutants import MUTANTS as LOG_MUTANTS
from dledger_sim.log.mutants.catalogue import Mutant

MUTANTS: Final[Mapping[str, Mutant]] = {
    **LOG_MUTANTS,
    **requests.CATALOGUE,
    **polls.CATALOGUE,
    **commits.CATALOGUE,
    **filters.CATALOGUE,
    **classes.CATALOGUE,
    **busy.CATALOGUE,
    **incarnations.CATALOGUE,
    **state.CATALOGUE,
    **retention.CATALOGUE,
    **repeats.CATALOGUE,
    **units.CATALOGUE,
    **clocks.CATALOGUE,
    **upgrades.CATALOGUE,
    **locks.CATALOGUE,
    **halves.CATALOGUE,
    **delays.CATALOGUE,
    **retries.CATALOGUE,
    **pops.CATALOGUE,
    **replies.CATALOGUE,
    **assignments.CATALOGUE,
    **resets.CATALOGUE,
    **quotas.CATALOGUE,
    **accounts.CATALOGUE,
    **aliases.CATALOGUE,
    **views.CATALOGUE,
    **library.CATALOGUE,
}


def apply(name: str) -> None:
    """Put a bug of the log or of the broker permanently into this process.

    Raises `KeyError` if there is no bug of that name.
    """
    MUTANTS[name].apply()


__all__ = ["MUTANTS", "apply"]

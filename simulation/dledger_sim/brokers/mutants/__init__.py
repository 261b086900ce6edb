"""The broker's known bugs beside those of the log: a simulator that does not catch them proves nothing.

`requests` lists those of what clients are told, `polls` those of clients that wait, `filters` those of expressions in
SQL92, `classes` those of class filters, `commits` those of consumer offsets, `repeats` those of idempotent sends,
`delays` those of delayed messages, `retries` those of messages that are sent back, `units` those of what the broker
itself writes, `locks` those of queue locks, `halves` those of transactions, `pops` those of popped messages, `replies`
those of replies, `busy` those of what the log did not take, `incarnations` those of names that were given twice,
`clocks` those of group time, `upgrades` those of nodes of different versions, `assignments` those of how groups consume
topics, `resets` those of groups that are reset, `quotas` those of quotas, `accounts` those of access control, `aliases`
those of write aliases and of where readers are sent, `state` those of other state and of views; `apply` puts one
into a real process.
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
    locks,
    polls,
    pops,
    quotas,
    repeats,
    replies,
    requests,
    resets,
    retries,
    state,
    units,
    upgrades,
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
}


def apply(name: str) -> None:
    """Put a bug, of the log or of the broker, into this process for good.  Raises `KeyError` if there is none."""
    MUTANTS[name].apply()


__all__ = ["MUTANTS", "apply"]

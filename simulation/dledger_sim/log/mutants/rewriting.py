"""Bugs of rewritten logs: events while a worker cuts off the end of a log or replaces the log."""

from __future__ import annotations

from collections.abc import Callable

from dledger.consensus.effects import Output
from dledger.replica.peers.inbox import Inbox
from dledger.replica.storing.flusher import Flusher
from dledger.replica.storing.rewriting import Rewriter
from dledger_sim.log.mutants.catalogue import Catalogue
from dledger_sim.log.schedules.group import truncation_beside_a_sync

CATALOGUE = Catalogue("modes")


def _hold_nothing_of_this_step(self: Rewriter, output: Output, done: int) -> bool:
    _ = self, output, done
    return False


CATALOGUE.add(
    "rest-beside-a-rewriting",
    "the effects of a step that follow a truncation wait for the truncation",
    (Rewriter, "hold_rest", _hold_nothing_of_this_step),
)


def _take_everything_in(self: Inbox) -> None:
    _ = self


CATALOGUE.add(
    "messages-beside-a-rewriting",
    "the core handles no message while the log is rewritten",
    (Inbox, "hold", _take_everything_in),
)


def _at_once(self: Flusher, work: Callable[[], object], done: Callable[[object], None]) -> None:
    self._environment.run_blocking("background", work, done)


CATALOGUE.add(
    "rewriting-beside-a-sync",
    "no sync is under way while the log is rewritten",
    (Flusher, "run_between_syncs", _at_once),
    schedule=truncation_beside_a_sync,
)

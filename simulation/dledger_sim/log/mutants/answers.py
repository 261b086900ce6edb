"""Bugs of the answers to clients: operations, reads, refusals."""

from __future__ import annotations

from functools import partial

from dledger.core.raft import Raft
from dledger.replica.applying.applier import Contexts
from dledger.replica.applying.reads import ReadWaiters
from dledger.replica.writing.leading import Leading
from dledger.types import Role
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("log")

# ---------------------------------------------------------------- operations


def _keep_the_contexts(self: Leading, role: Role) -> None:
    if role is Role.LEADER:
        _real_role_changed(self, role)
    else:
        self._was_leader = False


_real_role_changed = Leading.role_changed

CATALOGUE.add(
    "contexts-kept-at-step-down",
    "a leader that steps down reports the proposals that it has lost track of",
    (Leading, "role_changed", _keep_the_contexts),
)


def _keep_what_is_staged(self: Leading) -> None:
    self._completions.add(partial(self._report_dropped, []))


CATALOGUE.add(
    "staged-kept-at-step-down",
    "a leader that steps down proposes nothing that was staged before",
    (Leading, "drop", _keep_what_is_staged),
)


def _drop_and_keep(self: Contexts) -> list[object]:
    return [context for _, contexts in self._by_index for context in contexts]


CATALOGUE.add(
    "contexts-dropped-again",
    "a dropped proposal is never applied, nor dropped again",
    (Contexts, "drop", _drop_and_keep),
)

# ---------------------------------------------------------------- reads


def _one_entry_early(self: ReadWaiters, index: int) -> None:
    _real_applied(self, index + 1)


_real_applied = ReadWaiters.applied

CATALOGUE.add(
    "read-one-entry-early",
    "a read waits until its own index is applied, not the index before it",
    (ReadWaiters, "applied", _one_entry_early),
)


def _read_what_is_known(self: Raft, now: float) -> int | None:
    if not self.is_leader:
        return None
    self._round += 1
    self._reads.append((self._round, self.commit_index))
    self._heartbeat(now)
    self._confirm_reads()
    return self._round


CATALOGUE.add(
    "read-before-own-commit",
    "a new leader serves reads only after an entry of its own term is committed",
    (Raft, "read_index", _read_what_is_known),
)

# ---------------------------------------------------------------- refusals


def _keep_the_first_end(self: Leading, index: int) -> None:
    _ = self, index


CATALOGUE.add(
    "busy-for-ever",
    "committed entries no longer count as waiting for a majority",
    (Leading, "note_committed", _keep_the_first_end),
)

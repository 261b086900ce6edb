"""Bugs of resets of groups whose consumers run."""

from __future__ import annotations

from dledger_broker.features.offsets.recent_commits import Key
from dledger_broker.features.resets.changes import ResetChanges, committer
from dledger_broker.features.resets.table import Pending, ResetTable
from dledger_broker.kernel.requests import Origin, Request
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("resets")


def _all_while_pending(self: ResetChanges, request: Request, key: Key) -> bool:
    return key in self.table.pending or _real_admits(self, request, key)


_real_admits = ResetChanges.admits

CATALOGUE.add(
    "commits-admitted-while-reset",
    "no commit counts of who has not seen a reset that is pending",
    (ResetChanges, "admits", _all_while_pending),
)


def _no_fence(self: ResetChanges, request: Request, key: Key) -> bool:
    if key not in self._in_flight and key not in self.table.pending:
        return True
    return _real_admits(self, request, key)


CATALOGUE.add(
    "reset-fence-forgotten",
    "a late commit of another member does not undo a reset that was seen",
    (ResetChanges, "admits", _no_fence),
)


def _by_offset_alone(self: ResetChanges, key: Key, pending: Pending, origin: Origin, offset: int) -> bool:
    if offset != pending.offset:
        return False
    self._see(key, pending, committer(origin))
    return True


CATALOGUE.add(
    "reset-seen-by-chance",
    "only a consumer that was told of a reset can have seen it",
    (ResetChanges, "has_seen", _by_offset_alone),
)
CATALOGUE.add(
    "resets-not-in-snapshots",
    "a restart forgets no reset",
    (ResetTable, "capture_frames", lambda _self, _now: {}),
)

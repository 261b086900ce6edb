"""Bugs of limits: for acknowledged entries that are not synced, and for open files."""

from __future__ import annotations

from dledger.replica.applying.applier import Applier
from dledger.replica.storing.flush_bound import FlushBound
from dledger.replica.storing.flusher import Flusher
from dledger.replica.writing.space import Reserver
from dledger.store.segments import Segment
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("hangs")


def _all_allowed(self: FlushBound, commit_index: int) -> int:
    _ = self
    return commit_index


CATALOGUE.add(
    "async-without-bound",
    "nothing is acknowledged while an old acknowledged entry is on no majority's disks",
    (FlushBound, "apply_limit", _all_allowed),
    scenario="modes",
)


def _not_kept(self: Segment) -> None:
    if self._files is not None:
        self._files.add(self)


CATALOGUE.add(
    "hanging-disk-not-noticed",
    "a leader whose disk hangs hands the leadership over",
    (Flusher, "outstanding_s", 0.0),
    (Reserver, "outstanding_s", 0.0),
    (Applier, "stalled_s", 0.0),
)
CATALOGUE.add("written-file-closed", "the file that is being written stays open", (Segment, "keep_open", _not_kept))

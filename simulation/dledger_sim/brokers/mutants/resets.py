"""Bugs of resets of groups with running consumers."""

from __future__ import annotations

from collections.abc import Iterable

from dledger_broker.features.offsets.buffer import OffsetBuffer
from dledger_broker.features.offsets.recent_commits import Key
from dledger_broker.features.resets.changes import ResetChanges, committer
from dledger_broker.features.resets.table import Pending, ResetTable
from dledger_broker.kernel.requests import Origin, Request
from dledger_sim.brokers.schedules import resets
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("resets")


def _all_while_pending(self: ResetChanges, request: Request, key: Key) -> bool:
    return key in self.table.pending or _real_admits(self, request, key)


_real_admits = ResetChanges.admits

CATALOGUE.add(
    "commits-admitted-while-reset",
    "while a reset is pending, a commit of a client that has not seen it has no effect",
    (ResetChanges, "admits", _all_while_pending),
)


def _no_fence(self: ResetChanges, request: Request, key: Key) -> bool:
    if key not in self._in_flight and key not in self.table.pending:
        return True
    return _real_admits(self, request, key)


CATALOGUE.add(
    "reset-fence-forgotten",
    "a late commit of another member does not undo a reset that a member has seen",
    (ResetChanges, "admits", _no_fence),
)


def _strangers_count(self: ResetChanges, request: Request, key: Key) -> bool:
    if key not in self._in_flight and key not in self.table.pending and not request.origin.client_ids:
        return True
    return _real_admits(self, request, key)


CATALOGUE.add(
    "commit-of-nobody-known-undoes-a-reset",
    "a commit over a connection without a heartbeat does not undo a reset that a member has seen",
    (ResetChanges, "admits", _strangers_count),
    schedule=resets.commit_over_a_connection_without_a_heartbeat,
)


def _by_offset_alone(self: ResetChanges, key: Key, pending: Pending, origin: Origin, offset: int) -> bool:
    if offset != pending.offset:
        return False
    self._propose_sighting(key, pending, committer(origin))
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


def _fence_nothing(_self: OffsetBuffer, _keys: Iterable[Key]) -> None:
    pass


CATALOGUE.add(
    "collected-commit-behind-a-reset",
    "a commit from before a reset is not proposed behind the reset",
    (OffsetBuffer, "fence", _fence_nothing),
    schedule=resets.commit_that_was_collected_before_a_reset,
)


def _propose_alone(self: OffsetBuffer, _keys: Iterable[Key]) -> None:
    if self.collected:
        self.flush(lambda _error: None)


CATALOGUE.add(
    "busy-commit-behind-a-reset",
    "a commit that the busy log refused is not proposed again behind a reset",
    (OffsetBuffer, "fence", _propose_alone),
    schedule=resets.commit_that_the_busy_log_does_not_take,
)

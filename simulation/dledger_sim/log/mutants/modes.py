"""Bugs of rarer modes: acknowledgements that do not wait for the disk, power losses, few voters, busy logs."""

# ruff: noqa: SLF001 - patches private names
from __future__ import annotations

from dledger.consensus.effects import SaveHardState
from dledger.core.log_table import LogTable
from dledger.core.messages import VoteRequest
from dledger.core.raft import Raft
from dledger.replica.replica import Replica
from dledger.replica.start import boot, opening
from dledger.replica.start.boot import BootRecord, Start, note_boot, record_boot
from dledger.replica.writing import leading
from dledger.replica.writing.leading import Leading
from dledger.replica.writing.proposer import check_room
from dledger.store import log as log_module
from dledger.store.disk import Disk
from dledger.types import Fill, HardState, ReplicaId
from dledger_sim.log.mutants.catalogue import Catalogue
from dledger_sim.log.schedules.core import word_of_who_kept_what_was_lost
from dledger_sim.log.schedules.disk import lost_entry_behind_a_snapshot
from dledger_sim.log.schedules.group import doubt_lasts, reboot_behind_a_stop
from dledger_sim.log.schedules.memberships import leader_leaves_two

CATALOGUE = Catalogue("modes")

# ---------------------------------------------------------------- power losses with flush = "async"


def _close_without_doubt(self: Replica, *, clean: bool) -> None:
    may_vote, self.engine.may_vote = self.engine.may_vote, True  # type: ignore[misc]
    try:
        _real_close(self, clean=clean)
    finally:
        self.engine.may_vote = may_vote  # type: ignore[misc]


_real_close = Replica.close

CATALOGUE.add(
    "doubt-ends-with-a-stop",
    "a node in doubt is still in doubt after an orderly stop",
    (Replica, "close", _close_without_doubt),
    schedule=doubt_lasts,
)


def _record_at_once(disk: Disk, now: BootRecord, *, clean: bool) -> Start:
    start = note_boot(disk, now, clean=clean)
    if not start.may_vote:
        record_boot(disk, now)
    return start


CATALOGUE.add(
    "boot-recorded-in-doubt",
    "a start in doubt is not recorded as a start with a complete log",
    (opening, "note_boot", _record_at_once),
    schedule=doubt_lasts,
)


def _same_host(disk: Disk, now: BootRecord, *, clean: bool) -> Start:
    _ = clean
    return note_boot(disk, now, clean=True)


CATALOGUE.add(
    "host-loss-ignored",
    "a node that may have lost acknowledged entries is in doubt",
    (opening, "note_boot", _same_host),
)


def _no_stop_is_clean(disk: Disk, now: BootRecord, *, clean: bool) -> Start:
    _ = clean
    return note_boot(disk, now, clean=False)


CATALOGUE.add(
    "clean-stop-in-doubt",
    "a node that stopped in an orderly way is not in doubt",
    (opening, "note_boot", _no_stop_is_clean),
    schedule=reboot_behind_a_stop,
)


def _vote_in_doubt(self: Raft, sender: ReplicaId, request: VoteRequest, now: float) -> None:
    may_vote, self.may_vote = self.may_vote, True
    _real_on_vote_request(self, sender, request, now)
    self.may_vote = may_vote


_real_on_vote_request = Raft._on_vote_request

CATALOGUE.add(
    "in-doubt-votes",
    "a node in doubt votes for no candidate",
    (Raft, "_on_vote_request", _vote_in_doubt),
)


def _follow_without_doubt(self: Raft, leader: ReplicaId, now: float) -> None:
    _real_follow(self, leader, now)
    self.may_vote = True


_real_follow = Raft._follow

CATALOGUE.add(
    "made-good-too-early",
    "a node in doubt votes again once it has a committed entry of its leader's term",
    (Raft, "_follow", _follow_without_doubt),
)


def _accept_again(disk: Disk, now: BootRecord, *, clean: bool) -> Start:
    accepted = boot.is_loss_accepted(disk)
    start = note_boot(disk, now, clean=clean)
    if accepted:
        boot.accept_loss(disk)
    return start


CATALOGUE.add(
    "accepted-for-good",
    "an operator accepts one loss, and not later losses",
    (opening, "note_boot", _accept_again),
    schedule=doubt_lasts,
)


def _believe_the_past(self: Raft, term: int, vote: ReplicaId | None) -> None:
    if (term, vote) != (self.term, self.vote):
        if term != self.term:
            self.verified_index = self.commit_index
        self.term, self.vote = term, vote
        self._unsaved = True
        self._effects.append(SaveHardState(HardState(term, vote)))


CATALOGUE.add(
    "committed-counts-as-verified",
    "a follower acknowledges entries that this leader's appends verified, not entries that it only believes to be "
    "committed",
    (Raft, "_set_hard_state", _believe_the_past),
    schedule=word_of_who_kept_what_was_lost,
)
CATALOGUE.add(
    "void-snapshots-kept",
    "snapshots of lost entries are removed with the entries",
    (log_module, "drop_void_snapshots", lambda *_: None),
    schedule=lost_entry_behind_a_snapshot,
)

# ---------------------------------------------------------------- one voter, two voters


def _synced_for_others(self: Raft, generation: int, index: int, now: float) -> None:
    advance, others = self._advance_commit, [voter for voter in self.table.membership.voters if voter != self.me]
    if not others:
        self._advance_commit = lambda _: None  # type: ignore[method-assign, assignment]
    _real_synced(self, generation, index, now)
    self._advance_commit = advance  # type: ignore[method-assign]


_real_synced = Raft.synced

CATALOGUE.add(
    "lone-voter-waits-for-others",
    "a lone voter commits the entries that its own disk has",
    (Raft, "synced", _synced_for_others),
)


def _heard_by_others(self: Raft, now: float) -> bool:
    alone = self.table.membership.voters == (self.me,)
    return not alone and _real_quorum_heard(self, now)


_real_quorum_heard = Raft._quorum_heard

CATALOGUE.add(
    "lone-leader-steps-down",
    "a lone voter is its own majority",
    (Raft, "_quorum_heard", _heard_by_others),
)


def _listed_by_the_newest(self: LogTable, replica: ReplicaId, commit_index: int) -> bool:
    _ = commit_index
    return replica in self.membership.voters


CATALOGUE.add(
    "removed-leader-elects-nobody",
    "a node that removes itself from a group of two can lead until the removal is committed",
    (LogTable, "may_elect", _listed_by_the_newest),
    schedule=leader_leaves_two,
)


def _lead_on(self: Raft, now: float) -> None:
    follow, self._become_follower = self._become_follower, lambda *_: None  # type: ignore[method-assign]
    try:
        _real_advance_commit(self, now)
    finally:
        self._become_follower = follow  # type: ignore[method-assign]


_real_advance_commit = Raft._advance_commit

CATALOGUE.add(
    "removed-leader-leads-on",
    "a removed leader stops leading once its removal is committed",
    (Raft, "_advance_commit", _lead_on),
)

# ---------------------------------------------------------------- busy logs


CATALOGUE.add(
    "busy-not-refused",
    "a leader refuses proposals while too much data waits for a majority",
    (leading, "check_room", lambda *_: None),
)


def _stage_and_refuse(
    self: Leading,
    size: int,
    fill: Fill | None,
    commands: bytes | bytearray,
    context: object,
    *,
    privileged: bool = False,
    own: bool = False,
) -> int:
    position = _real_stage(self, size, fill, commands, context, privileged=privileged, own=own)
    check_room(position - self._committed_end, self._config.max_uncommitted_bytes)
    return position


_real_stage = Leading.stage

CATALOGUE.add(
    "refused-after-staging",
    "a proposal that was refused as busy never enters the log",
    (Leading, "stage", _stage_and_refuse),
)

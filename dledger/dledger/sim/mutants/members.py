"""Bugs of memberships, installs and elections: who belongs to the group, who votes, and when."""

# ruff: noqa: SLF001 - what is patched is what is private
from __future__ import annotations

from dledger.core.effects import ResetLog
from dledger.core.log_table import LogTable
from dledger.core.messages import InstallSnapshot
from dledger.core.raft import Raft
from dledger.replica import boot, opening
from dledger.replica.boot import BootRecord, Start
from dledger.replica.commands import Digest
from dledger.replica.marks import Marks
from dledger.sim.mutants.catalogue import Catalogue
from dledger.store.disk import Disk
from dledger.types import EntryMeta, Membership, ReplicaId, Role, SnapshotMeta

CATALOGUE = Catalogue("log")

# ---------------------------------------------------------------- membership


def _snapshot_with_the_newest(self: Marks, mark: EntryMeta) -> None:
    self._last_mark_at = self._environment.now()
    self._own_digest = Digest(mark.position, *self._me, self._machine.digest())
    if any(meta.position == mark.position for meta in self._snapshots.list()):
        return
    index, table = mark.index - 1, self._engine().table
    before = self._store.meta(index)
    meta = SnapshotMeta(mark.position, index, before.term, before.chain_crc, table.membership, table.membership_index)
    self._snapshotter.begin(meta, self._machine.snapshot())


CATALOGUE.add(
    "snapshot-with-newest-membership",
    "a snapshot holds the membership of its last entry",
    (Marks, "_take_snapshot", _snapshot_with_the_newest),
)

CATALOGUE.add(
    "second-membership-change",
    "a membership change waits until the one before is committed",
    (Raft, "can_change_membership", property(lambda self: self.own_term_committed)),
)

_real_truncate_table = LogTable.truncate


def _keep_void_memberships(self: LogTable, first_index: int) -> None:
    kept = list(self._memberships)
    _real_truncate_table(self, first_index)
    self._memberships = kept


CATALOGUE.add(
    "void-membership-kept",
    "a membership goes with the entry that it came in",
    (LogTable, "truncate", _keep_void_memberships),
)


def _reset_but_keep_members(
    self: LogTable, base_index: int, base_term: int, membership: Membership, membership_index: int
) -> None:
    before = self._memberships[-1]
    _real_reset_table(self, base_index, base_term, membership, membership_index)
    if before[1].voters:
        self._memberships = [before]


_real_reset_table = LogTable.reset

CATALOGUE.add(
    "install-keeps-membership",
    "who is installed goes by the membership of its snapshot",
    (LogTable, "reset", _reset_but_keep_members),
)

CATALOGUE.add(
    "half-is-a-majority",
    "a majority is more than half",
    (Membership, "quorum", property(lambda self: (len(self.voters) + 1) // 2)),
)


def _commit_alone_at_once(self: Raft, now: float) -> None:
    if self.table.membership.voters == (self.me,):
        self.durable_index = self.table.last_index
    _real_advance_commit(self, now)


_real_advance_commit = Raft._advance_commit


def _propose_alone(self: Raft, metas: object, data: object, now: float) -> None:
    _real_propose(self, metas, data, now)
    if self.table.membership.voters == (self.me,):
        _commit_alone_at_once(self, now)


_real_propose = Raft.propose

CATALOGUE.add(
    "lone-voter-commits-unsynced",
    "who votes alone commits what is on its own platter",
    (Raft, "propose", _propose_alone),
)

# ---------------------------------------------------------------- installs


def _install_over_everything(self: Raft, sender: ReplicaId, message: InstallSnapshot) -> None:
    if message.last_index > self.commit_index and self.table.term_at(message.last_index) == message.last_term:
        _replace(self, message)
        self._send(sender, self._reply())
    else:
        _real_on_install(self, sender, message)


_real_on_install = Raft._on_install


def _replace(self: Raft, message: InstallSnapshot) -> None:
    index = message.last_index
    self.table.reset(index, message.last_term, message.membership, message.membership_index)
    self.durable_index = self.verified_index = self.commit_index = index
    self.generation += 1
    self._effects.append(
        ResetLog(
            SnapshotMeta(
                message.position,
                index,
                message.last_term,
                message.chain_crc,
                message.membership,
                message.membership_index,
            )
        )
    )
    self._membership_changed()


CATALOGUE.add(
    "install-inside-log-replaces",
    "a snapshot whose last entry is in the log takes nothing away behind it",
    (Raft, "_on_install", _install_over_everything),
)


def _install_verifies_everything(self: Raft, sender: ReplicaId, message: InstallSnapshot) -> None:
    if message.last_index > self.commit_index and self.table.term_at(message.last_index) == message.last_term:
        self.verified_index = self.table.last_index
    _real_on_install(self, sender, message)


CATALOGUE.add(
    "install-verifies-what-follows",
    "a snapshot says nothing of what the log has behind its last entry",
    (Raft, "_on_install", _install_verifies_everything),
)


def _install_what_is_old(self: Raft, sender: ReplicaId, message: InstallSnapshot) -> None:
    if message.last_index > self.commit_index:
        _real_on_install(self, sender, message)
    else:
        _replace(self, message)
        self._send(sender, self._reply())


CATALOGUE.add(
    "old-install-replaces",
    "a snapshot that comes late takes nothing back",
    (Raft, "_on_install", _install_what_is_old),
)

# ---------------------------------------------------------------- elections

CATALOGUE.add(
    "votes-while-leader-heard",
    "votes are refused while a live leader is heard",
    (Raft, "_hears_leader", lambda _self, _now: False),
)


def _leaders_hear_nobody(self: Raft, now: float) -> bool:
    return self.role is not Role.LEADER and _real_hears_leader(self, now)


_real_hears_leader = Raft._hears_leader

CATALOGUE.add(
    "leader-lets-itself-be-deposed",
    "a leader that a majority hears gives its place to nobody who did not hear it",
    (Raft, "_hears_leader", _leaders_hear_nobody),
)


def _campaign_at_once(self: Raft, now: float, *, pre: bool, transfer: bool = False) -> None:
    _ = pre
    _real_campaign(self, now, pre=False, transfer=transfer)


_real_campaign = Raft._campaign

CATALOGUE.add(
    "campaign-without-pre-vote",
    "who is cut off does not raise its term, with which it would depose a leader when it is back",
    (Raft, "_campaign", _campaign_at_once),
)

# ---------------------------------------------------------------- flush = "async"


def _forgive_the_host(disk: Disk, now: BootRecord, *, clean: bool) -> Start:
    _ = clean
    return _real_note_boot(disk, now, clean=True)


_real_note_boot = boot.note_boot

CATALOGUE.add(
    "host-crash-forgiven",
    "who lost its page cache does not vote before a leader has brought it up to date",
    (opening, "note_boot", _forgive_the_host),
)


def _record_at_once(disk: Disk, now: BootRecord, *, clean: bool) -> Start:
    start = _real_note_boot(disk, now, clean=clean)
    if not start.recorded:
        boot.record_boot(disk, now)
    return start


CATALOGUE.add(
    "boot-recorded-too-early",
    "a second start after the host went down still knows that it did",
    (opening, "note_boot", _record_at_once),
)


def _vote_when_heard(self: Raft, leader_commit: int) -> None:
    self.may_vote = True
    _real_learn_commit(self, leader_commit)


_real_learn_commit = Raft._learn_commit

CATALOGUE.add(
    "vote-before-caught-up",
    "who lost its page cache votes once it has an entry that this term's leader committed",
    (Raft, "_learn_commit", _vote_when_heard),
)

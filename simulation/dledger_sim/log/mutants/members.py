"""Bugs of memberships, installs and elections: which replicas are members, and when they vote."""

# ruff: noqa: SLF001 - patches private names
from __future__ import annotations

from dledger.consensus.effects import ResetLog
from dledger.consensus.engine import Entries
from dledger.core.messages import InstallSnapshot
from dledger.core.raft import Raft
from dledger.replica.snapshots.marks import Digest, SnapshotMarks
from dledger.types import EntryMeta, Membership, ReplicaId, Role, SnapshotMeta
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("log")

# ---------------------------------------------------------------- membership


def _snapshot_with_the_newest(self: SnapshotMarks, mark: EntryMeta, previous: EntryMeta | None) -> None:
    self._last_mark_at = self._environment.now()
    self.own_digest = Digest(mark.position, *self._me, self._machine.digest())
    if previous is None or any(meta.position == mark.position for meta in self._snapshots.list()):
        return
    newest = self._engine.membership, self._engine.membership_index
    meta = SnapshotMeta(mark.position, previous.index, previous.term, previous.chain_crc, *newest)
    self._taker.begin(meta, self._machine.snapshot())


CATALOGUE.add(
    "snapshot-with-newest-membership",
    "a snapshot holds the membership of its last entry",
    (SnapshotMarks, "_take_snapshot", _snapshot_with_the_newest),
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


def _propose_alone(self: Raft, metas: Entries, data: bytes | bytearray, now: float) -> None:
    _real_propose(self, metas, data, now)
    if self.table.membership.voters == (self.me,):
        _commit_alone_at_once(self, now)


_real_propose = Raft.propose

CATALOGUE.add(
    "lone-voter-commits-unsynced",
    "a lone voter commits only entries that its own disk has synced",
    (Raft, "propose", _propose_alone),
)

# ---------------------------------------------------------------- installs


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


def _install_what_is_old(self: Raft, sender: ReplicaId, message: InstallSnapshot) -> None:
    if message.last_index > self.commit_index:
        _real_on_install(self, sender, message)
    else:
        _replace(self, message)
        self._send(sender, self._reply())


CATALOGUE.add(
    "old-install-replaces",
    "a late snapshot does not replace newer state",
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
    "a leader that a majority hears is not deposed by a node that did not hear it",
    (Raft, "_hears_leader", _leaders_hear_nobody),
)


def _campaign_at_once(self: Raft, now: float, *, pre: bool, transfer: bool = False) -> None:
    _ = pre
    _real_campaign(self, now, pre=False, transfer=transfer)


_real_campaign = Raft._campaign

CATALOGUE.add(
    "campaign-without-pre-vote",
    "a node that is cut off does not raise its term, so that it does not depose a leader when it is back",
    (Raft, "_campaign", _campaign_at_once),
)

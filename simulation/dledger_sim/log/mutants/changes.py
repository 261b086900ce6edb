"""Bugs of quick membership changes, and of snapshots and installs across such changes."""

# ruff: noqa: SLF001 - patches private names
from __future__ import annotations

from collections.abc import Sequence

from dledger.consensus.effects import ResetLog
from dledger.core.log_table import LogTable
from dledger.core.messages import InstallSnapshot
from dledger.core.raft import Raft
from dledger.replica.upkeep import members
from dledger.types import EntryMeta, Membership, ReplicaId
from dledger_sim.log.mutants.catalogue import Catalogue
from dledger_sim.log.schedules.core import install_inside_the_log

CATALOGUE = Catalogue("modes")

# ---------------------------------------------------------------- changes

CATALOGUE.add(
    "second-membership-change",
    "a membership change waits for the previous change",
    (Raft, "can_change_membership", property(lambda self: self.own_term_committed)),
)


def _promote_all(membership: Membership, learner: ReplicaId) -> Membership:
    _ = learner
    return Membership((*membership.voters, *membership.learners))


CATALOGUE.add(
    "two-voters-at-once",
    "one voter changes at a time",
    (members, "promote", _promote_all),
    (Raft, "_check_membership_step", lambda *_: None),
)


def _truncate_but_the_members(self: LogTable, first_index: int) -> None:
    kept = list(self._memberships)
    _real_truncate(self, first_index)
    self._memberships = kept
    self.membership_index, self.membership = kept[-1]


_real_truncate = LogTable.truncate

CATALOGUE.add(
    "membership-kept-by-truncation",
    "a membership whose entry is void is no longer in force",
    (LogTable, "truncate", _truncate_but_the_members),
)


def _begin_with_the_base(
    self: LogTable,
    base_index: int = -1,
    base_term: int = 0,
    runs: Sequence[tuple[int, int]] = (),
    last_index: int | None = None,
    base_membership: Membership | None = None,
    base_membership_index: int = -1,
    memberships: Sequence[EntryMeta] = (),
    unread: Sequence[tuple[int, int]] = (),
    window: int = 4096,
) -> None:
    _ = memberships
    base = base_membership, base_membership_index
    _real_init(self, base_index, base_term, runs, last_index, *base, (), unread, window)


_real_init = LogTable.__init__

CATALOGUE.add(
    "start-forgets-changes",
    "a start uses the last membership in its log",
    (LogTable, "__init__", _begin_with_the_base),
)

# ---------------------------------------------------------------- installs


def _reset_but_the_members(
    self: LogTable, base_index: int, base_term: int, membership: Membership, membership_index: int
) -> None:
    _ = membership, membership_index
    membership_index, membership = self.membership_index, self.membership
    _real_reset(self, base_index, base_term, membership, membership_index)


_real_reset = LogTable.reset

CATALOGUE.add(
    "install-keeps-membership",
    "a log that begins behind a snapshot uses the membership of the snapshot",
    (LogTable, "reset", _reset_but_the_members),
)


def _always_replace(self: Raft, sender: ReplicaId, message: InstallSnapshot) -> None:
    if self.table.term_at(message.last_index) != message.last_term or message.last_index < self.commit_index:
        _real_on_install(self, sender, message)
        return
    index = message.last_index
    self.table.reset(index, message.last_term, message.membership, message.membership_index)
    self.durable_index = self.verified_index = self.commit_index = index
    self.generation += 1
    self._effects.append(ResetLog(message.snapshot))
    self._membership_changed()
    self._send(sender, self._reply())


_real_on_install = Raft._on_install

CATALOGUE.add(
    "install-drops-what-follows",
    "a snapshot whose last entry is in the log removes no entries behind that entry",
    (Raft, "_on_install", _always_replace),
    schedule=install_inside_the_log,
)


def _verify_all(self: Raft, sender: ReplicaId, message: InstallSnapshot) -> None:
    if self.table.term_at(message.last_index) == message.last_term:
        self.verified_index = max(self.verified_index, self.table.last_index)
    _real_on_install(self, sender, message)


CATALOGUE.add(
    "install-verifies-all",
    "a snapshot does not vouch for entries behind its last entry",
    (Raft, "_on_install", _verify_all),
    schedule=install_inside_the_log,
)

"""Bugs of the consensus core."""

from __future__ import annotations

from dledger.consensus.effects import Commit, ReadsReady, SaveHardState
from dledger.consensus.engine import Entries
from dledger.core.log_table import LogTable
from dledger.core.messages import Append, VoteReply, VoteRequest
from dledger.core.raft import Raft
from dledger.types import HardState, ReplicaId
from dledger_sim.log.mutants.catalogue import Catalogue
from dledger_sim.log.schedules import core as core_schedules
from dledger_sim.log.schedules import memberships

CATALOGUE = Catalogue("log")

# ---------------------------------------------------------------- commit rules


def _commit(self: Raft, index: int, now: float, *, any_term: bool = False) -> None:
    if index <= self.commit_index or not (any_term or self.table.term_at(index) == self.term):
        return
    self.commit_index = index
    self._effects.append(Commit(index))
    if self.table.membership_index <= index and not self.is_voter:
        self._heartbeat(now)
        self._become_follower(self.term, None, now)


def _quorum_index(self: Raft, members: tuple[ReplicaId, ...], own: int) -> int:
    held = sorted(own if member == self.me else self.progress[member].match_index for member in members)
    return held[-self.table.membership.quorum]


def _commit_what_one_has(self: Raft, now: float) -> None:
    _commit(self, self.durable_index, now)


CATALOGUE.add(
    "commit-without-quorum",
    "an entry is committed once a majority has it",
    (Raft, "_advance_commit", _commit_what_one_has),
)


def _commit_counting_members(self: Raft, now: float) -> None:
    _commit(self, _quorum_index(self, self.table.membership.members, self.durable_index), now)


CATALOGUE.add(
    "learners-count", "learners do not count towards a majority", (Raft, "_advance_commit", _commit_counting_members)
)


def _commit_of_any_term(self: Raft, now: float) -> None:
    _commit(self, _quorum_index(self, self.table.membership.voters, self.durable_index), now, any_term=True)


CATALOGUE.add(
    "commit-older-term",
    "only entries of the current term are committed by counting (figure 8)",
    (Raft, "_advance_commit", _commit_of_any_term),
    schedule=core_schedules.figure_8,
)


def _commit_counting_unsynced(self: Raft, now: float) -> None:
    _commit(self, _quorum_index(self, self.table.membership.voters, self.table.last_index), now)


CATALOGUE.add(
    "leader-counts-unsynced",
    "a leader counts itself only up to its own durable index",
    (Raft, "_advance_commit", _commit_counting_unsynced),
)


def _follow_commit_to_the_end(self: Raft, leader_commit: int) -> None:
    commit = min(leader_commit, self.table.last_index)
    if commit > self.commit_index:
        self.commit_index = commit
        self._effects.append(Commit(commit))


CATALOGUE.add(
    "follower-commits-last-index",
    "a follower commits only entries that this term's leader has verified, because heartbeats overtake appends",
    (Raft, "_learn_commit", _follow_commit_to_the_end),
    schedule=core_schedules.overtaking_heartbeat,
)

# ---------------------------------------------------------------- acknowledgements


CATALOGUE.add(
    "ack-before-sync",
    "an acknowledgement covers only durable entries",
    (Raft, "_match_index", property(lambda self: self.verified_index)),
)


def _keep_verified(self: Raft, term: int, vote: ReplicaId | None) -> None:
    if (term, vote) != (self.term, self.vote):
        self.term, self.vote = term, vote
        self._unsaved = True
        self._effects.append(SaveHardState(HardState(term, vote)))


CATALOGUE.add(
    "stale-acknowledgement",
    "entries that an older leader verified are not acknowledged to the next leader",
    (Raft, "_set_hard_state", _keep_verified),
    schedule=core_schedules.stale_acknowledgement,
)


def _ignore_generation(self: Raft, generation: int, index: int, now: float) -> None:
    _ = generation
    index = min(index, self.table.last_index)
    if index <= self.durable_index:
        return
    self.durable_index = index
    if self.is_leader:
        self._advance_commit(now)
    elif self.leader is not None:
        self._send(self.leader, self._reply())


CATALOGUE.add(
    "sync-generation-ignored",
    "a sync vouches only for the generation of the log in which it began",
    (Raft, "synced", _ignore_generation),
    schedule=core_schedules.sync_of_replaced_entries,
)

# ---------------------------------------------------------------- logs


def _truncate_what_matches(self: Raft, sender: ReplicaId, message: Append, metas: Entries, data: bytes) -> None:
    known = self.table.term_at(message.prev_index)
    if message.prev_index > self.commit_index and known != message.prev_term:
        hint = self.table.last_at_or_below_term(message.prev_index, message.prev_term)
        self._send(sender, self._reply(message.prev_index, hint, self.table.term_at(hint) or 0))
        return
    fresh = [meta for meta in metas if meta.index > self.commit_index]
    if fresh:
        if fresh[0].index <= self.table.last_index:
            self._truncate(fresh[0].index)
        self._append(fresh, memoryview(data)[fresh[0].position - metas[0].position :])
    self.verified_index = max(self.verified_index, message.prev_index + len(metas))
    self._learn_commit(message.commit_index)
    self._send(sender, self._reply())


CATALOGUE.add(
    "truncate-matching",
    "entries that equal the leader's are never truncated",
    (Raft, "_on_append", _truncate_what_matches),
    schedule=core_schedules.duplicate_append,
)


def _never_below_the_base(self: LogTable, _rejected_index: int, hint_index: int, hint_term: int) -> int:
    return max(self.last_at_or_below_term(hint_index, hint_term), self.base_index) + 1


CATALOGUE.add(
    "conflict-at-base",
    "a conflict at the compacted base is mended by a snapshot",
    (LogTable, "next_after_conflict", _never_below_the_base),
    schedule=core_schedules.conflict_at_the_compacted_base,
)

# ---------------------------------------------------------------- votes


def _send_before_save(self: Raft, term: int, vote: ReplicaId | None) -> None:
    if (term, vote) != (self.term, self.vote):
        if term != self.term:
            self.verified_index = self.commit_index
        self.term, self.vote = term, vote
        self._effects.append(SaveHardState(HardState(term, vote)))


def _saved(self: Raft, state: HardState, now: float) -> None:
    if state == (self.term, self.vote) and self.vote == self.me and self.role.name == "CANDIDATE":
        self._count_vote(self.me, now)


CATALOGUE.add(
    "message-before-save",
    "no message leaves before the term and vote it reflects are durable",
    (Raft, "_set_hard_state", _send_before_save),
    (Raft, "hard_state_saved", _saved),
)


def _vote_again(self: Raft, sender: ReplicaId, request: VoteRequest, now: float) -> None:
    if not request.pre and request.term == self.term and self.vote not in (None, sender) and not self.is_leader:
        complete = (request.last_term, request.last_index) >= (self.table.last_term, self.table.last_index)
        if complete:
            self._set_hard_state(self.term, sender)
            self._send(sender, VoteReply(self.term, granted=True))
            return
    _real_on_vote_request(self, sender, request, now)


_real_on_vote_request = Raft._on_vote_request  # noqa: SLF001 - patches private names

CATALOGUE.add(
    "vote-twice",
    "no node votes twice in a term",
    (Raft, "_on_vote_request", _vote_again),
    schedule=core_schedules.vote_of_a_longer_log,
)


def _vote_for_anyone(self: Raft, sender: ReplicaId, request: VoteRequest, now: float) -> None:
    generous = VoteRequest(request.term, 1 << 60, 1 << 60, request.pre, request.transfer)
    _real_on_vote_request(self, sender, generous, now)


CATALOGUE.add(
    "vote-for-short-log",
    "a vote goes only to a candidate whose log is at least as complete",
    (Raft, "_on_vote_request", _vote_for_anyone),
    schedule=core_schedules.vote_of_a_longer_log,
)


def _vote_if_member(self: Raft, sender: ReplicaId, request: VoteRequest, now: float) -> None:
    if self.me in self.table.membership.members:
        _real_on_vote_request(self, sender, request, now)


CATALOGUE.add(
    "member-only-votes",
    "a replica whose last entries may be void votes, whether or not they list it as a voter",
    (Raft, "_on_vote_request", _vote_if_member),
    schedule=memberships.void_removal,
)

# ---------------------------------------------------------------- reads, membership


def _read_at_once(self: Raft, now: float) -> int | None:
    _ = now
    if not self.own_term_committed:
        return None
    self._round += 1
    self._effects.append(ReadsReady(self._round, self.commit_index))
    return self._round


CATALOGUE.add(
    "read-without-round",
    "a read waits for a majority to confirm the leader",
    (Raft, "read_index", _read_at_once),
    schedule=core_schedules.read_of_an_isolated_leader,
)

CATALOGUE.add(
    "membership-before-own-commit",
    "a membership change waits for an own-term commit",
    (Raft, "can_change_membership", property(lambda self: self.is_leader)),
    (Raft, "own_term_committed", property(lambda self: self.is_leader)),
    schedule=memberships.membership_change_before_own_commit,
)


def _listed_when_committed(self: LogTable, replica: ReplicaId, commit_index: int) -> bool:
    _, in_force = self.membership_at(commit_index)
    return replica in in_force.voters


CATALOGUE.add(
    "new-voter-waits",
    "a voter may lead as soon as its own log lists it",
    (LogTable, "may_elect", _listed_when_committed),
    schedule=memberships.new_voter_leads,
)

CATALOGUE.add(
    "unread-membership",
    "a replica that cannot read the list of voters counts no votes",
    (LogTable, "membership_is_known", True),
    schedule=memberships.unread_membership,
)

# ---------------------------------------------------------------- snapshots


def _never_again(self: Raft, to: ReplicaId, term: int, now: float) -> None:
    _ = self, to, term, now


CATALOGUE.add(
    "snapshot-sent-once",
    "a follower that could not take a snapshot is sent another snapshot",
    (Raft, "snapshot_sent", _never_again),
    schedule=core_schedules.snapshot_without_effect,
)

"""Raft after figure 2 of Ongaro and Ousterhout's paper, with the additions of practice.

Additions (numbers are sections of Ongaro's thesis):

- pre-vote (9.6), check-quorum (6.2), votes refused while messages of a live leader arrive (4.2.3);
- a no-op at the start of a term, leadership transfer (3.10), learners (4.2.1), read index (6.4);
- membership changes of one voter at a time (4.1), and only after a commit in the leader's own term;
- acknowledgements that carry *durable* indexes, conflict search by term hints, bounded pipelining of byte ranges.

Three rules make these additions safe:

- An acknowledgement names `min(durable, verified)`.  `verified` is the highest index covered by an append accepted from
  this term's leader; nothing is verified at the start of a term.  An acknowledgement that counted entries of another
  leader's log would commit entries that are not there.  A replica's own commit index proves nothing about this leader's
  log: a majority may have lost committed entries, and an operator accepted their loss.
- A sync vouches only for the generation of the log in which it began.  A truncated entry may have been durable; the
  entry that replaced it is not.
- A message that reflects a term or a vote leaves only once both are on disk (`Output.after_sync`).  A candidate counts
  its own vote only then.
"""

from __future__ import annotations

from random import Random

from dledger.consensus.effects import (
    AppendEntries,
    Commit,
    Effect,
    MembershipChanged,
    Output,
    ReadsFailed,
    ReadsReady,
    ResetLog,
    RoleChanged,
    SaveHardState,
    SendCatchUp,
    SendEntries,
    SendMessage,
    SendSnapshot,
    Truncate,
)
from dledger.consensus.engine import Entries, RaftSettings
from dledger.consensus.messages import Message
from dledger.consensus.peers import Mode
from dledger.core.log_table import LogTable
from dledger.core.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from dledger.core.progress import Progress
from dledger.errors import ContradictionError
from dledger.term_runs import TermRuns
from dledger.types import EntryKind, EntryMeta, HardState, Membership, ReplicaId, Role, SnapshotMeta
from dledger_base.invariants import invariant


class Raft:
    """One replica's consensus state, a `dledger.consensus.engine.Engine`.

    Every public method takes `now` in seconds of a monotonic clock where time matters, and leaves effects that `take`
    returns.  `disk_used`, `wall_ms`, `healthy` and `first_position` are set by the driver and travel in
    acknowledgements.
    """

    def __init__(
        self,
        me: ReplicaId,
        table: LogTable,
        hard_state: HardState,
        *,
        durable_index: int,
        commit_index: int,
        settings: RaftSettings,
        random: Random,
        now: float,
        may_vote: bool = True,
    ) -> None:
        """Make a replica's state. With `may_vote` False, it does not vote before a leader has sent what it may lack."""
        invariant(commit_index <= durable_index <= table.last_index, "what is committed here is durable here")
        self.me = me
        self.table = table
        self.term = max(hard_state.term, table.last_term)
        self.vote = hard_state.vote if hard_state.term == self.term else None
        self.durable_index = durable_index
        self.commit_index = commit_index
        self.verified_index = -1
        self.generation = 0
        self.role = Role.FOLLOWER
        self.leader: ReplicaId | None = None
        self.progress: dict[ReplicaId, Progress] = {}
        self.term_start = -1
        self.transfer_to: ReplicaId | None = None
        self.was_asked_to_lead = False
        self.may_vote = may_vote
        self.disk_used = 0
        self.first_position = -1
        self.wall_ms = 0
        self.healthy = True
        self._settings = settings
        self._random = random
        self._votes: set[ReplicaId] = set()
        self._transfer_deadline = 0.0
        self._leader_heard_at = float("-inf")
        self._heartbeat_at = now
        self._nudge_at = now
        self._last_tick = now
        self._round = 0
        """Number of the last heartbeat round."""
        self._reads: list[tuple[int, int]] = []
        self._unsaved = False
        self._effects: list[Effect] = []
        self._after_sync: list[SendMessage | SendEntries | SendCatchUp] = []
        self._election_deadline = 0.0
        self._arm_election(now)
        if self.term > hard_state.term:
            # The last entry became durable before its term. The entry may be truncated later, but the term must stay.
            self._unsaved = True
            self._effects.append(SaveHardState(HardState(self.term, None)))

    # ---------------------------------------------------------------- what the driver asks

    def take(self) -> Output:
        """Return the effects of all calls since the last `take`."""
        output = Output(self._effects, self._after_sync)
        self._effects = []
        self._after_sync = []
        return output

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def is_voter(self) -> bool:
        return self.me in self.table.membership.voters

    @property
    def own_term_committed(self) -> bool:
        """True if the leader's no-op is committed: its commit index is then the group's newest."""
        return self.role is Role.LEADER and self.commit_index >= self.term_start

    @property
    def accepts_proposals(self) -> bool:
        """True if this replica leads and does not transfer leadership."""
        return self.role is Role.LEADER and self.transfer_to is None

    @property
    def membership(self) -> Membership:
        return self.table.membership

    @property
    def membership_index(self) -> int:
        return self.table.membership_index

    @property
    def membership_is_known(self) -> bool:
        return self.table.membership_is_known

    def membership_at(self, index: int) -> tuple[int, Membership]:
        """Return the membership (with its entry's index) in force at `index`."""
        return self.table.membership_at(index)

    def tick(self, now: float) -> None:
        """Let time pass; call it a few times per heartbeat interval.

        A process that was stopped or starved finds its timers expired although its peers were not silent: their
        messages are still unread.  A late tick therefore moves the timers by the time it is late.  One heartbeat
        interval still counts. Otherwise a process whose every tick is late would wait for ever.
        """
        late_s = now - self._last_tick - self._settings.heartbeat_s
        self._last_tick = now
        if late_s > 0:
            # A message that was handled before this tick has moved them already: never past what "now" allows.
            self._election_deadline = min(self._election_deadline + late_s, now + self._settings.election_max_s)
            for progress in self.progress.values():
                progress.contact_at = min(progress.contact_at + late_s, now)
        if self.role is Role.LEADER:
            self._tick_leader(now)
        elif now >= self._election_deadline:
            self._arm_election(now)
            if self._may_campaign:
                self._campaign(now, pre=True)
            elif self.leader is not None:
                self._set_role(Role.FOLLOWER, None)

    def to_append(self, message: Message, metas: Entries) -> Entries:
        """Return the verified entries of an `Append` that `step` will append."""
        table, commit, entries = self.table, self.commit_index, message.entries
        if entries is None or message.term < self.term:
            return ()
        if entries.prev_index > commit and table.term_at(entries.prev_index) != entries.prev_term:
            return ()  # it will be rejected
        if metas[0].index <= table.last_index:
            return [meta for meta in metas if meta.index > commit and table.term_at(meta.index) != meta.term]
        return metas

    def step(self, sender: ReplicaId, message: Message, now: float, metas: Entries = (), data: bytes = b"") -> None:
        """Handle one message.  `metas` and `data` are the verified entries of an `Append`."""
        match message:
            case VoteRequest():
                self._on_vote_request(sender, message, now)
                return
            case VoteReply(granted=True, pre=True):
                if self.role is Role.PRE_CANDIDATE and message.term == self.term + 1:
                    self._count_vote(sender, now)
                return
        if message.term > self.term:
            from_leader = isinstance(message, Append | Heartbeat | InstallSnapshot)
            self._become_follower(message.term, sender if from_leader else None, now)
        elif message.term < self.term:
            if isinstance(message, Append | Heartbeat | InstallSnapshot):
                self._send(sender, self._reply(rejected_index=-1))
            return
        match message:
            case VoteReply():
                if message.granted and self.role is Role.CANDIDATE:
                    self._count_vote(sender, now)
            case Append():
                self._follow(sender, now)
                self._on_append(sender, message, metas, data)
            case Heartbeat():
                self._follow(sender, now)
                self._learn_commit(message.commit_index)
                self._send(
                    sender,
                    HeartbeatReply(
                        self.term,
                        message.round,
                        self._match_index,
                        self.disk_used,
                        self.wall_ms,
                        self.healthy,
                        self.first_position,
                    ),
                )
            case InstallSnapshot():
                self._follow(sender, now)
                self._on_install(sender, message)
            case AppendReply():
                if self.role is Role.LEADER and (progress := self.progress.get(sender)) is not None:
                    self._on_append_reply(sender, progress, message, now)
            case HeartbeatReply():
                if self.role is Role.LEADER and (progress := self.progress.get(sender)) is not None:
                    self._on_heartbeat_reply(sender, progress, message, now)
            case TimeoutNow():
                if sender == self.leader and self._may_campaign:
                    self._campaign(now, pre=False, transfer=True)

    def propose(self, metas: Entries, data: bytes | bytearray, now: float) -> None:
        """Append own-term entries; the caller holds `accepts_proposals` (a no-op needs leadership only).

        A membership entry must change at most one voter, and needs `can_change_membership`.
        """
        invariant(self.role is Role.LEADER, "only a leader proposes", role=self.role)
        for meta in metas:
            invariant(meta.term == self.term, "a leader proposes in its own term", meta=meta, term=self.term)
            if meta.kind == EntryKind.MEMBERSHIP:
                self._check_membership_step(meta)
        self._append(metas, data)
        for peer, progress in self.progress.items():
            self._replicate(peer, progress, now)

    @property
    def can_change_membership(self) -> bool:
        """True if no change is pending and an own-term entry is committed (Ongaro's 2015 correction)."""
        return self.own_term_committed and self.table.membership_index <= self.commit_index

    def synced(self, generation: int, index: int, now: float) -> None:
        """Note the end of a sync that began when `index` was the last entry of `generation`."""
        if generation != self.generation or index <= self.durable_index:
            return
        invariant(index <= self.table.last_index, "only written entries become durable", index=index)
        self.durable_index = index
        if self.role is Role.LEADER:
            self._advance_commit(now)
        elif self.leader is not None:
            self._send(self.leader, self._reply())

    def hard_state_saved(self, state: HardState, now: float) -> None:
        """Note that term and vote are durable; a candidate counts its own vote now."""
        if state == (self.term, self.vote):
            self._unsaved = False
            if self.role is Role.CANDIDATE and self.vote == self.me:
                self._count_vote(self.me, now)

    def read_index(self, now: float) -> int | None:
        """Begin a read round (all reads requested before it share it); None if reads cannot be confirmed now."""
        if not self.own_term_committed:
            return None
        self._reads.append((self._round + 1, self.commit_index))
        self._heartbeat(now)
        self._confirm_reads()
        return self._round

    def transfer(self, to: ReplicaId, now: float) -> bool:
        """Hand leadership to a voter once it has all entries; proposals stop until then or a time-out."""
        progress = self.progress.get(to)
        if not self.is_leader or progress is None or to not in self.table.membership.voters or not progress.healthy:
            return False
        self.transfer_to = to
        self._transfer_deadline = now + self._settings.election_max_s
        self._finish_transfer()
        return True

    def broadcast_commit(self, now: float) -> None:
        """Send the commit index to all members at once, instead of with the next heartbeat."""
        if self.role is Role.LEADER:
            self._heartbeat(now)

    def catch_up_message(self, term: int, metas: Entries) -> Append | None:
        """Build the message that precedes entries read from the store; None if this replica does not lead any more."""
        first = metas[0].index
        prev_term = self.table.term_at(first - 1)
        if self.role is not Role.LEADER or term != self.term or prev_term is None:
            return None
        return Append(term, first - 1, prev_term, self.commit_index, len(metas))

    def catch_up_sent(self, to: ReplicaId, term: int, last_index: int, size: int, now: float) -> None:
        """Note that the run of a `SendCatchUp` was sent and ended at `last_index`."""
        progress = self.progress.get(to)
        if self.role is Role.LEADER and term == self.term and progress is not None and progress.catching_up:
            progress.note_caught_up(last_index, size, now)
            self._replicate(to, progress, now)

    def wants_snapshot(self, to: ReplicaId, term: int) -> bool:
        """True if the snapshot of a `SendSnapshot` is still to be sent."""
        progress = self.progress.get(to)
        return self.is_leader and term == self.term and progress is not None and progress.mode is Mode.SNAPSHOT

    def snapshot_message(self, term: int, snapshot: SnapshotMeta) -> InstallSnapshot:
        """Build the message that follows the pieces of a snapshot."""
        return InstallSnapshot.of(term, snapshot)

    def snapshot_sent(self, to: ReplicaId, term: int, now: float) -> None:
        """Note that the snapshot of a `SendSnapshot` was sent; if the follower does not install it, another follows."""
        progress = self.progress.get(to)
        if self.role is Role.LEADER and term == self.term and progress is not None and progress.mode is Mode.SNAPSHOT:
            progress.note_snapshot_sent(now)

    def peer_connected(self, peer: ReplicaId, now: float) -> None:
        """Note that a link to the peer is up again."""
        progress = self.progress.get(peer)
        if self.role is Role.LEADER and progress is not None:
            progress.note_reconnected()
            self._replicate(peer, progress, now)
            self._send(peer, Heartbeat(self.term, self.commit_index, self._round))

    def peer_disconnected(self, peer: ReplicaId) -> None:
        """Note that a link is down: messages on their way to the peer may be lost."""
        progress = self.progress.get(peer)
        if progress is not None:
            progress.note_reconnected()

    def repaired(self, first_index: int, next_index: int, memberships: Entries, term_runs: TermRuns) -> None:
        """Note that the entries from `first_index` to before `next_index` can be read again.

        `memberships` are the membership entries among them.
        """
        previous_index = self.table.membership_index
        self.table.learn(first_index, next_index, memberships, term_runs)
        if self.table.membership_index != previous_index:
            self._membership_changed()

    def trimmed(self, base_index: int, base_term: int) -> None:
        """Note that the entries up to `base_index` are gone from the store."""
        self.table.trim(base_index, base_term)

    # ---------------------------------------------------------------- roles

    def _arm_election(self, now: float) -> None:
        settings = self._settings
        self._election_deadline = now + self._random.uniform(settings.election_min_s, settings.election_max_s)

    def _set_hard_state(self, term: int, vote: ReplicaId | None) -> None:
        if (term, vote) != (self.term, self.vote):
            if term != self.term:
                self.verified_index = -1
            self.term, self.vote = term, vote
            self._unsaved = True
            self._effects.append(SaveHardState(HardState(term, vote)))

    def _set_role(self, role: Role, leader: ReplicaId | None) -> None:
        was_leader = self.role is Role.LEADER
        self.role = role
        self.leader = leader
        if was_leader and role is not Role.LEADER:
            self.progress = {}
            self.transfer_to = None
            self._reads = []
            self._effects.append(ReadsFailed())
        self._effects.append(RoleChanged(role, self.term, leader))

    def _become_follower(self, term: int, leader: ReplicaId | None, now: float) -> None:
        changed = term > self.term or self.role is not Role.FOLLOWER or leader != self.leader
        if term > self.term:
            self._set_hard_state(term, None)
        if self.role is Role.LEADER:
            self._arm_election(now)
        if changed:
            self._set_role(Role.FOLLOWER, leader)

    def resign(self, now: float) -> None:
        """Stop leading without a successor: this node cannot write the entries of a leader."""
        if self.role is Role.LEADER:
            self._become_follower(self.term, None, now)

    def _follow(self, leader: ReplicaId, now: float) -> None:
        """Follow this term's leader, from which a message arrived."""
        invariant(self.role is not Role.LEADER, "one leader a term", term=self.term, me=self.me, other=leader)
        self._leader_heard_at = now
        self._arm_election(now)
        if self.role is not Role.FOLLOWER or self.leader != leader:
            self._set_role(Role.FOLLOWER, leader)

    def _hears_leader(self, now: float) -> bool:
        if self.role is Role.LEADER:
            return self._quorum_heard(now)
        return self.leader is not None and now - self._leader_heard_at < self._settings.election_min_s

    @property
    def _may_campaign(self) -> bool:
        """False for a replica that does not know the current membership: it could count wrong votes."""
        return self.table.may_elect(self.me, self.commit_index) and self.may_vote and self.table.membership_is_known

    def _campaign(self, now: float, *, pre: bool, transfer: bool = False) -> None:
        self._arm_election(now)
        self.was_asked_to_lead = transfer
        self._votes = set()
        if pre:
            self._set_role(Role.PRE_CANDIDATE, None)
        else:
            self._set_hard_state(self.term + 1, self.me)
            self._set_role(Role.CANDIDATE, None)
        request = VoteRequest(
            self.term + 1 if pre else self.term, self.table.last_index, self.table.last_term, pre, transfer
        )
        for voter in self.table.membership.voters:
            if voter != self.me:
                self._send(voter, request)
        if pre:
            self._count_vote(self.me, now)

    def _count_vote(self, voter: ReplicaId, now: float) -> None:
        membership = self.table.membership
        self._votes.add(voter)
        if sum(member in self._votes for member in membership.voters) < membership.quorum:
            return
        if self.role is Role.PRE_CANDIDATE:
            self._campaign(now, pre=False)
        else:
            self._become_leader(now)

    def _become_leader(self, now: float) -> None:
        self.term_start = self.table.last_index + 1
        self.transfer_to = None
        self._reads = []
        self.progress = {
            member: Progress(self.term_start, now) for member in self.table.membership.members if member != self.me
        }
        self._set_role(Role.LEADER, self.me)
        self._nudge_at = now + self._settings.heartbeat_s
        self._heartbeat(now)

    def _on_vote_request(self, sender: ReplicaId, request: VoteRequest, now: float) -> None:
        # Vote also for a candidate outside the membership known here. That membership may be void or old (Ongaro's
        # thesis, 4.1), or the entry that lists this replica was lost with an accepted loss. The candidate knows better.
        if not self.may_vote or (not request.transfer and self._hears_leader(now)):
            return
        if not request.pre and request.term > self.term:
            self._become_follower(request.term, None, now)
        is_up_to_date = (request.last_term, request.last_index) >= (self.table.last_term, self.table.last_index)
        if request.pre:
            granted = is_up_to_date and request.term > self.term
        else:
            granted = is_up_to_date and request.term == self.term and self.vote in (None, sender)
            if granted:
                self._set_hard_state(self.term, sender)
                self._arm_election(now)
                if self.role is not Role.FOLLOWER:
                    self._set_role(Role.FOLLOWER, None)
        self._send(sender, VoteReply(request.term if granted else self.term, granted, request.pre))

    # ---------------------------------------------------------------- the follower's side

    @property
    def _match_index(self) -> int:
        return min(self.durable_index, self.verified_index)

    def _reply(self, rejected_index: int = -2, hint_index: int = -1, hint_term: int = 0) -> AppendReply:
        return AppendReply(
            self.term,
            self._match_index,
            self.verified_index,
            rejected_index,
            hint_index,
            hint_term,
            self.disk_used,
            self.wall_ms,
            self.healthy,
        )

    def _on_append(self, sender: ReplicaId, message: Append, metas: Entries, data: bytes) -> None:
        table, prev = self.table, message.prev_index
        if prev + len(metas) < table.base_index:
            # This replica knows no entry below its base: the leader has to join at the base, or above it.
            self._send(sender, self._reply(prev, table.base_index, table.base_term))
            return
        own_term = table.term_at(prev)
        if prev > self.commit_index and own_term != message.prev_term:
            hint = max(table.last_at_or_below_term(prev, message.prev_term), self.commit_index)
            self._send(sender, self._reply(prev, hint, table.term_at(hint) or 0))
            return
        self._check_committed(prev, message.prev_term)
        appended = False
        for offset, meta in enumerate(metas):
            if meta.index <= self.commit_index:
                self._check_committed(meta.index, meta.term)
                continue
            own_term = table.term_at(meta.index)
            if own_term == meta.term:
                continue
            if own_term is not None:
                self._truncate(meta.index)
            skipped_bytes = meta.position - metas[0].position
            self._append(metas[offset:], memoryview(data)[skipped_bytes:] if skipped_bytes else data)
            appended = True
            break
        self.verified_index = max(self.verified_index, prev + len(metas))
        self._learn_commit(message.commit_index)
        if not appended or self.durable_index >= self.verified_index:
            self._send(sender, self._reply())

    def _check_committed(self, index: int, term: int) -> None:
        """Raise `ContradictionError` if the leader's log differs below the commit index: this replica is at fault."""
        own_term = self.table.term_at(index)
        if index <= self.commit_index and own_term is not None and own_term != term:
            raise ContradictionError(
                f"the leader of term {self.term} has term {term} at index {index}, which is committed here"
                f" (commit index {self.commit_index}) with term {own_term}"
            )

    def _append(self, metas: Entries, data: bytes | bytearray | memoryview) -> None:
        previous_index = self.table.membership_index
        self.table.append(metas, self.commit_index)
        self._effects.append(AppendEntries(metas, data))
        if self.table.membership_index != previous_index:
            self._membership_changed()

    def _truncate(self, index: int) -> None:
        invariant(
            index > self.commit_index, "a committed entry is never truncated", index=index, commit=self.commit_index
        )
        previous_index = self.table.membership_index
        self.table.truncate(index)
        self.durable_index = min(self.durable_index, index - 1)
        self.verified_index = min(self.verified_index, index - 1)
        self.generation += 1
        self._effects.append(Truncate(index))
        if self.table.membership_index != previous_index:
            self._membership_changed()

    def _learn_commit(self, leader_commit: int) -> None:
        """Commit up to a leader's commit index, but only verified entries: heartbeats may overtake appends."""
        commit = min(leader_commit, self.verified_index)
        if self.verified_index >= leader_commit and self.table.term_at(leader_commit) == self.term:
            self.may_vote = True  # an entry of this term is committed and in the log, so every committed entry is
        if commit > self.commit_index:
            self.commit_index = commit
            self._effects.append(Commit(commit))

    def _on_install(self, sender: ReplicaId, message: InstallSnapshot) -> None:
        index = message.last_index
        self._check_committed(index, message.last_term)
        if self.table.term_at(index) == message.last_term:
            self.verified_index = max(self.verified_index, index)
            self._learn_commit(index)
        elif index > self.commit_index:
            self.table.reset(index, message.last_term, message.membership, message.membership_index)
            self.durable_index = self.verified_index = self.commit_index = index
            self.generation += 1
            self._effects.append(ResetLog(message.snapshot))
            self._membership_changed()
        self._send(sender, self._reply())

    # ---------------------------------------------------------------- the leader's side

    def _tick_leader(self, now: float) -> None:
        if not self._quorum_heard(now):
            self._become_follower(self.term, None, now)
            return
        if self.transfer_to is not None and now >= self._transfer_deadline:
            self.transfer_to = None
        if now >= self._heartbeat_at:
            self._heartbeat(now)
        # This is a separate timer, because each read, and each commit that is sent at once, delays the next heartbeat.
        if now >= self._nudge_at:
            self._nudge_at = now + self._settings.heartbeat_s
            for peer, progress in self.progress.items():
                progress.resend_lost(self.table.first_index, now, self._settings.election_max_s)
                self._replicate(peer, progress, now)

    def _quorum_heard(self, now: float) -> bool:
        membership = self.table.membership
        heard_voters = sum(
            voter == self.me or now - self.progress[voter].contact_at < self._settings.election_max_s
            for voter in membership.voters
        )
        return heard_voters >= membership.quorum

    def _heartbeat(self, now: float) -> None:
        self._heartbeat_at = now + self._settings.heartbeat_s
        self._round += 1
        beat = Heartbeat(self.term, self.commit_index, self._round)
        for peer, progress in self.progress.items():
            progress.note_heartbeat_sent(self._round, now)
            self._send(peer, beat)

    def _replicate(self, to: ReplicaId, progress: Progress, now: float) -> None:
        """Send the entries that the window allows."""
        table, settings = self.table, self._settings
        if progress.next_index < table.first_index and progress.mode is not Mode.SNAPSHOT:
            progress.restart(progress.next_index, Mode.SNAPSHOT)
            self._effects.append(SendSnapshot(to, self.term))
            return
        if progress.mode is Mode.PROBE:
            if not progress.probe_sent:
                progress.probe_sent = True
                self._send(to, self._append_message(progress.next_index - 1, 0))
            return
        while (
            progress.mode is Mode.STREAM
            and progress.next_index <= table.last_index
            and progress.in_flight_bytes < settings.max_in_flight_bytes
            and not progress.catching_up
        ):
            if not progress.in_flight:
                progress.probe_at = now
            if progress.next_index < table.window_first:
                progress.catching_up = True
                effect = SendCatchUp(to, self.term, progress.next_index, settings.max_run_bytes)
                (self._after_sync if self._unsaved else self._effects).append(effect)
                return
            count, size = table.run_from(progress.next_index, settings.max_run_bytes)
            message = self._append_message(progress.next_index - 1, count)
            (self._after_sync if self._unsaved else self._effects).append(SendEntries(to, message))
            progress.note_sent(progress.next_index + count - 1, size)

    def _append_message(self, prev_index: int, count: int) -> Append:
        prev_term = self.table.term_at(prev_index)
        invariant(prev_term is not None, "an append joins a known entry", prev=prev_index)
        return Append(self.term, prev_index, prev_term or 0, self.commit_index, count, self.table.chain_at(prev_index))

    def _on_append_reply(self, sender: ReplicaId, progress: Progress, reply: AppendReply, now: float) -> None:
        progress.note_contact(reply, now)
        if reply.rejected:
            if progress.awaits_rejection(reply.rejected_index):
                next_index = self.table.next_after_conflict(reply.rejected_index, reply.hint_index, reply.hint_term)
                progress.note_rejected(reply.match_index, next_index)
                self._replicate(sender, progress, now)
            return
        invariant(
            reply.verified_index <= self.table.last_index, "a follower verifies only what its leader has", reply=reply
        )
        progress.note_accepted(reply.verified_index, self.table.base_index, now)
        self._note_match(progress, reply.match_index, now)
        if sender in self.progress:
            self._replicate(sender, progress, now)

    def _on_heartbeat_reply(self, sender: ReplicaId, progress: Progress, reply: HeartbeatReply, now: float) -> None:
        progress.note_contact(reply, now)
        progress.note_heartbeat_answered(reply.round, reply.wall_ms, now)
        if reply.round > progress.read_round:
            progress.read_round = reply.round
            self._confirm_reads()
        if reply.match_index > progress.match_index:
            progress.note_answered(reply.match_index)
            self._note_match(progress, reply.match_index, now)
        if progress.mode is Mode.SNAPSHOT and progress.match_index >= self.table.base_index:
            progress.restart(progress.match_index + 1)
        if sender in self.progress:
            self._replicate(sender, progress, now)

    def _note_match(self, progress: Progress, match_index: int, now: float) -> None:
        if match_index > progress.match_index:
            progress.match_index = match_index
            self._advance_commit(now)
            self._finish_transfer()

    def _advance_commit(self, now: float) -> None:
        """Commit the entries that a majority holds durably, if the last is of this term (figure 8 of the paper)."""
        membership = self.table.membership
        durable = sorted(
            self.durable_index if voter == self.me else self.progress[voter].match_index for voter in membership.voters
        )
        index = durable[-membership.quorum]
        if index <= self.commit_index or self.table.term_at(index) != self.term:
            return
        self.commit_index = index
        self._effects.append(Commit(index))
        if self.table.membership_index <= index and not self.is_voter:
            self._heartbeat(now)
            self._become_follower(self.term, None, now)

    def _confirm_reads(self) -> None:
        membership = self.table.membership
        rounds = sorted(
            self._round if voter == self.me else self.progress[voter].read_round for voter in membership.voters
        )
        confirmed = rounds[-membership.quorum]
        ready = [read for read in self._reads if read[0] <= confirmed]
        if ready:
            self._reads = self._reads[len(ready) :]
            self._effects.append(ReadsReady(*ready[-1]))

    def _finish_transfer(self) -> None:
        to = self.transfer_to
        if to is not None and self.progress[to].match_index == self.table.last_index:
            self._send(to, TimeoutNow(self.term))

    # ---------------------------------------------------------------- membership and sending

    def _check_membership_step(self, meta: EntryMeta) -> None:
        invariant(self.can_change_membership, "a membership change waits for the one before", index=meta.index)
        invariant(meta.membership is not None, "a membership entry carries one", index=meta.index)
        if meta.membership is not None:
            old_voters, new_voters = set(self.table.membership.voters), set(meta.membership.voters)
            invariant(
                len(old_voters ^ new_voters) <= 1 and new_voters,
                "one voter changes at a time",
                before=old_voters,
                after=new_voters,
            )

    def _membership_changed(self) -> None:
        membership = self.table.membership
        self._effects.append(MembershipChanged(membership, self.table.membership_index))
        if self.role is Role.LEADER:
            for member in membership.members:
                if member != self.me and member not in self.progress:
                    self.progress[member] = Progress(self.table.last_index + 1, self._last_tick)
            for removed in [peer for peer in self.progress if peer not in membership.members]:
                del self.progress[removed]
            if self.transfer_to not in self.progress:
                self.transfer_to = None

    def _send(self, to: ReplicaId, message: Message) -> None:
        (self._after_sync if self._unsaved else self._effects).append(SendMessage(to, message))

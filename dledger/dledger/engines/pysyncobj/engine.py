"""A replica's `Engine` around a `SyncObj`.

This module adds to stock PySyncObj:

- a pre-vote before its elections, and votes refused while messages of a live leader arrive;
- answers to messages of an earlier term, so that their sender learns of the later one;
- acknowledgements only of entries that are durable *and* verified;
- snapshots in the place of its dumps.
"""

from __future__ import annotations

from random import Random

from dledger.consensus.effects import (
    Commit,
    MembershipChanged,
    Output,
    ReadsFailed,
    RoleChanged,
)
from dledger.consensus.engine import EngineStart, Entries
from dledger.consensus.messages import Message
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
from dledger.engines.pysyncobj.following import Following
from dledger.engines.pysyncobj.journal import OFFSET, LogJournal
from dledger.engines.pysyncobj.leading import Leading
from dledger.engines.pysyncobj.library import Library, LibraryMessage, State
from dledger.engines.pysyncobj.outbox import Outbox
from dledger.term_runs import TermRuns
from dledger.types import EntryKind, EntryMeta, HardState, Membership, ReplicaId, Role, SnapshotMeta
from dledger_base.invariants import invariant


class PySyncObjEngine:
    """A `dledger.consensus.engine.Engine` in which a `SyncObj` decides."""

    def __init__(self, start: EngineStart) -> None:
        log = start.log
        table = LogTable(
            log.base_index,
            log.base_term,
            log.term_runs,
            log.last_index,
            log.membership,
            log.membership_index,
            log.memberships,
            log.unread,
        )
        invariant(start.commit_index <= start.durable_index <= table.last_index, "what is committed is durable")
        self.me = start.me
        self.role = Role.FOLLOWER
        self.leader: ReplicaId | None = None
        self.disk_used = 0
        self.first_position = -1
        self.wall_ms = 0
        self.healthy = True
        self.term_start = -1
        self._settings = start.settings
        self._random: Random = start.random
        self.table = table
        """Terms of all entries, sizes of the newest."""
        self._outbox = Outbox()
        self._journal = LogJournal(table, start.hard_state, start.durable_index, start.commit_index, self._outbox)
        self._leading: Leading | None = None
        self._pre_votes: set[ReplicaId] | None = None
        """Replicas that would vote for this one; None unless it asks."""
        self._counted_votes: set[ReplicaId] = set()
        """Replicas whose votes of this term `SyncObj` has counted."""
        self._is_transfer_campaign = False
        """True if the leader asked for the election that begins."""
        self._state = State.FOLLOWER
        self._reported_role: tuple[Role, int, ReplicaId | None] = (Role.FOLLOWER, self._journal.term, None)
        self._reported_membership = table.membership_index, table.membership
        self._leader_heard_at = float("-inf")
        self._last_tick = self._clock_at_tick = self._last_now = now = start.now
        self._library = Library(
            start.me,
            self._journal,
            start.settings,
            start.random,
            now,
            self._on_library_message,
            self._state_changed,
        )
        self._following = Following(self, self._journal, self._library, self._outbox, may_vote=start.may_vote)

    # ---------------------------------------------------------------- what the replica asks

    @property
    def term(self) -> int:
        return self._journal.term

    @property
    def commit_index(self) -> int:
        return self._journal.commit_index

    @property
    def generation(self) -> int:
        return self._journal.generation

    @property
    def may_vote(self) -> bool:
        return self._following.may_vote

    @property
    def was_asked_to_lead(self) -> bool:
        return self._is_transfer_campaign

    @property
    def transfer_to(self) -> ReplicaId | None:
        return self._leading.transfer_to if self._leading else None

    @property
    def progress(self) -> dict[ReplicaId, Progress]:
        return self._leading.progress if self._leading and self.is_leader else {}

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def is_voter(self) -> bool:
        return self.me in self.table.membership.voters

    @property
    def own_term_committed(self) -> bool:
        return self.is_leader and self.commit_index >= self.term_start

    @property
    def accepts_proposals(self) -> bool:
        return self.is_leader and self.transfer_to is None

    @property
    def can_change_membership(self) -> bool:
        return self.own_term_committed and self.table.membership_index <= self.commit_index

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

    def take(self) -> Output:
        """Return the effects of all calls since the last `take`."""
        return self._outbox.take()

    # ---------------------------------------------------------------- time

    def _advance_clock(self, now: float) -> None:
        """Move `SyncObj`'s clock on, by a heartbeat interval at the most from tick to tick.

        A process that was stopped finds its timers expired although its peers were not silent: their messages are still
        unread.
        """
        self._last_now = now
        self._library.now = max(
            self._library.now, self._clock_at_tick + min(now - self._last_tick, self._settings.heartbeat_s)
        )

    def tick(self, now: float) -> None:
        """Let time pass."""
        late_s = now - self._last_tick - self._settings.heartbeat_s
        self._advance_clock(now)
        self._last_tick, self._clock_at_tick = now, self._library.now
        if self._leading is not None:
            self._leading.tick(now, late_s)
        elif self._library.election_is_due:
            self._postpone_election()
            self.leader = None
            if self._may_campaign:
                self._start_pre_vote(now)
        self._library.tick()
        self._report_changes(now)

    @property
    def _may_campaign(self) -> bool:
        """False for a replica that does not know the current membership: it could count wrong votes."""
        table = self.table
        return table.may_elect(self.me, self.commit_index) and self.may_vote and table.membership_is_known

    def _postpone_election(self) -> None:
        settings = self._settings
        self._library.postpone_election(self._random.uniform(settings.election_min_s, settings.election_max_s))

    # ---------------------------------------------------------------- elections

    def _start_pre_vote(self, now: float) -> None:
        """Ask whether this replica would be elected."""
        self._pre_votes = set()
        self._report_changes(now)
        table = self.table
        request = VoteRequest(self.term + 1, table.last_index, table.last_term, pre=True)
        for voter in table.membership.voters:
            if voter != self.me:
                self._outbox.send(voter, request)
        self._count_pre_vote(self.me, now)

    def _count_pre_vote(self, voter: ReplicaId, now: float) -> None:
        votes, membership = self._pre_votes, self.table.membership
        if votes is None:
            return
        votes.add(voter)
        if sum(member in votes for member in membership.voters) >= membership.quorum:
            self._campaign(now, transferred=False)

    def _campaign(self, now: float, *, transferred: bool) -> None:
        self._pre_votes = None
        self._counted_votes.clear()
        self._is_transfer_campaign = transferred
        self._library.campaign()
        self._report_changes(now)

    def _on_vote_request(self, sender: ReplicaId, request: VoteRequest, now: float) -> None:
        if not self.may_vote or (not request.transfer and self._hears_leader(now)):
            return
        table = self.table
        if request.pre:
            is_up_to_date = (request.last_term, request.last_index) >= (table.last_term, table.last_index)
            granted = is_up_to_date and request.term > self.term
            self._outbox.send(sender, VoteReply(request.term if granted else self.term, granted, pre=True))
            return
        previous_term = self.term
        granted = self._library.vote(sender, request.term, request.last_index, request.last_term)
        if granted or self.term != previous_term:
            self._pre_votes = self.leader = None
        self._report_changes(now)
        self._outbox.send(sender, VoteReply(request.term if granted else self.term, granted))

    def _hears_leader(self, now: float) -> bool:
        if self._leading is not None:
            return self._leading.quorum_heard(now)
        return self.leader is not None and now - self._leader_heard_at < self._settings.election_min_s

    def hard_state_saved(self, state: HardState, now: float) -> None:
        """Note that term and vote are durable."""
        if state == (self._journal.term, self._journal.vote):
            self._outbox.unsaved = False
            self._advance_clock(now)
            if self._state is State.CANDIDATE and state.vote == self.me and self.me not in self._counted_votes:
                self._counted_votes.add(self.me)
                self._library.own_vote_saved()
            self._report_changes(now)

    # ---------------------------------------------------------------- messages

    def _on_library_message(self, to: ReplicaId, message: LibraryMessage) -> None:
        """Pass on a message that `SyncObj` sends to another replica during a call."""
        if message["type"] == "append_entries":
            invariant(self._leading is not None, "only a leader sends entries")
            if self._leading is not None:
                self._leading.on_library_message(to, message)
        else:
            last_index, last_term = message["last_log_index"] - OFFSET, message["last_log_term"]
            self._outbox.send(
                to, VoteRequest(message["term"], last_index, last_term, transfer=self._is_transfer_campaign)
            )

    def _state_changed(self, state: State) -> None:
        """Note a new state that `SyncObj` reports during a call."""
        self._state = state
        if state is State.LEADER:
            self._pre_votes = None
            self._journal.run_limit = self._settings.max_run_bytes
            self._leading = Leading(self.me, self._journal, self._library, self._outbox, self._settings, self._last_now)
            self.term_start = self._leading.term_start
        elif self._leading is not None:
            self._leading = self._journal.run_limit = self.leader = None
            self._library.first_countable = 0
            self._postpone_election()
            self._library.set_members(self.me, self.table.membership)

    def step(self, sender: ReplicaId, message: Message, now: float, metas: Entries = (), data: bytes = b"") -> None:
        """Handle one message."""
        self._advance_clock(now)
        match message:
            case VoteRequest():
                self._on_vote_request(sender, message, now)
                return
            case VoteReply(granted=True, pre=True):
                if message.term == self.term + 1:
                    self._count_pre_vote(sender, now)
                return
        if message.term > self.term:
            self._library.adopt(message.term, sender)
            self._pre_votes = self.leader = None
            self._report_changes(now)
        elif message.term < self.term:
            if isinstance(message, Append | Heartbeat | InstallSnapshot):
                self._outbox.send(sender, self._following.reply(rejected_index=-1))
            return
        match message:
            case VoteReply():
                self._on_vote(sender, message)
            case Append():
                self._follow(sender, now)
                self._following.on_append(sender, message, metas, data)
            case Heartbeat():
                self._follow(sender, now)
                self._following.on_heartbeat(sender, message)
            case InstallSnapshot():
                self._follow(sender, now)
                self._following.on_install(sender, message)
            case TimeoutNow():
                if sender == self.leader and self._may_campaign:
                    self._campaign(now, transferred=True)
            case AppendReply() if self._leading is not None:
                self._leading.on_append_reply(sender, message, now)
                self._library.tick()
            case HeartbeatReply() if self._leading is not None:
                self._leading.on_heartbeat_reply(sender, message, now)
                self._library.tick()
        self._report_changes(now)

    def _on_vote(self, sender: ReplicaId, message: VoteReply) -> None:
        """Pass each voter's vote on once: `SyncObj` would count repeated votes, and votes of strangers, too."""
        counts = message.granted and self._state is State.CANDIDATE and sender in self.table.membership.voters
        if counts and sender not in self._counted_votes:
            self._counted_votes.add(sender)
            self._library.count_vote(sender)

    def _follow(self, leader: ReplicaId, now: float) -> None:
        """Follow this term's leader, from which a message arrived."""
        invariant(self._leading is None, "one leader a term", term=self.term, me=self.me, other=leader)
        self._leader_heard_at = now
        self._pre_votes = None
        if self.leader != leader or self._state is not State.FOLLOWER:
            self.leader = leader
            self._following.acknowledge_leader(leader, -1)
            self._report_changes(now)

    def to_append(self, message: Message, metas: Entries) -> Entries:
        """Return the verified entries of an append that `step` will append."""
        return self._following.to_append(message, metas)

    # ---------------------------------------------------------------- leading

    def propose(self, metas: Entries, data: bytes | bytearray, now: float) -> None:
        """Append entries of this leader's term."""
        invariant(self.is_leader and self._leading is not None, "only a leader proposes", role=self.role)
        for meta in metas:
            if meta.kind == EntryKind.MEMBERSHIP:
                self._check_membership_step(meta)
        self._advance_clock(now)
        self._library.propose(metas)
        self._journal.write(data)
        self._note_membership(now)
        if self._leading is not None:
            self._leading.replicate(now)

    def _check_membership_step(self, meta: EntryMeta) -> None:
        invariant(self.can_change_membership, "a membership change waits for the one before", index=meta.index)
        invariant(meta.membership is not None, "a membership entry carries one", index=meta.index)
        if meta.membership is not None:
            old_voters, new_voters = set(self.membership.voters), set(meta.membership.voters)
            invariant(
                len(old_voters ^ new_voters) <= 1 and new_voters,
                "one voter changes at a time",
                before=old_voters,
                after=new_voters,
            )

    def read_index(self, now: float) -> int | None:
        """Begin a read round, and return its number; None if reads cannot be confirmed now."""
        if self._leading is None or not self.own_term_committed:
            return None
        return self._leading.read_index(now)

    def broadcast_commit(self, now: float) -> None:
        """Send the commit index to all members at once."""
        if self._leading is not None:
            self._leading.send_heartbeats(now)

    def transfer(self, to: ReplicaId, now: float) -> bool:
        """Hand leadership to a voter once it has all entries."""
        return self._leading is not None and self.is_leader and self._leading.transfer(to, now)

    def resign(self, now: float) -> None:
        """Stop leading without a successor."""
        if self._leading is not None:
            self._library.step_down()
            self._report_changes(now)

    def catch_up_message(self, term: int, metas: Entries) -> Append | None:
        """Return the message that precedes entries read from the store; None if they are not sent."""
        first = metas[0].index
        prev_term = self.table.term_at(first - 1)
        if not self.is_leader or term != self.term or prev_term is None:
            return None
        return Append(term, first - 1, prev_term, self.commit_index, len(metas))

    def catch_up_sent(self, to: ReplicaId, term: int, last_index: int, size: int, now: float) -> None:
        """Note that the run of a `SendCatchUp` was sent."""
        if self._leading is not None and term == self.term:
            self._leading.catch_up_sent(to, last_index, size, now)

    def wants_snapshot(self, to: ReplicaId, term: int) -> bool:
        """Return True if the snapshot of a `SendSnapshot` is still to be sent."""
        return self._leading is not None and term == self.term and self._leading.wants_snapshot(to)

    def snapshot_message(self, term: int, snapshot: SnapshotMeta) -> InstallSnapshot:
        """Return the message that follows the pieces of a snapshot."""
        return InstallSnapshot.of(term, snapshot)

    def snapshot_sent(self, to: ReplicaId, term: int, now: float) -> None:
        """Note that the snapshot of a `SendSnapshot` was sent."""
        if self._leading is not None and term == self.term:
            self._leading.snapshot_sent(to, now)

    def peer_connected(self, peer: ReplicaId, now: float) -> None:
        """Note that a link to the peer is up again."""
        if self._leading is not None:
            self._leading.note_connected(peer, now)

    def peer_disconnected(self, peer: ReplicaId) -> None:
        """Note that messages on their way to the peer may be lost."""
        if self._leading is not None:
            self._leading.note_disconnected(peer)

    # ---------------------------------------------------------------- the log

    def synced(self, generation: int, index: int, now: float) -> None:
        """Note the end of a sync."""
        journal = self._journal
        if generation != journal.generation or index <= journal.durable_index:
            return
        invariant(index <= self.table.last_index, "only written entries become durable", index=index)
        journal.durable_index = index
        self._advance_clock(now)
        if self._leading is not None:
            self._library.tick()
            self._report_changes(now)
        elif self.leader is not None:
            self._outbox.send(self.leader, self._following.reply())

    def repaired(self, first_index: int, next_index: int, memberships: Entries, term_runs: TermRuns) -> None:
        """Note that entries can be read again."""
        self.table.learn(first_index, next_index, memberships, term_runs)
        self._report_changes(self._last_now)

    def trimmed(self, base_index: int, base_term: int) -> None:
        """Note that the entries up to `base_index` are gone from the store."""
        self.table.trim(base_index, base_term)

    # ---------------------------------------------------------------- reporting

    def _report_changes(self, now: float) -> None:
        """Notify the replica of a changed membership, role or commit index."""
        self._note_membership(now)
        self._report_role(now)
        commit_index = self._library.commit_index
        if commit_index > self._journal.commit_index:
            self._journal.commit_index = commit_index
            self._outbox.put(Commit(commit_index))
            if self._leading is not None and self.table.membership_index <= commit_index and not self.is_voter:
                self._leading.send_heartbeats(now)
                self._library.step_down()
                self._report_role(now)

    def _note_membership(self, now: float) -> None:
        membership = self.table.membership_index, self.table.membership
        # The index alone does not tell: a membership may replace that of a deposed leader at the same index.
        if membership != self._reported_membership:
            self._reported_membership = membership
            self._library.set_members(self.me, self.table.membership)
            if self._leading is not None:
                self._leading.members_changed(now)
            self._outbox.put(MembershipChanged(self.table.membership, self.table.membership_index))

    def _report_role(self, now: float) -> None:
        if self._leading is not None:
            role, leader = Role.LEADER, self.me
        elif self._pre_votes is not None:
            role, leader = Role.PRE_CANDIDATE, None
        elif self._state is State.CANDIDATE:
            role, leader = Role.CANDIDATE, None
        else:
            role, leader = Role.FOLLOWER, self.leader
        if (role, self.term, leader) == self._reported_role:
            return
        was_leader = self.role is Role.LEADER
        self._reported_role = role, self.term, leader
        self.role, self.leader = role, leader
        if was_leader and role is not Role.LEADER:
            self._outbox.put(ReadsFailed())
        self._outbox.put(RoleChanged(role, self.term, leader))
        if role is Role.LEADER and not was_leader and self._leading is not None:
            self._leading.send_heartbeats(now)

"""Leader of a PySyncObj group, around its `SyncObj`: windows, acknowledgements, heartbeats, reads, transfers.

`SyncObj` decides on the entries for each member, and on commits. Stock PySyncObj sends all entries at every turn,
and again with every answer. Here a window bounds the bytes that are on their way to each member.

While nothing may be sent to a member, `SyncObj` is told that the member is disconnected. That is so while its window is
full, a probe is unanswered, entries are read from a file, or it needs a snapshot.
"""

from __future__ import annotations

from dledger.consensus.effects import ReadsReady, SendCatchUp, SendEntries, SendSnapshot
from dledger.consensus.engine import RaftSettings
from dledger.consensus.peers import Mode
from dledger.core.messages import Append, AppendReply, Heartbeat, HeartbeatReply, TimeoutNow
from dledger.core.progress import Progress
from dledger.engines.pysyncobj.journal import OFFSET, LogJournal
from dledger.engines.pysyncobj.library import Library, LibraryMessage
from dledger.engines.pysyncobj.outbox import Outbox
from dledger.types import ReplicaId
from dledger_base.invariants import invariant


class Leading:
    """One term of leadership."""

    def __init__(
        self,
        me: ReplicaId,
        journal: LogJournal,
        library: Library,
        outbox: Outbox,
        settings: RaftSettings,
        now: float,
    ) -> None:
        self.term = journal.term
        self.term_start = journal.table.last_index + 1
        self.transfer_to: ReplicaId | None = None
        self.progress = {
            member: Progress(self.term_start, now) for member in journal.table.membership.members if member != me
        }
        self._me = me
        self._journal = journal
        self._table = journal.table
        self._library = library
        library.first_countable = self.term_start
        self._outbox = outbox
        self._settings = settings
        self._round = 0
        """Number of the last heartbeat round."""
        self._reads: list[tuple[int, int]] = []
        self._heartbeat_at = now
        self._nudge_at = now + settings.heartbeat_s
        self._transfer_deadline = 0.0
        self._now = now

    def members_changed(self, now: float) -> None:
        """Begin to track new members, and forget removed ones."""
        members = self._table.membership.members
        for member in members:
            if member != self._me and member not in self.progress:
                self.progress[member] = Progress(self._table.last_index + 1, now)
        for removed in [peer for peer in self.progress if peer not in members]:
            del self.progress[removed]
        if self.transfer_to not in self.progress:
            self.transfer_to = None

    # ---------------------------------------------------------------- time

    def tick(self, now: float, late_s: float) -> None:
        """Let time pass. This process may have been stopped for `late_s` of it."""
        self._now = now
        for progress in self.progress.values():
            progress.contact_at = min(progress.contact_at + max(late_s, 0.0), now)
        if self.transfer_to is not None and now >= self._transfer_deadline:
            self.transfer_to = None
        if now >= self._heartbeat_at:
            self.send_heartbeats(now)
        if now >= self._nudge_at:
            self._nudge_at = now + self._settings.heartbeat_s
            for progress in self.progress.values():
                progress.resend_lost(self._table.first_index, now, self._settings.election_max_s)
            self.replicate(now)

    def send_heartbeats(self, now: float) -> None:
        """Tell all members that this replica leads, and how far the log is committed."""
        self._heartbeat_at = now + self._settings.heartbeat_s
        self._round += 1
        beat = Heartbeat(self.term, self._journal.commit_index, self._round)
        for peer, progress in self.progress.items():
            progress.note_heartbeat_sent(self._round, now)
            self._outbox.send(peer, beat)

    def quorum_heard(self, now: float) -> bool:
        """Return True if a majority has answered within the maximum election timeout."""
        membership = self._table.membership
        heard_voters = sum(
            voter == self._me or now - self.progress[voter].contact_at < self._settings.election_max_s
            for voter in membership.voters
        )
        return heard_voters >= membership.quorum

    # ---------------------------------------------------------------- sending

    def replicate(self, now: float) -> None:
        """Have `SyncObj` send each member the entries that its window allows."""
        self._now = now
        has_work = False
        for peer, progress in self.progress.items():
            if self._may_send(progress):
                self._library.set_next(peer, progress.next_index)
                self._library.connect(peer)
                has_work = has_work or progress.mode is Mode.PROBE or progress.next_index <= self._table.last_index
            else:
                self._library.disconnect(peer)
        if has_work:
            self._library.send_entries()

    def _may_send(self, progress: Progress) -> bool:
        if progress.mode is Mode.STREAM:
            return not progress.catching_up and progress.in_flight_bytes < self._settings.max_in_flight_bytes
        return progress.mode is Mode.PROBE and not progress.probe_sent

    def on_library_message(self, to: ReplicaId, message: LibraryMessage) -> None:
        """Send what a member needs in the place of an append of `SyncObj`: entries, a probe, a snapshot, or nothing."""
        progress = self.progress.get(to)
        if progress is None or not self._may_send(progress):
            self._library.disconnect(to)
            return
        prev_index = message.get("prevLogIdx")
        if progress.next_index < self._table.first_index:
            progress.restart(progress.next_index, Mode.SNAPSHOT)
            self._outbox.put(SendSnapshot(to, self.term))
            self._library.disconnect(to)
        elif prev_index is None or prev_index + 1 - OFFSET != progress.next_index:
            self._library.set_next(to, progress.next_index)
        elif progress.mode is Mode.PROBE:
            progress.probe_sent = True
            self._outbox.send(to, self._append(progress.next_index - 1, 0))
            self._library.disconnect(to)
        elif message["entries"]:
            self._send_entries(to, progress, len(message["entries"]))

    def _send_entries(self, to: ReplicaId, progress: Progress, count: int) -> None:
        first_index = progress.next_index
        if not progress.in_flight:
            progress.probe_at = self._now
        if first_index < self._table.window_first:
            progress.catching_up = True
            self._outbox.post(SendCatchUp(to, self.term, first_index, self._settings.max_run_bytes))
        else:
            self._outbox.post(SendEntries(to, self._append(first_index - 1, count)))
            progress.note_sent(first_index + count - 1, self._journal.run_bytes)
        if not self._may_send(progress):
            self._library.disconnect(to)

    def _append(self, prev_index: int, count: int) -> Append:
        table = self._table
        prev_term = table.term_at(prev_index)
        invariant(prev_term is not None, "an append joins a known entry", prev=prev_index)
        commit_index = self._journal.commit_index
        return Append(self.term, prev_index, prev_term or 0, commit_index, count, table.chain_at(prev_index))

    def note_connected(self, peer: ReplicaId, now: float) -> None:
        """Note that a link to a member is up again, and send it entries and a heartbeat."""
        self.note_disconnected(peer)
        if peer in self.progress:
            self.replicate(now)
            self._outbox.send(peer, Heartbeat(self.term, self._journal.commit_index, self._round))

    def note_disconnected(self, peer: ReplicaId) -> None:
        """Note that messages on their way to a member may be lost."""
        progress = self.progress.get(peer)
        if progress is not None:
            progress.note_reconnected()

    def catch_up_sent(self, to: ReplicaId, last_index: int, size: int, now: float) -> None:
        """Note that a run of entries was read from a file and sent."""
        progress = self.progress.get(to)
        if progress is not None and progress.catching_up:
            progress.note_caught_up(last_index, size, now)
            self.replicate(now)

    def wants_snapshot(self, to: ReplicaId) -> bool:
        """Return True if a member's log cannot be joined to this one."""
        progress = self.progress.get(to)
        return progress is not None and progress.mode is Mode.SNAPSHOT

    def snapshot_sent(self, to: ReplicaId, now: float) -> None:
        """Note that a snapshot was sent; a later answer shows whether the member installed it."""
        progress = self.progress.get(to)
        if progress is not None and progress.mode is Mode.SNAPSHOT:
            progress.note_snapshot_sent(now)

    # ---------------------------------------------------------------- answers

    def on_append_reply(self, sender: ReplicaId, reply: AppendReply, now: float) -> None:
        """Handle a member's answer to an append: how much of its log equals this one, or a rejection."""
        progress = self.progress.get(sender)
        if progress is None:
            return
        self._note_contact(sender, progress, reply, now)
        if reply.rejected:
            if progress.awaits_rejection(reply.rejected_index):
                next_index = self._table.next_after_conflict(reply.rejected_index, reply.hint_index, reply.hint_term)
                progress.note_rejected(reply.match_index, next_index)
                self._library.set_match(sender, progress.match_index)
                self.replicate(now)
            return
        verified = reply.verified_index
        invariant(verified <= self._table.last_index, "a follower verifies only what its leader has", reply=reply)
        progress.note_accepted(verified, self._table.base_index, now)
        self._note_match(sender, progress, reply.match_index)
        self.replicate(now)

    def on_heartbeat_reply(self, sender: ReplicaId, reply: HeartbeatReply, now: float) -> None:
        """Handle a member's answer to a heartbeat."""
        progress = self.progress.get(sender)
        if progress is None:
            return
        self._note_contact(sender, progress, reply, now)
        progress.note_heartbeat_answered(reply.round, reply.wall_ms, now)
        if reply.round > progress.read_round:
            progress.read_round = reply.round
            self.confirm_reads()
        if reply.match_index > progress.match_index:
            progress.note_answered(reply.match_index)
            self._note_match(sender, progress, reply.match_index)
        if progress.mode is Mode.SNAPSHOT and progress.match_index >= self._table.base_index:
            progress.restart(progress.match_index + 1)
        if progress.next_index <= self._table.last_index:
            self.replicate(now)

    def _note_contact(
        self, sender: ReplicaId, progress: Progress, reply: AppendReply | HeartbeatReply, now: float
    ) -> None:
        self._library.note_contact(sender)
        progress.note_contact(reply, now)

    def _note_match(self, peer: ReplicaId, progress: Progress, match_index: int) -> None:
        if match_index > progress.match_index:
            progress.match_index = match_index
            self._library.set_match(peer, match_index)
            self.finish_transfer()

    # ---------------------------------------------------------------- reads, leadership transfers

    def read_index(self, now: float) -> int:
        """Begin a read round, which only answers to heartbeats sent from now on confirm."""
        self._reads.append((self._round + 1, self._journal.commit_index))
        self.send_heartbeats(now)
        self.confirm_reads()
        return self._round

    def confirm_reads(self) -> None:
        """Report the read rounds that a majority has confirmed."""
        membership = self._table.membership
        rounds = sorted(
            self._round if voter == self._me else self.progress[voter].read_round for voter in membership.voters
        )
        confirmed = rounds[-membership.quorum]
        ready = [read for read in self._reads if read[0] <= confirmed]
        if ready:
            self._reads = self._reads[len(ready) :]
            self._outbox.put(ReadsReady(*ready[-1]))

    def transfer(self, to: ReplicaId, now: float) -> bool:
        """Hand leadership to a voter once it has all entries."""
        progress = self.progress.get(to)
        if progress is None or to not in self._table.membership.voters or not progress.healthy:
            return False
        self.transfer_to = to
        self._transfer_deadline = now + self._settings.election_max_s
        self.finish_transfer()
        return True

    def finish_transfer(self) -> None:
        """Have the target of the transfer campaign if it has all entries."""
        to = self.transfer_to
        if to is not None and self.progress[to].match_index == self._table.last_index:
            self._outbox.send(to, TimeoutNow(self.term))

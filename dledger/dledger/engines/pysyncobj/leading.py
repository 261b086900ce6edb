"""What a leader of a PySyncObj group does around its `SyncObj`: windows, acknowledgements, beats, reads, handing over.

`SyncObj` decides what to send to whom and what is committed.  It would send all that it has at every turn, and again
with every answer.  Here each member has a window of bytes on their way; while that is full, or the member is asked
where its log joins, or entries are read back from a file for it, `SyncObj` takes it for disconnected.
"""

from __future__ import annotations

from dledger.consensus.effects import ReadsReady, SendCatchUp, SendEntries, SendSnapshot
from dledger.consensus.peers import Mode
from dledger.consensus.settings import RaftSettings
from dledger.core.messages import Append, AppendReply, Heartbeat, HeartbeatReply, TimeoutNow
from dledger.core.progress import Progress
from dledger.engines.pysyncobj.journal import OFFSET, LogJournal
from dledger.engines.pysyncobj.library import Library, Said
from dledger.engines.pysyncobj.outbox import Outbox
from dledger.invariants import invariant
from dledger.types import ReplicaId


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
        library.counts_from = self.term_start
        self._outbox = outbox
        self._settings = settings
        self._round = 0
        """Of beats: the number of the newest one."""
        self._reads: list[tuple[int, int]] = []
        self._heartbeat_at = now
        self._nudge_at = now + settings.heartbeat_s
        self._transfer_deadline = 0.0
        self._now = now

    def members_changed(self, now: float) -> None:
        """Go on with other members."""
        members = self._table.membership.members
        for member in members:
            if member != self._me and member not in self.progress:
                self.progress[member] = Progress(self._table.last_index + 1, now)
        for gone in [peer for peer in self.progress if peer not in members]:
            del self.progress[gone]
        if self.transfer_to not in self.progress:
            self.transfer_to = None

    # ---------------------------------------------------------------- time

    def tick(self, now: float, late: float) -> None:
        """Let time pass; `late` is how much of it this process may have stood still."""
        self._now = now
        for progress in self.progress.values():
            progress.contact_at = min(progress.contact_at + max(late, 0.0), now)
        if self.transfer_to is not None and now >= self._transfer_deadline:
            self.transfer_to = None
        if now >= self._heartbeat_at:
            self.beat(now)
        if now >= self._nudge_at:
            self._nudge_at = now + self._settings.heartbeat_s
            for progress in self.progress.values():
                progress.nudge(self._table.first_index, now, self._settings.election_max_s)
            self.replicate(now)

    def beat(self, now: float) -> None:
        """Tell everybody that this replica leads, and how far the log is committed."""
        self._heartbeat_at = now + self._settings.heartbeat_s
        self._round += 1
        beat = Heartbeat(self.term, self._journal.commit_index, self._round)
        for peer, progress in self.progress.items():
            progress.beat(self._round, now)
            self._outbox.send(peer, beat)

    def quorum_heard(self, now: float) -> bool:
        """Whether a majority has answered lately."""
        membership = self._table.membership
        lately = sum(
            voter == self._me or now - self.progress[voter].contact_at < self._settings.election_max_s
            for voter in membership.voters
        )
        return lately >= membership.quorum

    # ---------------------------------------------------------------- sending

    def replicate(self, now: float) -> None:
        """Have `SyncObj` send what the windows allow, to each from where its window ends."""
        self._now = now
        lacking = False
        for peer, progress in self.progress.items():
            if self._is_open(progress):
                self._library.set_next(peer, progress.next_index)
                self._library.connect(peer)
                lacking = lacking or progress.mode is Mode.PROBE or progress.next_index <= self._table.last_index
            else:
                self._library.disconnect(peer)
        if lacking:
            self._library.send_entries()

    def _is_open(self, progress: Progress) -> bool:
        if progress.mode is Mode.STREAM:
            return not progress.catching_up and progress.in_flight_bytes < self._settings.max_in_flight_bytes
        return progress.mode is Mode.PROBE and not progress.probe_sent

    def said(self, to: ReplicaId, message: Said) -> None:
        """`SyncObj` sends entries, or a sign of life, or would send a dump."""
        progress = self.progress.get(to)
        if progress is None or not self._is_open(progress):
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
            progress.sent(first_index + count - 1, self._journal.run_bytes)
        if not self._is_open(progress):
            self._library.disconnect(to)

    def _append(self, prev_index: int, count: int) -> Append:
        table = self._table
        prev_term = table.term_at(prev_index)
        invariant(prev_term is not None, "an append joins a known entry", prev=prev_index)
        commit_index = self._journal.commit_index
        return Append(self.term, prev_index, prev_term or 0, commit_index, count, table.chain_at(prev_index))

    def connected(self, peer: ReplicaId, now: float) -> None:
        """A link is up again."""
        self.disconnected(peer)
        if peer in self.progress:
            self.replicate(now)
            self._outbox.send(peer, Heartbeat(self.term, self._journal.commit_index, self._round))

    def disconnected(self, peer: ReplicaId) -> None:
        """What was on its way to a member may be lost."""
        progress = self.progress.get(peer)
        if progress is not None:
            progress.reconnected()

    def catch_up_sent(self, to: ReplicaId, last_index: int, size: int, now: float) -> None:
        """A run that was read back went out."""
        progress = self.progress.get(to)
        if progress is not None and progress.catching_up:
            progress.caught_up(last_index, size, now)
            self.replicate(now)

    def wants_snapshot(self, to: ReplicaId) -> bool:
        """Whether a member's log cannot be joined to this one."""
        progress = self.progress.get(to)
        return progress is not None and progress.mode is Mode.SNAPSHOT

    def snapshot_sent(self, to: ReplicaId, now: float) -> None:
        """A snapshot went out; whether it is of use shows."""
        progress = self.progress.get(to)
        if progress is not None and progress.mode is Mode.SNAPSHOT:
            progress.snapshot_sent(now)

    # ---------------------------------------------------------------- answers

    def on_append_reply(self, sender: ReplicaId, reply: AppendReply, now: float) -> None:
        """A member tells what it has, or that an append did not join its log."""
        progress = self.progress.get(sender)
        if progress is None:
            return
        self._note_contact(sender, progress, reply, now)
        if reply.rejected:
            if progress.awaits_rejection(reply.rejected_index):
                next_index = self._table.next_after_conflict(reply.rejected_index, reply.hint_index, reply.hint_term)
                progress.rejected(reply.match_index, next_index)
                self._library.set_match(sender, progress.match_index)
                self.replicate(now)
            return
        verified = reply.verified_index
        invariant(verified <= self._table.last_index, "a follower verifies only what its leader has", reply=reply)
        progress.accepted(verified, self._table.base_index, now)
        self._note_match(sender, progress, reply.match_index)
        self.replicate(now)

    def on_heartbeat_reply(self, sender: ReplicaId, reply: HeartbeatReply, now: float) -> None:
        """A member has heard a beat."""
        progress = self.progress.get(sender)
        if progress is None:
            return
        self._note_contact(sender, progress, reply, now)
        progress.beaten(reply.round, reply.wall_ms, now)
        if reply.round > progress.read_round:
            progress.read_round = reply.round
            self.confirm_reads()
        if reply.match_index > progress.match_index:
            progress.answered(reply.match_index)
            self._note_match(sender, progress, reply.match_index)
        if progress.mode is Mode.SNAPSHOT and progress.match_index >= self._table.base_index:
            progress.restart(progress.match_index + 1)
        if progress.next_index <= self._table.last_index:
            self.replicate(now)

    def _note_contact(
        self, sender: ReplicaId, progress: Progress, reply: AppendReply | HeartbeatReply, now: float
    ) -> None:
        self._library.heard_of(sender)
        progress.heard(reply, now)

    def _note_match(self, peer: ReplicaId, progress: Progress, match_index: int) -> None:
        if match_index > progress.match_index:
            progress.match_index = match_index
            self._library.set_match(peer, match_index)
            self.finish_transfer()

    # ---------------------------------------------------------------- reads, handing over

    def read_index(self, now: float) -> int:
        """Begin a round of reads: beats that are answered behind this call confirm it."""
        self._reads.append((self._round + 1, self._journal.commit_index))
        self.beat(now)
        self.confirm_reads()
        return self._round

    def confirm_reads(self) -> None:
        """Serve those rounds that a majority has answered."""
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
        """Hand leadership to a voter once it has everything."""
        progress = self.progress.get(to)
        if progress is None or to not in self._table.membership.voters or not progress.healthy:
            return False
        self.transfer_to = to
        self._transfer_deadline = now + self._settings.election_max_s
        self.finish_transfer()
        return True

    def finish_transfer(self) -> None:
        """Have the successor campaign if it has all there is."""
        to = self.transfer_to
        if to is not None and self.progress[to].match_index == self._table.last_index:
            self._outbox.send(to, TimeoutNow(self.term))

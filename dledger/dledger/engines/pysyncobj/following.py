"""A follower's side of a PySyncObj engine: what it takes of a leader's log, and what it says to that.

`SyncObj` judges whether entries join its log, and cuts that where they do not agree.  It is given only what is not here
yet: of what it has it would cut all that lies behind, acknowledged or not.
"""

from __future__ import annotations

from typing import Protocol

from dledger.consensus.engine import Entries
from dledger.consensus.messages import EntryRange, Message
from dledger.core.messages import Append, AppendReply, Heartbeat, HeartbeatReply, InstallSnapshot
from dledger.engines.pysyncobj.journal import LogJournal
from dledger.engines.pysyncobj.library import Library
from dledger.engines.pysyncobj.outbox import Outbox
from dledger.errors import ContradictionError
from dledger.invariants import invariant
from dledger.types import ReplicaId


class Condition(Protocol):
    """What a replica tells of itself with its answers; see `dledger.consensus.engine.Engine`."""

    disk_used: int
    wall_ms: int
    healthy: bool


class Following:
    """One replica's log, as its leaders change it."""

    def __init__(
        self, condition: Condition, journal: LogJournal, library: Library, outbox: Outbox, *, may_vote: bool
    ) -> None:
        self.may_vote = may_vote
        self._condition = condition
        self._journal = journal
        self._table = journal.table
        self._library = library
        self._outbox = outbox

    def beat(self, leader: ReplicaId, commit_index: int) -> None:
        """Have `SyncObj` hear of its leader without entries; what joins the end of the log is never refused."""
        self._library.append(leader, self._table.last_index, self._table.last_term, (), commit_index)

    # ---------------------------------------------------------------- entries

    def to_append(self, message: Message, metas: Entries) -> Entries:
        """Those of a message's entries that are not here, if they join."""
        entries = message.entries
        if entries is None or message.term < self._journal.term or not self._joins(entries):
            return ()
        return self._missing(metas)

    def _joins(self, entries: EntryRange) -> bool:
        """Whether entries follow one that is here: below the commit index the leader's log is this one."""
        prev_index = entries.prev_index
        return prev_index <= self._journal.commit_index or self._table.term_at(prev_index) == entries.prev_term

    def _missing(self, metas: Entries) -> Entries:
        """What of entries that join is not here: all behind the first that is not here, or differs."""
        table, commit_index = self._table, self._journal.commit_index
        for place, meta in enumerate(metas):
            if meta.index > commit_index and table.term_at(meta.index) != meta.term:
                return metas[place:]
        return ()

    def on_append(self, sender: ReplicaId, message: Append, metas: Entries, data: bytes) -> None:
        """Take entries in, and say what is durable here and equal to the leader's log, or where to try next."""
        table, journal, prev_index = self._table, self._journal, message.prev_index
        end = prev_index + len(metas)
        if end < table.base_index:
            # Of what lies below the base this replica knows nothing: the leader is to join at the base, or above it.
            self.beat(sender, -1)
            self._outbox.send(sender, self.reply(prev_index, table.base_index, table.base_term))
            return
        if not self._joins(message):
            accepted = self._library.append(sender, prev_index, message.prev_term, (), -1)
            invariant(not accepted, "entries that join nothing are refused", prev=prev_index)
            hint = max(table.last_at_or_below_term(prev_index, message.prev_term), journal.commit_index)
            self._outbox.send(sender, self.reply(prev_index, hint, table.term_at(hint) or 0))
            return
        self._check_committed(prev_index, message.prev_term)
        for meta in metas:
            self._check_committed(meta.index, meta.term)
        missing = self._missing(metas)
        commit_index = min(message.commit_index, max(journal.verified_index, end))
        if missing:
            joint = missing[0].index - 1
            accepted = self._library.append(sender, joint, table.term_at(joint) or 0, missing, commit_index)
            invariant(accepted, "entries that join are accepted", joint=joint)
            skipped = missing[0].position - metas[0].position
            journal.write(memoryview(data)[skipped:] if skipped else data)
        else:
            self.beat(sender, commit_index)
        journal.verified_index = max(journal.verified_index, end)
        self._learn(message.commit_index)
        if not missing or journal.durable_index >= journal.verified_index:
            self._outbox.send(sender, self.reply())

    def _check_committed(self, index: int, term: int) -> None:
        """Below the commit index every leader's log equals ours; if it does not, this replica is the odd one."""
        known = self._table.term_at(index)
        if index <= self._journal.commit_index and known is not None and known != term:
            raise ContradictionError(
                f"the leader of term {self._journal.term} has term {term} at index {index}, which is committed here"
                f" (commit index {self._journal.commit_index}) with term {known}"
            )

    def _learn(self, leader_commit: int) -> None:
        """An own-term entry that is committed and here brings all with it that ever was."""
        if self._journal.verified_index >= leader_commit and self._table.term_at(leader_commit) == self._journal.term:
            self.may_vote = True

    # ---------------------------------------------------------------- beats and snapshots

    def on_heartbeat(self, sender: ReplicaId, message: Heartbeat) -> None:
        """Learn what is committed.

        Heartbeats may overtake appends: only what this term's leader has verified here can be committed.
        """
        self.beat(sender, min(message.commit_index, self._journal.verified_index))
        self._learn(message.commit_index)
        told = self._condition
        reply = HeartbeatReply(
            self._journal.term, message.round, self._match_index, told.disk_used, told.wall_ms, told.healthy
        )
        self._outbox.send(sender, reply)

    def on_install(self, sender: ReplicaId, message: InstallSnapshot) -> None:
        """Begin behind a snapshot, unless what it holds is here."""
        index, journal = message.last_index, self._journal
        self._check_committed(index, message.last_term)
        if self._table.term_at(index) == message.last_term:
            journal.verified_index = max(journal.verified_index, index)
            self.beat(sender, index)
            self._learn(index)
        elif index > journal.commit_index:
            journal.replace(message.snapshot)
            self.beat(sender, index)
        self._outbox.send(sender, self.reply())

    # ---------------------------------------------------------------- acknowledgements

    @property
    def _match_index(self) -> int:
        return min(self._journal.durable_index, self._journal.verified_index)

    def reply(self, rejected_index: int = -2, hint_index: int = -1, hint_term: int = 0) -> AppendReply:
        """What this replica has of its leader's log, and what it refuses."""
        journal, told = self._journal, self._condition
        return AppendReply(
            journal.term,
            self._match_index,
            journal.verified_index,
            rejected_index,
            hint_index,
            hint_term,
            told.disk_used,
            told.wall_ms,
            told.healthy,
        )

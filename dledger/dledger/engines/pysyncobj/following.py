"""Follower's part of a PySyncObj engine: takes over entries of a leader's log, and answers the leader.

`SyncObj` judges whether entries join its log, and truncates the log where they conflict. It is given only entries that
the log lacks. If it were given an entry that the log has, it would truncate all entries behind it, acknowledged or not.
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
from dledger.types import ReplicaId
from dledger_base.invariants import invariant


class Condition(Protocol):
    """State of a replica that its answers report, as `dledger.consensus.engine.Engine` has it."""

    disk_used: int
    wall_ms: int
    healthy: bool
    first_position: int


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

    def acknowledge_leader(self, leader: ReplicaId, commit_index: int) -> None:
        """Pass an append without entries to `SyncObj`. It joins at the end of the log, so it is never refused."""
        self._library.append(leader, self._table.last_index, self._table.last_term, (), commit_index)

    # ---------------------------------------------------------------- entries

    def to_append(self, message: Message, metas: Entries) -> Entries:
        """Return the entries of a message that this log lacks; none if they do not join it."""
        entries = message.entries
        if entries is None or message.term < self._journal.term or not self._joins_log(entries):
            return ()
        return self._missing_entries(metas)

    def _joins_log(self, entries: EntryRange) -> bool:
        """Return True if entries follow one that is here. Below the commit index the leader's log equals this one."""
        prev_index = entries.prev_index
        return prev_index <= self._journal.commit_index or self._table.term_at(prev_index) == entries.prev_term

    def _missing_entries(self, metas: Entries) -> Entries:
        """Return the missing part of joining entries: all from the first that is not here, or has another term here."""
        table, commit_index = self._table, self._journal.commit_index
        for number, meta in enumerate(metas):
            if meta.index > commit_index and table.term_at(meta.index) != meta.term:
                return metas[number:]
        return ()

    def on_append(self, sender: ReplicaId, message: Append, metas: Entries, data: bytes) -> None:
        """Append entries, and answer how much is durable and equal to the leader's log, or where to try next."""
        table, journal, prev_index = self._table, self._journal, message.prev_index
        end = prev_index + len(metas)
        if end < table.base_index:
            # This replica knows nothing of entries below its base: the leader has to join at the base, or above it.
            self.acknowledge_leader(sender, -1)
            self._outbox.send(sender, self.reply(prev_index, table.base_index, table.base_term))
            return
        if not self._joins_log(message):
            accepted = self._library.append(sender, prev_index, message.prev_term, (), -1)
            invariant(not accepted, "entries that join nothing are refused", prev=prev_index)
            hint = max(table.last_at_or_below_term(prev_index, message.prev_term), journal.commit_index)
            self._outbox.send(sender, self.reply(prev_index, hint, table.term_at(hint) or 0))
            return
        self._check_committed(prev_index, message.prev_term)
        for meta in metas:
            self._check_committed(meta.index, meta.term)
        missing = self._missing_entries(metas)
        commit_index = min(message.commit_index, max(journal.verified_index, end))
        if missing:
            join_index = missing[0].index - 1
            accepted = self._library.append(sender, join_index, table.term_at(join_index) or 0, missing, commit_index)
            invariant(accepted, "entries that join are accepted", joint=join_index)
            skipped_bytes = missing[0].position - metas[0].position
            journal.write(memoryview(data)[skipped_bytes:] if skipped_bytes else data)
        else:
            self.acknowledge_leader(sender, commit_index)
        journal.verified_index = max(journal.verified_index, end)
        self._end_doubt(message.commit_index)
        if not missing or journal.durable_index >= journal.verified_index:
            self._outbox.send(sender, self.reply())

    def _check_committed(self, index: int, term: int) -> None:
        """Raise `ContradictionError` if a leader's entry differs from the entry that is committed here.

        Every leader has all committed entries. So it is this replica whose log is wrong.
        """
        own_term = self._table.term_at(index)
        if index <= self._journal.commit_index and own_term is not None and own_term != term:
            raise ContradictionError(
                f"the leader of term {self._journal.term} has term {term} at index {index}, which is committed here"
                f" (commit index {self._journal.commit_index}) with term {own_term}"
            )

    def _end_doubt(self, leader_commit: int) -> None:
        """Let this replica vote again once it has a committed entry of the leader's own term.

        The log up to such an entry holds all entries that were committed before.
        """
        if self._journal.verified_index >= leader_commit and self._table.term_at(leader_commit) == self._journal.term:
            self.may_vote = True

    # ---------------------------------------------------------------- heartbeats and snapshots

    def on_heartbeat(self, sender: ReplicaId, message: Heartbeat) -> None:
        """Learn the commit index, and answer.

        A heartbeat may overtake appends, so entries are committed only up to the verified index.
        """
        self.acknowledge_leader(sender, min(message.commit_index, self._journal.verified_index))
        self._end_doubt(message.commit_index)
        condition = self._condition
        reply = HeartbeatReply(
            self._journal.term,
            message.round,
            self._match_index,
            condition.disk_used,
            condition.wall_ms,
            condition.healthy,
            condition.first_position,
        )
        self._outbox.send(sender, reply)

    def on_install(self, sender: ReplicaId, message: InstallSnapshot) -> None:
        """Begin the log behind a snapshot, unless the log already has the entries that the snapshot covers."""
        index, journal = message.last_index, self._journal
        self._check_committed(index, message.last_term)
        if self._table.term_at(index) == message.last_term:
            journal.verified_index = max(journal.verified_index, index)
            self.acknowledge_leader(sender, index)
            self._end_doubt(index)
        elif index > journal.commit_index:
            journal.replace(message.snapshot)
            self.acknowledge_leader(sender, index)
        self._outbox.send(sender, self.reply())

    # ---------------------------------------------------------------- acknowledgements

    @property
    def _match_index(self) -> int:
        return min(self._journal.durable_index, self._journal.verified_index)

    def reply(self, rejected_index: int = -2, hint_index: int = -1, hint_term: int = 0) -> AppendReply:
        """Build the answer that says how far this replica has its leader's log, with a rejection if one is given."""
        journal, condition = self._journal, self._condition
        return AppendReply(
            journal.term,
            self._match_index,
            journal.verified_index,
            rejected_index,
            hint_index,
            hint_term,
            condition.disk_used,
            condition.wall_ms,
            condition.healthy,
        )

"""Journal of a `SyncObj`: reads the table of the log, and turns changes into effects for the store.

`SyncObj` counts entries from 1, and its log is never empty: the first real entry follows the entry with index 1. Here
the log's base takes that place, so the project's indexes are smaller by `OFFSET`.

    SyncObj      1      2      3
    ours        -1      0      1
              base  first entry

`SyncObj` sees an entry only as `(b"", index, term)`. The table knows its size.
"""

from __future__ import annotations

from typing import Final

from pysyncobj.journal import Journal

from dledger.consensus.effects import AppendEntries, ResetLog, Truncate
from dledger.core.log_table import LogTable
from dledger.engines.pysyncobj.outbox import Outbox
from dledger.types import EntryMeta, HardState, ReplicaId, SnapshotMeta
from dledger_base.invariants import invariant

OFFSET: Final = 2

JournalEntry = tuple[EntryMeta | bytes, int, int]


class LogJournal(Journal):  # type: ignore[misc] # PySyncObj has no types
    """The log, term and vote of one replica, with the interface that `SyncObj` expects of a journal.

    `new_entries` collects the entries that a call of `SyncObj` adds, until `write` turns them into an effect.
    """

    def __init__(
        self, table: LogTable, state: HardState, durable_index: int, commit_index: int, outbox: Outbox
    ) -> None:
        self.table = table
        self.durable_index = durable_index
        self.verified_index = -1
        """Index up to which the log equals that of this term's leader."""
        self.generation = 0
        self.commit_index = commit_index
        """Index up to which the replica was notified of commits."""
        self.new_entries: list[EntryMeta] = []
        self.term = max(state.term, table.last_term)
        self.vote = state.vote if state.term == self.term else None
        self.run_limit: int | None = None
        """Maximum size in bytes of the entries that are shown for one message; None unless the replica leads."""
        self.run_bytes = 0
        """Size in bytes of the entries that were last shown for a message."""
        self._outbox = outbox
        if self.term > state.term:
            # The last entry became durable before its term. The entry may be truncated later, but the term must stay.
            outbox.save(HardState(self.term, None))

    # ---------------------------------------------------------------- entries

    def __len__(self) -> int:
        return self.table.last_index - self.table.base_index + 1

    def __getitem__(self, item: int | slice) -> JournalEntry | list[JournalEntry]:
        table = self.table
        if item == -1:
            return b"", table.last_index + OFFSET, table.last_term
        if item == 0:
            return b"", table.base_index + OFFSET, table.base_term
        if isinstance(item, slice):
            first = table.base_index + int(item.start)
            count = table.last_index + 1 - first
            if item.stop is None:
                count = self._run_length(first, count)
            else:
                count = min(count, int(item.stop) - int(item.start))
            return [self._entry_at(index) for index in range(first, first + count)]
        return self._entry_at(table.last_index + 1 + item if item < 0 else table.base_index + item)

    def _entry_at(self, index: int) -> JournalEntry:
        term = self.table.term_at(index)
        invariant(term is not None, "a journal shows what it has", index=index)
        return b"", index + OFFSET, term or 0

    def _run_length(self, first: int, count: int) -> int:
        """Return the number of entries to show from `first` on: at most as many as one message may carry.

        It is at most two if this replica does not lead, or if the entries must be read from a file.
        """
        if self.run_limit is None or first < self.table.window_first:
            return min(count, 2)
        count, self.run_bytes = self.table.run_from(first, self.run_limit)
        return count

    def add(self, command: EntryMeta | bytes, idx: int, term: int) -> None:
        """Append an entry, but not the no-op that `SyncObj` adds for a new leader: the replica proposes its own."""
        if isinstance(command, bytes):
            return
        invariant(
            (command.index + OFFSET, command.term) == (idx, term),
            "an entry is appended where it was proposed",
            meta=command,
            index=idx,
            term=term,
        )
        self.table.append((command,), self.commit_index)
        self.new_entries.append(command)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Have the store write the new entries, whose bytes are `data`."""
        metas, self.new_entries = self.new_entries, []
        self._outbox.put(AppendEntries(metas, data))

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N802, N803 -- PySyncObj's names
        """Drop the entries from a place of the journal on."""
        index = self.table.base_index + entryFrom
        invariant(index > self.commit_index, "a committed entry is never truncated", index=index)
        self.table.truncate(index)
        self.durable_index = min(self.durable_index, index - 1)
        self.verified_index = min(self.verified_index, index - 1)
        self.generation += 1
        self._outbox.put(Truncate(index))

    def replace(self, base: SnapshotMeta) -> None:
        """Begin the log behind an installed snapshot."""
        self.table.reset(base.last_index, base.last_term, base.membership, base.membership_index)
        self.durable_index = self.verified_index = self.commit_index = base.last_index
        self.generation += 1
        self._outbox.put(ResetLog(base))

    # ---------------------------------------------------------------- term, vote and commit

    def setCurrentTerm(self, term: int, votedForNodeId: ReplicaId | None) -> None:  # noqa: N802, N803 -- PySyncObj's
        """Have term and vote saved; messages sent from now on wait for that."""
        if (term, votedForNodeId) != (self.term, self.vote):
            if term != self.term:
                self.verified_index = -1
            self.term, self.vote = term, votedForNodeId
            self._outbox.save(HardState(term, votedForNodeId))

    def getCurrentTerm(self) -> int:  # noqa: N802 -- PySyncObj's name
        """Return the current term."""
        return self.term

    def getVotedForNodeId(self) -> ReplicaId | None:  # noqa: N802 -- PySyncObj's name
        """Return the replica for which this one voted in the current term; None if it did not vote."""
        return self.vote

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803 -- PySyncObj's names
        """Do nothing: the engine asks `SyncObj` for the commit index."""

    def getRaftCommitIndex(self) -> int:  # noqa: N802 -- PySyncObj's name
        """Return the known commit index."""
        return self.commit_index + OFFSET

    def _destroy(self) -> None:
        """Do nothing: there is nothing to release."""

"""Journal of a `SyncObj`: the log's table in front, effects for the store behind.

`SyncObj` counts entries from 1 and its log always holds one: index 1 is what the first entry joins.  Here the entry
that the log begins behind (its base) stands in front of it, so that an index is `OFFSET` less in our counting.

    SyncObj      1      2      3
    ours        -1      0      1
              base  first entry

Entries are shown to `SyncObj` by index and term alone, as `(b"", index, term)`.  Their sizes are what the table knows.
"""

from __future__ import annotations

from typing import Final

from pysyncobj.journal import Journal

from dledger.consensus.effects import AppendEntries, ResetLog, Truncate
from dledger.core.log_table import LogTable
from dledger.engines.pysyncobj.outbox import Outbox
from dledger.invariants import invariant
from dledger.types import EntryMeta, HardState, ReplicaId, SnapshotMeta

OFFSET: Final = 2

Shown = tuple[EntryMeta | bytes, int, int]


class LogJournal(Journal):  # type: ignore[misc] # PySyncObj has no types
    """The log, term and vote of one replica, by the interface that `SyncObj` asks of a journal.

    `appended` collects what a call of `SyncObj` has added, until `write` makes an effect of it.
    """

    def __init__(
        self, table: LogTable, state: HardState, durable_index: int, commit_index: int, outbox: Outbox
    ) -> None:
        self.table = table
        self.durable_index = durable_index
        self.verified_index = -1
        """Equal to the log of this term's leader up to here."""
        self.generation = 0
        self.commit_index = commit_index
        """How far commits have been told."""
        self.appended: list[EntryMeta] = []
        self.term = max(state.term, table.last_term)
        self.vote = state.vote if state.term == self.term else None
        self.run_limit: int | None = None
        """Most bytes to show at a time, of entries that are to be sent; None unless the replica leads."""
        self.run_bytes = 0
        """Size of the entries that were shown last to be sent."""
        self._outbox = outbox
        if self.term > state.term:
            # The last entry was durable before the term it came in; it could be truncated, the term must not be.
            outbox.save(HardState(self.term, None))

    # ---------------------------------------------------------------- entries

    def __len__(self) -> int:
        return self.table.last_index - self.table.base_index + 1

    def __getitem__(self, item: int | slice) -> Shown | list[Shown]:
        table = self.table
        if item == -1:
            return b"", table.last_index + OFFSET, table.last_term
        if item == 0:
            return b"", table.base_index + OFFSET, table.base_term
        if isinstance(item, slice):
            first = table.base_index + int(item.start)
            count = table.last_index + 1 - first
            if item.stop is None:
                count = self._run(first, count)
            else:
                count = min(count, int(item.stop) - int(item.start))
            return [self._shown(index) for index in range(first, first + count)]
        return self._shown(table.last_index + 1 + item if item < 0 else table.base_index + item)

    def _shown(self, index: int) -> Shown:
        term = self.table.term_at(index)
        invariant(term is not None, "a journal shows what it has", index=index)
        return b"", index + OFFSET, term or 0

    def _run(self, first: int, count: int) -> int:
        """How many entries from `first` on to show: for a message, as many as it may bring.

        Else two: to look at an entry, and to see whether something follows.
        """
        if self.run_limit is None or first < self.table.window_first:
            return min(count, 2)
        shown, self.run_bytes = self.table.run_from(first, self.run_limit)
        return shown

    def add(self, command: EntryMeta | bytes, idx: int, term: int) -> None:
        """An entry of a leader or of a proposal; the no-op of a new leader is the replica's to propose."""
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
        self.appended.append(command)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Have the store write what was appended; `data` are its bytes."""
        metas, self.appended = self.appended, []
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
        """Begin behind an installed snapshot."""
        self.table.reset(base.last_index, base.last_term, base.membership, base.membership_index)
        self.durable_index = self.verified_index = self.commit_index = base.last_index
        self.generation += 1
        self._outbox.put(ResetLog(base))

    # ---------------------------------------------------------------- term, vote and commit

    def setCurrentTerm(self, term: int, votedForNodeId: ReplicaId | None) -> None:  # noqa: N802, N803 -- PySyncObj's
        """Have term and vote saved; what is said from now on waits for that."""
        if (term, votedForNodeId) != (self.term, self.vote):
            if term != self.term:
                self.verified_index = -1
            self.term, self.vote = term, votedForNodeId
            self._outbox.save(HardState(term, votedForNodeId))

    def getCurrentTerm(self) -> int:  # noqa: N802 -- PySyncObj's name
        """The term to go on in."""
        return self.term

    def getVotedForNodeId(self) -> ReplicaId | None:  # noqa: N802 -- PySyncObj's name
        """Whom this replica voted for in it."""
        return self.vote

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803 -- PySyncObj's names
        """Nothing: the engine asks for it."""

    def getRaftCommitIndex(self) -> int:  # noqa: N802 -- PySyncObj's name
        """What is known to be committed."""
        return self.commit_index + OFFSET

    def _destroy(self) -> None:
        """Nothing to give back."""

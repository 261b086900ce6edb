"""Feed of the state machine: restores it, rebuilds its views, applies entries to it and notifies it of leadership."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from dledger.errors import CorruptionError, LogFullError
from dledger.replica.driver import Completions
from dledger.statemachine import CommittedEntry, Leadership, Restore, StateMachine
from dledger.store.log import LogStore
from dledger.store.snapshots import SnapshotStore
from dledger.types import SnapshotMeta


class MachineFeed:
    """Makes all calls that notify the state machine, between executions only.

    `state_index` is the last entry that the restored state covers. Entries up to it are needed for views only.
    """

    def __init__(
        self, machine: StateMachine, store: LogStore, snapshots: SnapshotStore, completions: Completions
    ) -> None:
        self._machine = machine
        self._completions = completions
        self._store = store
        self._snapshots = snapshots
        self._reported_leadership: Leadership | None = None
        self._offered: tuple[SnapshotMeta, Restore] | None = None
        self.state_index = -1

    def restore(self, base: SnapshotMeta | None) -> int:
        """Give the machine a snapshot (None: the initial state) and return the last entry that it does not need."""
        restore = self._machine.decode(None, ()) if base is None else self.decode(base)
        rebuild_from = restore()
        position = max(rebuild_from, self._store.first_position)
        self.state_index = base.last_index if base is not None else -1
        if base is not None and position >= base.position:
            return self.state_index
        return min(self._last_before(position), self.state_index)

    def _last_before(self, position: int) -> int:
        """Return the index of the last entry that ends at or before a position, or of an earlier one.

        In a corrupt range, it is the entry before that range.
        """
        store = self._store
        if position >= store.end_position:
            return store.last_index
        try:
            index = store.index_at(position)
        except CorruptionError:
            return store.first_index_of_segment(position) - 1
        try:
            return index if store.meta(index).end <= position else index - 1
        except CorruptionError:
            return (index if store.is_in_line(index) else store.first_index_of_segment(position)) - 1

    def decode(self, base: SnapshotMeta) -> Restore:
        """Read a snapshot for the machine and return the call that puts its state in place. Blocks."""
        # closes the snapshot's file also if the machine does not read to the end
        with closing(self._snapshots.read_chunks(base)) as chunks:
            return self._machine.decode(base, chunks)

    def offer(self, base: SnapshotMeta, restore: Restore) -> None:
        """Keep a received and decoded snapshot. The engine decides whether it is installed."""
        self._offered = (base, restore)

    def withdraw(self) -> None:
        """Forget the offered snapshot: it was not installed, or is being installed."""
        self._offered = None

    def take_offered(self, base: SnapshotMeta) -> Restore:
        """Return the call that puts the state of the snapshot in place that is being installed."""
        offered, self._offered = self._offered, None
        if offered is None or offered[0] != base:
            raise CorruptionError(f"{base} is to be installed, {offered and offered[0]} was received")
        return offered[1]

    def reset(self, base: SnapshotMeta, restore: Restore) -> None:
        """Give the machine a decoded snapshot. The log then begins behind that snapshot."""
        self._completions.require_outside("restore")
        self.state_index = base.last_index
        restore()

    def deliver(self, entries: Sequence[CommittedEntry]) -> None:
        """Have entries applied. Entries that the state covers already only serve to rebuild views."""
        if self._completions.executing:
            self._completions.require_outside("apply")
        if entries[0].index > self.state_index:
            self._machine.apply(entries)
            return
        self._machine.rebuild([entry for entry in entries if entry.index <= self.state_index])
        new_entries = [entry for entry in entries if entry.index > self.state_index]
        if new_entries:
            self._machine.apply(new_entries)

    def report_leadership(self, leadership: Leadership) -> None:
        """Tell the machine who leads, if that changed."""
        if leadership != self._reported_leadership:
            self._completions.require_outside("on_leadership")
            self._reported_leadership = leadership
            self._machine.on_leadership(leadership)

    def dropped(self, contexts: Sequence[object], full: LogFullError | None = None) -> None:
        """Notify the machine of proposals that end without being applied; see `StateMachine`."""
        self._completions.require_outside("dropped")
        if contexts:
            self._machine.dropped(contexts, full)

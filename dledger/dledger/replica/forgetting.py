"""Lets a replica begin at a later snapshot where what lies below it rotted and the group has trimmed that."""

from __future__ import annotations

from collections.abc import Callable

from dledger.errors import CorruptionError
from dledger.replica.applier import Applier
from dledger.replica.feed import MachineFeed
from dledger.replica.snapshotter import Snapshotter
from dledger.store.damage import CorruptRange
from dledger.store.log import LogStore
from dledger.store.snapshots import SnapshotStore
from dledger.types import SnapshotMeta


class Forgetter:
    """`begin_at(base)` gives the state machine the state of a snapshot, and goes on from there; `trimmed(base)` is told
    that the log begins behind it.
    """

    def __init__(
        self,
        store: LogStore,
        snapshots: SnapshotStore,
        snapshotter: Snapshotter,
        feed: MachineFeed,
        applier: Applier,
        *,
        begin_at: Callable[[SnapshotMeta], None],
        trimmed: Callable[[SnapshotMeta], None],
    ) -> None:
        self._store = store
        self._snapshots = snapshots
        self._snapshotter = snapshotter
        self._feed = feed
        self._applier = applier
        self._begin_at = begin_at
        self._trimmed = trimmed

    def begin_behind(self, damaged: CorruptRange, trimmed_to: int) -> bool:
        """Begin at a snapshot, if views cannot be rebuilt from below it: a range there is corrupt, and the group has
        trimmed it.

        Of those up to `trimmed_to` it is the newest that is not newer than the state, which goes back to it.
        """
        snapshots = self._snapshots.list()
        state = next((meta for meta in snapshots if meta.last_index == self._feed.state_index), None)
        if state is None or self._applier.applied_index >= state.last_index:
            return False
        limit = min(trimmed_to, state.position)
        candidates = [meta for meta in reversed(snapshots) if damaged.end <= meta.position <= limit]
        base = next(filter(self._is_intact, candidates), None)
        if base is None:
            return False
        self._store.trim(base.position)
        if self._store.first_position != base.position:
            return False
        self._snapshotter.abandon()
        self._begin_at(base)
        self._trimmed(base)
        return True

    def _is_intact(self, base: SnapshotMeta) -> bool:
        try:
            self._snapshots.verify(base)
        except CorruptionError:
            self._snapshots.condemn(base.position)
            return False
        return True

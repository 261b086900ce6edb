"""Lets a replica begin at a later snapshot where what lies below it rotted and the group has trimmed that."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from dledger.environment import URGENT, Environment
from dledger.errors import CorruptionError, TrimmedError
from dledger.replica.applier import Applier
from dledger.replica.driver import Driver
from dledger.replica.feed import MachineFeed
from dledger.replica.snapshotter import Snapshotter
from dledger.statemachine import Restore
from dledger.store.damage import CorruptRange
from dledger.store.log import LogStore
from dledger.store.snapshots import SnapshotStore
from dledger.types import SnapshotMeta

logger = logging.getLogger(__name__)


class _Found(NamedTuple):
    """The snapshots that do not verify, and behind them one that does, or None, with its state."""

    rotten: list[SnapshotMeta]
    base: SnapshotMeta | None
    restore: Restore | None


class Forgetter:
    """Looks for such a snapshot on a worker, one search at a time."""

    def __init__(
        self,
        node_id: str,
        environment: Environment,
        store: LogStore,
        snapshots: SnapshotStore,
        snapshotter: Snapshotter,
        feed: MachineFeed,
        applier: Applier,
        driver: Driver,
    ) -> None:
        self._node_id = node_id
        self._environment = environment
        self._store = store
        self._snapshots = snapshots
        self._snapshotter = snapshotter
        self._feed = feed
        self._applier = applier
        self._driver = driver
        self._looking = False

    def begin_behind(self, damaged: CorruptRange, trimmed_to: int) -> bool:
        """Begin at a snapshot, if views cannot be rebuilt from below it: a range there is corrupt, and the group has
        trimmed it.  False if no views are being rebuilt.

        Of those up to `trimmed_to` it is the newest that is not newer than the state, which goes back to it.  A worker
        reads it first; nothing happens if by then entries have been applied, or none is intact.
        """
        if self._looking:
            return True
        state = self._rebuilt_state()
        if state is None:
            return False
        limit = min(trimmed_to, state.position)
        candidates = [meta for meta in reversed(self._snapshots.list()) if damaged.end <= meta.position <= limit]
        self._looking = True
        self._environment.run_blocking(URGENT, partial(self._find, candidates), partial(self._found, damaged, state))
        return True

    def _rebuilt_state(self) -> SnapshotMeta | None:
        """The snapshot that the state is of, if views are still being rebuilt from below it."""
        index = self._feed.state_index
        if self._applier.applied_index >= index:
            return None
        return next((meta for meta in self._snapshots.list() if meta.last_index == index), None)

    def _find(self, candidates: Sequence[SnapshotMeta]) -> _Found:
        rotten: list[SnapshotMeta] = []
        for base in candidates:
            try:
                self._snapshots.verify(base)
            except CorruptionError:
                rotten.append(base)
            else:
                return _Found(rotten, base, self._feed.decode(base))
        return _Found(rotten, None, None)

    def _found(self, damaged: CorruptRange, state: SnapshotMeta, found: _Found | BaseException) -> None:
        self._driver.run(partial(self._begin, damaged, state, found))

    def _begin(self, damaged: CorruptRange, state: SnapshotMeta, found: _Found | BaseException) -> None:
        self._looking = False
        if isinstance(found, BaseException):
            if not isinstance(found, TrimmedError):
                self._driver.fail(found)
            return
        listed = self._snapshots.list()
        for meta in found.rotten:
            if meta in listed:
                self._snapshots.condemn(meta.position)
        base, restore = found.base, found.restore
        if base is None or restore is None or base not in listed or self._rebuilt_state() != state:
            return
        self._store.trim(base.position)
        if self._store.first_position != base.position:
            return
        self._snapshotter.abandon()
        self._applier.begin_at(base, restore)
        self._snapshotter.trimmed(base)
        logger.warning("node=%s event=forgotten start=%d end=%d", self._node_id, damaged.start, damaged.end)

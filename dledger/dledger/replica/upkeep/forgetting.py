"""Forgetter: lets a replica begin at a later snapshot where the log below is rotten here and trimmed by the group."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from dledger.environment import URGENT, Environment
from dledger.errors import BusyError, CorruptionError, TrimmedError
from dledger.replica.applying.applier import Applier
from dledger.replica.driver import Driver
from dledger.replica.feed import MachineFeed
from dledger.replica.snapshots.taking import SnapshotTaker
from dledger.replica.standing import Standing
from dledger.statemachine import Restore
from dledger.store.damage import CorruptRange
from dledger.store.log import LogStore
from dledger.store.snapshots import SnapshotStore
from dledger.types import SnapshotMeta

logger = logging.getLogger(__name__)


class _SearchResult(NamedTuple):
    """Result of a search: the snapshots that do not verify, then the first that does, with its state, or None."""

    rotten: list[SnapshotMeta]
    base: SnapshotMeta | None
    restore: Restore | None


class Forgetter:
    """Looks for an intact later snapshot on a worker, one search at a time."""

    def __init__(
        self,
        node_id: str,
        environment: Environment,
        store: LogStore,
        snapshots: SnapshotStore,
        taker: SnapshotTaker,
        feed: MachineFeed,
        applier: Applier,
        standing: Standing,
        driver: Driver,
    ) -> None:
        self._node_id = node_id
        self._environment = environment
        self._store = store
        self._snapshots = snapshots
        self._taker = taker
        self._feed = feed
        self._applier = applier
        self._standing = standing
        self._driver = driver
        self._is_searching = False

    def begin_behind(self, damaged: CorruptRange, trimmed_to: int) -> bool:
        """Begin at a later snapshot if views cannot be rebuilt.

        That is so if a range needed for the views is corrupt and the group has trimmed it. Returns False if no views
        are being rebuilt. Otherwise the newest snapshot up to `trimmed_to` is chosen that is not newer than the state.
        The state goes back to that snapshot. A worker reads it first. Nothing happens if entries have been applied by
        then, or if no snapshot is intact.
        """
        if self._is_searching:
            return True
        state = self._rebuilt_state()
        if state is None:
            return False
        limit = min(trimmed_to, state.position)
        candidates = [meta for meta in reversed(self._snapshots.list()) if damaged.end <= meta.position <= limit]
        self._is_searching = True
        self._environment.run_blocking(URGENT, partial(self._find, candidates), partial(self._on_found, damaged, state))
        return True

    def _rebuilt_state(self) -> SnapshotMeta | None:
        """Return the snapshot that the state was restored from, if views are still being rebuilt from below it."""
        index = self._feed.state_index
        if self._standing.applied_index >= index:
            return None
        return next((meta for meta in self._snapshots.list() if meta.last_index == index), None)

    def _find(self, candidates: Sequence[SnapshotMeta]) -> _SearchResult:
        rotten: list[SnapshotMeta] = []
        for base in candidates:
            try:
                self._snapshots.verify(base)
            except CorruptionError:
                rotten.append(base)
            else:
                return _SearchResult(rotten, base, self._feed.decode(base))
        return _SearchResult(rotten, None, None)

    def _on_found(self, damaged: CorruptRange, state: SnapshotMeta, result: _SearchResult | BaseException) -> None:
        self._driver.run(partial(self._begin, damaged, state, result))

    def _begin(self, damaged: CorruptRange, state: SnapshotMeta, result: _SearchResult | BaseException) -> None:
        self._is_searching = False
        if isinstance(result, BaseException):
            if not isinstance(result, BusyError | TrimmedError):
                self._driver.fail(result)
            return
        listed = self._snapshots.list()
        for meta in result.rotten:
            if meta in listed:
                self._snapshots.condemn(meta.position)
        base, restore = result.base, result.restore
        if base is None or restore is None or base not in listed or self._rebuilt_state() != state:
            return
        self._store.trim(base.position)
        if self._store.first_position != base.position:
            return
        self._taker.abandon()
        self._applier.begin_at(base, restore)
        self._taker.trimmed(base)
        logger.warning("node=%s event=forgotten start=%d end=%d", self._node_id, damaged.start, damaged.end)

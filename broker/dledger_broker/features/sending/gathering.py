"""Gathering of the items of one turn into one unit. While much is on its way, items of several turns are gathered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

from dledger.environment import Cancellable, Environment
from dledger_broker.features.sending.on_their_way import MAX_GATHER_S, MAX_UNIT_BYTES

ItemT = TypeVar("ItemT")
WaitsForOthers: TypeAlias = Callable[[int, int], bool]
"""Callback that returns whether this many items, of this many bytes together, wait for further items."""


class Gathering(Generic[ItemT]):
    """Collector that hands the items of one unit to `stage`: at least one, of at most `MAX_UNIT_BYTES` unless it is
    alone.

    `stage` is called in a later turn than `add`, so it must check its conditions anew.
    """

    def __init__(self, env: Environment, waits: WaitsForOthers, stage: Callable[[list[ItemT]], None]) -> None:
        self._env = env
        self._waits = waits
        self._stage = stage
        self._items: list[ItemT] = []
        self._bytes = 0
        self._turn_ends = False
        self._timer: Cancellable | None = None

    def add(self, item: ItemT, size: int) -> None:
        """Add an item whose records are `size` bytes."""
        if self._bytes + size > MAX_UNIT_BYTES:
            self.flush()
        self._items.append(item)
        self._bytes += size
        self.flush_later()

    def flush_later(self) -> None:
        """Stage the items at the end of this turn, unless they wait for further items."""
        if self._items and not self._turn_ends:
            self._turn_ends = True
            self._env.call_soon(self._on_turn_end)

    def flush(self) -> None:
        """Stage the items now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        items, self._items, self._bytes = self._items, [], 0
        if items:
            self._stage(items)

    def _on_turn_end(self) -> None:
        self._turn_ends = False
        if not self._waits(len(self._items), self._bytes):
            self.flush()
        elif self._items and self._timer is None:
            self._timer = self._env.call_later(MAX_GATHER_S, self.flush)

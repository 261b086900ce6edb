"""Gathering of the items of one turn into one unit. While much is on its way, items of several turns are gathered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeAlias, TypeVar

from dledger.environment import Cancellable, Environment
from dledger_broker.features.sending.on_their_way import MAX_GATHER_S, MAX_UNIT_BYTES

ItemT = TypeVar("ItemT")
WaitsForOthers: TypeAlias = Callable[[int, int], bool]
"""Callback that returns whether this many items, of this many bytes together, wait for further items."""


class Earlier(Protocol):
    """Items that are gathered elsewhere, and arrived before those that are gathered here."""

    @property
    def count(self) -> int:
        """Number of the items."""

    @property
    def size(self) -> int:
        """Size of their records in bytes."""

    def flush(self) -> None:
        """Stage them now. Items that cannot be staged there are added here (`Gathering.before_others`)."""


class Gathering(Generic[ItemT]):
    """Collector that hands the items of one unit to `stage`: at least one, of at most `MAX_UNIT_BYTES` unless it is
    alone.

    `stage` may be called in a later turn than `add`, so it must check its conditions anew. The items of `earlier` are
    always staged first.
    """

    def __init__(
        self,
        env: Environment,
        waits: WaitsForOthers,
        stage: Callable[[list[ItemT]], None],
        earlier: Earlier | None = None,
    ) -> None:
        self._env = env
        self._waits = waits
        self._stage = stage
        self._earlier = earlier
        self._items: list[ItemT] = []
        self._bytes = 0
        self._turn_ends = False
        self._timer: Cancellable | None = None

    def __len__(self) -> int:
        """Return the number of items that are not staged yet, with the earlier ones."""
        return len(self._items) + (0 if self._earlier is None else self._earlier.count)

    @property
    def has_items(self) -> bool:
        """True if there are items besides the earlier ones."""
        return bool(self._items)

    def add(self, item: ItemT, size: int) -> None:
        """Add an item whose records are `size` bytes. The caller then calls `flush_later` or `flush_gathered`."""
        if self._bytes + size > MAX_UNIT_BYTES:
            self.flush()
        self._items.append(item)
        self._bytes += size

    @contextmanager
    def before_others(self) -> Iterator[None]:
        """Put the items that are added in this context before all items of now."""
        later_items, later_bytes = self._items, self._bytes
        self._items, self._bytes = [], 0
        yield
        self._items += later_items
        self._bytes += later_bytes

    def flush_later(self) -> None:
        """Stage the items at the end of this turn, unless they wait for further items."""
        if not self._turn_ends and (self._items or len(self)):
            self._turn_ends = True
            self._env.call_soon(self._on_turn_end)

    def flush_gathered(self) -> None:
        """Stage the items, unless they wait for further items."""
        count, size = len(self._items), self._bytes
        if self._earlier is not None:
            count += self._earlier.count
            size += self._earlier.size
        if not count:
            return
        if not self._waits(count, size):
            self.flush()
        elif self._timer is None:
            self._timer = self._env.call_later(MAX_GATHER_S, self.flush)

    def flush(self) -> None:
        """Stage the items now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._earlier is not None:
            self._earlier.flush()
        items, self._items, self._bytes = self._items, [], 0
        if items:
            self._stage(items)

    def _on_turn_end(self) -> None:
        self._turn_ends = False
        self.flush_gathered()

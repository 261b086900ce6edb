"""Truncations and replacements of the log: workers change the files while the replica holds back whatever follows.

An entry of another leader may take the place of one that is still being cut off:

1. The engine truncates at 7 and appends another 7; both are effects of one step.
2. The cut runs on a worker.  Appended meanwhile, the other 7 would be erased by it, or be joined to what it removes.

So from the cut on nothing is carried out, no message is stepped and no sync begins until the store has taken its
result; then the effects behind the cut follow in their order, and after them the messages that arrived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from dledger.consensus.effects import Output
from dledger.consensus.engine import Engine
from dledger.errors import ContradictionError, CorruptionError
from dledger.invariants import invariant
from dledger.replica.driver import Driver
from dledger.replica.flusher import Flusher
from dledger.replica.inbox import Inbox
from dledger.replica.recent import RecentEntries
from dledger.store.log import LogStore
from dledger.store.recovered import Recovered
from dledger.store.rewriting import Cut
from dledger.types import SnapshotMeta


class Rewriter:
    """One rewriting at a time, on the flush thread between two syncs; an effect that was held may begin another."""

    def __init__(
        self,
        store: LogStore,
        recent: RecentEntries,
        flusher: Flusher,
        inbox: Inbox,
        engine: Engine,
        driver: Driver,
    ) -> None:
        self._store = store
        self._recent = recent
        self._flusher = flusher
        self._inbox = inbox
        self._engine = engine
        self._driver = driver
        self._held: deque[Output] = deque()
        self.active = False
        """Whether the log is being rewritten."""

    def truncate(self, first_index: int) -> None:
        """Drop the entries from `first_index` on."""
        self._begin()
        self._flusher.between(partial(self._store.cut, first_index), partial(self._done, self._take_cut))

    def replace(self, base: SnapshotMeta, replaced: Callable[[], None]) -> None:
        """Give the log up for an empty one behind a snapshot; `replaced()` is called once that is there."""
        self._begin()
        self._recent.clear()
        work = self._store.begin_replacing(base)
        self._flusher.between(work, partial(self._done, partial(self._take_replaced, replaced)))

    def hold(self, output: Output) -> bool:
        """Carry out effects later, behind those that are held already; False if nothing is being rewritten."""
        if self.active:
            self._held.append(output)
        return self.active

    def hold_rest(self, output: Output, done: int) -> bool:
        """As `hold`, for all but the first `done` effects of a step that is under way: before those that are held."""
        if self.active:
            self._held.appendleft(Output(output.effects[done:], output.after_sync))
        return self.active

    def _begin(self) -> None:
        invariant(not self.active, "one rewriting of the log at a time")
        self.active = True
        self._inbox.hold()

    def _done(self, take: Callable[[Cut | Recovered], None], result: object) -> None:
        try:
            if isinstance(result, CorruptionError):
                raise ContradictionError(f"entries of this log are void, and where they begin is corrupt: {result}")
            if isinstance(result, BaseException):
                raise result
            assert isinstance(result, Cut | Recovered)
            take(result)
            self.active = False
            while self._held and not self.active:
                self._driver.execute(self._held.popleft())
        except Exception as error:
            self._driver.fail(error)
            return
        if not self.active:
            self._inbox.release()
        if not self.active:
            self._driver.pump()

    def _take_cut(self, cut: Cut | Recovered) -> None:
        assert isinstance(cut, Cut)
        self._store.take_cut(cut)
        self._recent.truncate(cut.first_index)
        invariant(self._store.generation == self._engine.generation, "store and engine count the same truncations")

    def _take_replaced(self, replaced: Callable[[], None], result: Cut | Recovered) -> None:
        assert isinstance(result, Recovered)
        self._store.take_replaced(result)
        replaced()

"""Rewriter: truncates or replaces the log on workers, while the replica holds back everything that follows.

Otherwise an entry of another leader could take the place of an entry that is still being cut off:

1. The engine truncates at 7 and appends another 7. Both are effects of one step.
2. The cut runs on a worker. If the other 7 is appended meanwhile, the cut erases it, or the entry is joined to data
   that the cut removes.

So from the cut on the replica carries out no effect, steps no message and begins no sync. It continues once the store
has taken the result of the cut. Then the effects behind the cut follow in order, and after them the messages that
arrived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from dledger.consensus.effects import Output
from dledger.consensus.engine import Engine
from dledger.errors import ContradictionError, CorruptionError
from dledger.replica.driver import Driver
from dledger.replica.storing.flusher import Flusher
from dledger.replica.storing.recent import RecentEntries
from dledger.store.log import LogStore
from dledger.store.recovered import Recovered
from dledger.store.rewriting import Cut
from dledger.types import SnapshotMeta
from dledger_base.invariants import invariant


class Held(Protocol):
    """Messages that arrive, which must not be stepped while the log is being rewritten."""

    def hold(self) -> None:
        """Step nothing until `release`."""

    def release(self) -> None:
        """Step what arrived meanwhile, in order."""


class Rewriter:
    """Makes one rewriting at a time, on the flush thread between two syncs.

    A held effect may begin the next rewriting.
    """

    def __init__(
        self,
        store: LogStore,
        recent: RecentEntries,
        flusher: Flusher,
        inbox: Held,
        engine: Engine,
        driver: Driver,
    ) -> None:
        self._store = store
        self._recent = recent
        self._flusher = flusher
        self._inbox = inbox
        self._engine = engine
        self._driver = driver
        self._held_outputs: deque[Output] = deque()
        self.is_active = False
        """True while the log is being rewritten."""

    def truncate(self, first_index: int) -> None:
        """Drop the entries from `first_index` on."""
        self._begin()
        self._flusher.run_between_syncs(
            partial(self._store.cut, first_index), partial(self._on_rewritten, self._take_cut)
        )

    def replace(self, base: SnapshotMeta, on_replaced: Callable[[], None]) -> None:
        """Replace the log by an empty log behind a snapshot; `on_replaced()` is called once that is done."""
        self._begin()
        self._recent.clear()
        work = self._store.begin_replacing(base)
        self._flusher.run_between_syncs(work, partial(self._on_rewritten, partial(self._take_replaced, on_replaced)))

    def hold(self, output: Output) -> bool:
        """Hold effects back, behind those already held. Returns False if nothing is being rewritten."""
        if self.is_active:
            self._held_outputs.append(output)
        return self.is_active

    def hold_rest(self, output: Output, executed: int) -> bool:
        """Hold back all but the first `executed` effects of a step under way, before those already held.

        Else like `hold`.
        """
        if self.is_active:
            self._held_outputs.appendleft(Output(output.effects[executed:], output.after_sync))
        return self.is_active

    def _begin(self) -> None:
        invariant(not self.is_active, "one rewriting of the log at a time")
        self.is_active = True
        self._inbox.hold()

    def _on_rewritten(self, take_result: Callable[[Cut | Recovered], None], result: object) -> None:
        try:
            if isinstance(result, CorruptionError):
                raise ContradictionError(f"entries of this log are void, and where they begin is corrupt: {result}")
            if isinstance(result, BaseException):
                raise result
            assert isinstance(result, Cut | Recovered)
            take_result(result)
            self.is_active = False
            while self._held_outputs and not self.is_active:
                self._driver.execute(self._held_outputs.popleft())
        except Exception as error:
            self._driver.fail(error)
            return
        if not self.is_active:
            self._inbox.release()
        if not self.is_active:
            self._driver.pump()

    def _take_cut(self, cut: Cut | Recovered) -> None:
        assert isinstance(cut, Cut)
        self._store.take_cut(cut)
        self._recent.truncate(cut.first_index)
        invariant(self._store.generation == self._engine.generation, "store and engine count the same truncations")

    def _take_replaced(self, on_replaced: Callable[[], None], result: Cut | Recovered) -> None:
        assert isinstance(result, Recovered)
        self._store.take_replaced(result)
        on_replaced()

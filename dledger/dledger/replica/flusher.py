"""One sync at a time; the next covers everything written meanwhile (group commit).  Other work goes between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from dledger.consensus.engine import Engine
from dledger.environment import FLUSH, Environment
from dledger.errors import StorageError
from dledger.loop_holds import SYNC
from dledger.replica.completions import Completions
from dledger.replica.driver import Driver
from dledger.store.log import LogStore
from dledger.store.sync import SyncTicket

ASYNC_SYNC_INTERVAL_S = 0.1
ASYNC_SYNC_BYTES = 16 << 20
MARK_SYNC_INTERVAL_S = 1.0
SLOW_SYNC_S = 1.0
"""A sync that takes longer makes a leader hand over."""


class Flusher:
    """Runs the store's syncs on the flush thread.

    The engine is told what an acknowledgement may vouch for: with `sync` what a completed sync covered, without it what
    was written, once the effect that wrote it is carried out.
    """

    def __init__(
        self,
        environment: Environment,
        store: LogStore,
        completions: Completions,
        engine: Engine,
        driver: Driver,
        *,
        sync: bool,
    ) -> None:
        self._environment = environment
        self._synced = environment.holds.part(SYNC)
        self._store = store
        self._completions = completions
        self._engine = engine
        self._driver = driver
        self._sync = sync
        self._running = False
        self._syncing = False
        self._between: deque[tuple[Callable[[], object], Callable[[object], None]]] = deque()
        self._reporting = False
        self._began_at = 0.0
        self._synced_to = store.end_position
        self._last_sync_at = self._mark_synced_at = environment.now()
        self._mark_behind = False
        self._stopped = False
        self.syncs = 0
        self.seconds = 0.0

    @property
    def outstanding_s(self) -> float:
        """How long the running sync has taken so far; 0 if none runs."""
        return self._environment.now() - self._began_at if self._syncing else 0.0

    def between(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        """Run `work` on the flush thread and then `done(result or exception)`: no sync is under way until that ends.

        So `work` may sync or lower the durable mark, which a finished sync writes on the event loop, and may change
        what a sync would look at.  A replica that stops does not call `done`.
        """
        self._between.append((work, done))
        self._go_on()

    def _go_on(self) -> None:
        """Begin what waits for its turn; new syncs come behind it."""
        if self._between and not self._running and not self._stopped:
            work, done = self._between.popleft()
            self._running = True
            self._environment.run_blocking(FLUSH, work, partial(self._done_between, done))

    def _done_between(self, done: Callable[[object], None], result: object) -> None:
        if self._stopped:
            return
        done(result)
        self._running = False
        self._go_on()
        if self._sync:
            self._start()

    def written(self) -> None:
        """Entries were written; see to their sync."""
        if not self._sync:
            if not self._reporting:
                self._reporting = True
                self._completions.add(self._report_written)
            if self._store.end_position - self._synced_to < ASYNC_SYNC_BYTES:
                return
        self._start()

    def _report_written(self) -> None:
        self._reporting = False
        self._durable(self._store.generation, self._store.last_index)

    def _durable(self, generation: int, index: int) -> None:
        self._engine.wall_ms = self._environment.wall_ms()  # a follower answers now
        self._engine.synced(generation, index, self._environment.now())
        self._driver.pump()

    def tick(self) -> None:
        """Called a few times a second: bounds how long unsynced bytes wait where acknowledgements do not."""
        now = self._environment.now()
        if not self._sync and now - self._last_sync_at >= ASYNC_SYNC_INTERVAL_S:
            self._start()
        if self._mark_behind and not self._running and now - self._mark_synced_at >= MARK_SYNC_INTERVAL_S:
            self._sync_mark()

    def stop(self) -> None:
        self._stopped = True

    def _start(self) -> None:
        if self._running or self._stopped:
            return
        ticket = self._store.begin_sync()
        if ticket is None:
            return

        def done(result: object) -> None:
            with self._synced:
                try:
                    self._ticket_done(ticket, result)
                except StorageError as error:
                    self._driver.fail(error)

        self._began()
        self._environment.run_sync(ticket, done)

    def _began(self) -> None:
        self._running = self._syncing = True
        self._began_at = self._environment.now()

    def _finished(self, result: object) -> bool:
        self._running = self._syncing = False
        now = self._environment.now()
        self._last_sync_at = now
        if self._stopped:
            return False
        if isinstance(result, BaseException):
            self._driver.fail(result)
            return False
        self.syncs += 1
        self.seconds += now - self._began_at
        return True

    def _ticket_done(self, ticket: SyncTicket, result: object) -> None:
        if not self._finished(result):
            return
        self._store.finish_sync(ticket)
        self._mark_behind = True
        self._synced_to = self._store.end_position
        generation, index = ticket.token
        self._go_on()
        if not self._running and self._environment.now() - self._mark_synced_at >= MARK_SYNC_INTERVAL_S:
            self._sync_mark()
        elif self._sync:
            self._start()
        if self._sync:
            self._durable(generation, index)

    def _sync_mark(self) -> None:
        self._mark_behind = False
        self._mark_synced_at = self._environment.now()
        self._began()
        self._environment.run_blocking(FLUSH, self._store.sync_mark, self._mark_synced)

    def _mark_synced(self, result: object) -> None:
        if self._finished(result):
            self._go_on()
            if self._sync:
                self._start()

"""Flusher: runs one sync at a time. The next sync covers everything written meanwhile (group commit).

Other work of the flush thread runs between two syncs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from dledger.consensus.engine import Engine
from dledger.environment import FLUSH, Environment
from dledger.errors import BusyError, StorageError
from dledger.replica.driver import Completions, Driver
from dledger.store.log import LogStore
from dledger.store.sync import SyncTicket
from dledger_base.loop_holds import SYNC

ASYNC_SYNC_INTERVAL_S = 0.03
"""Pause in seconds between two syncs that no acknowledgement waits for.

It limits the age of acknowledged, unsynced data.
"""
ASYNC_SYNC_BYTES = 4 << 20
"""Number of unsynced bytes with which the next sync begins at once."""
MARK_SYNC_INTERVAL_S = 1.0
BUSY_PAUSE_S = 0.05
"""Pause in seconds before a sync, or work between two syncs, is repeated for which no file could be opened."""
SLOW_SYNC_S = 1.0
"""Maximum seconds for a sync, or for other disk work that acknowledgements wait for.

If it takes longer, the leader hands over.
"""


class Flusher:
    """Runs the store's syncs on the flush thread.

    The engine is notified up to which entry an acknowledgement may vouch.  With `sync` that is the last entry of a
    completed sync. Without it that is the last written entry, as soon as the effect that wrote it is carried out.
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
        self._sync_holds = environment.holds.part(SYNC)
        self._store = store
        self._completions = completions
        self._engine = engine
        self._driver = driver
        self._sync = sync
        self._running = False
        self._waiting_work: deque[tuple[Callable[[], object], Callable[[object], None]]] = deque()
        self._is_report_scheduled = False
        self._is_sync_scheduled = False
        """True if a timer will begin the next sync."""
        self.on_synced: Callable[[], None] = _ignore_sync
        """Called when more of the log is durable, unless acknowledgements wait for that."""
        self._began_at = 0.0
        self._synced_position = store.end_position
        self._last_sync_at = self._mark_synced_at = environment.now()
        self._is_mark_unsynced = False
        self._stopped = False
        self.syncs = 0
        self.seconds = 0.0

    @property
    def outstanding_s(self) -> float:
        """Seconds that the running sync, or the work between two syncs, has taken so far.

        Other syncs and work wait for it.
        """
        return self._environment.now() - self._began_at if self._running else 0.0

    def run_between_syncs(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        """Run `work` on the flush thread and then `done(result or exception)`: no sync is under way until `done` ends.

        So `work` may sync or lower the durable mark, which a finished sync writes on the event loop. It may also change
        data that a sync would look at. A replica that stops does not call `done`. After a `BusyError`, which means that
        the process may open no more files now, the work is repeated until it succeeds or fails.
        """
        self._waiting_work.append((work, done))
        self._start_waiting_work()

    def _start_waiting_work(self) -> None:
        """Begin the next waiting work. New syncs come behind it."""
        if self._waiting_work and not self._running and not self._stopped:
            work, done = self._waiting_work.popleft()
            self._note_start()
            self._run(work, done)

    def _run(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        if not self._stopped:
            self._environment.run_blocking(FLUSH, work, partial(self._on_work_done, work, done))

    def _on_work_done(self, work: Callable[[], object], done: Callable[[object], None], result: object) -> None:
        if self._stopped:
            return
        if isinstance(result, BusyError):
            self._environment.call_later(BUSY_PAUSE_S, partial(self._run, work, done))
            return
        done(result)
        self._running = False
        self._start_waiting_work()
        self._schedule_sync()

    def note_written(self) -> None:
        """Have newly written entries synced."""
        if self._stopped:
            return
        if self._sync:
            self._start()
            return
        if not self._is_report_scheduled:
            self._is_report_scheduled = True
            self._completions.add(self._report_written)
        self._schedule_sync()

    def _schedule_sync(self) -> None:
        """Begin the next sync: at once if acknowledgements wait for it or much is unsynced, otherwise after a pause."""
        if self._sync or self._store.end_position - self._synced_position >= ASYNC_SYNC_BYTES:
            self._start()
        elif not self._is_sync_scheduled and self._store.durable < self._store.last_index:
            self._is_sync_scheduled = True
            pause_s = max(0.0, self._last_sync_at + ASYNC_SYNC_INTERVAL_S - self._environment.now())
            self._environment.call_later(pause_s, self._on_sync_due)

    def _on_sync_due(self) -> None:
        self._is_sync_scheduled = False
        self._start()

    def _report_written(self) -> None:
        self._is_report_scheduled = False
        self._report_durable(self._store.generation, self._store.last_index)

    def _report_durable(self, generation: int, index: int) -> None:
        self._engine.wall_ms = self._environment.wall_ms()  # a follower answers now, and its answer carries this clock
        self._engine.synced(generation, index, self._environment.now())
        self._driver.pump()

    def tick(self) -> None:
        """Do what is due, a few times a second: start an overdue sync, or sync the durable mark."""
        now = self._environment.now()
        if not self._sync and now - self._last_sync_at >= ASYNC_SYNC_INTERVAL_S:
            self._start()
        if self._is_mark_unsynced and not self._running and now - self._mark_synced_at >= MARK_SYNC_INTERVAL_S:
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
            if isinstance(result, BusyError):
                self._environment.call_later(BUSY_PAUSE_S, retry)
                return
            with self._sync_holds:
                try:
                    self._on_ticket_done(ticket, result)
                except StorageError as error:
                    self._driver.fail(error)

        def retry() -> None:
            if self._stopped:
                ticket.abandon()
            else:
                self._environment.run_sync(ticket, done)

        self._note_start()
        self._environment.run_sync(ticket, done)

    def _note_start(self) -> None:
        self._running = True
        self._began_at = self._environment.now()

    def _note_end(self, result: object) -> bool:
        self._running = False
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

    def _on_ticket_done(self, ticket: SyncTicket, result: object) -> None:
        if not self._note_end(result):
            return
        self._store.finish_sync(ticket)
        self._is_mark_unsynced = True
        self._synced_position = ticket.target.position
        generation, index = ticket.token
        if self._waiting_work:
            self._start_waiting_work()
        if not self._running and self._environment.now() - self._mark_synced_at >= MARK_SYNC_INTERVAL_S:
            self._sync_mark()
        elif self._store.durable != self._store.last_index:
            self._schedule_sync()
        if self._sync:
            self._report_durable(generation, index)
        else:
            self.on_synced()

    def _sync_mark(self) -> None:
        self._is_mark_unsynced = False
        self._mark_synced_at = self._environment.now()
        self._note_start()
        self._environment.run_blocking(FLUSH, self._store.sync_mark, self._on_mark_synced)

    def _on_mark_synced(self, result: object) -> None:
        if self._note_end(result):
            self._start_waiting_work()
            self._schedule_sync()


def _ignore_sync() -> None:
    """Do nothing; the default of `Flusher.on_synced`. Acknowledgements wait for the syncs themselves."""

"""Applier: hands committed entries to the state machine, in order, in slices that hold the event loop only briefly."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from dledger.consensus.engine import Engine
from dledger.environment import URGENT, Environment
from dledger.errors import BusyError, CorruptionError
from dledger.format import HEADER_BYTES
from dledger.replica.applying.reads import ReadWaiters
from dledger.replica.driver import Completions, Driver
from dledger.replica.feed import MachineFeed
from dledger.replica.snapshots.marks import SnapshotMarks, has_own
from dledger.replica.standing import Standing
from dledger.replica.storing.recent import Buffer, RecentEntries
from dledger.statemachine import CommittedEntry, Restore
from dledger.store.log import LogStore
from dledger.types import EntryKind, EntryMeta, SnapshotMeta
from dledger_base.loop_holds import APPLY

SLICE_S = 0.005
BATCH_ENTRIES = 64
READ_BYTES = 2 << 20
BUSY_PAUSE_S = 0.01


class Applier:
    """Applies entries up to the commit index.

    It calls the service only as a completion, or directly from the event loop.

    The log's own commands of an entry are carried out after all earlier entries are applied and before that entry is.
    After every slice the applier answers reads that waited and tells the service changed leadership. Entries that are
    not in memory are read on the urgent lane. If entries do not verify, applying stops until `retry`.
    """

    def __init__(
        self,
        environment: Environment,
        store: LogStore,
        recent: RecentEntries,
        contexts: Contexts,
        completions: Completions,
        feed: MachineFeed,
        marks: SnapshotMarks,
        reads: ReadWaiters,
        standing: Standing,
        engine: Engine,
        driver: Driver,
        *,
        applied_index: int,
    ) -> None:
        self._environment = environment
        self._apply_holds = environment.holds.part(APPLY)
        self._store = store
        self._recent = recent
        self._contexts = contexts
        self._completions = completions
        self._feed = feed
        self._marks = marks
        self._reads = reads
        self._standing = standing
        self._engine = engine
        self._driver = driver
        self.apply_limit: Callable[[int], int] | None = None
        """Returns the last entry that may be applied now, at most the given one. None: each may."""
        self._target_index = applied_index
        self._epoch = 0
        self._is_waiting = False
        self._is_running = False
        self._awaits_retry = False
        self._stalled_at: float | None = None
        self._reading_since: float | None = None
        self._last_applied: EntryMeta | None = None
        """The entry that was applied last. None before the first one, and right after a snapshot."""
        standing.applied_index = applied_index
        position = store.position_at(applied_index + 1) if applied_index < store.last_index else -1
        standing.applied_position = position if position >= 0 else store.end_position

    def advance(self, commit_index: int) -> None:
        """Apply entries up to `commit_index`, which are committed, as a completion."""
        self._target_index = max(self._target_index, commit_index)
        if not self._is_waiting and not self._is_running:
            self._is_waiting = True
            self._completions.add(partial(self._resume, self._epoch))

    def halt(self) -> None:
        """Stop applying until `restart` says where to continue."""
        self._epoch += 1
        self._reading_since = None
        self._is_waiting = True
        self._awaits_retry = False

    def restart(self, applied_index: int, applied_position: int) -> None:
        """Continue behind `applied_index`: the state machine has been given the state as of that entry."""
        self._epoch += 1
        self._reading_since = None
        self._is_waiting = False
        self._awaits_retry = False
        self._stalled_at = None
        self._last_applied = None
        self._standing.applied_index = applied_index
        self._standing.applied_position = applied_position
        self._target_index = max(self._target_index, applied_index)

    def begin_at(self, base: SnapshotMeta, restore: Restore) -> None:
        """Continue with the state of a snapshot. The log now begins behind that snapshot."""
        if not self._standing.is_stopped:
            self._marks.note_restored(base.last_index)
            self._feed.reset(base, restore)
            self.restart(base.last_index, base.position)
            self.advance(self._engine.commit_index)

    @property
    def stalled_s(self) -> float:
        """Seconds for which the next entry has been unreadable or is being read; 0 if it is in memory."""
        since = self._reading_since if self._stalled_at is None else self._stalled_at
        return 0.0 if since is None else self._environment.now() - since

    def retry(self) -> None:
        """Read entries again that did not verify: they may have been repaired by now."""
        if self._awaits_retry:
            self._awaits_retry = False
            self._schedule_resume()

    def serve_reads(self) -> None:
        """Answer the confirmed reads that need only applied entries."""
        self._reads.applied(self._standing.applied_index)

    def _report_progress(self) -> None:
        self._reads.applied(self._standing.applied_index)
        if self._standing.renew():
            self._completions.run()

    def _run(self) -> None:
        self._is_waiting = False
        self._is_running = True
        standing = self._standing
        deadline = self._environment.now() + SLICE_S
        try:
            while standing.applied_index < self._target_index:
                applied = standing.applied_index
                entries = self._recent.run(applied + 1, min(self._target_index - applied, BATCH_ENTRIES))
                if not entries:
                    self._read(applied + 1)
                    break
                if self.apply_limit is not None:
                    count = self.apply_limit(applied + len(entries)) - applied
                    if count < 1:
                        break
                    entries = entries[:count]
                self._apply_batch(entries)
                if self._environment.now() >= deadline and standing.applied_index < self._target_index:
                    self._schedule_resume()
                    break
        finally:
            self._is_running = False
        self._report_progress()

    def _schedule_resume(self) -> None:
        self._is_waiting = True
        self._environment.call_soon(partial(self._resume, self._epoch))

    def _resume(self, epoch: int) -> None:
        if epoch != self._epoch:
            return
        try:
            self._run()
        except Exception as error:
            self._driver.fail(error)

    def _read(self, first: int) -> None:
        self._is_waiting = True
        self._reading_since = self._environment.now()
        read = partial(self._read_committed, first, self._target_index)
        self._environment.run_blocking(URGENT, read, partial(self._on_read, self._epoch))

    def _read_committed(self, first: int, last: int) -> tuple[list[EntryMeta], bytes]:
        start, size = self._store.position_at(first), READ_BYTES
        try:
            size = min(size, self._store.position_at(last + 1) - start)
        except CorruptionError:
            pass  # the entry after `last` is in a corrupt range, and the read ends before that range
        return self._store.read_entries(first, size, verify=True)

    def _on_read(self, epoch: int, result: tuple[list[EntryMeta], bytes] | BaseException) -> None:
        if epoch != self._epoch:
            return
        self._reading_since = None
        if isinstance(result, BusyError):
            self._environment.call_later(BUSY_PAUSE_S, partial(self._resume, epoch))
            return
        if isinstance(result, CorruptionError):
            if self._stalled_at is None:
                self._stalled_at = self._environment.now()
            self._awaits_retry = True
            self._driver.suspect(self._standing.applied_index + 1)
            return
        if isinstance(result, BaseException):
            self._driver.fail(result)
            return
        self._stalled_at = None
        metas, data = result
        view, offset = memoryview(data), 0
        entries: list[tuple[EntryMeta, Buffer]] = []
        for meta in metas:
            entries.append((meta, view[offset : offset + meta.size]))
            offset += meta.size
        self._is_running = True
        held_back = False
        try:
            for start in range(0, len(entries), BATCH_ENTRIES):
                batch = entries[start : start + BATCH_ENTRIES]
                if self.apply_limit is not None:
                    count = self.apply_limit(batch[-1][0].index) - self._standing.applied_index
                    held_back = count < len(batch)
                    batch = batch[: max(count, 0)]
                if batch:
                    self._apply_batch(batch)
                if held_back:
                    break
        except Exception as error:
            self._driver.fail(error)
            return
        finally:
            self._is_running = False
        self._report_progress()
        if self._epoch != epoch:
            return
        if held_back:
            self._is_waiting = False  # until `advance` is called again
        else:
            self._schedule_resume()

    def _apply_batch(self, entries: Sequence[tuple[EntryMeta, Buffer]]) -> None:
        with self._apply_holds:
            standing = self._standing
            groups: list[CommittedEntry] = []
            for meta, data in entries:
                previous, self._last_applied = self._last_applied, meta
                if meta.kind != EntryKind.GROUP:
                    continue
                view = memoryview(data)
                records_end = meta.size - meta.channel
                commands = view[records_end:]
                if meta.channel and has_own(commands):
                    if groups:
                        self._feed.deliver(groups)
                        standing.applied_index, standing.applied_position = groups[-1].index, groups[-1].end
                        groups = []
                    self._marks.on_commands(meta, commands, previous)
                groups.append(
                    CommittedEntry(
                        meta.index,
                        meta.term,
                        meta.position,
                        view[HEADER_BYTES:records_end],
                        commands,
                        self._contexts.take(meta.index),
                    )
                )
            if groups:
                self._feed.deliver(groups)
            last = entries[-1][0]
            standing.applied_index, standing.applied_position = last.index, last.position + last.size


class Contexts:
    """Contexts of entries that this replica proposed and has not applied yet, by index."""

    def __init__(self) -> None:
        self._by_index: deque[tuple[int, list[object]]] = deque()

    def add(self, index: int, contexts: list[object]) -> None:
        if contexts:
            self._by_index.append((index, contexts))

    def take(self, index: int) -> list[object]:
        """Remove and return the contexts of entry `index`. Entries must be asked for in order."""
        entry_contexts = self._by_index
        if entry_contexts and entry_contexts[0][0] == index:
            return entry_contexts.popleft()[1]
        return []

    def drop(self) -> list[object]:
        """Remove and return all contexts, oldest first."""
        dropped = [context for _, contexts in self._by_index for context in contexts]
        self._by_index.clear()
        return dropped

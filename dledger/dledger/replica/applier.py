"""Hands committed entries to the state machine, in order, in slices that never hold the event loop for long."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dledger.consensus.engine import Engine
from dledger.environment import URGENT, Environment
from dledger.errors import BusyError, CorruptionError, StorageError
from dledger.format import HEADER_BYTES
from dledger.loop_holds import APPLY
from dledger.replica.commands import has_own
from dledger.replica.completions import Completions
from dledger.replica.driver import Driver
from dledger.replica.feed import MachineFeed
from dledger.replica.proposer import Contexts
from dledger.replica.reads import ReadWaiters
from dledger.replica.recent import Buffer, RecentEntries
from dledger.replica.snapshotting import Snapshotting
from dledger.replica.standing import StandingTeller
from dledger.statemachine import CommittedEntry, Restore
from dledger.store.log import LogStore
from dledger.types import EntryKind, EntryMeta, SnapshotMeta

SLICE_S = 0.005
BATCH_ENTRIES = 64
READ_BYTES = 2 << 20
BUSY_PAUSE_S = 0.01


class Applier:
    """Follows the commit index; what it calls is called among the `completions`, or by the event loop.

    A group's commands of the log's own are carried out when those before it are applied and it is not.  Reads that
    waited, and who is told the standing, are looked after behind every slice.
    Entries that are not in memory are read on the urgent lane.
    Where they do not verify applying stands still until `retry`.
    """

    def __init__(
        self,
        environment: Environment,
        store: LogStore,
        recent: RecentEntries,
        contexts: Contexts,
        completions: Completions,
        feed: MachineFeed,
        snapshotting: Snapshotting,
        reads: ReadWaiters,
        standing: StandingTeller,
        engine: Engine,
        driver: Driver,
        *,
        applied_index: int,
    ) -> None:
        self._environment = environment
        self._applying = environment.holds.part(APPLY)
        self._store = store
        self._recent = recent
        self._contexts = contexts
        self._completions = completions
        self._feed = feed
        self._snapshotting = snapshotting
        self._reads = reads
        self._standing = standing
        self._engine = engine
        self._driver = driver
        self._target = applied_index
        self._epoch = 0
        self._waiting = False
        self._running = False
        self._at_rest = False
        self._stalled_at: float | None = None
        self._last: EntryMeta | None = None
        """The entry that was applied last here; None before the first, and behind a snapshot."""
        self.applied_index = applied_index
        self.applied_position = store.position_at(applied_index + 1) if applied_index < store.last_index else -1
        if self.applied_position < 0:
            self.applied_position = store.end_position

    def advance(self, commit_index: int) -> None:
        """Entries up to `commit_index` are committed: apply them among the completions."""
        self._target = max(self._target, commit_index)
        if not self._waiting and not self._running:
            self._waiting = True
            self._completions.add(partial(self._resume, self._epoch))

    def halt(self) -> None:
        """Apply nothing more, unless `restart` says from where on."""
        self._epoch += 1
        self._waiting = True
        self._at_rest = False

    def restart(self, applied_index: int, applied_position: int) -> None:
        """The state machine was given a state as of `applied_index`."""
        self._epoch += 1
        self._waiting = False
        self._at_rest = False
        self._stalled_at = None
        self._last = None
        self.applied_index = applied_index
        self.applied_position = applied_position
        self._target = max(self._target, applied_index)

    def begin_at(self, base: SnapshotMeta, restore: Restore) -> None:
        """Go on with the state of a snapshot, behind which the log begins."""
        if not self._driver.is_stopped:
            self._snapshotting.restored(base.last_index)
            self._feed.reset(base, restore)
            self.restart(base.last_index, base.position)
            self.advance(self._engine.commit_index)

    @property
    def stalled_s(self) -> float:
        """How long the next entry could not be read already; 0 if it can."""
        return 0.0 if self._stalled_at is None else self._environment.now() - self._stalled_at

    def retry(self) -> None:
        """What did not verify may do so by now."""
        if self._at_rest:
            self._at_rest = False
            self._later()

    def serve_reads(self) -> None:
        """Answer the reads that are confirmed for what is applied."""
        self._reads.applied(self.applied_index)

    def _progressed(self) -> None:
        self.serve_reads()
        if self._standing.look():
            self._completions.run()

    def _run(self) -> None:
        self._waiting = False
        self._running = True
        deadline = self._environment.now() + SLICE_S
        try:
            while self.applied_index < self._target:
                first = self.applied_index + 1
                if not self._recent.has(first):
                    self._read(first)
                    break
                count = 1
                while count < BATCH_ENTRIES and first + count <= self._target and self._recent.has(first + count):
                    count += 1
                entries = self._recent.get(first, count)
                if entries is None:
                    raise StorageError(f"entries {first} to {first + count - 1} left memory while they were counted")
                self._apply(entries)
                if self._environment.now() >= deadline and self.applied_index < self._target:
                    self._later()
                    break
        finally:
            self._running = False
        self._progressed()

    def _later(self) -> None:
        self._waiting = True
        self._environment.call_soon(partial(self._resume, self._epoch))

    def _resume(self, epoch: int) -> None:
        if epoch != self._epoch:
            return
        try:
            self._run()
        except Exception as error:
            self._driver.fail(error)

    def _read(self, first: int) -> None:
        self._waiting = True
        read = partial(self._read_committed, first, self._target)
        self._environment.run_blocking(URGENT, read, partial(self._on_read, self._epoch))

    def _read_committed(self, first: int, last: int) -> tuple[list[EntryMeta], bytes]:
        start, size = self._store.position_at(first), READ_BYTES
        try:
            size = min(size, self._store.position_at(last + 1) - start)
        except CorruptionError:
            pass  # the entry behind is in a corrupt range, and a run ends before that
        return self._store.read_entries(first, size, verify=True)

    def _on_read(self, epoch: int, result: tuple[list[EntryMeta], bytes] | BaseException) -> None:
        if epoch != self._epoch:
            return
        if isinstance(result, BusyError):
            self._environment.call_later(BUSY_PAUSE_S, partial(self._resume, epoch))
            return
        if isinstance(result, CorruptionError):
            if self._stalled_at is None:
                self._stalled_at = self._environment.now()
            self._at_rest = True
            self._driver.suspect(self.applied_index + 1)
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
        self._running = True
        try:
            for start in range(0, len(entries), BATCH_ENTRIES):
                self._apply(entries[start : start + BATCH_ENTRIES])
        except Exception as error:
            self._driver.fail(error)
            return
        finally:
            self._running = False
        self._progressed()
        if self._epoch == epoch:
            self._later()

    def _apply(self, entries: Sequence[tuple[EntryMeta, Buffer]]) -> None:
        with self._applying:
            self._apply_held(entries)

    def _apply_held(self, entries: Sequence[tuple[EntryMeta, Buffer]]) -> None:
        groups: list[CommittedEntry] = []
        for meta, data in entries:
            before, self._last = self._last, meta
            if meta.kind != EntryKind.GROUP:
                continue
            view = memoryview(data)
            records_end = meta.size - meta.channel
            commands = view[records_end:]
            if meta.channel and has_own(commands):
                if groups:
                    self._hand_over(groups)
                    groups = []
                self._snapshotting.on_commands(meta, commands, before)
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
            self._hand_over(groups)
        self.applied_index = entries[-1][0].index
        self.applied_position = entries[-1][0].end

    def _hand_over(self, groups: list[CommittedEntry]) -> None:
        self._feed.deliver(groups)
        self.applied_index = groups[-1].index
        self.applied_position = groups[-1].end

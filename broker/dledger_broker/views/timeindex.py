"""The time index of one replica: the pending rows, in the order in which they are due.

It folds the log's commands about rows: into a file, which lags behind, and into memory for applied commands that the
file lacks. It can be lost at any time, because the log has everything that it lacks. Rows that are handed out are right
as of the applied state in that turn.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from dledger.environment import Environment
from dledger_broker.views.databases import Databases
from dledger_broker.views.logreader import AppliedLog, LogReader
from dledger_broker.views.soonrows import SOON_ROWS, SoonRows
from dledger_broker.views.timefile import Slice, TimeFile, is_damage
from dledger_broker.views.timefollower import TimeFollower
from dledger_broker.views.timerows import LOWEST, Key, Row, RowChanges, RowSource
from dledger_broker.views.timetail import MAX_TAIL_ROWS, TimeTail, merge_tail
from dledger_broker.views.writer import ViewWriter

T = TypeVar("T")
_logger = logging.getLogger(__name__)


class _ConcurrentChanges:
    """Rows that were added, and records whose rows are gone, since a query began."""

    __slots__ = ("added", "removed")

    def __init__(self) -> None:
        self.added: list[tuple[int, int, int]] = []
        self.removed: set[int] = set()


class TimeIndex:
    """The time index, for use on the event loop. `follower` is started and closed by the owner, and says how far the
    file is.
    """

    def __init__(
        self,
        databases: Databases,
        env: Environment,
        reader: LogReader,
        replica: AppliedLog,
        source: RowSource,
        *,
        always_compare: bool = False,
        soon_rows: int = SOON_ROWS,
        tail_rows: int = MAX_TAIL_ROWS,
    ) -> None:
        self._env = env
        self._replica = replica
        self._file = TimeFile(databases)
        self._worker = ViewWriter(env)
        self._tail = TimeTail(tail_rows)
        self.follower = TimeFollower(
            self._file, self._worker, self._tail, env, reader, replica, source, self, always_compare=always_compare
        )
        self._soon = SoonRows(soon_rows)
        self._found_positions: set[int] = set()
        self._concurrent_changes: list[_ConcurrentChanges] = []
        self._due_queries: deque[tuple[int, int, Callable[[Sequence[Row]], None]]] = deque()
        self._waiting_queries: list[Callable[[], None]] = []
        self._is_refilling = False
        self._invalidations = 0  # number of the last invalidation, so that earlier answers are ignored

    # ---------------------------------------------------------------- what is applied

    def restored(self, position: int) -> None:
        """Note that the state was replaced, as of a log position. Before `start` the file is kept, afterwards it is
        wiped.
        """
        self._tail.start_over(position)
        self.discard_answers()
        self.follower.restored()

    def applied(self, added: Sequence[tuple[int, int, int]], removed: Sequence[Key], end: int) -> None:
        """Apply the row changes of whole entries up to `end`: first the added rows, then the removed rows."""
        if self.follower.loaded and end <= self.follower.position:
            return  # the file is ahead of the state, whose snapshot is older
        if not self._tail.add(RowChanges(added, removed, end)):
            _logger.info("event=time_index_reads_the_log position=%d applied=%d", self.follower.position, end)
            self.discard_answers()
        positions = {position for _, position in removed}
        for changes in self._concurrent_changes:
            changes.added += added
            changes.removed |= positions
        self._soon.add(row for row in added if row[1] >= self.follower.floor)
        self._soon.remove(positions)
        self._found_positions -= positions
        self._answer_queries()

    def drop_below(self, position: int) -> None:
        """Drop rows of records below a position, which do not count any more, in the applied state and ever after."""
        self.follower.raise_floor(position)
        self.follower.clean()

    # ---------------------------------------------------------------- questions

    @property
    def tail_rows(self) -> int:
        """Number of rows, added or removed, that are in memory because the file does not have them yet."""
        return len(self._tail)

    @property
    def lag_bytes(self) -> int:
        """Size in bytes of the applied log that the file does not cover."""
        return max(0, self._replica.applied_position - max(self.follower.position, self._replica.log.first_position))

    def is_pending(self, position: int) -> bool:
        """Return whether the row of a record, handed out by `due` or the last `find`, is still pending in the applied
        state.

        Also return False if the row is forgotten. It is then handed out again.
        """
        return position >= self.follower.floor and (
            self._soon.is_pending(position) or position in self._found_positions
        )

    def due(self, before_ms: int, limit: int, done: Callable[[Sequence[Row]], None]) -> None:
        """Call `done` later with some of the rows that are due before a time, at most `limit`, lowest first.

        The call waits until the index has reached the applied position. Each call continues behind the rows of the
        last. A call without rows has reached the rows that are not due, and the next call begins with the lowest again.
        """
        self._due_queries.append((before_ms, limit, done))
        self._answer_queries()

    def set_aside(self, position: int) -> None:
        """Do not hand out the row of a record any more, because the record cannot be read."""
        self._soon.set_aside(position)

    def restore_set_aside(self) -> None:
        """Hand out again the rows that were set aside."""
        if self._soon.restore_set_aside():
            self._answer_queries()

    def next(self, after: Key, limit: int, done: Callable[[Sequence[Row] | BaseException], None]) -> None:
        """Find the next rows behind a key, at most `limit`. Rows that the index handed out stay as they are."""
        self._enqueue(partial(self._next, after, limit, done))

    def find(self, below: int, after: Key | None, done: Callable[[Slice | BaseException], None]) -> None:
        """Find rows of records below a position, in a slice of the index that begins behind a key (None: the first
        slice).
        """
        self._enqueue(partial(self._find, below, LOWEST if after is None else after, done))

    def pending(self, keys: Sequence[Key], done: Callable[[set[Key] | BaseException], None]) -> None:
        """Find out which of some rows that were added before are pending."""
        self._enqueue(partial(self._pending, tuple(keys), done))

    # ---------------------------------------------------------------- reports of the follower

    def on_progress(self) -> None:
        """Answer the queries that can be answered now."""
        self._answer_queries()

    def discard_answers(self) -> None:
        """Forget rows that were handed out, and ignore queries under way."""
        self._invalidations += 1
        self._soon.start_over()
        self._found_positions.clear()

    def on_floor_raised(self, position: int) -> None:
        """Drop rows of records below the new floor."""
        self._soon.drop_below(position)

    # ---------------------------------------------------------------- inside

    def _enqueue(self, ask: Callable[[], None]) -> None:
        self._waiting_queries.append(ask)
        self._answer_queries()

    def _answer_queries(self) -> None:
        """Answer the queries that can be answered now."""
        if not self.follower.reached:
            return
        pending, self._waiting_queries = self._waiting_queries, []
        for ask in pending:
            ask()
        while self._due_queries:
            before_ms, limit, done = self._due_queries[0]
            rows = self._soon.take(before_ms, limit)
            if rows is None:
                break
            self._due_queries.popleft()
            self._env.call_soon(partial(done, rows))
        if self._soon.needs_refill:
            self._refill()

    def _refill(self) -> None:
        after = self._soon.horizon
        if self._is_refilling or after is None:
            return
        self._is_refilling = True
        work = partial(self._next_rows, after, self._soon.refill_size, self.follower.floor)
        self._query_file(work, partial(self._on_refilled, after), self._on_refill_failed)

    def _next_rows(
        self, after: Key, limit: int, floor: int, tail: Sequence[RowChanges]
    ) -> tuple[Sequence[Row], Key | None]:
        """Return the next rows behind a key, and the key up to which these are all rows; None: up to the end. For a
        worker.
        """
        rows = self._file.next_rows(after, limit, floor)
        horizon = rows[-1][:2] if len(rows) == limit else None
        found = merge_tail(rows, tail, after, horizon)
        if len(found) > limit:
            found = found[:limit]
            horizon = found[-1][:2]
        return found, horizon

    def _on_refilled(self, after: Key, changes: _ConcurrentChanges, result: tuple[Sequence[Row], Key | None]) -> None:
        self._is_refilling = False
        rows, horizon = result
        if self._soon.horizon == after:
            self._soon.extend(self._merge_changes(rows, changes, after, horizon), horizon)
        self._answer_queries()

    def _on_refill_failed(self, error: BaseException | None) -> None:
        self._is_refilling = False
        if error is None:
            self._answer_queries()
        else:
            self.follower.failed(error)

    def _merge_changes(
        self, rows: Sequence[Row], changes: _ConcurrentChanges, after: Key, up_to: Key | None
    ) -> list[Row]:
        """Return the rows that a worker found in a range of keys, with the changes since."""
        change = RowChanges(changes.added, [(0, position) for position in changes.removed])
        return [row for row in merge_tail(rows, (change,), after, up_to) if row.position >= self.follower.floor]

    def _next(self, after: Key, limit: int, done: Callable[[Sequence[Row] | BaseException], None]) -> None:
        work = partial(self._next_rows, after, limit, self.follower.floor)
        failed = partial(self._on_failed, partial(self.next, after, limit, done), done)
        self._query_file(work, partial(self._on_next_found, after, done), failed)

    def _on_next_found(
        self,
        after: Key,
        done: Callable[[Sequence[Row] | BaseException], None],
        changes: _ConcurrentChanges,
        result: tuple[Sequence[Row], Key | None],
    ) -> None:
        rows, up_to = result
        done(self._merge_changes(rows, changes, after, up_to))

    def _find(self, below: int, after: Key, done: Callable[[Slice | BaseException], None]) -> None:
        work = partial(self._rows_between, self.follower.floor, below, after)
        failed = partial(self._on_failed, partial(self.find, below, after, done), done)
        self._query_file(work, partial(self._on_rows_found, below, after, done), failed)

    def _rows_between(self, floor: int, below: int, after: Key, tail: Sequence[RowChanges]) -> Slice:
        """Return the rows of the file and of memory in a stretch of the log. For a worker."""
        found = self._file.rows_between(floor, below, after)
        rows = merge_tail(found.rows, tail, after, found.resume)
        return Slice([row for row in rows if floor <= row.position < below], found.resume)

    def _on_rows_found(
        self,
        below: int,
        after: Key,
        done: Callable[[Slice | BaseException], None],
        changes: _ConcurrentChanges,
        result: Slice,
    ) -> None:
        current = self._merge_changes(result.rows, changes, after, result.resume)
        rows = [row for row in current if row.position < below]
        self._found_positions = {row.position for row in rows}
        done(Slice(rows, result.resume))

    def _pending(self, keys: Sequence[Key], done: Callable[[set[Key] | BaseException], None]) -> None:
        failed = partial(self._on_failed, partial(self.pending, keys, done), done)
        self._query_file(partial(self._find_pending, keys), partial(self._on_pending_found, done), failed)

    def _find_pending(self, keys: Sequence[Key], tail: Sequence[RowChanges]) -> set[Key]:
        """Return the keys whose rows are pending in the file and in memory. For a worker."""
        key_set, positions = set(keys), {position for _, position in keys}
        pending = {key for key in keys if self._file.holds(key)}
        for change in tail:
            pending.update(added[:2] for added in change.added if added[:2] in key_set)
        removed = {position for change in tail for _, position in change.removed if position in positions}
        return {key for key in pending if key[1] not in removed}

    def _on_pending_found(
        self, done: Callable[[set[Key] | BaseException], None], changes: _ConcurrentChanges, pending: set[Key]
    ) -> None:
        done({key for key in pending if key[1] >= self.follower.floor and key[1] not in changes.removed})

    def _on_failed(
        self, retry: Callable[[], None], done: Callable[[BaseException], None], error: BaseException | None
    ) -> None:
        if error is None:
            retry()
            return
        if is_damage(error):
            self.follower.failed(error)
        done(error)

    def _query_file(
        self,
        work: Callable[[Sequence[RowChanges]], T],
        done: Callable[[_ConcurrentChanges, T], None],
        failed: Callable[[BaseException | None], None],
    ) -> None:
        """Have a worker query the file and the present memory. `done` gets the result and the changes since.

        `failed` gets the error, or None if all data was thrown away meanwhile.
        """
        changes, answers = _ConcurrentChanges(), self._invalidations
        self._concurrent_changes.append(changes)

        def answered(result: T | BaseException) -> None:
            self._concurrent_changes.remove(changes)
            if answers != self._invalidations:
                failed(None)
            elif isinstance(result, BaseException):
                failed(result)
            else:
                done(changes, result)

        self._worker.submit(partial(work, self._tail.all()), answered)

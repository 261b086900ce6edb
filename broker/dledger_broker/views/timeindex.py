"""The time index of one replica: which rows are pending, in the order in which they are due.

It is a fold of the log's commands about rows: a file, which is behind, and the rows of applied commands that the file
lacks, in memory.  It can be lost at any time: what it lacks comes from the log again.  What is handed out is right as
of what is applied in that very turn.
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
from dledger_broker.views.timefile import Slice, TimeFile
from dledger_broker.views.timefollower import TimeFollower
from dledger_broker.views.timerows import LOWEST, Key, Row, RowChanges, RowSource
from dledger_broker.views.timetail import MAX_TAIL_ROWS, TimeTail, laid_over
from dledger_broker.views.writer import ViewWriter

T = TypeVar("T")
_logger = logging.getLogger(__name__)


class _Since:
    """Rows that were added, and records whose rows are gone, since a query began."""

    __slots__ = ("added", "gone")

    def __init__(self) -> None:
        self.added: list[tuple[int, int, int]] = []
        self.gone: set[int] = set()


class TimeIndex:
    """Use from the event loop.  `follower` is started, closed and asked how far the file is."""

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
        self._found: set[int] = set()
        self._open: list[_Since] = []
        self._asked: deque[tuple[int, int, Callable[[Sequence[Row]], None]]] = deque()
        self._held: list[Callable[[], None]] = []
        self._refilling = False
        self._answers = 0  # which answers still hold

    # ---------------------------------------------------------------- what is applied

    def restored(self, position: int) -> None:
        """The state is another one, as of a log position; before `start` the file is kept, afterwards it is wiped."""
        self._tail.start_over(position)
        self.void_answers()
        self.follower.restored()

    def applied(self, added: Sequence[tuple[int, int, int]], gone: Sequence[Key], end: int) -> None:
        """Commands of whole entries up to `end` were applied now: rows that came, then those that are gone."""
        if self.follower.loaded and end <= self.follower.position:
            return  # the file has come further than the state, whose snapshot is older
        if not self._tail.add(RowChanges(added, gone, end)):
            _logger.info("event=time_index_reads_the_log position=%d applied=%d", self.follower.position, end)
            self.void_answers()
        positions = {position for _, position in gone}
        for since in self._open:
            since.added += added
            since.gone |= positions
        self._soon.add(row for row in added if row[1] >= self.follower.floor)
        self._soon.remove(positions)
        self._found -= positions
        self._serve()

    def drop_below(self, position: int) -> None:
        """No row of a record below it counts any more, in the applied state and ever after."""
        self.follower.raise_floor(position)
        self.follower.clean()

    # ---------------------------------------------------------------- questions

    @property
    def tail_rows(self) -> int:
        """How many rows, added or gone, are in memory because the file does not know of them yet."""
        return len(self._tail)

    @property
    def lag_bytes(self) -> int:
        """How much of the applied log the file does not know."""
        return max(0, self._replica.applied_position - max(self.follower.position, self._replica.log.first_position))

    def is_pending(self, position: int) -> bool:
        """Whether the row of a record, handed out by `due` or the last `find`, is still pending in the applied state.

        Also false if it is not known any more: it is handed out again.
        """
        return position >= self.follower.floor and (self._soon.is_pending(position) or position in self._found)

    def due(self, before_ms: int, limit: int, done: Callable[[Sequence[Row]], None]) -> None:
        """Some of the rows that are due before a time, at most `limit`, lowest first; later, once the index has reached
        what is applied.

        Each call goes on behind the rows of the one before.  One that gets none has come to what is not due: the next
        begins with the lowest again.
        """
        self._asked.append((before_ms, limit, done))
        self._serve()

    def set_aside(self, position: int) -> None:
        """Hand out the row of a record no more: it cannot be read."""
        self._soon.set_aside(position)

    def take_back(self) -> None:
        """Hand out again what was set aside."""
        if self._soon.take_back():
            self._serve()

    def find(self, below: int, behind: Key | None, done: Callable[[Slice | BaseException], None]) -> None:
        """Rows of records below a position, in a slice of the index that begins behind a key (None: the first one)."""
        self._hold(partial(self._find, below, LOWEST if behind is None else behind, done))

    def pending(self, keys: Sequence[Key], done: Callable[[set[Key] | BaseException], None]) -> None:
        """Which of some rows that were added before are pending."""
        self._hold(partial(self._pending, tuple(keys), done))

    # ---------------------------------------------------------------- what the follower tells

    def progressed(self) -> None:
        """See `Told.progressed`."""
        self._serve()

    def void_answers(self) -> None:
        """See `Told.void_answers`."""
        self._answers += 1
        self._soon.start_over()
        self._found.clear()

    def floor_raised(self, position: int) -> None:
        """See `Told.floor_raised`."""
        self._soon.drop_below(position)

    # ---------------------------------------------------------------- inside

    def _hold(self, ask: Callable[[], None]) -> None:
        self._held.append(ask)
        self._serve()

    def _serve(self) -> None:
        """Answer what can be answered."""
        if not self.follower.reached:
            return
        held, self._held = self._held, []
        for ask in held:
            ask()
        while self._asked:
            before_ms, limit, done = self._asked[0]
            rows = self._soon.take(before_ms, limit)
            if rows is None:
                break
            self._asked.popleft()
            self._env.call_soon(partial(done, rows))
        if self._soon.short:
            self._refill()

    def _refill(self) -> None:
        behind = self._soon.horizon
        if self._refilling or behind is None:
            return
        self._refilling = True
        work = partial(self._next_rows, behind, self._soon.wanted, self.follower.floor)
        self._ask(work, partial(self._refilled, behind), self._refill_failed)

    def _next_rows(
        self, behind: Key, limit: int, floor: int, tail: Sequence[RowChanges]
    ) -> tuple[Sequence[Row], Key | None]:
        """A worker's: what comes next behind a key, and up to which key that is everything; None: up to the end."""
        rows = self._file.next_rows(behind, limit, floor)
        horizon = rows[-1][:2] if len(rows) == limit else None
        found = laid_over(rows, tail, behind, horizon)
        if len(found) > limit:
            found = found[:limit]
            horizon = found[-1][:2]
        return found, horizon

    def _refilled(self, behind: Key, since: _Since, result: tuple[Sequence[Row], Key | None]) -> None:
        self._refilling = False
        rows, horizon = result
        if self._soon.horizon == behind:
            self._soon.extend(self._up_to_now(rows, since, behind, horizon), horizon)
        self._serve()

    def _refill_failed(self, error: BaseException | None) -> None:
        self._refilling = False
        if error is None:
            self._serve()
        else:
            self.follower.failed(error)

    def _up_to_now(self, rows: Sequence[Row], since: _Since, behind: Key, up_to: Key | None) -> list[Row]:
        """What a worker found in a range of keys, with what changed meanwhile."""
        change = RowChanges(since.added, [(0, position) for position in since.gone])
        return [row for row in laid_over(rows, (change,), behind, up_to) if row.position >= self.follower.floor]

    def _find(self, below: int, behind: Key, done: Callable[[Slice | BaseException], None]) -> None:
        work = partial(self._rows_between, self.follower.floor, below, behind)
        failed = partial(self._failed, partial(self.find, below, behind, done), done)
        self._ask(work, partial(self._rows_found, below, behind, done), failed)

    def _rows_between(self, floor: int, below: int, behind: Key, tail: Sequence[RowChanges]) -> Slice:
        """A worker's."""
        found = self._file.rows_between(floor, below, behind)
        rows = laid_over(found.rows, tail, behind, found.resume)
        return Slice([row for row in rows if floor <= row.position < below], found.resume)

    def _rows_found(
        self, below: int, behind: Key, done: Callable[[Slice | BaseException], None], since: _Since, result: Slice
    ) -> None:
        now = self._up_to_now(result.rows, since, behind, result.resume)
        rows = [row for row in now if row.position < below]
        self._found = {row.position for row in rows}
        done(Slice(rows, result.resume))

    def _pending(self, keys: Sequence[Key], done: Callable[[set[Key] | BaseException], None]) -> None:
        failed = partial(self._failed, partial(self.pending, keys, done), done)
        self._ask(partial(self._rows_held, keys), partial(self._rows_known, done), failed)

    def _rows_held(self, keys: Sequence[Key], tail: Sequence[RowChanges]) -> set[Key]:
        """A worker's."""
        wanted, positions = set(keys), {position for _, position in keys}
        held = {key for key in keys if self._file.holds(key)}
        for change in tail:
            held.update(added[:2] for added in change.added if added[:2] in wanted)
        gone = {position for change in tail for _, position in change.gone if position in positions}
        return {key for key in held if key[1] not in gone}

    def _rows_known(self, done: Callable[[set[Key] | BaseException], None], since: _Since, held: set[Key]) -> None:
        done({key for key in held if key[1] >= self.follower.floor and key[1] not in since.gone})

    @staticmethod
    def _failed(again: Callable[[], None], done: Callable[[BaseException], None], error: BaseException | None) -> None:
        if error is None:
            again()
        else:
            done(error)

    def _ask(
        self,
        work: Callable[[Sequence[RowChanges]], T],
        done: Callable[[_Since, T], None],
        failed: Callable[[BaseException | None], None],
    ) -> None:
        """Have a worker look into the file and what memory has now; `done` also gets what changed meanwhile.

        `failed` gets the error, or None if all that was known was thrown away meanwhile.
        """
        since, answers = _Since(), self._answers
        self._open.append(since)

        def answered(result: T | BaseException) -> None:
            self._open.remove(since)
            if answers != self._answers:
                failed(None)
            elif isinstance(result, BaseException):
                failed(result)
            else:
                done(since, result)

        self._worker.submit(partial(work, self._tail.all()), answered)

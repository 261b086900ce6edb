"""Buffer for commits of consumer offsets: collects them for a while, then proposes a single command for all groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from dledger.environment import Environment
from dledger.errors import BusyError, LogError, NotLeaderError
from dledger_broker.features.offsets.recent_commits import Committer, Key, RecentCommit
from dledger_broker.features.offsets.table import CommitOffsets
from dledger_broker.kernel.commands import MAX_OFFSETS_PER_COMMAND, Command
from dledger_broker.kernel.contexts import Done


class _Flight:
    """Batch of commits that is proposed and not yet applied."""

    __slots__ = ("offsets", "waiters")

    def __init__(self, offsets: dict[Key, RecentCommit], waiters: list[Done]) -> None:
        self.offsets = offsets
        self.waiters = waiters


class OffsetBuffer:
    """Buffer for the commits that the leader took in the last moments.

    A commit is proposed within `delay_ms`. Until then, later commits of the same queue replace it. A caller that waits
    is answered once its batch is applied. If the log is busy, the batch waits for another `delay_ms`. On any other
    refusal the batch is dropped, and its waiters get the error.
    """

    def __init__(self, env: Environment, propose: Callable[[Command, Done], None], delay_ms: int) -> None:
        self._env = env
        self._propose = propose
        self._delay_s = delay_ms / 1000
        self._offsets: dict[Key, RecentCommit] = {}
        self._waiters: list[Done] = []
        self._flights: list[_Flight] = []
        self._timer_armed = False

    def commit(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        done: Done | None = None,
        committer: Committer | None = None,
    ) -> None:
        """Take a commit. `done`, if given, is called when the commit is applied."""
        self._offsets[group, topic, queue_id] = RecentCommit(offset, committer, self._env.now())
        if done is not None:
            self._waiters.append(done)
        self._arm()

    def pending(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the newest offset of a queue that is taken and not yet applied, or None."""
        commit = self.under_way((group, topic, queue_id))
        return commit[-1].offset if commit else None

    def under_way(self, key: Key) -> tuple[RecentCommit, ...]:
        """Return the commits of a queue that are taken and not yet applied, oldest first."""
        batches = [flight.offsets for flight in self._flights]
        return tuple(batch[key] for batch in (*batches, self._offsets) if key in batch)

    @property
    def collected(self) -> int:
        """Number of commits that are not proposed yet."""
        return len(self._offsets)

    def flush(self, done: Done, key: Key | None = None) -> None:
        """Propose what is buffered. `done` is called when every commit taken before this call is applied.

        With `key`, (group, topic, queue id), only commits of that queue are waited for. Without any commit to wait for,
        `done` is called at once.
        """
        if key in self._offsets or (key is None and self._offsets):
            self._waiters.append(done)
            self._send()
            return
        flights = [flight for flight in self._flights if key is None or key in flight.offsets]
        if flights:
            flights[-1].waiters.append(done)
        else:
            done(None)

    def fence(self, keys: Iterable[Key]) -> None:
        """Ensure that the log has no commit taken so far of these queues behind the caller's next proposal.

        Buffered commits are proposed now. Commits of these queues that the log refuses because it is busy are not
        proposed again.
        """
        if self._offsets:
            self._send()
        keys = set(keys)
        for batch in (self._offsets, *(flight.offsets for flight in self._flights)):
            for key in keys & batch.keys():
                del batch[key]
        if not self._offsets:  # If commits are left, the timer proposes them and answers these waiters.
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                waiter(BusyError("the queue is being reset"))

    def discard(self, error: NotLeaderError) -> None:
        """Drop what is buffered, because this replica no longer leads. The waiters get the error."""
        waiters, self._waiters = self._waiters, []
        self._offsets.clear()
        for waiter in waiters:
            waiter(error)

    def _arm(self) -> None:
        if not self._timer_armed:
            self._timer_armed = True
            self._env.call_later(self._delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_armed = False
        if self._offsets:
            self._send()

    def _send(self) -> None:
        flight = _Flight(self._offsets, self._waiters)
        self._offsets, self._waiters = {}, []
        self._flights.append(flight)
        rows = list(flight.offsets.items())
        starts = range(0, len(rows), MAX_OFFSETS_PER_COMMAND)
        for start in starts[:-1]:
            outcomes: list[LogError | None] = []
            self._propose(_command(rows[start : start + MAX_OFFSETS_PER_COMMAND]), outcomes.append)
            if outcomes and outcomes[0] is not None:  # The log refused these rows. Do not propose the next rows either.
                self._on_outcome(flight, outcomes[0])
                return
        self._propose(_command(rows[starts[-1] :]), partial(self._on_outcome, flight))

    def _on_outcome(self, flight: _Flight, error: LogError | None) -> None:
        self._flights.remove(flight)
        if isinstance(error, BusyError) and flight.offsets:
            self._offsets = {**flight.offsets, **self._offsets}
            self._waiters = [*flight.waiters, *self._waiters]
            self._arm()
            return
        for waiter in flight.waiters:
            waiter(error)


def _command(rows: list[tuple[Key, RecentCommit]]) -> CommitOffsets:
    """Return a command with these commits and their committers, each committer listed once."""
    numbers: dict[Committer, int] = {}
    by = tuple(
        -1 if commit.committer is None else numbers.setdefault(commit.committer, len(numbers)) for _, commit in rows
    )
    return CommitOffsets(tuple((*key, commit.offset) for key, commit in rows), tuple(numbers), by)

"""The leader's memory of resets: those in flight, and which consumers know of one.

A consumer that has not seen a reset must not undo it:

1. a consumer has read up to 500, and its commits of 480 and 500 are on their way; 2. the group is reset to 100;
3. the commits arrive. They have no effect, as long as the reset is pending.
4. The consumer pulls, and is told to go on at 100. It drops what it has, and pulls there: its commits on this
   connection come in order, so all that follow rest on the reset. Now it is seen.
5. A commit of 500 arrives that another node has held up, or from the member that had the queue before, perhaps over a
   connection that has sent no heartbeat yet and so belongs to nobody known. For `LATE_COMMIT_S` commits are taken only
   from who has seen the reset, or has asked for the offset since, or is known and no member.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from dledger.environment import Environment
from dledger.errors import LogError, NotLeaderError
from dledger_broker.config import BrokerConfig
from dledger_broker.features.offsets.buffer import OffsetBuffer
from dledger_broker.features.offsets.recent_commits import Committer, Key
from dledger_broker.features.resets.table import NAME, RESETS, Pending, ResetOffsets, ResetRow, ResetTable, SeeReset
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.requests import Origin, Request
from dledger_broker.kernel.state import BrokerState
from dledger_remoting.errors import InvalidParameter, SystemBusy

MAX_ROWS: Final = 500
"""Queues of one command: with the longest names within the smallest segment."""


class ResetChanges:
    """Proposes resets, and what was seen of them; says which commits count. Each `done` is called once."""

    def __init__(
        self,
        machine: BrokerMachine,
        env: Environment,
        config: BrokerConfig,
        counters: BrokerCounters,
        commits: OffsetBuffer,
        is_member: Callable[[str, Origin], bool],
    ) -> None:
        self.table: ResetTable
        self._machine = machine
        self._env = env
        self._limit = config.max_pending_resets
        self._counters = counters
        self._commits = commits
        self._is_member = is_member
        self._in_flight: Counter[Key] = Counter()
        self._being_seen: set[tuple[Key, int]] = set()
        self._told: dict[Key, tuple[int, set[str]]] = {}
        """Who was told of the reset with this number: channels, and the clients behind them."""
        machine.on_state(self._keep_table)
        machine.on_unready.append(self._forget)

    def _keep_table(self, state: BrokerState) -> None:
        self.table = state.table(RESETS)

    def _forget(self, _error: NotLeaderError) -> None:
        self._told.clear()

    # ---------------------------------------------------------------- proposals

    def require_room(self, group: str, rows: Iterable[ResetRow]) -> None:
        """Raise `InvalidParameter` if one of these queues is one too many that is reset and not seen."""
        pending = self.table.pending
        wanted = {(group, row.topic, row.queue_id) for row in rows}
        if len(pending) + sum(key not in pending for key in self._in_flight.keys() | wanted) > self._limit:
            self._counters.max_pending_resets += 1
            raise InvalidParameter(
                f"{len(pending)} queues of groups are reset where no consumer has seen it, and the limit "
                f"max_pending_resets is {self._limit}: delete groups that nobody uses, or raise it"
            )

    def reset(self, group: str, rows: Sequence[ResetRow], done: Done) -> None:
        """Have a group go on elsewhere in some queues, at least one; done when all of it is applied."""
        keys = [(group, row.topic, row.queue_id) for row in rows]
        self._commits.fence(keys)
        parts = [rows[begin : begin + MAX_ROWS] for begin in range(0, len(rows), MAX_ROWS)]
        outcomes: list[LogError | None] = []

        def finished(error: LogError | None) -> None:
            outcomes.append(error)
            if len(outcomes) == len(parts):
                self._in_flight -= Counter(keys)
                done(next(filter(None, outcomes), None))

        self._in_flight += Counter(keys)
        for part in parts:
            self._propose(ResetOffsets(group, tuple(part)), finished)

    def _see(self, key: Key, pending: Pending, by: Committer) -> None:
        this = (key, pending.number)
        if this in self._being_seen:
            return
        self._being_seen.add(this)

        def finished(_error: LogError | None) -> None:
            self._being_seen.discard(this)

        self._propose(SeeReset(*key, pending.number, by), finished)

    def _propose(self, command: Command, done: Done) -> None:
        try:
            privileged = self._machine.overlay.may_use_reserve
        except NotLeaderError as error:
            done(error)
            return
        self._machine.stage_command(command, done, privileged=privileged)

    # ---------------------------------------------------------------- what consumers know

    def tell(self, key: Key, origin: Origin) -> int | None:
        """Who asks is told where a group goes on: where a reset says, None if none is pending."""
        if not self._machine.is_active(NAME):
            return None
        pending, seen = self.table.pending.get(key), self.table.seen(key, self._env.now())
        number = pending.number if pending is not None else None if seen is None else seen.number
        if number is None:
            self._told.pop(key, None)
            return None
        if self._told.get(key, (None,))[0] != number:
            self._told[key] = (number, set())
        self._told[key][1].update((origin.key, *origin.client_ids))
        return None if pending is None else pending.offset

    def has_seen(self, key: Key, pending: Pending, origin: Origin, offset: int) -> bool:
        """Whether a pull at an offset shows that its consumer has seen a reset, of which it was told before.

        It may pull from another node than it commits and asks through. Its next pulls may come before it is applied
        that it has: sent back once more, it would get everything from there on twice.
        """
        told = self._told.get(key)
        if told is None or told[0] != pending.number or told[1].isdisjoint((origin.key, *origin.client_ids)):
            return False
        if (key, pending.number) in self._being_seen:
            return True
        if offset != pending.offset:
            return False
        self._see(key, pending, committer(origin))
        return True

    def _knows(self, key: Key, number: int, origin: Origin) -> bool:
        told = self._told.get(key)
        return told is not None and told[0] == number and origin.key in told[1]

    def admits(self, request: Request, key: Key) -> bool:
        """Whether a commit counts; False if a pending reset takes its place.

        Raises `SystemBusy` if it may rest on what was read before a reset, and its consumer is to commit again.
        """
        if key in self._in_flight:
            raise SystemBusy("the group is being reset here: go on where it says, and commit again")
        pending = self.table.pending.get(key)
        origin = request.origin
        if pending is not None and (key, pending.number) not in self._being_seen:
            return False
        if pending is not None:
            if self._knows(key, pending.number, origin):
                return True
            raise SystemBusy("a consumer is about to go on where the group was reset to: commit again")
        seen = self.table.seen(key, self._env.now())
        if seen is None or self._knows(key, seen.number, origin):
            return True
        by = committer(origin)
        if by.channel == seen.by.channel:
            return True
        # A connection that has sent no heartbeat yet may be a member's, whatever address it comes from.
        is_known = bool(by.clients) and not request.took_a_detour
        if is_known and (not set(by.clients).isdisjoint(seen.by.clients) or not self._is_member(key[0], origin)):
            return True
        raise SystemBusy("the group was reset here, which the sender has not seen: ask where it is, and commit again")


def committer(origin: Origin) -> Committer:
    """Who commits over a channel."""
    return Committer.of(origin.key, origin.client_ids, origin.address.ip)

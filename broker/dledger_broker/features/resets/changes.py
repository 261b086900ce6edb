"""Memory of the leader's resets: resets in flight, and the consumers that know of a reset.

A consumer that has not seen a reset must not undo it:

1. A consumer has read up to 500. Its commits of 480 and 500 are on their way.
2. The group is reset to 100.
3. The commits arrive. They have no effect while the reset is pending.
4. The consumer pulls, is sent to 100, drops its messages, and pulls at 100. Commits on this connection arrive in order,
   so all later commits are based on the reset. Now the reset is seen.
5. A commit of 500 arrives late. Another node has held it up, or the previous owner of the queue sent it. Its connection
   may have sent no heartbeat yet, so that its client is unknown.

So for `LATE_COMMIT_S` after that, only these clients may commit:

- Clients that have seen the reset.
- Clients that have fetched the offset since.
- Known clients outside the group.
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
"""Maximum number of queues of one command. With the longest names they fit into the smallest segment."""


class ResetChanges:
    """Proposer of resets and of their sightings, and judge of commits. Each `done` is called once."""

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
        self._sightings_in_flight: set[tuple[Key, int]] = set()
        self._notified: dict[Key, tuple[int, set[str]]] = {}
        """Number of a queue's reset, with the channels and clients that were notified of it."""
        machine.on_state(self._keep_table)

    def _keep_table(self, state: BrokerState) -> None:
        self.table = state.table(RESETS)

    def forget_notified(self) -> None:
        """Forget who was notified, because another node may lead."""
        self._notified.clear()

    # ---------------------------------------------------------------- proposals

    def require_room(self, group: str, rows: Iterable[ResetRow]) -> None:
        """Raise `InvalidParameter` if these queues exceed the limit of queues with unseen resets."""
        pending = self.table.pending
        keys = {(group, row.topic, row.queue_id) for row in rows}
        if len(pending) + sum(key not in pending for key in self._in_flight.keys() | keys) > self._limit:
            self._counters.max_pending_resets += 1
            raise InvalidParameter(
                f"{len(pending)} queues of groups are reset where no consumer has seen it, and the limit "
                f"max_pending_resets is {self._limit}: delete groups that nobody uses, or raise it"
            )

    def reset(self, group: str, rows: Sequence[ResetRow], done: Done) -> None:
        """Have a group continue at other offsets in one or more queues. `done` is called when all are applied, or
        with the first error.
        """
        keys = [(group, row.topic, row.queue_id) for row in rows]
        self._commits.fence(keys)
        parts = [rows[begin : begin + MAX_ROWS] for begin in range(0, len(rows), MAX_ROWS)]
        remaining = iter(parts)
        applied = 0

        def propose_next() -> None:
            self._propose(ResetOffsets(group, tuple(next(remaining))), on_applied)

        def on_applied(error: LogError | None) -> None:
            nonlocal applied
            applied += 1
            if error is None and applied < len(parts):
                # A node applies entries that are committed together in one turn, so propose the commands one after the
                # other.
                self._env.call_soon(propose_next)
                return
            self._in_flight -= Counter(keys)
            for tell in self._machine.events.group_reset:
                tell()
            done(error)

        self._in_flight += Counter(keys)
        propose_next()

    def _propose_sighting(self, key: Key, pending: Pending, observer: Committer) -> None:
        sighting = (key, pending.number)
        if sighting in self._sightings_in_flight:
            return
        self._sightings_in_flight.add(sighting)

        def on_applied(_error: LogError | None) -> None:
            self._sightings_in_flight.discard(sighting)

        self._propose(SeeReset(*key, pending.number, observer), on_applied)

    def _propose(self, command: Command, done: Done) -> None:
        try:
            privileged = self._machine.overlay.may_use_reserve
        except NotLeaderError as error:
            done(error)
            return
        self._machine.stage_command(command, done, privileged=privileged)

    # ---------------------------------------------------------------- what consumers know

    def tell(self, key: Key, origin: Origin) -> int | None:
        """Return the offset of a pending reset, or None. Note that the client knows of the reset.

        A client that asks after the reset was seen knows of it as well.
        """
        if not self._machine.is_active(NAME):
            return None
        pending, seen = self.table.pending.get(key), self.table.seen(key, self._env.now())
        number = pending.number if pending is not None else None if seen is None else seen.number
        if number is None:
            self._notified.pop(key, None)
            return None
        if self._notified.get(key, (None,))[0] != number:
            self._notified[key] = (number, set())
        self._notified[key][1].update((origin.key, *origin.client_ids))
        return None if pending is None else pending.offset

    def has_seen(self, key: Key, pending: Pending, origin: Origin, offset: int) -> bool:
        """Return whether a pull at an offset shows that its consumer has seen a reset of which it was notified.

        The consumer may pull from another node than it commits through. Its next pulls may arrive before the sighting
        is applied. Sent back again, it would get every message from there on twice.
        """
        notified = self._notified.get(key)
        if (
            notified is None
            or notified[0] != pending.number
            or notified[1].isdisjoint((origin.key, *origin.client_ids))
        ):
            return False
        if (key, pending.number) in self._sightings_in_flight:
            return True
        if offset != pending.offset:
            return False
        self._propose_sighting(key, pending, committer(origin))
        return True

    def _was_notified(self, key: Key, number: int, origin: Origin) -> bool:
        notified = self._notified.get(key)
        return notified is not None and notified[0] == number and origin.key in notified[1]

    def admits(self, request: Request, key: Key) -> bool:
        """Return whether a commit counts, or False if a pending reset takes its place.

        Raises `SystemBusy` if the commit may rest on messages read before a reset. Its consumer is to commit again.
        """
        if key in self._in_flight:
            raise SystemBusy("the group is being reset here: go on where it says, and commit again")
        pending = self.table.pending.get(key)
        origin = request.origin
        if pending is not None and (key, pending.number) not in self._sightings_in_flight:
            return False
        if pending is not None:
            if self._was_notified(key, pending.number, origin):
                return True
            raise SystemBusy("a consumer is about to go on where the group was reset to: commit again")
        sighting = self.table.seen(key, self._env.now())
        if sighting is None or self._was_notified(key, sighting.number, origin):
            return True
        sender = committer(origin)
        if sender.channel == sighting.by.channel:
            return True
        # A connection without a heartbeat so far may belong to a member, from any address.
        is_known = bool(sender.clients) and not request.is_rerouted
        if is_known and (
            not set(sender.clients).isdisjoint(sighting.by.clients) or not self._is_member(key[0], origin)
        ):
            return True
        raise SystemBusy("the group was reset here, which the sender has not seen: ask where it is, and commit again")


def committer(origin: Origin) -> Committer:
    """Return the committer behind a channel."""
    return Committer.of(origin.key, origin.client_ids, origin.address.ip)

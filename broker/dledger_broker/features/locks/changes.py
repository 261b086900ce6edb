"""The leader's overlay of locks: changes that are proposed and not yet applied, and what follows for leases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dledger.environment import Environment
from dledger.errors import LogError
from dledger_broker.features.locks.leases import Leases
from dledger_broker.features.locks.table import (
    LOCKS,
    DeleteLocks,
    DeleteRow,
    LockKey,
    LockTable,
    Owner,
    PutLocks,
    PutRow,
)
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.state import BrokerState


@dataclass(eq=False, slots=True)
class _Change:
    """What is in flight for some queues: who owns them once it is applied. Those in `made` had no owner before."""

    keys: Sequence[LockKey]
    owner: Owner | None
    made: Sequence[LockKey]


class LockChanges:
    """Proposes changes of locks, with those in flight in mind. Each `done` is called once, see `Overlay`.

    Nobody but a ready leader changes locks, and its changes are applied in the order in which they were proposed: what
    each of them will find is known when it is proposed.
    """

    def __init__(self, machine: BrokerMachine, env: Environment, leases: Leases) -> None:
        self.leases = leases
        self.table: LockTable
        self._machine = machine
        self._env = env
        self._in_flight: dict[LockKey, list[_Change]] = {}
        self._made: Counter[str] = Counter()
        machine.on_state(self._keep_table)

    def _keep_table(self, state: BrokerState) -> None:
        self.table = state.table(LOCKS)

    # ---------------------------------------------------------------- who has what, when all is applied

    def owner(self, key: LockKey) -> Owner | None:
        """Who has a queue once everything in flight is applied."""
        changes = self._in_flight.get(key)
        return changes[-1].owner if changes else self.table.owner(key)

    def count(self, group: str) -> int:
        """How many locks a group has then, at most."""
        return len(self.table.of_group(group)) + self._made[group]

    def owned(self, group: str, owner: Owner) -> list[LockKey]:
        """What a member of a group has then."""
        changing = [key for key in self._in_flight if key.group == group]
        keys = dict.fromkeys([*self.table.of_group(group), *changing])
        return [key for key in keys if self.owner(key) == owner]

    def is_granted(self, key: LockKey, owner: Owner) -> bool:
        """True if `owner` has a queue, by what is applied, and has not given it up meanwhile."""
        return self.table.owner(key) == owner == self.owner(key)

    def holds_any(self, group: str) -> bool:
        """True while a member of a group may believe in one of its locks, by what is applied."""
        now = self._env.now()
        return any(self.leases.runs(key, owner, now) for key, owner in self.table.of_group(group).items())

    # ---------------------------------------------------------------- decisions

    def renew(self, key: LockKey, owner: Owner, channel: str) -> bool:
        """Extend a lease at once, if that is all that a request needs: the lock is its own, and runs.

        A lock with changes in flight is acquired instead, behind them: they may end it.
        """
        now = self._env.now()
        if key in self._in_flight or self.table.owner(key) != owner or not self.leases.runs(key, owner, now):
            return False
        self.leases.extend(key, owner, channel, now, is_owned=True)
        return True

    def may_acquire(self, key: LockKey, owner: Owner) -> bool:
        """True if nobody else has a queue, or its owner has not renewed in time."""
        present = self.owner(key)
        if present is None or present == owner:
            return True
        return not self.leases.runs(key, present, self._env.now())

    def acquire(self, group: str, keys: Sequence[LockKey], owner: Owner, channel: str, done: Done) -> None:
        """Have a member of a group own queues that it may acquire. Leases begin now, whenever it is applied."""
        now = self._env.now()
        before = [self.owner(key) for key in keys]
        rows = tuple(PutRow(key.topic, key.queue_id, expected) for key, expected in zip(keys, before, strict=True))
        if self._stage(PutLocks(group, owner, rows), keys, owner, done):
            for key, expected in zip(keys, before, strict=True):
                self.leases.extend(key, owner, channel, now, is_owned=expected == owner)

    def release(self, keys: Iterable[LockKey], owner: Owner, channel: str, done: Done) -> None:
        """End those locks of a client whose release over this channel counts; `done` at once if there are none."""
        now = self._env.now()
        ended = [
            key
            for key in dict.fromkeys(keys)
            if self.owner(key) == owner and self.leases.may_release(key, owner, channel, now)
        ]
        if ended:
            self._delete([(key, owner) for key in ended], done, None)
        else:
            done(None)

    def expired(self) -> list[tuple[LockKey, Owner]]:
        """Locks whose leases are over and that nothing is in flight for."""
        now = self._env.now()
        return [
            (key, owner)
            for key, owner in self.table
            if key not in self._in_flight and not self.leases.runs(key, owner, now)
        ]

    def end(self, locks: Sequence[tuple[LockKey, Owner]], handle: JobHandle, done: Done) -> None:
        """End locks whose leases are over, for a job."""
        self._delete(locks, done, handle)

    # ---------------------------------------------------------------- proposals

    def _delete(self, locks: Sequence[tuple[LockKey, Owner]], done: Done, by: JobHandle | None) -> None:
        command = DeleteLocks(tuple(DeleteRow(*key, owner) for key, owner in locks))
        self._stage(command, [key for key, _ in locks], None, done, by)

    def _stage(
        self, command: Command, keys: Sequence[LockKey], owner: Owner | None, done: Done, by: JobHandle | None = None
    ) -> bool:
        """Propose what gives these queues to `owner`; False if it was not proposed, and `done` knows that."""
        made = [key for key in keys if owner is not None and self.owner(key) is None]
        change = _Change(keys, owner, made)
        for key in keys:
            self._in_flight.setdefault(key, []).append(change)
        self._made.update(key.group for key in made)

        def finished(error: LogError | None) -> None:
            self._end(change)
            done(error)

        try:
            privileged = self._machine.overlay.may_use_reserve
            (by or self._machine).stage_command(command, finished, privileged=privileged)
        except BaseException:
            self._end(change)  # or nobody could ever take these queues
            raise
        return change in self._in_flight.get(keys[0], ())

    def _end(self, change: _Change) -> None:
        for key in change.keys:
            changes = self._in_flight[key]
            changes.remove(change)
            if not changes:
                del self._in_flight[key]
            if self.owner(key) is None:
                self.leases.forget(key)
        self._made.subtract(key.group for key in change.made)
        self._made = +self._made

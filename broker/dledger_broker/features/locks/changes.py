"""Overlay of queue locks on the leader: changes that are proposed and not yet applied, and their effect on leases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dledger.environment import Environment
from dledger.errors import LogError
from dledger_broker.features.locks.leases import Leases, ReleaseHistory, RequestNumber
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
    """Change in flight for some queues: their owner once it is applied, None for nobody.

    The queues in `unowned` have no owner before the change.
    """

    keys: Sequence[LockKey]
    owner: Owner | None
    unowned: Sequence[LockKey]


class LockChanges:
    """Proposer of changes of locks. Each `done` is called once, see `Overlay`.

    Only a ready leader changes locks, and its changes are applied in the order of proposal. So the leader knows in
    advance which owners each change will find.
    """

    def __init__(self, machine: BrokerMachine, env: Environment, leases: Leases) -> None:
        self.leases = leases
        self.table: LockTable
        self._releases = ReleaseHistory()
        self._machine = machine
        self._env = env
        self._in_flight: dict[LockKey, list[_Change]] = {}
        self._new_locks: Counter[str] = Counter()
        machine.on_state(self._keep_table)

    def _keep_table(self, state: BrokerState) -> None:
        self.table = state.table(LOCKS)

    # ---------------------------------------------------------------- owners after all changes in flight

    def owner(self, key: LockKey) -> Owner | None:
        """Return the owner of a queue once everything in flight is applied, None for nobody."""
        changes = self._in_flight.get(key)
        return changes[-1].owner if changes else self.table.owner(key)

    def count(self, group: str) -> int:
        """Return the maximum number of locks that a group has once everything in flight is applied."""
        return len(self.table.of_group(group)) + self._new_locks[group]

    def owned(self, group: str, owner: Owner) -> list[LockKey]:
        """Return the locks that a member of a group has once everything in flight is applied."""
        changing = [key for key in self._in_flight if key.group == group]
        keys = dict.fromkeys([*self.table.of_group(group), *changing])
        return [key for key in keys if self.owner(key) == owner]

    def is_granted(self, key: LockKey, owner: Owner) -> bool:
        """Return whether `owner` has a queue by the applied state, and no change in flight takes the queue away."""
        return self.table.owner(key) == owner == self.owner(key)

    def holds_any(self, group: str) -> bool:
        """Return whether a member of a group may believe in one of its locks, by the applied state."""
        now = self._env.now()
        return any(self.leases.runs(key, owner, now) for key, owner in self.table.of_group(group).items())

    # ---------------------------------------------------------------- decisions

    def is_released(self, key: LockKey, owner: Owner, number: RequestNumber | None) -> bool:
        """Return whether a request for a lock is late: its client has given the lock up since."""
        return self._releases.is_released(key, owner, number)

    def renew(self, key: LockKey, owner: Owner, channel: str, number: RequestNumber | None) -> bool:
        """Extend a lease at once and return True, if its client owns the lock and the lease runs.

        Returns False for a lock with changes in flight, because they may end it. The request must acquire it after
        them.
        """
        now = self._env.now()
        if key in self._in_flight or self.table.owner(key) != owner or not self.leases.runs(key, owner, now):
            return False
        self.leases.extend(key, owner, channel, now, number, is_owned=True)
        return True

    def may_acquire(self, key: LockKey, owner: Owner) -> bool:
        """Return whether a client may acquire a queue: no other client owns it, or that owner's lease has expired."""
        current = self.owner(key)
        if current is None or current == owner:
            return True
        return not self.leases.runs(key, current, self._env.now())

    def acquire(
        self, group: str, keys: Sequence[LockKey], owner: Owner, channel: str, number: RequestNumber | None, done: Done
    ) -> None:
        """Give a member of a group queues that it may acquire. Leases run from now, whenever the command is applied."""
        now = self._env.now()
        owners = [self.owner(key) for key in keys]
        rows = tuple(PutRow(key.topic, key.queue_id, expected) for key, expected in zip(keys, owners, strict=True))
        if self._stage(PutLocks(group, owner, rows), keys, owner, done):
            for key, expected in zip(keys, owners, strict=True):
                self.leases.extend(key, owner, channel, now, number, is_owned=expected == owner)

    def release(
        self, keys: Iterable[LockKey], owner: Owner, channel: str, number: RequestNumber | None, done: Done
    ) -> None:
        """End the locks of a client that this release may end. Call `done` at once if the release ends no lock."""
        now = self._env.now()
        unique_keys = list(dict.fromkeys(keys))
        if number is not None:
            for key in unique_keys:
                self._releases.note(key, owner, number, now)
        ended = [
            key
            for key in unique_keys
            if self.owner(key) == owner and self.leases.may_release(key, owner, channel, now, number)
        ]
        if ended:
            self._delete([(key, owner) for key in ended], done, None)
        else:
            done(None)

    def expired(self) -> list[tuple[LockKey, Owner]]:
        """Return the locks whose leases have expired and for which nothing is in flight."""
        now = self._env.now()
        return [
            (key, owner)
            for key, owner in self.table
            if key not in self._in_flight and not self.leases.runs(key, owner, now)
        ]

    def end(self, locks: Sequence[tuple[LockKey, Owner]], handle: JobHandle, done: Done) -> None:
        """End locks whose leases have expired, for a job."""
        self._delete(locks, done, handle)

    # ---------------------------------------------------------------- proposals

    def _delete(self, locks: Sequence[tuple[LockKey, Owner]], done: Done, handle: JobHandle | None) -> None:
        command = DeleteLocks(tuple(DeleteRow(*key, owner) for key, owner in locks))
        self._stage(command, [key for key, _ in locks], None, done, handle)

    def _stage(
        self,
        command: Command,
        keys: Sequence[LockKey],
        owner: Owner | None,
        done: Done,
        handle: JobHandle | None = None,
    ) -> bool:
        """Propose a command that gives these queues to `owner`.

        Returns False if the command was refused; `done` has then been called.
        """
        unowned = [key for key in keys if owner is not None and self.owner(key) is None]
        change = _Change(keys, owner, unowned)
        for key in keys:
            self._in_flight.setdefault(key, []).append(change)
        self._new_locks.update(key.group for key in unowned)

        def on_applied(error: LogError | None) -> None:
            self._end(change)
            done(error)

        try:
            privileged = self._machine.overlay.may_use_reserve
            (handle or self._machine).stage_command(command, on_applied, privileged=privileged)
        except BaseException:
            self._end(change)  # otherwise the change would stay in flight, and nobody could ever acquire these queues
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
        self._new_locks.subtract(key.group for key in change.unowned)
        self._new_locks = +self._new_locks

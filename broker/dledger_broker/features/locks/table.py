"""Table of queue locks: the member of a consumer group that owns each locked queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from dledger.statemachine import CommittedEntry
from dledger_broker.kernel.commands import Command, Kinds
from dledger_broker.kernel.digest import MASK, item_hash
from dledger_broker.kernel.tables import Changes, Frame, Table, TableKey, in_slices

NAME: Final = "locks"
"""Name of the feature. It must never change, because the log records it when the feature is activated."""


class Owner(NamedTuple):
    """Client, identified by its account and the client id that it chose. The account is "" for a client without an
    account.
    """

    account: str
    client_id: str


class LockKey(NamedTuple):
    """Key of a lock: a consumer group and a queue. Both may have been deleted since."""

    group: str
    topic: str
    queue_id: int


class PutRow(NamedTuple):
    """Row of `PutLocks`: the lock changes hands only if `expected` owns it then; None means that nobody does."""

    topic: str
    queue_id: int
    expected: Owner | None


class PutLocks(msgspec.Struct, frozen=True):
    """Command that gives locks to `owner`. A lock in another state than its row expects is unchanged."""

    group: str
    owner: Owner
    rows: tuple[PutRow, ...]


class DeleteRow(NamedTuple):
    """Row of `DeleteLocks`: the lock ends only if `owner` has it then."""

    group: str
    topic: str
    queue_id: int
    owner: Owner


class DeleteLocks(msgspec.Struct, frozen=True):
    """Command that ends locks. A lock that is not owned by the owner in its row is unchanged."""

    rows: tuple[DeleteRow, ...]


LOCK_COMMANDS: Final[Kinds] = {31: PutLocks, 32: DeleteLocks}


class LockFrame(msgspec.Struct, frozen=True, tag="locks"):
    """Frame with locks and their owners."""

    rows: list[tuple[LockKey, Owner]]


class LockTable(Table):
    """Table of all locks. The deletion of a topic or a group ends no lock.

    The owner believes in its lock until its lease ends. If the lock were gone, two members could consume a queue
    of a topic that is created again.
    """

    __slots__ = ("_by_group", "digest")

    digest: int

    frames = (LockFrame,)

    def __init__(self) -> None:
        self._by_group: dict[str, dict[LockKey, Owner]] = {}
        self.digest = 0

    def __iter__(self) -> Iterator[tuple[LockKey, Owner]]:
        for locks in self._by_group.values():
            yield from locks.items()

    def __len__(self) -> int:
        return sum(map(len, self._by_group.values()))

    def owner(self, key: LockKey) -> Owner | None:
        """Return the owner of a queue, None if nobody has locked it."""
        return self.of_group(key.group).get(key)

    def of_group(self, group: str) -> Mapping[LockKey, Owner]:
        """Return the locks of a group with their owners."""
        return self._by_group.get(group, {})

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        _ = entry, changes
        match command:
            case PutLocks(group=group, owner=owner, rows=rows):
                for row in rows:
                    key = LockKey(group, row.topic, row.queue_id)
                    if self.owner(key) == row.expected:
                        self._put(key, owner)
            case DeleteLocks(rows=rows):
                for deleted in rows:
                    key = LockKey(deleted.group, deleted.topic, deleted.queue_id)
                    if self.owner(key) == deleted.owner:
                        self._remove(key)

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        _ = now
        rows = list(self)
        return {"locks": map(LockFrame, in_slices(rows))} if rows else {}

    def restore_frame(self, frame: Frame, now: float) -> None:
        _ = now
        match frame:
            case LockFrame(rows=rows):
                for key, owner in rows:
                    self._put(key, owner)

    def _put(self, key: LockKey, owner: Owner) -> None:
        self._remove(key)
        self._by_group.setdefault(key.group, {})[key] = owner
        self.digest = (self.digest + _hash(key, owner)) & MASK

    def _remove(self, key: LockKey) -> None:
        locks = self._by_group.get(key.group, {})
        owner = locks.pop(key, None)
        if owner is None:
            return
        self.digest = (self.digest - _hash(key, owner)) & MASK
        if not locks:
            del self._by_group[key.group]


LOCKS: Final = TableKey("locks", LockTable)


def _hash(key: LockKey, owner: Owner) -> int:
    return item_hash("lock", *key, *owner)

"""Table of queue locks: which member of a consumer group owns which queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from dledger.statemachine import CommittedEntry
from dledger_broker.kernel.commands import Command, Kinds
from dledger_broker.kernel.digest import MASK, item_hash
from dledger_broker.kernel.tables import Changes, Frame, Table, TableKey, in_slices

NAME: Final = "locks"
"""Name of the feature, which is never another one: it is recorded when it is activated."""


class Owner(NamedTuple):
    """A client, which its account and the id that it gives itself tell from others; without an account that is ""."""

    account: str
    client_id: str


class LockKey(NamedTuple):
    """A queue as a consumer group locks it; neither has to exist."""

    group: str
    topic: str
    queue_id: int


class PutRow(NamedTuple):
    """One lock that changes hands, if `expected` owns it then; None: if nobody does."""

    topic: str
    queue_id: int
    expected: Owner | None


class PutLocks(msgspec.Struct, frozen=True):
    """Give `owner` those of these queues that who is expected owns; the others stay as they are."""

    group: str
    owner: Owner
    rows: tuple[PutRow, ...]


class DeleteRow(NamedTuple):
    """One lock that ends, if `owner` has it then."""

    group: str
    topic: str
    queue_id: int
    owner: Owner


class DeleteLocks(msgspec.Struct, frozen=True):
    """End those of these locks that who is named owns; the others stay as they are."""

    rows: tuple[DeleteRow, ...]


LOCK_COMMANDS: Final[Kinds] = {31: PutLocks, 32: DeleteLocks}


class LockFrame(msgspec.Struct, frozen=True, tag="locks"):
    """Locks: each a key and its owner."""

    rows: list[tuple[LockKey, Owner]]


class LockTable(Table):
    """All locks. The deletion of a topic or a group ends none: until its lease ends the owner believes that it has it,
    and a topic that is made anew would be consumed by two.
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
        """Who has a queue, or None."""
        return self.of_group(key.group).get(key)

    def of_group(self, group: str) -> Mapping[LockKey, Owner]:
        """The locks of a group."""
        return self._by_group.get(group, {})

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        """See `Table.apply`."""
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
        """See `Table.capture_frames`."""
        _ = now
        rows = list(self)
        return {"locks": map(LockFrame, in_slices(rows))} if rows else {}

    def restore_frame(self, frame: Frame, now: float) -> None:
        """See `Table.restore_frame`."""
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

"""Table of quotas: what operators have set for accounts and for topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from dledger.statemachine import CommittedEntry
from dledger_broker.kernel.commands import Command, Kinds
from dledger_broker.kernel.digest import MASK, item_hash
from dledger_broker.kernel.tables import Changes, Frame, Table, TableKey, in_slices

NAME: Final = "quotas"
"""Name of the feature, which is never another one: it is recorded when it is activated."""


class QuotaKind(StrEnum):
    """What a quota limits: what an account sends, what a topic is sent, and what of them is read."""

    ACCOUNT = "account"
    TOPIC = "topic"
    ACCOUNT_READS = "account-reads"
    TOPIC_READS = "topic-reads"


class QuotaOwner(NamedTuple):
    """An account or a topic, there or not."""

    kind: str
    name: str


class PutQuota(msgspec.Struct, frozen=True):
    """The limits of an account or a topic from now on, in a second; 0 is none. Without any there is no quota."""

    kind: str
    name: str
    messages: int = 0
    size: int = 0


QUOTA_COMMANDS: Final[Kinds] = {63: PutQuota}


class QuotaFrame(msgspec.Struct, frozen=True, tag="quotas"):
    """Quotas, in the order of their owners."""

    rows: list[PutQuota]


class QuotaTable(Table):
    """All quotas, by whose they are. `changes` counts what this replica has applied to it.

    The quota of a deleted topic stays: a topic that sends create anew is limited as it was.
    """

    __slots__ = ("_quotas", "changes", "digest")

    digest: int

    frames = (QuotaFrame,)

    def __init__(self) -> None:
        self._quotas: dict[QuotaOwner, PutQuota] = {}
        self.digest = 0
        self.changes = 0

    def __len__(self) -> int:
        return len(self._quotas)

    def get(self, owner: QuotaOwner) -> PutQuota | None:
        """The quota of an account or a topic."""
        return self._quotas.get(owner)

    def rows(self) -> list[PutQuota]:
        """All of them, in the order of their owners."""
        return [self._quotas[owner] for owner in sorted(self._quotas)]

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        """See `Table.apply`."""
        _ = entry, changes
        match command:
            case PutQuota():
                self._put(command)

    def _put(self, put: PutQuota) -> None:
        self.changes += 1
        owner = QuotaOwner(put.kind, put.name)
        old = self._quotas.pop(owner, None)
        if old is not None:
            self.digest = (self.digest - _hash(old)) & MASK
        if put.messages or put.size:
            self._quotas[owner] = put
            self.digest = (self.digest + _hash(put)) & MASK

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        """See `Table.capture_frames`."""
        _ = now
        return {"quotas": map(QuotaFrame, in_slices(self.rows()))} if self._quotas else {}

    def restore_frame(self, frame: Frame, now: float) -> None:
        """See `Table.restore_frame`."""
        _ = now
        match frame:
            case QuotaFrame(rows=rows):
                for row in rows:
                    self._put(row)


QUOTAS: Final = TableKey(NAME, QuotaTable)


def _hash(put: PutQuota) -> int:
    return item_hash("quota", put.kind, put.name, put.messages, put.size)
